// Look-up tables to shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace scmp::cuda {

/// A table, of whole words and 16-byte aligned, to shared memory, by all threads of the block,
/// which must synchronise before they read it.
__device__ __forceinline__ void copy_table(const void* table, int64_t bytes, uint8_t* shared) {
  const auto* from = reinterpret_cast<const uint4*>(table);
  const int quads = static_cast<int>(bytes / 16);
#pragma unroll 8
  for (int i = threadIdx.x; i < quads; i += blockDim.x) {
    reinterpret_cast<uint4*>(shared)[i] = __ldg(from + i);
  }
  const int i = 4 * quads + static_cast<int>(threadIdx.x);  // what is left
  if (i < bytes / 4) {
    reinterpret_cast<uint32_t*>(shared)[i] = reinterpret_cast<const uint32_t*>(table)[i];
  }
}

}  // namespace scmp::cuda
