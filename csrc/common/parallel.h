// The core knows no thread pool: callers hand in at::parallel_for, tests hand in what they like.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace scmp {

using RangeFn = std::function<void(int64_t begin, int64_t end)>;

/// Calls `body` on disjoint ranges that cover [0, count), each of at least `grain` items where
/// possible.
using ParallelFor = std::function<void(int64_t count, int64_t grain, const RangeFn& body)>;

inline void serial_for(int64_t count, int64_t /*grain*/, const RangeFn& body) {
  if (count > 0) body(0, count);
}

/// As `parallel`, one item at a time to whichever thread is free: for few items of some size.
inline void dynamic_for(int64_t count, int64_t grain, const ParallelFor& parallel,
                        const RangeFn& body) {
  std::atomic<int64_t> next{0};
  parallel(count, grain, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) body(i, i + 1);
  });
}

}  // namespace scmp
