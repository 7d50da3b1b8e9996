#include "gemm/cuda/row_lengths.h"

#include <algorithm>

#include "gemm/cuda/lanes.cuh"
#include "gemm/dequantize.h"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 20;

// Cycles of the first `length` at which a lane's sequence is below `code`.
__device__ int enabled_cycles(const CycleTables& t, int64_t lane, int length, int code) {
  int count = 0;
  if (!t.bits) {
    const uint16_t* values = t.values + lane * t.length;
    for (int i = 0; i < length; ++i) count += values[i] < code;
    return count;
  }
  const uint32_t* bits = t.bits + (lane * (t.levels + 1) + code) * t.words;
  const int whole = length / 32;
  for (int word = 0; word < whole; ++word) count += __popc(bits[word]);
  if (length % 32) count += __popc(bits[whole] & ((1u << (length % 32)) - 1));
  return count;
}

// One element of the output: batch, stage, row and position within the stage.
__device__ void stage_element(const RowLengthArgs& args, int64_t i) {
  const StageLayout& l = args.layout;
  const int64_t position = i % l.positions, row = i / l.positions % args.rows;
  const int64_t stage = i / l.positions / args.rows % l.stages;
  const int64_t batch = i / l.positions / args.rows / l.stages;
  const int64_t chunk = stage / l.stages_per_chunk;
  // Within the chunk: of the output, and of a.
  const int64_t to = stage % l.stages_per_chunk * l.positions + position;
  const int64_t from = args.full ? to / 2 : to;
  const int64_t a_row = batch * args.rows + row;
  const int length = args.lengths[args.length_per_chunk ? a_row * args.chunks + chunk : a_row];
  const bool good = length >= 0 && length <= args.longest;
  if (to == 0) {
    float c = 0.0f;
    if (!good) {
      c = quiet_nan();
    } else if (length > 0) {
      c = length_factor(args.qmax_squared, length);
    }
    args.row_c[a_row * args.chunks + chunk] = c;
  }
  int signed_cycles = 0;
  const bool used = !args.full || (length == args.full) == (to % 2 == 1);
  if (good && used && from < min(args.chunk, args.columns - chunk * args.chunk)) {
    const int code = args.codes[a_row * args.columns + chunk * args.chunk + from];
    const int64_t lane = lane_of_position(args.tables.lane_of, args.tables.lanes, to);
    const int cycles = enabled_cycles(args.tables, lane, length, abs(code));
    signed_cycles = code < 0 ? -cycles : cycles;
  }
  args.cycles[((batch * l.stages + stage) * l.rows_padded + row) * l.positions + position] =
      static_cast<int16_t>(signed_cycles);
}

__global__ void __launch_bounds__(kThreads)
    stage_rows(const __grid_constant__ RowLengthArgs args, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    stage_element(args, i);
  }
}

}  // namespace

void stage_row_lengths(const RowLengthArgs& args, cudaStream_t stream) {
  const StageLayout& l = args.layout;
  const int64_t count = args.batches * l.stages * args.rows * l.positions;
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  stage_rows<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, count);
}

}  // namespace scmp::cuda
