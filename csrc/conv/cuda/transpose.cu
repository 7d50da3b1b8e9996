#include "conv/cuda/transpose.h"

#include "common/error.h"

namespace scmp::cuda {
namespace {

constexpr int kSide = 32;  // of a square tile
constexpr int kRows = 8;   // that a block moves at a time

__global__ void __launch_bounds__(kSide* kRows)
    transpose_kernel(const float* __restrict__ from, float* __restrict__ to, int64_t rows,
                     int64_t columns, unsigned row_tiles, unsigned column_tiles) {
  __shared__ float tile[kSide][kSide + 1];
  const unsigned column_tile = blockIdx.x % column_tiles, rest = blockIdx.x / column_tiles;
  const int64_t matrix = rest / row_tiles;
  const int64_t row = int64_t{rest % row_tiles} * kSide;
  const int64_t column = int64_t{column_tile} * kSide;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const float* source = from + matrix * rows * columns;
  float* target = to + matrix * rows * columns;
#pragma unroll
  for (int i = 0; i < kSide; i += kRows) {
    if (row + y + i < rows && column + x < columns) {
      tile[y + i][x] = source[(row + y + i) * columns + column + x];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide; i += kRows) {
    if (column + y + i < columns && row + x < rows) {
      target[(column + y + i) * rows + row + x] = tile[x][y + i];
    }
  }
}

}  // namespace

void transpose(const float* from, float* to, int64_t matrices, int64_t rows, int64_t columns,
               cudaStream_t stream) {
  const int64_t row_tiles = (rows + kSide - 1) / kSide;
  const int64_t column_tiles = (columns + kSide - 1) / kSide;
  const int64_t blocks = matrices * row_tiles * column_tiles;
  require(blocks < (int64_t{1} << 31), "the output has too many elements for CUDA: ", blocks,
          " tiles of them");
  if (blocks == 0) return;
  transpose_kernel<<<static_cast<unsigned>(blocks), kSide * kRows, 0, stream>>>(
      from, to, rows, columns, static_cast<unsigned>(row_tiles),
      static_cast<unsigned>(column_tiles));
}

}  // namespace scmp::cuda
