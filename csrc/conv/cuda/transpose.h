// Matrices transposed: images between channels first and last.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace scmp::cuda {

/// (matrices, rows, columns) to (matrices, columns, rows), both contiguous. One launch.
void transpose(const float* from, float* to, int64_t matrices, int64_t rows, int64_t columns,
               cudaStream_t stream);

}  // namespace scmp::cuda
