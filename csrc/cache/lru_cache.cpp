#include "cache/lru_cache.h"

namespace scmp {

std::shared_ptr<const void> LruCache::find(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->value;
}

std::shared_ptr<const void> LruCache::insert(const std::string& key,
                                             std::shared_ptr<const void> value, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = index_.find(key);
  if (it != index_.end()) return it->second->value;  // another thread was first
  if (bytes > limit_) return value;
  entries_.push_front({key, value, bytes});
  index_[key] = entries_.begin();
  bytes_ += bytes;
  evict();
  return value;
}

void LruCache::evict() {
  while (bytes_ > limit_ && !entries_.empty()) {
    bytes_ -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
    ++evictions_;
  }
}

void LruCache::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.clear();
  index_.clear();
  bytes_ = 0;
}

void LruCache::set_limit(int64_t limit_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = limit_bytes;
  evict();
}

CacheStats LruCache::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {static_cast<int64_t>(entries_.size()), bytes_, limit_.load(), hits_, misses_, evictions_};
}

}  // namespace scmp
