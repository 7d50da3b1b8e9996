// The count tables against the cycle-by-cycle multiplier.
#include <cstdlib>

#include "gemm/byte_tables.h"
#include "gemm/cpu/transpose.h"
#include "gemm/rank_tables.h"
#include "gemm/reference.h"
#include "support/catch.h"

using namespace scmp;

namespace {

StreamSet streams_of(int sc_prec, int length, int levels) {
  StreamSpec spec;
  spec.sc_prec = sc_prec;
  spec.length = length;
  spec.levels = levels;
  spec.positions = 5;
  return prepare_streams(spec);
}

struct Grid {
  int sc_prec, length, levels;
};

const Grid kGrids[] = {{8, 128, 128}, {8, 256, 256}, {8, 96, 128}, {8, 64, 256}, {8, 256, 128},
                       {8, 200, 100}, {8, 1, 1},     {8, 7, 2},    {4, 16, 16},  {2, 4, 4},
                       {8, 17, 255},  {7, 128, 128}, {8, 255, 256}};

}  // namespace

TEST_CASE("count_ones is the enable-signal multiplier") {
  const uint16_t a[] = {0, 2, 1, 3}, b[] = {3, 0, 1, 2};
  // Code 2 of a enables cycles 0 and 2; b's generator then emits 3 and 0.
  CHECK(count_ones(a, b, 4, 2, 1) == 1);
  CHECK(count_ones(a, b, 4, 2, 4) == 2);
  CHECK(count_ones(a, b, 4, 0, 4) == 0);
  CHECK(count_ones(a, b, 4, 4, 4) == 4);
}

TEST_CASE("byte tables hold every product") {
  for (const Grid& grid : kGrids) {
    const StreamSet streams = streams_of(grid.sc_prec, grid.length, grid.levels);
    const ByteTables tables(streams, true);
    const ByteLayout& layout = tables.layout();
    INFO(grid.length << " " << grid.levels << " " << layout.why_not);
    REQUIRE(layout.usable);
    for (int64_t lane = 0; lane < streams.lanes; ++lane) {
      for (int a = -grid.levels; a <= grid.levels; a += 1 + grid.levels / 9) {
        const EncodedCode code =
            tables.encode_lanes()[lane * tables.encode_size() + a + grid.levels];
        const int k = std::abs(encoded_cycles(code));
        const int e = encoded_extra(code) - layout.offset();
        const uint8_t* row = tables.lanes() + lane * tables.lane_bytes() + k * layout.width;
        for (int b = 0; b <= grid.levels; ++b) {
          const int index = layout.capped ? std::min(b, grid.levels - 1) : b;
          const bool top = layout.capped && b == grid.levels;
          const int64_t expected =
              count_ones(streams.a_lane(lane), streams.b_lane(lane), grid.length, std::abs(a), b);
          if (row[index] + (top ? std::abs(e) : 0) != expected) {
            FAIL("lane " << lane << " a " << a << " b " << b);
          }
          if (layout.narrow && row[index] > 127) FAIL("not narrow");
        }
      }
    }
  }
}

TEST_CASE("the byte layout says why not") {
  CHECK(choose_byte_layout(streams_of(9, 100, 512)).why_not.find("512") != std::string::npos);
  CHECK_FALSE(choose_byte_layout(streams_of(9, 512, 128)).usable);
  CHECK_FALSE(choose_byte_layout(streams_of(8, 256, 2)).usable);
  const ByteLayout main = choose_byte_layout(streams_of(8, 128, 128));
  CHECK(main.width == 128);
  CHECK(main.narrow);
  CHECK(main.capped);
}

TEST_CASE("rank tables answer every product") {
  const Grid grids[] = {
      {8, 256, 256}, {9, 512, 512}, {12, 4096, 4096}, {12, 3000, 100}, {10, 1, 1}};
  for (const Grid& grid : grids) {
    const StreamSet streams = streams_of(grid.sc_prec, grid.length, grid.levels);
    const RankTables tables(streams, RankOf::b, true);
    std::vector<uint16_t> cycles(grid.levels + 1);
    for (int64_t lane = 0; lane < streams.lanes; ++lane) {
      prefix_counts(streams.a_lane(lane), grid.length, grid.levels, cycles.data());
      for (int a = 0; a <= grid.levels; a += 1 + grid.levels / 17) {
        for (int b = 0; b <= grid.levels; b += 1 + grid.levels / 13) {
          const int k = cycles[a];
          const uint64_t word = tables.lane(lane)[int64_t{k / kRankBits} * (grid.levels + 1) + b];
          const int64_t count = static_cast<int64_t>(word >> kRankBits) +
                                __builtin_popcountll(word & ((uint64_t{1} << k % kRankBits) - 1));
          if (count != count_ones(streams.a_lane(lane), streams.b_lane(lane), grid.length, a, b)) {
            FAIL("lane " << lane << " a " << a << " b " << b);
          }
        }
      }
    }
  }
}

TEST_CASE("byte transpose") {
  uint8_t in[16][16], out[16 * 20];
  const uint8_t* rows[16];
  for (int i = 0; i < 16; ++i) {
    rows[i] = in[i];
    for (int j = 0; j < 16; ++j) in[i][j] = static_cast<uint8_t>(16 * i + j);
  }
  transpose_16x16(rows, out, 20);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) CHECK(out[i * 20 + j] == in[j][i]);
  }
}
