#include "conv/cuda/transpose.h"

#include "common/error.h"

namespace scmp::cuda {
namespace {

constexpr int kSide = 32;  // of a square tile
constexpr int kRows = 8;   // that a block moves at a time

__global__ void __launch_bounds__(kSide* kRows)
    transpose_kernel(const float* __restrict__ from, float* __restrict__ to, int64_t positions,
                     int64_t channels, unsigned position_tiles, unsigned channel_tiles) {
  __shared__ float tile[kSide][kSide + 1];
  const unsigned channel_tile = blockIdx.x % channel_tiles, rest = blockIdx.x / channel_tiles;
  const int64_t image = rest / position_tiles;
  const int64_t position = int64_t{rest % position_tiles} * kSide;
  const int64_t channel = int64_t{channel_tile} * kSide;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const float* source = from + image * positions * channels;
  float* target = to + image * positions * channels;
#pragma unroll
  for (int i = 0; i < kSide; i += kRows) {
    if (position + y + i < positions && channel + x < channels) {
      tile[y + i][x] = source[(position + y + i) * channels + channel + x];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide; i += kRows) {
    if (channel + y + i < channels && position + x < positions) {
      target[(channel + y + i) * positions + position + x] = tile[x][y + i];
    }
  }
}

}  // namespace

void positions_last(const float* from, float* to, int64_t images, int64_t positions,
                    int64_t channels, cudaStream_t stream) {
  const int64_t position_tiles = (positions + kSide - 1) / kSide;
  const int64_t channel_tiles = (channels + kSide - 1) / kSide;
  const int64_t blocks = images * position_tiles * channel_tiles;
  require(blocks < (int64_t{1} << 31), "the output has too many elements for CUDA: ", blocks,
          " tiles of them");
  if (blocks == 0) return;
  transpose_kernel<<<static_cast<unsigned>(blocks), kSide * kRows, 0, stream>>>(
      from, to, positions, channels, static_cast<unsigned>(position_tiles),
      static_cast<unsigned>(channel_tiles));
}

}  // namespace scmp::cuda
