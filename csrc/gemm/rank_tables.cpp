#include "gemm/rank_tables.h"

#include <algorithm>
#include <vector>

namespace scmp {

RankTables::RankTables(const StreamSet& streams, RankOf operand, bool all_lanes)
    : operand_(operand), rows_(streams.length / kRankBits + 1), levels_(streams.levels) {
  if (!all_lanes) return;
  words_ = Buffer<uint64_t>(streams.lanes * lane_words());
  for (int64_t i = 0; i < streams.lanes; ++i) {
    build_lane(streams, i, words_.data() + i * lane_words());
  }
}

int64_t RankTables::total_bytes(const StreamSet& streams) {
  return streams.lanes * (streams.length / kRankBits + 1) * int64_t{streams.levels + 1} *
         int64_t{sizeof(uint64_t)};
}

void RankTables::build_lane(const StreamSet& streams, int64_t lane, uint64_t* words) const {
  const uint16_t* values = operand_ == RankOf::a ? streams.a_lane(lane) : streams.b_lane(lane);
  std::vector<uint16_t> before(levels_ + 1, 0);  // counts of all earlier words
  std::vector<uint64_t> cycles_at(levels_);      // bit t: the value of cycle t of this word
  for (int row = 0; row < rows_; ++row) {
    const int first = row * kRankBits, count = std::min(kRankBits, streams.length - first);
    std::fill(cycles_at.begin(), cycles_at.end(), 0);
    for (int t = 0; t < count; ++t) cycles_at[values[first + t]] |= uint64_t{1} << t;
    uint64_t* out = words + int64_t{row} * (levels_ + 1);
    uint64_t below = 0;
    for (int code = 0; code <= levels_; ++code) {
      out[code] = uint64_t{before[code]} << kRankBits | below;
      before[code] = static_cast<uint16_t>(before[code] + __builtin_popcountll(below));
      if (code < levels_) below |= cycles_at[code];
    }
  }
}

}  // namespace scmp
