// Extremes of a group of values, and sums, across the threads that share a segment.
#pragma once

#include "quant/affine.h"

namespace scmp::cuda {

/// Extremes as unsigned keys in float order, 0 meaning "nothing yet": |x| bits, max, and min
/// flipped.
struct Range {
  uint32_t magnitude = 0, most = 0, least = 0;

  __device__ static uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  }
  __device__ static float from_ordered(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
  }
  /// The first `count` of four values; the others are 0.
  __device__ void add(const float4& x, int64_t count, bool unipolar) {
    if (!unipolar) {
      magnitude =
          max(max(magnitude, bits_of(x.x)), max(bits_of(x.y), max(bits_of(x.z), bits_of(x.w))));
      return;
    }
    add(x.x, unipolar);  // there is at least one
    if (count > 1) add(x.y, unipolar);
    if (count > 2) add(x.z, unipolar);
    if (count > 3) add(x.w, unipolar);
  }
  __device__ static uint32_t bits_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }
  __device__ void add(float x, bool unipolar) {
    magnitude = max(magnitude, bits_of(x));
    if (!unipolar) return;  // |x| is enough
    const uint32_t key = ordered(x);
    most = max(most, key);
    least = max(least, ~key);
  }
  __device__ void merge(const Range& o) {
    magnitude = max(magnitude, o.magnitude);
    most = max(most, o.most);
    least = max(least, o.least);
  }
  /// The same for bipolar schemes that do not round as tensors do, with 1 / qmax.
  __device__ Affine bipolar_affine(const QuantScheme& scheme, float reciprocal) const {
    if (magnitude >= 0x7f800000u) return nonfinite_affine();
    return make_bipolar_affine(scheme, __uint_as_float(magnitude), reciprocal);
  }
  __device__ Affine affine(const QuantScheme& scheme) const {
    if (magnitude >= 0x7f800000u) return nonfinite_affine();
    if (!scheme.unipolar) return make_affine(scheme, 0.0f, __uint_as_float(magnitude));
    if (most == 0) return make_affine(scheme, 0.0f, 0.0f);
    return make_affine(scheme, from_ordered(~least), from_ordered(most));
  }
};

/// Merges a range into a group's keys in global memory.
__device__ inline void add_to_keys(uint32_t* keys, const Range& range, bool unipolar) {
  atomicMax(keys, range.magnitude);
  if (!unipolar) return;
  atomicMax(keys + 1, range.most);
  atomicMax(keys + 2, range.least);
}

/// The range of all threads of a warp (kGroup = 32) or of a block of kGroup threads.
template <int kGroup>
__device__ Range reduce(Range range, bool unipolar) {
  range.magnitude = __reduce_max_sync(~0u, range.magnitude);
  if (unipolar) {
    range.most = __reduce_max_sync(~0u, range.most);
    range.least = __reduce_max_sync(~0u, range.least);
  }
  if constexpr (kGroup > 32) {
    __shared__ Range parts[kGroup / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = range;
    __syncthreads();
    for (const Range& part : parts) range.merge(part);
  }
  return range;
}

template <int kGroup>
__device__ long long reduce_sum(long long sum) {
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if constexpr (kGroup > 32) {
    __shared__ long long parts[kGroup / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (long long part : parts) sum += part;
  }
  return sum;
}

}  // namespace scmp::cuda
