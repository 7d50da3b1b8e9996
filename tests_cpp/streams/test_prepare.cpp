#include "streams/prepare.h"

#include "support/catch.h"

using namespace scmp;

namespace {

StreamSpec spec_of(int sc_prec, int length, int levels, int64_t positions) {
  StreamSpec spec;
  spec.sc_prec = sc_prec;
  spec.length = length;
  spec.levels = levels;
  spec.positions = positions;
  return spec;
}

}  // namespace

TEST_CASE("a full sequence on the full grid is used as it is") {
  const StreamSet set = prepare_streams(spec_of(4, 16, 16, 100));
  CHECK(set.lanes == 1);
  CHECK(set.a == sobol_sequence(default_sobol_seed(SobolSeed::q, 4), 4));
  CHECK(set.max_top == 1);
  CHECK(set.min_top == 1);
}

TEST_CASE("a truncated sequence is XORed with the position's mask, the same for both operands") {
  const StreamSet set = prepare_streams(spec_of(8, 64, 256, 100));
  CHECK(set.lanes == 64);
  const auto a = sobol_sequence(default_sobol_seed(SobolSeed::q, 8), 8);
  const auto b = sobol_sequence(default_sobol_seed(SobolSeed::k, 8), 8);
  const auto masks = scramble_masks(ScrambleSettings{}, 8);
  for (int64_t lane : {0, 1, 63}) {
    for (int t = 0; t < 64; ++t) {
      CHECK(set.a_lane(lane)[t] == (a[t] ^ masks[lane]));
      CHECK(set.b_lane(lane)[t] == (b[t] ^ masks[lane]));
    }
  }
  CHECK(set.lane(64) == 0);
}

TEST_CASE("on another grid values are rescaled after the scrambling, at every length") {
  const StreamSet set = prepare_streams(spec_of(8, 256, 100, 3));
  CHECK(set.lanes == 3);
  const auto b = sobol_sequence(default_sobol_seed(SobolSeed::k, 8), 8);
  const auto masks = scramble_masks(ScrambleSettings{}, 8);
  for (int t = 0; t < 256; ++t) CHECK(set.b_lane(2)[t] == (b[t] ^ masks[2]) * 100 / 256);
}

TEST_CASE("scrambling rules") {
  StreamSpec full = spec_of(8, 256, 256, 1), half = spec_of(8, 128, 128, 1);
  CHECK_FALSE(scrambles(full));
  full.length = 255;
  CHECK(scrambles(full));
  CHECK(scrambles(half));
  half.scramble.rescaled_grid = false;
  CHECK_FALSE(scrambles(half));
  full.scramble.rescaled_grid = false;
  CHECK(scrambles(full));
  full.scramble.mode = ScrambleMode::off;
  CHECK_FALSE(scrambles(full));
}

TEST_CASE("positions of a config share lanes when their sequences and masks agree") {
  StreamSpec spec = spec_of(3, 8, 8, 4);  // unscrambled
  spec.config =
      parse_config(R"({"rng_pool": [{"type": "sobol"}, {"type": "sobol", "seed_type": "k"}],
      "sng": {"q": [{"rng_id": 0}, {"rng_id": 0}, {"rng_id": 1}, {"rng_id": 0}],
              "k": [{"rng_id": 1}, {"rng_id": 1}, {"rng_id": 1}, {"rng_id": 0}]}})");
  const StreamSet set = prepare_streams(spec);
  CHECK(set.lane_of == std::vector<int32_t>{0, 0, 1, 2});
  CHECK(set.lanes == 3);
}

TEST_CASE("prefix counts") {
  const uint16_t values[] = {3, 0, 3, 1};
  uint16_t counts[5];
  prefix_counts(values, 4, 4, counts);
  CHECK(std::vector<uint16_t>(counts, counts + 5) == std::vector<uint16_t>{0, 1, 2, 2, 4});
}
