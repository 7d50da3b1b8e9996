// The product's order to that of images with channels first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace scmp::cuda {

/// (images, positions, channels) to (images, channels, positions), both contiguous. One launch.
void positions_last(const float* from, float* to, int64_t images, int64_t positions,
                    int64_t channels, cudaStream_t stream);

}  // namespace scmp::cuda
