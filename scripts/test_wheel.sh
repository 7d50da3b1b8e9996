#!/usr/bin/env bash
# Tests an installed wheel from outside the source tree: scripts/test_wheel.sh WHEEL [all]
# Makes a fresh venv that takes torch and pytest from PYTHON's (default: .venv, else python3), and
# runs a quick selection of tests_py, or all of it, in a folder without the package's sources.
set -euo pipefail
wheel=$(realpath "${1:?usage: $0 WHEEL [all]}")
which=${2:-quick}
root=$(realpath "$(dirname "$0")/..")
cd "$root"
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export SCMP_GOLDEN="${SCMP_GOLDEN:-$root/../shared/golden}"
unset PYTHONPATH SCMP_BUILD_DIR

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv --system-site-packages "$work/venv"
# A venv made from a venv sees the system's packages only: add those of the one in between.
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/parent.pth"
"$work/venv/bin/pip" install --quiet --no-index --no-deps --force-reinstall "$wheel"

mkdir "$work/outside"
cp -r tests_py benchmarks examples docs README.md pyproject.toml "$work/outside"
cd "$work/outside"

# Without a GPU and a CUDA toolkit; a build without CUDA needs no CUDA library either.
env -u CUDA_HOME -u CUDA_PATH -u LD_LIBRARY_PATH -u LIBRARY_PATH \
  CUDA_VISIBLE_DEVICES= PATH=/usr/bin:/bin "$work/venv/bin/python" - "$site" <<'PYTHON'
import subprocess
import sys
from pathlib import Path

import torch

import scmp_kernels

folder = Path(scmp_kernels.__file__).parent
assert folder.parent == Path(sys.argv[1]), f"{folder} is not the wheel's"
a, b = torch.randn(4, 64), torch.randn(3, 64)
assert scmp_kernels.sc_matmul(a, b).shape == (4, 3)
info = scmp_kernels.build_info()
for library in folder.glob("*.so"):
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert info["cuda"] or "cuda" not in needed.stdout, f"{library} needs CUDA"
print(f"scmp_kernels {info['version']} in {folder}, cuda: {info['cuda']}")
PYTHON

quick=(schema semantics errors golden autograd prepared prepared_state rng rng_cpp mp_classifiers)
tests=()
[ "$which" = all ] || tests=("${quick[@]/#/tests_py/test_}") && tests=("${tests[@]/%/.py}")
"$work/venv/bin/python" -m pytest -p no:cacheprovider "${tests[@]}"
