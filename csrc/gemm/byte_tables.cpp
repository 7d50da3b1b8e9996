#include "gemm/byte_tables.h"

#include <algorithm>
#include <vector>

#include "common/error.h"

namespace scmp {
namespace {

// A layout for one choice of capping, usable or not.
ByteLayout try_layout(const StreamSet& streams, bool capped) {
  ByteLayout layout;
  layout.capped = capped;
  const int entries = streams.levels + (capped ? 0 : 1);
  const int most = capped ? streams.length - streams.min_top : streams.length;
  const int extra = capped ? streams.max_top : 0;
  layout.width = entries <= 128 ? 128 : 256;
  layout.narrow = most <= 127 && extra <= 63;
  if (entries > 256) {
    layout.why_not = concat("rng_levels ", streams.levels, " needs more than 256 table entries");
  } else if (most > 255) {
    layout.why_not = concat("counts up to ", most, " do not fit a byte");
  } else if (extra > 127) {
    layout.why_not = concat("the top level repeats ", extra, " times in one sequence");
  }
  layout.usable = layout.why_not.empty();
  return layout;
}

}  // namespace

ByteLayout choose_byte_layout(const StreamSet& streams) {
  const ByteLayout plain = try_layout(streams, false), capped = try_layout(streams, true);
  if (!plain.usable || !capped.usable) return plain.usable ? plain : capped;
  const auto cost = [](const ByteLayout& l) { return l.width * 2 - l.narrow; };
  return cost(capped) < cost(plain) ? capped : plain;
}

void fill_count_rows(const uint16_t* values, int length, int width, uint8_t* table) {
  std::fill(table, table + width, uint8_t{0});
  for (int k = 0; k < length; ++k) {
    const uint8_t* row = table + int64_t{k} * width;
    uint8_t* next = table + int64_t{k + 1} * width;
    for (int c = 0; c < width; ++c) next[c] = static_cast<uint8_t>(row[c] + (c > values[k]));
  }
}

ByteTables::ByteTables(const StreamSet& streams, bool all_lanes)
    : layout_(choose_byte_layout(streams)), rows_(streams.length + 1), levels_(streams.levels) {
  if (!all_lanes) return;
  table_ = Buffer<uint8_t>(streams.lanes * lane_bytes());
  encode_ = Buffer<EncodedCode>(streams.lanes * encode_size());
  for (int64_t lane = 0; lane < streams.lanes; ++lane) {
    build_lane(streams, lane, table_.data() + lane * lane_bytes());
    build_encode(streams, lane, encode_.data() + lane * encode_size());
  }
}

int64_t ByteTables::total_bytes(const StreamSet& streams, const ByteLayout& layout) {
  return streams.lanes * ((streams.length + 1) * int64_t{layout.width} +
                          (2 * streams.levels + 1) * int64_t{sizeof(EncodedCode)});
}

void ByteTables::build_lane(const StreamSet& streams, int64_t lane, uint8_t* table) const {
  fill_count_rows(streams.b_lane(lane), streams.length, layout_.width, table);
}

void ByteTables::build_encode(const StreamSet& streams, int64_t lane, EncodedCode* encode) const {
  std::vector<uint16_t> cycles(levels_ + 1), tops(streams.length + 1, 0);
  prefix_counts(streams.a_lane(lane), streams.length, levels_, cycles.data());
  const uint16_t* values = streams.b_lane(lane);
  for (int k = 0; k < streams.length; ++k) {
    tops[k + 1] = static_cast<uint16_t>(tops[k] + (values[k] == levels_ - 1));
  }
  for (int code = -levels_; code <= levels_; ++code) {
    const int k = cycles[std::abs(code)];
    const int e = layout_.capped ? tops[k] : 0;
    const auto cycles_bits = static_cast<uint16_t>(code < 0 ? -k : k);
    const auto extra_bits = static_cast<uint8_t>(layout_.offset() + (code < 0 ? -e : e));
    encode[code + levels_] = cycles_bits | static_cast<uint32_t>(extra_bits) << 16;
  }
}

}  // namespace scmp
