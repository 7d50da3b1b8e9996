// Count tables in bits: for streams too long or grids too fine for bytes, and for cycles of a in
// streams of any length.
//
// count(k, c) = #{t < k : r[t] < c} is a rank query: cycles are cut into words of 48; word w of
// code c holds [rb[t] < c] for its cycles in the low 48 bits and the count of all cycles before it
// in the high 16, so that one load, one mask and one popcount answer it.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "streams/prepare.h"

namespace scmp {

constexpr int kRankBits = 48;

enum class RankOf { a, b };  // whose sequences

class RankTables {
 public:
  RankTables(const StreamSet& streams, RankOf operand, bool all_lanes);

  bool has_lanes() const { return words_.size() > 0; }
  const uint64_t* lane(int64_t lane) const { return words_.data() + lane * lane_words(); }
  int64_t lane_words() const { return int64_t{rows_} * (levels_ + 1); }
  size_t bytes() const { return words_.bytes(); }
  void build_lane(const StreamSet& streams, int64_t lane, uint64_t* words) const;

  /// count(k, code) from a lane's words.
  int count(const uint64_t* words, int k, int code) const {
    const uint64_t word = words[int64_t{k / kRankBits} * (levels_ + 1) + code];
    return static_cast<int>(word >> kRankBits) +
           __builtin_popcountll(word & ((uint64_t{1} << (k % kRankBits)) - 1));
  }

  static int64_t total_bytes(const StreamSet& streams);

 private:
  RankOf operand_;
  int rows_, levels_;
  Buffer<uint64_t> words_;
};

}  // namespace scmp
