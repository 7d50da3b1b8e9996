// Warpgroup products of sm_90a: a from registers, b from shared memory, sums in registers.
#pragma once

#include <cstdint>

namespace scmp::cuda {

// Operands 0..63 of an instruction: the sums of a 64 x 128 tile.
#define SCMP_SUMS_8(i)                                                                        \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
#define SCMP_SUMS_64                                                                 \
  SCMP_SUMS_8(0), SCMP_SUMS_8(8), SCMP_SUMS_8(16), SCMP_SUMS_8(24), SCMP_SUMS_8(32), \
      SCMP_SUMS_8(40), SCMP_SUMS_8(48), SCMP_SUMS_8(56)
#define SCMP_SUM_NAMES                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "     \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, " \
  "%37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, " \
  "%55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p;\n}\n"

/// d (64 x 128, s32) += popcount(a (64 x 256 bits) AND b (256 bits x 128)).
/// PTX ISA, wgmma.mma_async m64n128k256. `b` describes shared memory.
__device__ __forceinline__ void wgmma_b1_and_popc(int (&d)[64], const uint32_t (&a)[4],
                                                  uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc " SCMP_SUM_NAMES:SCMP_SUMS_64
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// d (64 x 128, s32) += a (64 x 32, s8) * b (32 x 128, s8). PTX ISA, wgmma.mma_async m64n128k32.
__device__ __forceinline__ void wgmma_s8(int (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 " SCMP_SUM_NAMES:SCMP_SUMS_64
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SCMP_SUMS_8
#undef SCMP_SUMS_64
#undef SCMP_SUM_NAMES

/// Orders earlier register writes before the next products.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving accesses to sums across the place where it stands.
__device__ __forceinline__ void pin(int (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

/// A b operand without swizzle: 16-byte pieces of 8 neighbouring columns lie together, groups of 8
/// columns `column_stride` bytes apart, the two pieces of a step `piece_stride`.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared, uint32_t piece_stride,
                                                     uint32_t column_stride) {
  return uint64_t{(shared & 0x3ffff) >> 4} | uint64_t{piece_stride >> 4} << 16 |
         uint64_t{column_stride >> 4} << 32;
}

/// Registers of the calling warpgroup, taken from or given to the block's other warpgroups.
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace scmp::cuda
