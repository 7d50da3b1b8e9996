#include "ops/prepared_spec.h"

#include <array>
#include <nlohmann/json.hpp>

#include "cache/stream_cache.h"
#include "common/error.h"

namespace scmp {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::array<const char*, 4> kScrambleNames = {"bitrev", "counter", "off", "random"};

// A key's value as T, or the ValueError of a malformed spec.
template <typename T>
T value_of(const json& spec, const char* key) {
  const auto it = spec.find(key);
  require(it != spec.end(), "spec: ", key, " is missing");
  try {
    return it->template get<T>();
  } catch (const json::exception&) {
    throw ValueError(concat("spec: ", key, " has the wrong type"));
  }
}

template <typename T>
std::optional<T> optional_of(const json& spec, const char* key) {
  const auto it = spec.find(key);
  require(it != spec.end(), "spec: ", key, " is missing");
  if (it->is_null()) return std::nullopt;
  return value_of<T>(spec, key);
}

PreparedSpec parse(const std::string& text) {
  const json spec = json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(spec.is_object(), "spec: must be the JSON text of prepare_spec");
  require(value_of<int>(spec, "version") == kVersion, "spec: version must be ", kVersion);
  PreparedSpec out;
  out.shape = value_of<std::vector<int64_t>>(spec, "shape");
  require(out.shape.size() == 2 || out.shape.size() == 3, "spec: shape must have 2 or 3 sizes");
  for (int64_t size : out.shape) {
    require(size >= 0 && size < (int64_t{1} << 40), "spec: shape must hold sizes, got ", size);
  }
  if (spec.contains("kernel")) {
    out.kernel = optional_of<std::vector<int64_t>>(spec, "kernel").value_or(out.kernel);
    const bool sizes = out.kernel.size() == 2 && out.kernel[0] > 0 && out.kernel[1] > 0 &&
                       out.kernel[0] <= out.depth() && out.kernel[1] <= out.depth() &&
                       out.depth() % (out.kernel[0] * out.kernel[1]) == 0;
    require(out.kernel.empty() || sizes || out.depth() == 0,
            "spec: kernel must be two sizes whose product divides D");
  }
  out.granularity = value_of<std::string>(spec, "granularity");
  out.mode = value_of<std::string>(spec, "mode");
  out.sc_prec = value_of<int64_t>(spec, "sc_prec");
  out.chunk_d = value_of<int64_t>(spec, "chunk_d");
  out.group_b = value_of<int64_t>(spec, "group_b");
  out.rng_levels = optional_of<int64_t>(spec, "rng_levels");
  out.config = optional_of<std::string>(spec, "config");
  out.halve_bipolar_stoc_len = value_of<bool>(spec, "halve_bipolar_stoc_len");
  out.smooth = value_of<bool>(spec, "smooth_scales");
  const auto mode = value_of<std::string>(spec, "scramble");
  size_t i = 0;
  while (i < kScrambleNames.size() && mode != kScrambleNames[i]) ++i;
  require(i < kScrambleNames.size(), "spec: scramble is not a mode");
  out.scramble.mode = static_cast<ScrambleMode>(i);
  out.scramble.masks = value_of<int64_t>(spec, "masks");
  out.scramble.rescaled_grid = value_of<bool>(spec, "scramble_rescaled_grid");
  return out;
}

// One text for all of equal meaning: sorted keys, no spaces.
std::optional<std::string> canonical(const std::optional<std::string>& config) {
  if (!config) return std::nullopt;
  return json::parse(*config).dump();  // it has been parsed before
}

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

}  // namespace

std::string write_prepared_spec(const PreparedSpec& spec) {
  const json out = {{"version", kVersion},
                    {"shape", spec.shape},
                    {"kernel", spec.kernel.empty() ? json(nullptr) : json(spec.kernel)},
                    {"granularity", spec.granularity},
                    {"mode", spec.mode},
                    {"sc_prec", spec.sc_prec},
                    {"chunk_d", spec.chunk_d},
                    {"group_b", spec.group_b},
                    {"rng_levels", or_null(spec.rng_levels)},
                    {"config", or_null(canonical(spec.config))},
                    {"halve_bipolar_stoc_len", spec.halve_bipolar_stoc_len},
                    {"smooth_scales", spec.smooth},
                    {"scramble", kScrambleNames[static_cast<size_t>(spec.scramble.mode)]},
                    {"masks", spec.scramble.masks},
                    {"scramble_rescaled_grid", spec.scramble.rescaled_grid}};
  return out.dump();
}

std::shared_ptr<const PreparedSpec> read_prepared_spec(const std::string& text) {
  return rng_cache().get<PreparedSpec>("spec/" + text, [&] { return parse(text); });
}

}  // namespace scmp
