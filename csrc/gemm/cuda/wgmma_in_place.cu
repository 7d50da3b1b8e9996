// The wgmma b1 kernel for one block of rows, where expanding b is most of the work: two warpgroups
// expand stages in shared memory while the other two multiply. No workspace.
#include "common/dependent_launch.cuh"
#include "gemm/cuda/wgmma_b1.cuh"

namespace scmp::cuda {
namespace {

// A block's share of shared memory: stages and barriers, then b's table where it fits.
template <int kWords>
struct InPlace {
  static constexpr int kRows = kInPlaceRows;  // 64 for each warpgroup that multiplies
  static constexpr int kThreads = 512;
  static constexpr int kA = kRows * Pattern<kWords>::kPositions * 2;
  static constexpr int kStage = BStage<kWords>::kBytes + kA;
  static constexpr int kStages = 2, kSums = 0;
  static constexpr int kTable = kStages * kStage + 16 * kStages;
  static constexpr int kMostTable = (227 << 10) - kTable;

  __device__ static Item item(const GemmProblem& p, const Schedule& schedule, int64_t i) {
    return Item(p, schedule, 0, i % schedule.parts, i / schedule.parts,
                p.a_layout.stages / p.chunks);
  }
};

// One of the two warpgroups that expand: every other stage, always in the same place of the ring.
template <int kWords, bool kSigned>
struct StageExpander {
  using P = Pattern<kWords>;
  using B = InPlace<kWords>;
  using Expand = Expander<kWords, kSigned, kTileColumns, BOrder::pieces>;
  const GemmProblem& p;
  uint8_t* shared;
  Ring<B::kStage, B::kStages> ring;
  bool waits;  // for the previous kernel

  __device__ void run(const Schedule& schedule, int64_t items, int which, const uint32_t* table) {
    Expand next(p, table);
    int64_t i = blockIdx.x;
    Item item = B::item(p, schedule, i);
    int64_t stage = item.k.first;
    // Steps on `count` stages over the block's items; false at the end.
    const auto advance = [&](int64_t count) {
      stage += count;
      while (stage >= item.k.last) {
        const int64_t beyond = stage - item.k.last;
        i += gridDim.x;
        if (i >= items) return false;
        item = B::item(p, schedule, i);
        stage = item.k.first + beyond;
      }
      return true;
    };
    ring.slot = which;
    if (!advance(which)) return;
    next.read(static_cast<uint32_t>(stage), static_cast<uint32_t>(item.in_slab));
    bool more = true;
    while (more) {
      const Expand now = next;
      const Item here = item;
      const int64_t at = stage;
      more = advance(B::kStages);
      if (more) next.read(static_cast<uint32_t>(stage), static_cast<uint32_t>(item.in_slab));
      ring.wait_empty();
      const bool good = now.write(shared + ring.slot * B::kStage);
      async_proxy_fence_shared();
      if (waits) wait_for_previous_kernel();
      waits = false;
      if (!good) now.mark();
      __syncwarp();
      if (threadIdx.x % kTileColumns == 0) {
        fetch_a(here, at);
      } else if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(ring.full + 8 * ring.slot);
      }
      ring.parity ^= 1;
    }
  }

  // a's cycles of a stage; also the calling warp's arrival.
  __device__ void fetch_a(const Item& item, int64_t stage) const {
    const StageLayout& l = p.a_layout;
    const auto bytes = static_cast<uint32_t>(l.rows_padded * P::kPositions * 2);
    const int16_t* a = p.a_cycles + (item.batch * l.stages + stage) * l.rows_padded * P::kPositions;
    mbarrier_expect(ring.full + 8 * ring.slot, bytes);
    bulk_copy(ring.stage() + BStage<kWords>::kBytes, a, bytes, ring.full + 8 * ring.slot);
  }
};

template <int kWords, bool kSigned>
__global__ void __launch_bounds__(InPlace<kWords>::kThreads, 1)
    gemm_in_place(const __grid_constant__ GemmProblem p, Schedule schedule) {
  using B = InPlace<kWords>;
  extern __shared__ __align__(1024) uint8_t shared[];
  let_next_kernel_start();
  auto ring = make_ring<B>(shared, kTileColumns / 32, B::kRows / 16);
  const int64_t bytes = table_bytes(p.tables), items = schedule.tiles * schedule.parts;
  const bool near = bytes <= B::kMostTable;
  if (near) copy_table(p.tables.b_bits, bytes, shared + B::kTable);
  __syncthreads();
  // A prepared b was there before the kernels of this call.
  const bool consumes = warpgroup() < B::kRows / 64;
  if (consumes || !p.b_ready) wait_for_previous_kernel();
  if (consumes) {
    Consumer<kWords, kSigned, Rows::plain, false, B> consumer{
        p, B::kRows, {shared, ring, schedule.ones}};
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
      consumer.take(B::item(p, schedule, i));
    }
  } else {
    StageExpander<kWords, kSigned> expander{p, shared, ring, p.b_ready};
    const int which = warpgroup() - B::kRows / 64;
    if (near) {
      expander.run(schedule, items, which, reinterpret_cast<const uint32_t*>(shared + B::kTable));
    } else {
      expander.run(schedule, items, which, p.tables.b_bits);
    }
  }
}

template <int kWords, bool kSigned>
void launch_in_place(const GemmProblem& p, const Schedule& schedule, const DeviceLimits& device,
                     cudaStream_t stream) {
  using B = InPlace<kWords>;
  allow_shared_memory<gemm_in_place<kWords, kSigned>>(227 << 10);
  const int64_t items = schedule.tiles * schedule.parts;
  const int64_t bytes = table_bytes(p.tables);
  const int shared = B::kTable + static_cast<int>(bytes <= B::kMostTable ? bytes : 0);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(device.multiprocessors, items));
  launch_dependent<gemm_in_place<kWords, kSigned>>(dim3(blocks), dim3(B::kThreads), shared, stream,
                                                   p, schedule);
}

}  // namespace

void wgmma_b1_in_place(const GemmProblem& p, int64_t parts, const DeviceLimits& device,
                       cudaStream_t stream) {
  const Schedule all{0, column_tiles(p), parts, false, kInPlaceRows};
  with_words(p.tables.words, [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    p.unipolar ? launch_in_place<kWords, false>(p, all, device, stream)
               : launch_in_place<kWords, true>(p, all, device, stream);
  });
}

}  // namespace scmp::cuda
