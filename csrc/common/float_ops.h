// Single IEEE float32 operations, never contracted: what exact arithmetic is written with.
// Host files are compiled with -ffp-contract=off; device code uses the intrinsics that never fuse.
// Always inlined: files built for a newer CPU must leave no shared copy behind for the linker to
// pick.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SCMP_DEVICE_CALLABLE __host__ __device__
#define SCMP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SCMP_DEVICE_CALLABLE
#define SCMP_HOST_DEVICE static inline __attribute__((always_inline))
#endif

namespace scmp {

SCMP_HOST_DEVICE float f32_mul(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

SCMP_HOST_DEVICE float f32_add(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(x, y);
#else
  return x + y;
#endif
}

SCMP_HOST_DEVICE float f32_sub(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(x, y);
#else
  return x - y;
#endif
}

SCMP_HOST_DEVICE float f32_div(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(x, y);
#else
  return x / y;
#endif
}

}  // namespace scmp
