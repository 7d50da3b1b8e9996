// How the kernels for few rows of a cut a problem into blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

constexpr int kMostFewRows = 16;  // of a
constexpr int kAlignedCodes = 8;  // of b that are read together where they are aligned

struct FewRowsCut {
  int rows = 1;           // of a per block, a power of two
  int slice = 1;          // positions per block
  int64_t per_chunk = 1;  // slices
  int64_t row_groups = 1;
  int shared_bytes = 0;

  /// Slices of at most `most` positions, a power of two, halved where a chunk needs no more or
  /// `fits(slice)` is false, but not below `least`.
  template <typename Fits>
  FewRowsCut(const GemmProblem& p, int most_rows, int most, int least, const Fits& fits) {
    while (rows < most_rows && rows < p.n) rows *= 2;
    slice = most;
    while (slice > least && (!fits(rows, slice) || slice / 2 >= p.chunk)) slice /= 2;
    per_chunk = (p.chunk + slice - 1) / slice;
    row_groups = (p.n + rows - 1) / rows;
  }

  /// Empty where the problem fits a grid and a bounded workspace; else why not.
  std::string refuses(const GemmProblem& p, const DeviceLimits& device) const {
    constexpr int64_t kMostPartialBytes = int64_t{128} << 20;  // sums of all slices
    if (shared_bytes > device.shared_memory) return "it needs more shared memory than a block has";
    const int64_t slices = p.chunks * per_chunk;
    if (slices * p.batches * p.n * p.m * 4 > kMostPartialBytes) return "its sums exceed 128 MiB";
    if (slices > 65535 || p.batches * row_groups > 65535) {
      return "it has more slices or batches than a grid holds";
    }
    return "";
  }
};

/// The launch: (blocks of columns, slices, batches * groups of rows).
struct FewRowsGrid {
  dim3 grid;
  int64_t columns_per_block;
  bool aligned;  // b's codes can be read kAlignedCodes at a time

  FewRowsGrid(const GemmProblem& p, const FewRowsCut& cut, int columns_per_pass,
              const DeviceLimits& device) {
    const int64_t slices = p.chunks * cut.per_chunk, depth = p.batches * cut.row_groups;
    const int64_t passes = (p.m + columns_per_pass - 1) / columns_per_pass;
    const int64_t wanted =
        std::clamp<int64_t>(2 * device.multiprocessors / (slices * depth), 1, passes);
    const int64_t per_block = (passes + wanted - 1) / wanted;
    columns_per_block = per_block * columns_per_pass;
    grid = dim3(static_cast<unsigned>((passes + per_block - 1) / per_block),
                static_cast<unsigned>(slices), static_cast<unsigned>(depth));
    aligned = p.d % kAlignedCodes == 0 && (p.chunks == 1 || p.chunk % kAlignedCodes == 0) &&
              reinterpret_cast<uintptr_t>(p.b_codes) % 16 == 0;
  }
};

}  // namespace scmp::cuda
