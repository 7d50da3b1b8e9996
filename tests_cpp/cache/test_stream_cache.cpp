#include "cache/stream_cache.h"

#include <atomic>
#include <thread>

#include "common/error.h"
#include "gemm/cpu/gemm_cpu.h"
#include "support/catch.h"
#include "support/problems.h"

using namespace scmp;

namespace {

const char kJson[] = R"({"rng_pool": [{"type": "sobol"}], "sng": {"q": [{"rng_id": 0}],
                         "k": [{"rng_id": 0}]}})";

StreamSpec spec_of(int length) {
  StreamSpec spec;
  spec.length = length;
  spec.positions = 4;
  return spec;
}

}  // namespace

TEST_CASE("everything that shapes a sequence is in the key") {
  const StreamSpec base = spec_of(100);
  StreamSpec other = base;
  const std::string key = stream_key(base);
  other.length = 99;
  CHECK(stream_key(other) != key);
  other = base;
  other.levels = 128;
  CHECK(stream_key(other) != key);
  other = base;
  other.scramble.mode = ScrambleMode::counter;
  CHECK(stream_key(other) != key);
  other = base;
  other.scramble.masks = 2;
  CHECK(stream_key(other) != key);
  other = base;
  other.config = resolve_config(kJson);
  CHECK(stream_key(other) != key);
}

TEST_CASE("the default config shares an entry for any D beyond the masks") {
  StreamSpec a = spec_of(100), b = spec_of(100);
  a.positions = 64;
  b.positions = 100000;
  CHECK(stream_key(a) == stream_key(b));
}

TEST_CASE("a registered config resolves until its last owner leaves") {
  const std::string digest = "sha256:abc";
  CHECK_THROWS_WITH(resolve_config(digest), Mentions(digest, "live"));
  register_config(digest, kJson);
  register_config(digest, kJson);
  const auto config = resolve_config(digest);
  rng_cache().clear();
  CHECK(resolve_config(digest) == config);
  unregister_config(digest);
  CHECK(resolve_config(digest) == config);
  unregister_config(digest);
  CHECK_THROWS_AS(resolve_config(digest), ValueError);
  CHECK_THROWS_AS(register_config("md5:1", kJson), ValueError);
}

TEST_CASE("8 threads hammer the cache and get the serial bits", "[threads]") {
  const std::vector<ProblemSpec> specs = {{1, 3, 70, 40, 0, 8, 128, 128},
                                          {1, 3, 70, 40, 16, 8, 96, 128},
                                          {2, 2, 9, 20, 0, 8, 64, 256},
                                          {1, 2, 5, 20, 0, 9, 300, 512}};
  std::vector<std::vector<float>> expected;
  for (const auto& spec : specs) {
    RandomProblem problem(spec, 7);
    expected.push_back(problem.outputs(
        [](const GemmProblem& p) { cpu_gemm(p, CpuKernel::reference, serial_for); }));
  }
  const int64_t limit = rng_cache().limit();
  rng_cache().set_limit(int64_t{3} << 20);  // small enough that entries push each other out
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const std::string digest = "sha256:thread" + std::to_string(t % 3);
      for (int round = 0; round < 12; ++round) {
        register_config(digest, kJson);
        if (!resolve_config(digest)) ++wrong;
        const size_t which = (t + round) % specs.size();
        RandomProblem problem(specs[which], 7);
        const auto out = problem.outputs(
            [](const GemmProblem& p) { cpu_gemm(p, current_cpu_kernel(), serial_for); });
        if (out != expected[which]) ++wrong;
        if (round % 5 == t % 5) rng_cache().clear();
        rng_cache().stats();
        unregister_config(digest);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  rng_cache().set_limit(limit);
  CHECK(wrong == 0);
  CHECK(registered_configs() == 0);
}
