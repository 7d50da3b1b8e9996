#include "streams/config.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "common/error.h"

namespace scmp {
namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::string shown(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) {
    if (text.size() > 70) return "[" + text + ", ...]";
    text += (text.empty() ? "" : ", ") + std::to_string(value);
  }
  return "[" + text + "]";
}

// One line of bounded ASCII: what a parser says may quote half a character of the input.
std::string printable(std::string text) {
  if (text.size() > 200) text = text.substr(0, 197) + "...";
  for (char& c : text) {
    if (c == '\n') c = ' ';
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

constexpr int kMostNesting = 16;  // a config has 5; deeper text would exhaust recursive printing

// Most brackets open at once, those inside strings counted too: an upper bound.
int nesting(const std::string& json) {
  int depth = 0, most = 0;
  for (char c : json) {
    if (c == '[' || c == '{') most = std::max(most, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return most;
}

void expect_keys(const Json& object, const std::string& where,
                 std::initializer_list<const char*> allowed) {
  require(object.is_object(), "config: ", where, " must be an object, got ", shown(object));
  for (const auto& item : object.items()) {
    const bool known = std::any_of(allowed.begin(), allowed.end(),
                                   [&](const char* key) { return item.key() == key; });
    std::string list;
    for (const char* key : allowed) list += (list.empty() ? "" : ", ") + std::string(key);
    require(known, "config: ", where, " has the unknown key ", shown(item.key()),
            "; allowed: ", list);
  }
}

const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

int64_t integer(const Json& value, const std::string& where) {
  require(value.is_number_integer(), "config: ", where, " must be an integer, got ", shown(value));
  if (value.is_number_unsigned()) {
    require(value.get<uint64_t>() <= uint64_t{INT64_MAX}, "config: ", where,
            " must be at most 2**63-1, got ", shown(value));
  }
  return value.get<int64_t>();
}

std::vector<int64_t> integers(const Json& value, const std::string& where) {
  require(value.is_array(), "config: ", where, " must be a list, got ", shown(value));
  std::vector<int64_t> list;
  for (const auto& item : value) list.push_back(integer(item, where + "[]"));
  return list;
}

const Json& needed(const Json& object, const char* key, const std::string& where) {
  const Json* value = find(object, key);
  require(value != nullptr, "config: ", where, " needs the key \"", key, "\"");
  return *value;
}

RngSpec parse_rng(const Json& object, const std::string& where) {
  require(object.is_object(), "config: ", where, " must be an object, got ", shown(object));
  const Json& type = needed(object, "type", where);
  RngSpec rng;
  if (type == "sobol") {
    expect_keys(object, where, {"type", "seed", "seed_type"});
    if (const Json* seed = find(object, "seed")) {
      rng.has_sobol_seed = true;
      rng.sobol_seed = integers(*seed, where + ".seed");
    }
    if (object.contains("seed_type")) {
      const Json& seed_type = object["seed_type"];
      require(seed_type == "q" || seed_type == "k", "config: ", where,
              ".seed_type must be \"q\" or \"k\", got ", shown(seed_type));
      rng.sobol_default = seed_type == "k" ? SobolSeed::k : SobolSeed::q;
    }
  } else if (type == "lfsr") {
    expect_keys(object, where, {"type", "seed", "taps"});
    rng.type = RngType::lfsr;
    rng.seed = integer(needed(object, "seed", where), where + ".seed");
    rng.taps = integers(needed(object, "taps", where), where + ".taps");
  } else if (type == "true_random") {
    expect_keys(object, where, {"type", "seed"});
    rng.type = RngType::true_random;
    rng.seed = integer(needed(object, "seed", where), where + ".seed");
    require(rng.seed >= 0, "config: ", where, ".seed must be in [0, 2**63-1], got ", rng.seed);
  } else {
    throw ValueError(concat("config: ", where,
                            ".type must be \"sobol\", \"lfsr\" or \"true_random\", got ",
                            shown(type)));
  }
  return rng;
}

SngSpec parse_sng(const Json& object, const std::string& where, size_t pool_size) {
  expect_keys(object, where, {"rng_id", "scramble", "complement"});
  SngSpec sng;
  const int64_t id = integer(needed(object, "rng_id", where), where + ".rng_id");
  require(id >= 0 && static_cast<uint64_t>(id) < pool_size, "config: ", where,
          ".rng_id must be in [0, ", static_cast<int64_t>(pool_size) - 1, "] (rng_pool has ",
          pool_size, " entries), got ", id);
  sng.rng = static_cast<int>(id);
  if (const Json* scramble = find(object, "scramble")) {
    sng.scramble = integers(*scramble, where + ".scramble");
    require(!sng.scramble.empty(), "config: ", where,
            ".scramble must be a permutation of the bits or null, got []");
  }
  if (object.contains("complement")) {
    const Json& complement = object["complement"];
    require(complement.is_boolean(), "config: ", where, ".complement must be true or false, got ",
            shown(complement));
    sng.complement = complement.get<bool>();
  }
  return sng;
}

std::vector<SngSpec> parse_sngs(const Json& list, const std::string& where, size_t pool_size) {
  require(list.is_array(), "config: ", where, " must be a list, got ", shown(list));
  std::vector<SngSpec> sngs;
  sngs.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    sngs.push_back(parse_sng(list[i], concat(where, "[", i, "]"), pool_size));
  }
  return sngs;
}

void check_rng(const RngSpec& rng, const std::string& where, int sc_prec) {
  const int64_t base = int64_t{1} << sc_prec;
  if (rng.type == RngType::sobol && rng.has_sobol_seed) {
    require(static_cast<int>(rng.sobol_seed.size()) == sc_prec, "config: ", where,
            ".seed must have ", sc_prec, " entries for sc_prec=", sc_prec, ", got ",
            rng.sobol_seed.size());
    for (int i = 0; i < sc_prec; ++i) {
      const int64_t s = rng.sobol_seed[i];
      require(s % 2 != 0 && s >= 1 && s < (int64_t{2} << i), "config: ", where, ".seed[", i,
              "] must be odd and in [1, ", (int64_t{2} << i) - 1, "], got ", s);
    }
  }
  if (rng.type == RngType::lfsr) {
    require(rng.seed >= 1 && rng.seed < base, "config: ", where, ".seed must be in [1, ", base - 1,
            "] for sc_prec=", sc_prec, ", got ", rng.seed);
    require(!rng.taps.empty(), "config: ", where, ".taps must name at least one bit, got []");
    std::vector<bool> seen(sc_prec, false);
    for (int64_t tap : rng.taps) {
      require(tap >= 0 && tap < sc_prec && !seen[tap], "config: ", where,
              ".taps must be distinct bits in [0, ", sc_prec - 1, "], got ", tap);
      seen[tap] = true;
    }
  }
}

void check_sngs(const std::vector<SngSpec>& sngs, const char* name, int sc_prec) {
  for (size_t i = 0; i < sngs.size(); ++i) {
    const auto& scramble = sngs[i].scramble;
    if (scramble.empty()) continue;
    std::vector<bool> seen(sc_prec, false);
    bool valid = static_cast<int>(scramble.size()) == sc_prec;
    for (int64_t bit : scramble) {
      valid = valid && bit >= 0 && bit < sc_prec && !seen[bit];
      if (valid) seen[bit] = true;
    }
    if (valid) continue;
    throw ValueError(concat("config: sng.", name, "[", i, "].scramble must be a permutation of 0..",
                            sc_prec - 1, " for sc_prec=", sc_prec, ", got ", shown(scramble)));
  }
}

}  // namespace

std::shared_ptr<const RngConfig> parse_config(const std::string& json) {
  static std::atomic<uint64_t> next_id{1};
  require(nesting(json) <= kMostNesting, "config: not a config: nested more than ", kMostNesting,
          " levels deep");
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::exception& error) {
    throw ValueError(concat("config: not valid JSON: ", printable(error.what())));
  }
  expect_keys(root, "config", {"rng_pool", "sng"});
  const Json& pool = needed(root, "rng_pool", "config");
  require(pool.is_array(), "config: rng_pool must be a list, got ", shown(pool));
  auto config = std::make_shared<RngConfig>();
  for (size_t i = 0; i < pool.size(); ++i) {
    config->pool.push_back(parse_rng(pool[i], concat("rng_pool[", i, "]")));
  }
  const Json& sng = needed(root, "sng", "config");
  expect_keys(sng, "sng", {"q", "k"});
  config->a = parse_sngs(needed(sng, "q", "sng"), "sng.q", pool.size());
  config->b = parse_sngs(needed(sng, "k", "sng"), "sng.k", pool.size());
  config->id = next_id++;
  return config;
}

void check_config(const RngConfig& config, int sc_prec) {
  if (config.checked.load() >> sc_prec & 1u) return;
  for (size_t i = 0; i < config.pool.size(); ++i) {
    check_rng(config.pool[i], concat("rng_pool[", i, "]"), sc_prec);
  }
  check_sngs(config.a, "q", sc_prec);
  check_sngs(config.b, "k", sc_prec);
  config.checked.fetch_or(1u << sc_prec);
}

std::vector<uint16_t> sng_sequence(const RngConfig& config, const SngSpec& sng, int sc_prec) {
  const RngSpec& rng = config.pool[sng.rng];
  std::vector<uint16_t> values;
  switch (rng.type) {
    case RngType::sobol:
      values = sobol_sequence(
          rng.has_sobol_seed ? rng.sobol_seed : default_sobol_seed(rng.sobol_default, sc_prec),
          sc_prec);
      break;
    case RngType::lfsr:
      values = lfsr_sequence(rng.seed, rng.taps, sc_prec);
      break;
    case RngType::true_random:
      values = true_random_sequence(static_cast<uint64_t>(rng.seed), sc_prec);
      break;
  }
  const auto top = static_cast<uint16_t>((1 << sc_prec) - 1);
  for (auto& value : values) {
    if (!sng.scramble.empty()) {
      uint16_t permuted = 0;
      for (int i = 0; i < sc_prec; ++i) {
        permuted |= static_cast<uint16_t>(((value >> sng.scramble[i]) & 1) << i);
      }
      value = permuted;
    }
    if (sng.complement) value = static_cast<uint16_t>(top - value);
  }
  return values;
}

}  // namespace scmp
