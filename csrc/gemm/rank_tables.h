// Count tables in bits, for streams too long or grids too fine for bytes.
//
// count(k, c) = #{t < k : rb[t] < c} is a rank query: cycles are cut into words of 48; word w of
// code c holds [rb[t] < c] for its cycles in the low 48 bits and the count of all cycles before it
// in the high 16, so that one load, one mask and one popcount answer it.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "streams/prepare.h"

namespace scmp {

constexpr int kRankBits = 48;

class RankTables {
 public:
  RankTables(const StreamSet& streams, bool all_lanes);

  bool has_lanes() const { return words_.size() > 0; }
  const uint64_t* lane(int64_t lane) const { return words_.data() + lane * lane_words(); }
  int64_t lane_words() const { return int64_t{rows_} * (levels_ + 1); }
  size_t bytes() const { return words_.bytes(); }
  void build_lane(const StreamSet& streams, int64_t lane, uint64_t* words) const;

  static int64_t total_bytes(const StreamSet& streams);

 private:
  int rows_, levels_;
  Buffer<uint64_t> words_;
};

}  // namespace scmp
