// sums[column] += sum over steps of (table_step[index(step, column)] XOR flips), for one row of a,
// in 16 bits: the caller widens before 256 steps have been added. One implementation per
// instruction set, chosen when byte_tile.cpp is compiled.
#pragma once

#include <cstdint>

namespace scmp {

struct LookupSteps {
  const uint8_t* table;  // base; step i uses the row at table + offset[i]
  const uint32_t* offset;
  const uint32_t* flip;        // XORed into the values: 0, or the flip mask in each of its 4 bytes
  int count;                   // at most 64
  const uint8_t* lines;        // per step: columns index bytes, columns flip bytes
  const uint8_t* layer_table;  // one row for all layers, whose lines follow; they flip by column
  int layers;
};

}  // namespace scmp

#if defined(__AVX512VBMI__)
#include "gemm/cpu/lookup_avx512.h"
#elif defined(__AVX2__)
#include "gemm/cpu/lookup_avx2.h"
#else
#include "gemm/cpu/lookup_scalar.h"
#endif
