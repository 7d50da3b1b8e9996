// Which lane (distinct pair of sequences) drives a position.
#pragma once

#include <cstdint>

namespace scmp::cuda {

/// Entry of `lane_of`, or without one the position modulo `lanes`, most often a power of two.
__device__ __forceinline__ int64_t lane_of_position(const int32_t* lane_of, int64_t lanes,
                                                    int64_t position) {
  if (lane_of) return lane_of[position];
  const auto p = static_cast<uint32_t>(position), n = static_cast<uint32_t>(lanes);
  return (n & (n - 1)) == 0 ? p & (n - 1) : p % n;
}

}  // namespace scmp::cuda
