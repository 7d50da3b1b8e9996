#include "cache/stream_cache.h"

#include <algorithm>

#include "common/error.h"

namespace scmp {
namespace {

constexpr int64_t kDefaultCacheBytes = int64_t{512} << 20;

struct ParsedConfig {
  std::shared_ptr<const RngConfig> config;
  size_t bytes() const {
    return (config->a.size() + config->b.size()) * (sizeof(SngSpec) + 16 * sizeof(int)) +
           config->pool.size() * (sizeof(RngSpec) + 16 * sizeof(int64_t));
  }
};

struct Registry {
  struct Entry {
    std::shared_ptr<const RngConfig> config;
    std::string text;
    int64_t references;
  };
  std::mutex mutex;
  std::unordered_map<std::string, Entry> entries;
};

Registry& registry() {
  static Registry* instance = new Registry;  // outlives Python's own teardown
  return *instance;
}

constexpr const char kDigestPrefix[] = "sha256:";

bool is_digest(const std::string& text) { return text.rfind(kDigestPrefix, 0) == 0; }

// Under the registry's lock.
const Registry::Entry& registered(const std::string& digest) {
  const auto it = registry().entries.find(digest);
  require(it != registry().entries.end(), "config: no live config has the digest ",
          digest.substr(0, 80), "; keep the object that config_helpers returned, or pass JSON");
  return it->second;
}

}  // namespace

LruCache& rng_cache() {
  static LruCache* instance = new LruCache(kDefaultCacheBytes);
  return *instance;
}

std::string stream_key(const StreamSpec& spec) {
  const bool scrambled = spec.full_and_shorter || scrambles(spec);
  const int64_t masks =
      scrambled ? std::min(spec.scramble.masks, int64_t{1} << spec.sc_prec) : int64_t{1};
  const int64_t positions = spec.config ? spec.positions : std::min(spec.positions, masks);
  const int mode = scrambled ? static_cast<int>(spec.scramble.mode) : -1;
  std::string key;
  key.reserve(64);
  for (int64_t part : {int64_t{spec.sc_prec}, int64_t{spec.length}, int64_t{spec.levels}, positions,
                       masks, int64_t{mode}, int64_t{spec.full_and_shorter}}) {
    key += std::to_string(part);
    key += '/';
  }
  return key + std::to_string(spec.config ? spec.config->id : 0);
}

std::shared_ptr<const StreamSet> cached_streams(const StreamSpec& spec) {
  return rng_cache().get<StreamSet>("streams/" + stream_key(spec),
                                    [&] { return prepare_streams(spec); });
}

std::shared_ptr<const RngConfig> resolve_config(const std::optional<std::string>& text) {
  if (!text) return nullptr;
  if (is_digest(*text)) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    return registered(*text).config;
  }
  return rng_cache()
      .get<ParsedConfig>("config/" + *text, [&] { return ParsedConfig{parse_config(*text)}; })
      ->config;
}

std::string config_text(const std::string& text) {
  if (!is_digest(text)) return text;
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registered(text).text;
}

void register_config(const std::string& digest, const std::string& json) {
  require(is_digest(digest), "register_config: digest must start with ", kDigestPrefix, ", got ",
          digest.substr(0, 80));
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    const auto it = registry().entries.find(digest);
    if (it != registry().entries.end()) {
      ++it->second.references;
      return;
    }
  }
  auto config = parse_config(json);
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& entry =
      registry().entries.try_emplace(digest, Registry::Entry{config, json, 0}).first->second;
  ++entry.references;
}

void unregister_config(const std::string& digest) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  const auto it = registry().entries.find(digest);
  if (it != registry().entries.end() && --it->second.references == 0) {
    registry().entries.erase(it);
  }
}

int64_t registered_configs() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  return static_cast<int64_t>(registry().entries.size());
}

}  // namespace scmp
