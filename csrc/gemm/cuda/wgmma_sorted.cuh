// The wgmma b1 kernel for rows with stream lengths of their own: blocks of neighbouring lengths
// multiply patterns of as many words as they need.
#pragma once

#include "common/dependent_launch.cuh"
#include "gemm/cuda/tile/expand_units.cuh"
#include "gemm/cuda/wgmma_b1.cuh"

namespace scmp::cuda {
namespace {

// A block's share of shared memory: the ring's places have room for a stage of any class.
struct SortedBlock {
  template <int kWords>
  static constexpr int kOf = BStage<kWords>::kBytes + kRows * Pattern<kWords>::kPositions * 2;
  static constexpr int kStage = kOf<2>;
  static_assert(kStage >= kOf<1> && kStage >= kOf<3> && kStage >= kOf<4> && kStage >= kOf<6> &&
                kStage >= kOf<8>);
  static constexpr int kStages = 4, kSums = 0;
  static constexpr int kShared = kStages * kStage + 16 * kStages;
};

// The i-th piece of work: dear ones first, and every other round of the grid in reverse, so that
// the sums of a block's pieces are alike.
template <bool kTransposed>
__device__ Item sorted_item(const GemmProblem& p, const Schedule& schedule, int64_t i) {
  const int64_t items = item_count(p, schedule), grid = gridDim.x, round = i / grid;
  if (round % 2 == 1) {
    const int64_t last = min((round + 1) * grid, items) - 1;
    i = last - (i - round * grid);
  }
  const int64_t blocks = Item::row_blocks(p, schedule), units = units_per_chunk(p);
  if (kTransposed) {
    const int64_t rest = i / blocks;
    return Item(p, schedule, i % blocks, rest % schedule.parts, rest / schedule.parts, units);
  }
  const int64_t rest = i / schedule.tiles;
  return Item(p, schedule, rest / schedule.parts, rest % schedule.parts, i % schedule.tiles, units);
}

// Calls visit(length class, chunk, slot, first unit in the chunk) for the writes of an item, each
// of k.per_write units.
template <bool kTransposed, typename Visit>
__device__ __forceinline__ void each_write(const GemmProblem& p, const Item& item,
                                           const Visit& visit) {
  const int64_t units = units_per_chunk(p),
                writes = (item.k.last - item.k.first) / item.k.per_write;
  const int64_t first = kTransposed ? item.first_column : item.first_row;
  for (int64_t i = 0; i < writes; ++i) {
    const int64_t chunk = item.k.chunk + i;
    visit(class_at(p, item.batch, first, chunk), chunk, item.k.slot + i,
          p.chunks > 1 ? 0 : item.k.first);
  }
}

template <int kMost, bool kTransposed>
struct SortedConsumer {
  const GemmProblem& p;
  Products<SortedBlock, true> products;

  __device__ void take(const Item& item) {
    const bool idle = item.first_row + 64 * warpgroup() >= p.n;
    const int64_t warp_row = item.first_row + threadIdx.x / 32 * 16;
    each_write<kTransposed>(
        p, item, [&](int length_class, int64_t chunk, int64_t slot, int64_t unit) {
          products.clear();
          with_class<kMost>(length_class, [&](auto words) {
            constexpr int kWords = decltype(words)::value;
            const int length = min(p.tables.length, 32 * kWords);
            const int stages = stages_of_units<kWords>(p, chunk, unit, item.k.per_write);
            if (idle) return products.skip(stages);
            for (int i = stages; i > 0; --i) products.template multiply<kWords>(length);
          });
          if (idle) return;
          pin(products.sums());
          write_sorted_tile<kTransposed>(p, {item.batch, warp_row, item.first_column}, chunk, slot,
                                         products.acc);
        });
  }
};

// One thread fetches the stages of an item.
template <int kMost, bool kTransposed, typename StageRing>
__device__ void produce_sorted(const GemmProblem& p, const Item& item, const uint8_t* workspace,
                               StageRing& ring) {
  const int64_t units = units_per_chunk(p);
  const SortedPlaces places{p.a_layout.rows_padded, p.chunks, units};
  const int64_t rows = places.block_rows(item.first_row);
  constexpr int kBytes = unit_bytes<kMost, kTransposed>();
  each_write<kTransposed>(p, item, [&](int length_class, int64_t chunk, int64_t, int64_t unit) {
    const int16_t* a = p.a_cycles + length_class * p.sorted.class_stride +
                       places.at(item.batch, chunk, item.first_row, unit);
    const uint8_t* b = workspace + ((item.in_slab * p.chunks + chunk) * units + unit) * kBytes;
    with_class<kMost>(length_class, [&](auto words) {
      constexpr int kWords = decltype(words)::value;
      constexpr int kB = BStage<kWords>::kBytes, kPositions = Pattern<kWords>::kPositions;
      const auto a_bytes = static_cast<uint32_t>(rows * kPositions * 2);
      const uint8_t* from = b + unit_offset<kWords, kTransposed>();
      const int stages = stages_of_units<kWords>(p, chunk, unit, item.k.per_write);
      for (int i = 0; i < stages; ++i) {
        const int of_unit = i % Unit<kWords>::kStages;
        fetch_stage(ring, from + of_unit * kB, kB, a, a_bytes);
        a += rows * kPositions;
        if (of_unit + 1 == Unit<kWords>::kStages) from += kBytes;
      }
    });
  });
}

// The kernel that expands all units of the slab. It may start before the kernel that stages b's
// cycles is over, which it does not need, and leaves room for it on every multiprocessor.
constexpr int kUnitTableBytes = 188 << 10;
constexpr int kRoomThreads = 256;  // whose registers are left

// The tables that a transposed problem's expansion looks up, in shared memory as far as they fit.
template <int kMost>
__device__ __forceinline__ LengthTables nearer_tables(const GemmProblem& p, uint8_t* shared) {
  LengthTables tables = p.sorted.tables;
  int64_t left = kUnitTableBytes;
  const auto bring = [&](const auto*& table, int64_t bytes) {
    if (table == nullptr || bytes > left) return;
    copy_table(reinterpret_cast<const uint8_t*>(table), bytes, shared);
    table = reinterpret_cast<std::decay_t<decltype(table)>>(shared);
    left -= (bytes + 15) / 16 * 16;
    shared += (bytes + 15) / 16 * 16;
  };
  const uint32_t needs = p.batches == 1 ? p.sorted.needs[0] : ~0u;
  bring(tables.a_counts.entries,
        p.tables.lanes * (p.tables.levels + 1) * tables.a_counts.entry_bytes());
#pragma unroll
  for (int c = 0; c <= class_of_words(kMost); ++c) {
    if ((needs >> c & 1) == 0) continue;
    bring(tables.ranked[c], p.tables.lanes * (32 * class_words(c) + 1) * class_stride(c) * 4);
  }
  __syncthreads();
  return tables;
}

template <int kMost, bool kTransposed>
__global__ void __launch_bounds__(kExpandThreads + kRoomThreads, 1)
    expand_sorted(const __grid_constant__ GemmProblem p, uint8_t* workspace, Schedule schedule) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const LengthTables tables = kTransposed ? nearer_tables<kMost>(p, shared) : LengthTables{};
  // Neighbouring units by the warpgroups of a block, whose codes lie together.
  const int64_t count = schedule.tiles * p.chunks * units_per_chunk(p);
  int64_t i = int64_t{blockIdx.x} * kConsumers + warpgroup();
  if (i < count) {
    UnitExpander<kMost, kTransposed> now(p, tables);
    now.read(schedule.first_tile, i);
    while (true) {
      const int64_t after = i + int64_t{gridDim.x} * kConsumers;
      UnitExpander<kMost, kTransposed> next(p, tables);
      if (after < count) next.read(schedule.first_tile, after);
      now.write(workspace + i * unit_bytes<kMost, kTransposed>());
      if (after >= count) break;
      i = after;
      now.at = next.at;
      now.codes = next.codes;
      now.row = next.row;
    }
  }
  wait_for_previous_kernel();  // so that it is over when this one is
}

template <int kMost, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_sorted(const __grid_constant__ GemmProblem p, uint8_t* workspace, Schedule schedule) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto ring = make_ring<SortedBlock>(shared, 1, kExpandThreads / 32);
  const int64_t items = item_count(p, schedule);
  if (warpgroup() < kConsumers) {
    raise_registers<kConsumerRegisters>();
    SortedConsumer<kMost, kTransposed> consumer{p, {shared, ring, schedule.ones}};
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
      consumer.take(sorted_item<kTransposed>(p, schedule, i));
    }
  } else {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == kExpandThreads) {
      for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        produce_sorted<kMost, kTransposed>(p, sorted_item<kTransposed>(p, schedule, i), workspace,
                                           ring);
      }
    }
  }
}

// The first slab's bits may be expanded while b's cycles are still staged; later ones overwrite
// bits that are read until then.
template <bool kTransposed>
void launch_sorted(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                   const DeviceLimits& device, cudaStream_t stream) {
  with_words(p.tables.words, [&](auto words) {
    constexpr int kMost = decltype(words)::value;
    const int64_t units = schedule.tiles * p.chunks * units_per_chunk(p);
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>(device.multiprocessors, (units + kConsumers - 1) / kConsumers));
    const int shared = kTransposed ? kUnitTableBytes : 0;
    constexpr auto kExpand = expand_sorted<kMost, kTransposed>;
    allow_shared_memory<kExpand>(kUnitTableBytes);
    if (p.sorted.staging_in_front && schedule.first_tile == 0) {
      launch_dependent<kExpand>(dim3(blocks), dim3(kExpandThreads), shared, stream, p, bits,
                                schedule);
    } else {
      kExpand<<<blocks, kExpandThreads, shared, stream>>>(p, bits, schedule);
    }
    launch_gemm<gemm_sorted<kMost, kTransposed>>(p, bits, schedule, SortedBlock::kShared, 0, device,
                                                 stream);
  });
}

}  // namespace
}  // namespace scmp::cuda
