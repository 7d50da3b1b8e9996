// Every kernel against the reference, bit for bit.
#include "gemm/cpu/gemm_cpu.h"

#include "support/catch.h"
#include "support/problems.h"

using namespace scmp;

namespace {

std::vector<CpuKernel> kernels_here() {
  const auto names = available_cpu_kernels();
  std::vector<CpuKernel> kernels;
  for (const auto& name : names) {
    if (name == "scalar") kernels.push_back(CpuKernel::scalar);
    if (name == "avx2") kernels.push_back(CpuKernel::avx2);
    if (name == "avx512") kernels.push_back(CpuKernel::avx512);
  }
  return kernels;
}

void check_all(const ProblemSpec& spec, unsigned seed, const ParallelFor& parallel = serial_for) {
  RandomProblem problem(spec, seed);
  const auto expected =
      problem.outputs([](const GemmProblem& p) { cpu_gemm(p, CpuKernel::reference, serial_for); });
  for (CpuKernel kernel : kernels_here()) {
    const auto out = problem.outputs([&](const GemmProblem& p) { cpu_gemm(p, kernel, parallel); });
    INFO("kernel " << static_cast<int>(kernel) << " n " << spec.n << " m " << spec.m << " d "
                   << spec.d << " chunk " << spec.chunk << " L " << spec.length << " G "
                   << spec.levels);
    CHECK(out == expected);
  }
}

class CacheLimit {
 public:
  explicit CacheLimit(int64_t bytes) : before_(rng_cache().limit()) {
    rng_cache().set_limit(bytes);
  }
  ~CacheLimit() { rng_cache().set_limit(before_); }

 private:
  int64_t before_;
};

}  // namespace

TEST_CASE("kernels equal the reference on every table layout") {
  const int grids[][3] = {{8, 128, 128}, {8, 256, 256},  {8, 96, 128}, {8, 64, 256},
                          {8, 256, 128}, {8, 200, 100},  {8, 1, 1},    {8, 256, 2},
                          {4, 16, 16},   {2, 4, 4},      {8, 17, 255}, {9, 512, 512},
                          {10, 700, 99}, {12, 333, 4096}};
  unsigned seed = 0;
  for (const auto& grid : grids) {
    check_all({1, 5, 70, 67, 0, grid[0], grid[1], grid[2]}, ++seed);
    check_all({1, 3, 7, 67, 16, grid[0], grid[1], grid[2]}, ++seed);
    check_all({1, 2, 65, 9, 0, grid[0], grid[1], grid[2], true}, ++seed);
  }
}

TEST_CASE("kernels equal the reference on awkward shapes") {
  unsigned seed = 100;
  for (int64_t n : {1, 65}) {
    for (int64_t m : {1, 63, 64, 129, 257, 320}) {
      for (int64_t d : {1, 2, 63, 65, 130}) check_all({1, n, m, d, 0, 8, 40, 128}, ++seed);
    }
  }
  check_all({3, 2, 70, 33, 0, 8, 128, 128}, ++seed);
  check_all({3, 66, 3, 5, 0, 9, 100, 512}, ++seed);
}

TEST_CASE("kernels equal the reference when every code is at the top") {
  check_all({1, 4, 70, 130, 0, 8, 128, 128, false, 100}, 1);
  check_all({1, 4, 70, 130, 64, 8, 128, 128, false, 100}, 2);
  check_all({1, 4, 70, 130, 0, 8, 256, 256, false, 100}, 3);
  check_all({1, 4, 70, 130, 0, 8, 256, 256, true, 100}, 4);
  check_all({1, 4, 70, 130, 0, 8, 64, 256, false, 60}, 5);
}

TEST_CASE("tables too large to keep are built where they are needed") {
  const CacheLimit limit(1 << 10);
  check_all({1, 5, 70, 130, 0, 8, 128, 128}, 1);
  check_all({1, 5, 70, 130, 48, 8, 256, 128}, 2);
  check_all({1, 5, 70, 30, 0, 9, 200, 512}, 3);   // few outputs: counted cycle by cycle
  check_all({1, 40, 60, 12, 0, 9, 200, 512}, 4);  // rank tables per position
}

TEST_CASE("kernels equal the reference with a config of distinct positions") {
  std::string q, k;
  for (int i = 0; i < 70; ++i) {
    q += std::string(i ? "," : "") + "{\"rng_id\":" + std::to_string(i % 3) + "}";
    k += std::string(i ? "," : "") + "{\"rng_id\":" + std::to_string(i % 4) +
         ",\"complement\":" + (i % 2 ? "true" : "false") + "}";
  }
  const auto config = parse_config(
      R"({"rng_pool": [{"type": "sobol"}, {"type": "lfsr", "seed": 93, "taps": [0, 4, 5, 6]},
          {"type": "true_random", "seed": 5}, {"type": "sobol", "seed_type": "k"}], "sng": {"q": [)" +
      q + R"(], "k": [)" + k + "]}}");
  for (int length : {100, 256}) {
    for (int levels : {128, 256}) {
      ProblemSpec spec{1, 5, 66, 70, 0, 8, length, levels};
      spec.config = config;
      check_all(spec, 11);
    }
  }
}

TEST_CASE("the same bits for any number of threads") {
  check_all({2, 70, 300, 70, 0, 8, 128, 128}, 21, threaded_for);
  check_all({1, 70, 300, 70, 32, 8, 100, 256}, 22, threaded_for);
  check_all({1, 70, 130, 20, 0, 10, 600, 1024}, 23, threaded_for);
}
