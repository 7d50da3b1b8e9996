#include "streams/rng.h"

#include <numeric>
#include <set>

#include "support/catch.h"

using namespace scmp;

TEST_CASE("default Sobol is the bit-reversed Gray code") {
  const auto values = sobol_sequence(default_sobol_seed(SobolSeed::q, 3), 3);
  CHECK(values == std::vector<uint16_t>{0, 4, 6, 2, 3, 7, 5, 1});
}

TEST_CASE("Sobol sequences are permutations for every precision") {
  for (int p = kMinPrec; p <= kMaxPrec; ++p) {
    for (auto type : {SobolSeed::q, SobolSeed::k}) {
      const auto values = sobol_sequence(default_sobol_seed(type, p), p);
      CHECK(std::set<uint16_t>(values.begin(), values.end()).size() == size_t{1} << p);
    }
  }
}

TEST_CASE("default k seeds") {
  CHECK(default_sobol_seed(SobolSeed::k, 8) == std::vector<int64_t>{1, 1, 1, 1, 9, 1, 41, 255});
  CHECK(default_sobol_seed(SobolSeed::k, 4) == std::vector<int64_t>{1, 1, 1, 1});
  CHECK(default_sobol_seed(SobolSeed::k, 6) == std::vector<int64_t>{1, 1, 1, 1, 9, 1});
  CHECK(default_sobol_seed(SobolSeed::k, 9)[6] == 41);
  CHECK(default_sobol_seed(SobolSeed::k, 9)[7] == 1);
}

TEST_CASE("LFSR emits its register, then shifts right") {
  // Register 0b001, taps {0, 1}: feedback 1 ^ 0 = 1 enters at bit 2.
  const auto values = lfsr_sequence(1, {0, 1}, 3);
  CHECK(values[0] == 1);
  CHECK(values[1] == 0b100);
  CHECK(values[2] == 0b010);
  CHECK(values[3] == 0b101);
}

TEST_CASE("true_random is CPython's Mersenne Twister") {
  // [random.Random(seed).randint(0, 255) for 6 draws] and a 64-bit seed at 12 bits, from
  // CPython 3.11.
  const auto values = true_random_sequence(31, 8);
  CHECK(std::vector<uint16_t>(values.begin(), values.begin() + 6) ==
        std::vector<uint16_t>{6, 240, 57, 201, 72, 22});
  const auto wide = true_random_sequence(9007199254740993ull, 12);
  CHECK(std::vector<uint16_t>(wide.begin(), wide.begin() + 6) ==
        std::vector<uint16_t>{2884, 2538, 2762, 968, 3225, 1134});
  CHECK(wide.size() == 4096);
}
