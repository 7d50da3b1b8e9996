#!/usr/bin/env bash
# Checks a carried build on a machine with a GPU and no network: builds the Python module there (the
# operator library is carried: scmp_kernels/libscmp_kernels.so and _built_with.py), runs the Python
# tests on CUDA, the C++ tests and examples (carried: build/gpu/ops_tests, build/gpu/examples),
# compute-sanitizer on a small set, and the benchmark.
#
#   SCMP_GOLDEN=folder scripts/gpu_check.sh [tests|cpp|sanitizer|benchmark ...]     (default: all)
set -uo pipefail
cd "$(dirname "$0")/.."
: "${SCMP_GOLDEN:?set it to a copy of the golden files}"
[ -f "$SCMP_GOLDEN/sc_matmul_public.npz" ] || { echo "no golden files in $SCMP_GOLDEN"; exit 1; }
[ -f scmp_kernels/libscmp_kernels.so ] || { echo "carry scmp_kernels/libscmp_kernels.so"; exit 1; }
export SCMP_GOLDEN PYTHONPATH=. PYTHONUNBUFFERED=1
[ -d build/gpu/examples ] && export SCMP_EXAMPLE_PROGRAMS=$PWD/build/gpu/examples
# A compiler that links its standard library statically makes packages that crash in torch.
export CC=gcc CXX=g++
steps=${*:-tests cpp sanitizer benchmark}

torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')
python=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
suffix=$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
g++ -O1 -std=c++17 -shared -fPIC -fvisibility=hidden -isystem "$torch/include" -isystem "$python" \
  -Icsrc/include csrc/python/module.cpp -o "scmp_kernels/_C$suffix" \
  scmp_kernels/libscmp_kernels.so -Wl,-rpath,'$ORIGIN' || exit 1

table=()
step() {  # name, command...
  local name=$1 start=$SECONDS
  shift
  "$@"
  local status=$?
  table+=("$(printf '%-28s %-6s %5d s' "$name" "$([ $status = 0 ] && echo pass || echo FAIL)" \
    $((SECONDS - start)))")
  return $status
}

cpp_tests() {
  local program=build/gpu/ops_tests
  [ -x $program ] || { echo "carry $program"; return 1; }
  # The folders that its link names are on another machine; cudart and its like lie beside torch.
  LD_LIBRARY_PATH=scmp_kernels:$torch/lib$(printf ':%s' "$torch"/../nvidia/*/lib) $program
}

failed=0
for part in $steps; do
  case $part in
    tests)
      step "pytest -m cuda" python3 -m pytest -m cuda tests_py -q -p no:cacheprovider || failed=1
      ;;
    cpp)
      step "C++ operator tests" cpp_tests || failed=1
      ;;
    sanitizer)
      for tool in memcheck racecheck synccheck; do
        # All but wgmma kernels under the latter two, which do not know its asynchronous accesses.
        without=()
        [ $tool = memcheck ] || without=(--kernel-name-exclude kernel_substring=Rows
          --kernel-name-exclude kernel_substring=in_place
          --kernel-name-exclude kernel_substring=gemm_sorted)
        step "compute-sanitizer $tool" timeout 300 compute-sanitizer --tool $tool \
          "${without[@]}" --error-exitcode 1 --print-limit 5 python3 scripts/gpu_small.py || failed=1
      done
      ;;
    benchmark)
      step "benchmark" python3 benchmarks/bench_matmul.py --device cuda || failed=1
      ;;
    *)
      echo "unknown step $part"
      exit 2
      ;;
  esac
done
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
printf '%s\n' "${table[@]}"
exit $failed
