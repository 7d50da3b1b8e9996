// Prepared sequences: what both operands compare their codes with, cycle by cycle.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "streams/config.h"
#include "streams/environment.h"

namespace scmp {

/// What shapes a call's sequences.
struct StreamSpec {
  int sc_prec = 8;
  int length = 256;       // stoc_len: cycles
  int levels = 256;       // rng_levels: grid
  int64_t positions = 0;  // of the call, or of one chunk
  ScrambleSettings scramble;
  std::shared_ptr<const RngConfig> config;  // null: default Sobol pair
  // For calls that mix full sequences with shorter ones on a grid where those differ: the set then
  // has 2 * positions, position j of the call as shortened at 2j and as full at 2j + 1.
  bool full_and_shorter = false;
};

/// Positions with equal sequences share a lane: the default config has at most `masks` of them.
struct StreamSet {
  int length = 0;
  int levels = 0;
  int64_t lanes = 0;
  std::vector<uint16_t> a, b;    // (lanes, length) values in [0, levels)
  std::vector<int32_t> lane_of;  // per position; empty: position modulo lanes
  int max_top = 0, min_top = 0;  // most and fewest cycles of b at level levels-1, over lanes

  int64_t lane(int64_t position) const {
    return lane_of.empty() ? position % lanes : lane_of[position];
  }
  const uint16_t* a_lane(int64_t lane) const { return a.data() + lane * length; }
  const uint16_t* b_lane(int64_t lane) const { return b.data() + lane * length; }
  size_t bytes() const {
    return (a.size() + b.size()) * sizeof(uint16_t) + lane_of.size() * sizeof(int32_t);
  }
};

/// Whether the settings and lengths call for scrambling at all.
bool scrambles(const StreamSpec& spec);

/// Whether the sequences of every length are prefixes of one: a full sequence on the full grid may
/// be another than the shorter ones.
bool lengths_share_sequences(const StreamSpec& spec);

StreamSet prepare_streams(const StreamSpec& spec);

/// counts[c] = number of cycles t with values[t] < c, for c in 0..levels.
void prefix_counts(const uint16_t* values, int length, int levels, uint16_t* counts);

}  // namespace scmp
