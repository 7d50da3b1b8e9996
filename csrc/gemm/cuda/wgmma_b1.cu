#include "gemm/cuda/tile/expand_units.cuh"
#include "gemm/cuda/wgmma_b1.cuh"

namespace scmp::cuda {
namespace {

constexpr int kExpandBlocks = 1056;  // of the kernel that only expands
constexpr int64_t kLeastStages = 4;  // of a part, when the K axis is split
constexpr int64_t kMostTileBytes = int64_t{506} << 20;

template <int kWords, bool kSigned>
__global__ void __launch_bounds__(256)
    expand(const __grid_constant__ GemmProblem p, uint8_t* workspace) {
  const auto tiles = static_cast<uint32_t>(p.batches * ((p.m + kTileColumns - 1) / kTileColumns));
  const auto stages = static_cast<uint32_t>(p.a_layout.stages);
  expand_share<Expander<kWords, kSigned, 256, BOrder::pieces>, BStage<kWords>::kBytes>(
      p, p.tables.b_bits, 0, tiles * stages, stages, workspace);
}

}  // namespace

std::string wgmma_b1_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (device.major != 9) return "it needs compute capability 9.0";
  if (p.tables.words > 8) return "its streams are at most 256 cycles long";
  if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
  if (column_tiles(p) * p.a_layout.stages >= (int64_t{1} << 31)) return "it has too many tiles";
  if (wgmma_b1_workspace(p, 1) > kMostTileBytes) return "b's bits of one tile exceed 506 MiB";
  if (p.chunk * p.tables.length >= (int64_t{1} << 31)) return "sums need more than 32 bits";
  return "";
}

bool wgmma_b1_needs_workspace(const GemmProblem& p) {
  return p.n > kInPlaceRows || p.sorted.order || (p.chunks > 1 && !p.partial);
}

int64_t wgmma_b1_workspace(const GemmProblem& p, int64_t tiles) {
  return with_words(p.tables.words, [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    if (!p.sorted.order) return tiles * p.a_layout.stages * BStage<kWords>::kBytes;
    return tiles * p.chunks * units_per_chunk(p) *
           (p.transposed ? unit_bytes<kWords, true>() : unit_bytes<kWords, false>());
  });
}

int64_t wgmma_b1_parts(const GemmProblem& p, int64_t tiles, const DeviceLimits& device) {
  const int64_t blocks = (p.n + kWgmmaRows - 1) / kWgmmaRows;
  const int64_t units = p.sorted.order ? units_per_chunk(p) : p.a_layout.stages;
  const int64_t most = p.chunks > 1 ? p.chunks : units / kLeastStages;
  return std::max<int64_t>(1, std::min(device.multiprocessors / (tiles * blocks), most));
}

namespace {

// Rows of a that a block takes together: fewer than it could where that evens out the last round,
// as one block multiplies as fast with three of its warpgroups as with four.
int block_rows(const GemmProblem& p, int64_t tiles, int64_t parts, const DeviceLimits& device) {
  const auto rounds_of_rows = [&](int rows) {
    const int64_t items = tiles * parts * ((p.n + rows - 1) / rows);
    return (items + device.multiprocessors - 1) / device.multiprocessors * rows;
  };
  constexpr int kFewer = kWgmmaRows / 4 * 3;
  return rounds_of_rows(kFewer) < rounds_of_rows(kWgmmaRows) ? kFewer : kWgmmaRows;
}

}  // namespace

void wgmma_b1_gemm(const GemmProblem& p, void* workspace, int64_t tiles, bool expanded,
                   const DeviceLimits& device, cudaStream_t stream) {
  const bool in_place = !expanded && !wgmma_b1_needs_workspace(p);
  if (in_place) tiles = column_tiles(p);
  int64_t parts = 1;
  if (p.partial) parts = p.chunks > 1 ? wgmma_b1_parts(p, tiles, device) : p.slots;
  if (in_place) return wgmma_b1_in_place(p, parts, device, stream);
  auto* bits = static_cast<uint8_t*>(workspace);
  for (int64_t first = 0; first < column_tiles(p); first += tiles) {
    Schedule schedule{first, std::min(tiles, column_tiles(p) - first), parts, expanded};
    if (p.sorted.order) {
      schedule.expanded = true;  // by a launch of its own
      p.transposed ? wgmma_b1_sorted_transposed(p, bits, schedule, device, stream)
                   : wgmma_b1_sorted(p, bits, schedule, device, stream);
      continue;
    }
    schedule.rows = block_rows(p, schedule.tiles, parts, device);
    if (p.transposed) {
      wgmma_b1_transposed(p, bits, schedule, device, stream);
    } else if (p.unipolar) {
      with_words(p.tables.words, [&](auto words) {
        launch<decltype(words)::value, false, Rows::plain>(p, bits, schedule, device, stream);
      });
    } else {
      launch_bipolar<false>(p, bits, schedule, device, stream);
    }
  }
}

void wgmma_b1_expand(const GemmProblem& p, void* workspace, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(column_tiles(p) * p.a_layout.stages, kExpandBlocks));
  auto* bits = static_cast<uint8_t*>(workspace);
  with_words(p.tables.words, [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    if (p.unipolar) {
      expand<kWords, false><<<blocks, 256, 0, stream>>>(p, bits);
    } else {
      expand<kWords, true><<<blocks, 256, 0, stream>>>(p, bits);
    }
  });
}

}  // namespace scmp::cuda
