// A thread-safe cache of immutable values, bounded in bytes, least recently used out first.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace scmp {

struct CacheStats {
  int64_t entries = 0, bytes = 0, limit = 0, hits = 0, misses = 0, evictions = 0;
};

class LruCache {
 public:
  explicit LruCache(int64_t limit_bytes) : limit_(limit_bytes) {}

  /// The value under `key`, built by `build` (a T with `bytes()`) when absent. Values stay alive as
  /// long as a caller holds them, whatever is evicted; one larger than the bound is never kept.
  template <typename T, typename Build>
  std::shared_ptr<const T> get(const std::string& key, const Build& build) {
    if (auto found = find(key)) return std::static_pointer_cast<const T>(found);
    auto made = std::make_shared<const T>(build());  // unlocked: a slow build stalls nobody
    return std::static_pointer_cast<const T>(
        insert(key, made, static_cast<int64_t>(made->bytes() + key.size())));
  }

  void clear();
  void set_limit(int64_t limit_bytes);
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  CacheStats stats() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const void> value;
    int64_t bytes;
  };
  std::shared_ptr<const void> find(const std::string& key);
  std::shared_ptr<const void> insert(const std::string& key, std::shared_ptr<const void> value,
                                     int64_t bytes);
  void evict();

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  std::atomic<int64_t> limit_;
  int64_t bytes_ = 0, hits_ = 0, misses_ = 0, evictions_ = 0;
};

}  // namespace scmp
