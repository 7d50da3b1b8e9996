// The process-wide cache of parsed configs, prepared sequences and count tables.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cache/lru_cache.h"
#include "streams/prepare.h"

namespace scmp {

LruCache& rng_cache();

/// Text that names everything that shapes the sequences of `spec`: the stem of every cache key.
std::string stream_key(const StreamSpec& spec);

std::shared_ptr<const StreamSet> cached_streams(const StreamSpec& spec);

/// The config of an operator's `config` argument: JSON text, or "sha256:..." of a registered one.
std::shared_ptr<const RngConfig> resolve_config(const std::optional<std::string>& text);

/// Its JSON text: that of the registered config for a digest, else `text` itself.
std::string config_text(const std::string& text);

/// Keeps a config alive under its digest; calls nest and each needs one unregister_config.
void register_config(const std::string& digest, const std::string& json);
void unregister_config(const std::string& digest);
int64_t registered_configs();

}  // namespace scmp
