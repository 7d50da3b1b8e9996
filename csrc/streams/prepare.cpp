#include "streams/prepare.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace scmp {
namespace {

// The distinct sng of one operand: index per position, and the sequences themselves.
struct Sequences {
  std::vector<int32_t> of_position;
  std::vector<std::vector<uint16_t>> values;
};

Sequences distinct_sequences(const RngConfig& config, const std::vector<SngSpec>& sngs,
                             int64_t positions, int sc_prec) {
  Sequences result;
  std::map<std::tuple<int, std::vector<int64_t>, bool>, int32_t> known;
  for (int64_t d = 0; d < positions; ++d) {
    const SngSpec& sng = sngs[d];
    const auto [it, added] = known.try_emplace({sng.rng, sng.scramble, sng.complement},
                                               static_cast<int32_t>(result.values.size()));
    if (added) result.values.push_back(sng_sequence(config, sng, sc_prec));
    result.of_position.push_back(it->second);
  }
  return result;
}

void append_lane(const StreamSpec& spec, const std::vector<uint16_t>& values, uint16_t mask,
                 std::vector<uint16_t>& out) {
  const int base = 1 << spec.sc_prec;
  for (int t = 0; t < spec.length; ++t) {
    uint32_t value = values[t] ^ mask;
    if (spec.levels != base) value = value * spec.levels / base;
    out.push_back(static_cast<uint16_t>(value));
  }
}

void find_tops(StreamSet& set) {
  set.min_top = set.lanes ? set.length : 0;
  for (int64_t lane = 0; lane < set.lanes; ++lane) {
    const uint16_t* values = set.b_lane(lane);
    const int top = static_cast<int>(
        std::count(values, values + set.length, static_cast<uint16_t>(set.levels - 1)));
    set.max_top = std::max(set.max_top, top);
    set.min_top = std::min(set.min_top, top);
  }
}

// Lanes of `shorter` (one cycle short of `full`) and `full` in turn.
StreamSet interleave(const StreamSet& shorter, const StreamSet& full) {
  StreamSet set;
  set.length = full.length;
  set.levels = full.levels;
  const auto append = [&](const StreamSet& from, int64_t lane) {
    set.a.insert(set.a.end(), from.a_lane(lane), from.a_lane(lane) + from.length);
    set.b.insert(set.b.end(), from.b_lane(lane), from.b_lane(lane) + from.length);
    set.a.resize(++set.lanes * set.length, 0);  // the cycle that shorter streams never reach
    set.b.resize(set.lanes * set.length, 0);
  };
  if (shorter.lane_of.empty()) {
    for (int64_t lane = 0; lane < shorter.lanes; ++lane) {
      append(shorter, lane);
      append(full, full.lane(lane));
    }
  } else {
    for (int64_t lane = 0; lane < shorter.lanes; ++lane) append(shorter, lane);
    for (int64_t lane = 0; lane < full.lanes; ++lane) append(full, lane);
    for (size_t position = 0; position < shorter.lane_of.size(); ++position) {
      set.lane_of.push_back(shorter.lane_of[position]);
      set.lane_of.push_back(static_cast<int32_t>(shorter.lanes) + full.lane_of[position]);
    }
  }
  find_tops(set);
  return set;
}

StreamSpec of_length(StreamSpec spec, int length) {
  spec.length = length;
  spec.full_and_shorter = false;
  return spec;
}

}  // namespace

bool scrambles(const StreamSpec& spec) {
  if (spec.scramble.mode == ScrambleMode::off) return false;
  const int base = 1 << spec.sc_prec;
  if (spec.levels == base) return spec.length < base;
  return spec.scramble.rescaled_grid;
}

bool lengths_share_sequences(const StreamSpec& spec) {
  const int base = 1 << spec.sc_prec;
  return scrambles(of_length(spec, base)) == scrambles(of_length(spec, base - 1));
}

StreamSet prepare_streams(const StreamSpec& spec) {
  if (spec.full_and_shorter) {
    const int base = 1 << spec.sc_prec;
    return interleave(prepare_streams(of_length(spec, base - 1)),
                      prepare_streams(of_length(spec, base)));
  }
  StreamSet set;
  set.length = spec.length;
  set.levels = spec.levels;
  const std::vector<uint16_t> masks =
      scrambles(spec) ? scramble_masks(spec.scramble, spec.sc_prec) : std::vector<uint16_t>{0};
  const auto mask_count = static_cast<int64_t>(masks.size());
  if (!spec.config) {
    const auto a = sobol_sequence(default_sobol_seed(SobolSeed::q, spec.sc_prec), spec.sc_prec);
    const auto b = sobol_sequence(default_sobol_seed(SobolSeed::k, spec.sc_prec), spec.sc_prec);
    set.lanes = std::min(spec.positions, mask_count);
    for (int64_t lane = 0; lane < set.lanes; ++lane) {
      append_lane(spec, a, masks[lane], set.a);
      append_lane(spec, b, masks[lane], set.b);
    }
  } else {
    const auto a = distinct_sequences(*spec.config, spec.config->a, spec.positions, spec.sc_prec);
    const auto b = distinct_sequences(*spec.config, spec.config->b, spec.positions, spec.sc_prec);
    std::map<std::tuple<int32_t, int32_t, uint16_t>, int32_t> known;
    for (int64_t d = 0; d < spec.positions; ++d) {
      const uint16_t mask = masks[d % mask_count];
      const auto [it, added] = known.try_emplace({a.of_position[d], b.of_position[d], mask},
                                                 static_cast<int32_t>(set.lanes));
      if (added) {
        append_lane(spec, a.values[a.of_position[d]], mask, set.a);
        append_lane(spec, b.values[b.of_position[d]], mask, set.b);
        ++set.lanes;
      }
      set.lane_of.push_back(it->second);
    }
  }
  find_tops(set);
  return set;
}

void prefix_counts(const uint16_t* values, int length, int levels, uint16_t* counts) {
  std::fill(counts, counts + levels + 1, uint16_t{0});
  for (int t = 0; t < length; ++t) ++counts[values[t] + 1];
  for (int c = 0; c < levels; ++c) counts[c + 1] = static_cast<uint16_t>(counts[c + 1] + counts[c]);
}

}  // namespace scmp
