// Count tables in bytes: T[k][code of b] for short streams, looked up in registers.
//
// For each lane, row k of the table holds count(k, c) = #{t < k : rb[t] < c} for every code c of b.
// Lookups of 128 (or 256) entries are one (two) shuffles, but codes run from 0 to G inclusive, one
// more than 128 when G = 128. So where needed the top code G is looked up as G - 1 ("capped") and
// the difference e(k) = k - T[k][G-1] is added back by extra table steps (see cpu/pack.h). Signs
// cost one XOR: with flip F (all ones of the value's bits) T ^ F = F - T, so a product of negative
// sign is looked up as F - T and F times the number of such products is subtracted later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/buffer.h"
#include "streams/prepare.h"

namespace scmp {

struct ByteLayout {
  bool usable = false;
  std::string why_not;  // when not usable
  int width = 128;      // entries per row: 128 or 256
  bool narrow = true;   // values below 128: two lookups add up in one byte
  bool capped = false;
  int flip() const { return narrow ? 0x7f : 0xff; }
  int offset() const { return narrow ? 63 : 127; }  // stored e = offset + signed e
};

ByteLayout choose_byte_layout(const StreamSet& streams);

/// Rows k = 0 .. length of `width` counts each: T[k][c] = #{t < k : values[t] < c}.
void fill_count_rows(const uint16_t* values, int length, int width, uint8_t* table);

/// What a code of a becomes; entry c + levels of a lane's encode table, c from -levels to levels.
/// Low 16 bits: sign * cycles that the code keeps stream a on; next 8 bits: offset + sign * e(k).
using EncodedCode = uint32_t;

static inline int16_t encoded_cycles(EncodedCode code) { return static_cast<int16_t>(code); }
static inline uint8_t encoded_extra(EncodedCode code) { return static_cast<uint8_t>(code >> 16); }

class ByteTables {
 public:
  /// Builds every lane, or (all_lanes false) only the layout: lanes are then built where needed.
  ByteTables(const StreamSet& streams, bool all_lanes);

  const ByteLayout& layout() const { return layout_; }
  bool has_lanes() const { return table_.size() > 0; }
  const uint8_t* lanes() const { return table_.data(); }
  const EncodedCode* encode_lanes() const { return encode_.data(); }
  int64_t lane_bytes() const { return int64_t{rows_} * layout_.width; }
  int64_t encode_size() const { return 2 * levels_ + 1; }
  size_t bytes() const { return table_.bytes() + encode_.bytes(); }

  void build_lane(const StreamSet& streams, int64_t lane, uint8_t* table) const;
  void build_encode(const StreamSet& streams, int64_t lane, EncodedCode* encode) const;

  /// Bytes that all lanes would take.
  static int64_t total_bytes(const StreamSet& streams, const ByteLayout& layout);

 private:
  ByteLayout layout_;
  int rows_, levels_;
  Buffer<uint8_t> table_;
  Buffer<EncodedCode> encode_;
};

}  // namespace scmp
