// What a quantize kernel writes of four levels, and of a row.
#pragma once

#include "gemm/cuda/lanes.cuh"
#include "quant/cuda/level.cuh"
#include "quant/cuda/segment.cuh"

namespace scmp::cuda {

__device__ inline uint2 pack(const int (&code)[4]) {
  return make_uint2((code[0] & 0xffff) | code[1] << 16, (code[2] & 0xffff) | code[3] << 16);
}

template <typename T>
__device__ inline bool holds_quad(const T* to, int64_t room) {
  return room >= 4 && reinterpret_cast<uintptr_t>(to) % (4 * sizeof(T)) == 0;
}

__device__ inline void write_four(int16_t* to, const int (&code)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<uint2*>(to) = pack(code);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = static_cast<int16_t>(code[j]);
  }
}
__device__ inline void write_four(int32_t* to, const int (&code)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<int4*>(to) = make_int4(code[0], code[1], code[2], code[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = code[j];
  }
}
__device__ inline void write_four(int8_t* to, const int (&code)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<char4*>(to) = make_char4(code[0], code[1], code[2], code[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = static_cast<int8_t>(code[j]);
  }
}
__device__ inline void write_four(float* to, const float (&level)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<float4*>(to) = make_float4(level[0], level[1], level[2], level[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = level[j];
  }
}

// Operand a: codes at positions i .. i + 3 of the segment to the cycles that they enable.
__device__ inline void enable_cycles(const QuantizeArgs& q, int64_t i, int (&code)[4]) {
  if (q.cycles == nullptr) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (code[j] == 0) continue;
    const int64_t lane = lane_of_position(q.lane_of, q.lanes, i + j);
    const int cycles = q.cycles[lane * (q.levels + 1) + abs(code[j])];
    code[j] = code[j] < 0 ? -cycles : cycles;
  }
}

// Where position i of the segment lies in the layout.
__device__ inline int16_t* staged_at(const QuantizeArgs& q, const Segment& s, int64_t i) {
  const StageLayout& l = q.layout;
  const int shift = __ffs(l.positions) - 1;
  const int64_t stage = s.batch * l.stages + s.chunk * l.stages_per_chunk + (i >> shift);
  return q.codes + ((stage * l.rows_padded + s.within) << shift) +
         staged_position(static_cast<int>(s.within), static_cast<int>(i) & (l.positions - 1),
                         l.positions);
}

// Operand a: enabled cycles at positions i .. i + 3 of the segment, past its end zeros.
__device__ inline void write_cycles(const QuantizeArgs& q, const Segment& s, int64_t i,
                                    int (&code)[4]) {
  enable_cycles(q, i, code);
  const StageLayout& l = q.layout;
  const int shift = __ffs(l.positions) - 1;
  int16_t* to = staged_at(q, s, i);
  if (l.positions >= 4) {
    *reinterpret_cast<uint2*>(to) = pack(code);
    return;
  }
  const int64_t room = l.stages_per_chunk * l.positions - i;  // neighbours in different stages
  for (int j = 0; j < 4 && j < room; ++j) {
    to[(j >> shift) * (l.rows_padded << shift) + (j & (l.positions - 1))] =
        static_cast<int16_t>(code[j]);
  }
}

// Two groups of four codes at positions i .. i + 7 of the segment, of which `padded` are wanted.
__device__ inline void write_eight(const QuantizeArgs& q, const Segment& s, int64_t i,
                                   int (&low)[4], int (&high)[4], int64_t padded) {
  if (q.output != Output::staged_cycles) {
    int16_t* to = q.codes + s.row * q.source.dim + s.first + i;
    write_four(to, low, padded - i);
    write_four(to + 4, high, padded - i - 4);
  } else if (q.layout.positions >= 8) {
    enable_cycles(q, i, low);
    enable_cycles(q, i + 4, high);
    const uint2 first = pack(low), second = pack(high);
    *reinterpret_cast<uint4*>(staged_at(q, s, i)) =
        make_uint4(first.x, first.y, second.x, second.y);
  } else {
    write_cycles(q, s, i, low);
    if (i + 4 < padded) write_cycles(q, s, i + 4, high);
  }
}

// What the caller asked for of levels i .. i + 3 of the segment, which came from the values x.
__device__ inline void write_levels(const QuantizeArgs& q, const Segment& s, int64_t i,
                                    const float (&x)[4], const int (&level)[4], bool dead) {
  const int64_t flat = s.row * q.source.dim + s.first + i, room = s.count - i;
  int code[4];
  if (q.output == Output::symmetric_levels || q.output == Output::asymmetric_levels) {
    float shown[4];  // rint keeps the sign of zero
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float magnitude = static_cast<float>(abs(level[j]));
      shown[j] = q.scheme.unipolar || dead ? magnitude : copysignf(magnitude, x[j]);
      code[j] = level[j] < 0 ? -1 : 1;
    }
    write_four(q.levels_out + flat, shown, room);
    if (q.output == Output::symmetric_levels) write_four(q.signs + flat, code, room);
    return;
  }
  boundaries_of(q, level, code);
  if (q.output == Output::unipolar_codes) return write_four(q.wide_codes + flat, code, room);
  if (q.output == Output::bipolar_codes) {
    int sign[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) sign[j] = (level[j] > 0) - (level[j] < 0);
    write_four(q.codes + flat, code, room);
    return write_four(q.signs + flat, sign, room);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) code[j] = level[j] < 0 ? -code[j] : code[j];
  if (q.output == Output::signed_codes) {
    write_four(q.codes + flat, code, room);
  } else {
    write_cycles(q, s, i, code);
  }
}

// Where a segment's scale goes.
__device__ inline float* scale_at(const QuantizeArgs& q, const Segment& s) {
  return q.scales + (q.scales_transposed ? (s.batch * q.chunks + s.chunk) * q.source.rows + s.within
                                         : s.row * q.chunks + s.chunk);
}

__device__ inline void write_row_outputs(const QuantizeArgs& q, const Segment& s,
                                         const Affine& affine) {
  if (q.scales) *scale_at(q, s) = affine.scale;
  if (q.zeros) q.zeros[s.row] = affine.zero_point;
  if (q.tensor_map && s.row == 0) {
    q.tensor_map[0] = affine.scale64;
    q.tensor_map[1] = affine.zero_point64;
  }
}

}  // namespace scmp::cuda
