// The core knows no thread pool: callers hand in at::parallel_for, tests hand in what they like.
#pragma once

#include <cstdint>
#include <functional>

namespace scmp {

using RangeFn = std::function<void(int64_t begin, int64_t end)>;

/// Calls `body` on disjoint ranges that cover [0, count), each of at least `grain` items where possible.
using ParallelFor = std::function<void(int64_t count, int64_t grain, const RangeFn& body)>;

inline void serial_for(int64_t count, int64_t /*grain*/, const RangeFn& body) {
  if (count > 0) body(0, count);
}

}  // namespace scmp
