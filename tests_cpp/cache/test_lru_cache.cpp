#include "cache/lru_cache.h"

#include "support/catch.h"

using namespace scmp;

namespace {

struct Value {
  int id;
  size_t size;
  size_t bytes() const { return size; }
};

std::shared_ptr<const Value> get(LruCache& cache, const std::string& key, int id, size_t size) {
  return cache.get<Value>(key, [&] { return Value{id, size}; });
}

}  // namespace

TEST_CASE("a hit returns the first value and builds nothing") {
  LruCache cache(1000);
  CHECK(get(cache, "a", 1, 10)->id == 1);
  CHECK(get(cache, "a", 2, 10)->id == 1);
  CHECK(cache.stats().hits == 1);
  CHECK(cache.stats().misses == 1);
}

TEST_CASE("the least recently used goes first; holders keep what is evicted") {
  LruCache cache(250);
  const auto held = get(cache, "a", 1, 100);
  get(cache, "b", 2, 100);
  get(cache, "a", 0, 100);
  get(cache, "c", 3, 100);  // evicts b
  CHECK(get(cache, "a", 9, 100)->id == 1);
  CHECK(get(cache, "b", 8, 100)->id == 8);
  CHECK(cache.stats().bytes <= 250);
  cache.clear();
  CHECK(held->id == 1);
  CHECK(cache.stats().entries == 0);
}

TEST_CASE("a value above the bound is handed out, never kept") {
  LruCache cache(50);
  CHECK(get(cache, "a", 1, 100)->id == 1);
  CHECK(cache.stats().entries == 0);
}

TEST_CASE("lowering the limit evicts at once") {
  LruCache cache(1000);
  get(cache, "a", 1, 100);
  cache.set_limit(0);
  CHECK(cache.stats().entries == 0);
  CHECK(cache.limit() == 0);
}
