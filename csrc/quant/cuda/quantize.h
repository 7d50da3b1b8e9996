// Quantize kernels: raw device pointers and a stream, no ATen.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/float_ops.h"
#include "quant/scheme.h"
#include "quant/source.h"

namespace scmp::cuda {

enum class RangeFrom {
  segment,  // the segment (one row, or one chunk of it) is its own group
  keys,     // groups span segments: range_keys were filled by find_ranges
  argument  // one fixed affine map
};

/// Whether `steps` times `stride` elements stay well within 32 bits, forwards.
inline bool within_reach(int64_t steps, int64_t stride) {
  return stride >= 0 && (stride == 0 || steps <= (int64_t{1} << 29) / stride);
}

/// Codes of operand a: the K axis is cut into stages of `positions` columns, never across a chunk;
/// what a short last chunk leaves of its stages is 0 or unwritten, and meets zeros of b. Each stage
/// a (rows_padded, positions) int16 matrix, a row's positions in the order of staged_position.
/// Operand b's codes keep its own order, (batches, rows, columns).
struct StageLayout {
  int64_t rows_padded = 0;
  int64_t stages = 0, stages_per_chunk = 0;
  int positions = 1;  // a power of two
};

/// Where a position of a stage lies within its row: groups of eight change places from row to row,
/// so that eight rows' reads of the same group touch all banks of shared memory.
SCMP_DEVICE_CALLABLE constexpr int staged_position(int row, int position, int positions) {
  return position ^ ((row & 7) * (positions >> 3) & (positions - 8));
}

/// Where operand a is a convolution's lowered input, which nobody stores: its rows are output
/// positions in (image, y, x) order, its columns (channel, ky, kx); batch entries are groups of
/// channels. Strides in elements of the input; positions outside it read 0.
struct Window {
  int taps = 0;  // kh * kw; 0: the operand is a plain matrix
  int kernel_x = 1, stride_y = 1, stride_x = 1, dilation_y = 1, dilation_x = 1;
  int pad_y = 0, pad_x = 0;
  int height = 0, width = 0;           // of the input
  int positions = 0, positions_x = 0;  // of the output: all, and in one row
  int64_t image_stride = 0, group_stride = 0, channel_stride = 0, y_stride = 0, x_stride = 0;
};

enum class Output {
  staged_cycles,  // operand a: sign * enabled cycles, in a StageLayout
  signed_codes,   // operand b: sign * code
  bipolar_codes,
  unipolar_codes,
  symmetric_levels,
  asymmetric_levels
};

/// One operand's work. Pointers are device pointers; null outputs are not written.
struct QuantizeArgs {
  Source source;
  Window window;
  DType smooth_dtype = DType::float32;  // source.smooth_scales is then of this type
  const void* smooth_scales = nullptr;
  int64_t smooth_stride = 1;
  QuantScheme scheme;
  RangeFrom range_from = RangeFrom::segment;
  Affine argument;                 // RangeFrom::argument
  uint32_t* range_keys = nullptr;  // (groups, chunks, 3), zeroed before find_ranges
  int group_kind = 0;              // 0 row groups, 1 batch, 2 tensor
  int64_t rows_per_group = 1;
  int64_t chunk = 0, chunks = 1;  // columns per chunk (dim when one)

  uint32_t multiplier = 0, bias = 0;  // BoundaryMap; multiplier 0: divide
  int shift = 0, levels = 0;

  Output output = Output::signed_codes;
  StageLayout layout;
  const uint16_t* cycles =
      nullptr;  // (lanes, levels + 1) enabled cycles; null: as many as the code
  const int32_t* lane_of = nullptr;  // per position, or null: position modulo lanes
  int64_t lanes = 1;
  int16_t* codes = nullptr;       // staged_cycles, signed_codes, bipolar_codes
  int32_t* wide_codes = nullptr;  // unipolar_codes
  int8_t* signs = nullptr;
  float* levels_out = nullptr;  // symmetric_levels, asymmetric_levels
  float* scales = nullptr;      // (rows, chunks), or (batches, chunks, rows) when transposed
  bool scales_transposed = false;
  float* zeros = nullptr;        // (rows,)
  float* sums = nullptr;         // (rows,)
  double* tensor_map = nullptr;  // per_tensor: scale, zero point
  uint8_t* cleared = nullptr;    // bytes that quantize() sets to 0 beside its work
  int64_t cleared_bytes = 0;
};

/// Fills range_keys of every operand whose range_from is `keys`. One launch.
void find_ranges(const QuantizeArgs* operands, int count, cudaStream_t stream);

/// Levels, codes, scales and sums of one or two operands. One launch; two where the first of two is
/// a convolution's window.
void quantize(const QuantizeArgs* operands, int count, cudaStream_t stream);

}  // namespace scmp::cuda
