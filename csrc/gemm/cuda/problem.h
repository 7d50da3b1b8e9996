// One sc_matmul as the CUDA gemm kernels see it. Device pointers, no ATen.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "gemm/cuda/length_classes.h"
#include "gemm/dequantize.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

/// The sequences of a call as device tables.
struct DeviceTables {
  int length = 0, levels = 0, words = 0;  // words: 32-bit words per bit pattern, a power of two
  int64_t lanes = 0;
  const int32_t* lane_of = nullptr;    // per position, or null: position modulo lanes
  const uint16_t* a_cycles = nullptr;  // (lanes, levels + 1) cycles that a code of a enables; null:
                                       // as many as the code
  const uint16_t* b_ones = nullptr;    // (lanes, levels + 1) ones of a code of b in all cycles
  bool ones_are_codes = false;         // as many as the code
  const uint16_t* b_values = nullptr;  // (lanes, length) the sequence itself
  const uint32_t* b_bits = nullptr;    // (lanes, levels + 1, words) bit t: b_values[t] < code
  // The other way round, for problems that are transposed: bit r of a code of a says whether it
  // enables the cycle of b's r-th smallest value, of which a code of b takes the first b_ones.
  const uint32_t* a_bits = nullptr;  // (lanes, levels + 1, words)
  const uint8_t* counts = nullptr;   // (lanes, length + 1, count_stride(levels)) count(k, code),
                                     // where counts fit bytes and the table a few MiB
};

/// Bytes from one row of DeviceTables::counts to the next: one of two, so that they are constants.
constexpr int kNarrowCounts = 144, kWideCounts = 272;
constexpr int count_stride(int levels) {
  return levels < kNarrowCounts ? kNarrowCounts : kWideCounts;
}

/// Rows with stream lengths of their own (columns of a transposed problem: a's of the call anyway),
/// sorted by descending length.
struct SortedRows {
  const int32_t* order = nullptr;  // (batches, rows): the i-th is this row; null: none are sorted
  const int32_t* words = nullptr;  // (batches, blocks, chunks) words of the streams that blocks of
                                   // kWgmmaRows sorted rows (kTileColumns columns) need, at least 1
  const uint32_t* needs = nullptr;  // (batches,) bit c: blocks of length class c there are
  int64_t class_stride = 0;         // of a_cycles, which a transposed problem has for every class
  // Of transposed problems: what makes a's bits of its codes.
  const int32_t* lengths =
      nullptr;  // (batches, rows), with length_per_chunk (batches, rows, chunks)
  bool length_per_chunk = false;
  int longest = 0;  // others are out of range: no cycles
  LengthTables tables;
  bool staging_in_front = false;  // the kernel in front is stage_classes, and started after all
                                  // else that the problem reads was there
};

struct GemmProblem {
  int64_t batches = 1, n = 0, m = 0, d = 0;
  int64_t chunk = 0, chunks = 1;  // columns per chunk (d when one)
  bool unipolar = false;
  StageLayout a_layout;
  const int16_t* a_cycles = nullptr;  // sign * enabled cycles, in a_layout or SortedPlaces
  const int16_t* b_codes = nullptr;   // (batches, m, d) sign * code
  DeviceTables tables;
  bool b_ready = false;              // b_codes were there before the kernels of this call
  Dequantizer dequantizer;           // device pointers
  const double* a_tensor = nullptr;  // per_tensor: scale and zero point of the operands
  const double* b_tensor = nullptr;
  float* out = nullptr;  // (batches, n, m), contiguous
  // Rows and columns exchanged (wgmma_b1 alone): a and b of this problem, their sizes and scales
  // are b and a of the call, and out and partial are (batches, m, n).
  bool transposed = false;
  // Or transposed for its output alone, which is (images, m, image_rows): rows are those of images.
  int64_t image_rows = 0;
  // Where set, (batches, m) flags, zero at first: kernels raise those of columns whose codes no
  // quantizer made (a damaged prepared b), and their outputs become NaN.
  uint8_t* damaged = nullptr;

  SortedRows sorted;  // wgmma_b1 alone

  // Where set, kernels write exact sums of parts of the K axis here instead of outputs:
  // (slots, batches, n, m). Every chunk has slots / chunks parts, in order.
  int32_t* partial = nullptr;
  int64_t slots = 0;
};

constexpr int kTileColumns = 128;  // of the tiles that the matrix kernels work on

/// Tiles of kTileColumns outputs side by side, over all batches.
inline int64_t column_tiles(const GemmProblem& p) {
  return p.batches * ((p.m + kTileColumns - 1) / kTileColumns);
}

/// What the kernels need to know of a device.
struct DeviceLimits {
  int major = 0;  // compute capability
  int multiprocessors = 0;
  int shared_memory = 0;  // bytes that a block can have
};

}  // namespace scmp::cuda
