// Compiled once per instruction set (SCMP_ISA): the loops around the lookups, and the epilogue.
#include <cstring>

#include "gemm/cpu/byte_gemm.h"
#include "gemm/cpu/lookup.h"

namespace scmp {
namespace SCMP_ISA {
namespace {

constexpr uint32_t kZeros[kBlock] = {};

template <int kWidth, bool kNarrow>
struct TileTask {
  const BytePlan& plan;
  const GemmProblem& p;
  const ByteLayout& layout;
  const PackedTile& tile;
  int64_t batch, first_column, first_row, rows;
  uint32_t* sums;      // (rows, columns)
  uint8_t* scratch;    // lanes of one block, when they are not cached

  void run() {
    const size_t count = plan.blocks.size();
    for (size_t b = 0; b < count;) {
      const int64_t chunk = plan.blocks[b].chunk;
      std::memset(sums, 0, rows * tile.columns * sizeof(uint32_t));
      const size_t first_block = b;
      for (; b < count && plan.blocks[b].chunk == chunk; ++b) add_block(b);
      for (int64_t r = 0; r < rows; ++r) finish_row(r, chunk, first_block, b);
    }
  }

  void add_block(size_t b) {
    const BlockRange& block = plan.blocks[b];
    const ByteTables& tables = *plan.tables;
    const uint8_t* table = tables.has_lanes() ? tables.lanes() : scratch;
    uint32_t lane_offset[kBlock] = {};
    for (int i = 0; i < block.count; ++i) {
      const int64_t lane = p.streams->lane(block.first - chunk_start(block) + i);
      const int64_t slot = tables.has_lanes() ? lane : i;
      lane_offset[i] = static_cast<uint32_t>(slot * tables.lane_bytes());
      if (!tables.has_lanes()) {
        tables.build_lane(*p.streams, lane, scratch + lane_offset[i]);
      }
    }
    const uint8_t* lines = tile.data.data() + tile.blocks[b].offset;
    const int layers = tile.blocks[b].layers;
    alignas(64) uint8_t e_table[kWidth];
    memset(e_table, layout.offset(), sizeof e_table);
    const uint32_t flip_word = static_cast<uint32_t>(layout.flip()) * 0x01010101u;
    const int64_t first = b * plan.a.rows + batch * p.n + first_row;
    for (int64_t r = 0; r < rows; ++r) {
      const int16_t* k = plan.a.k.data() + (first + r) * kBlock;
      alignas(64) uint32_t offset[kBlock], flip[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        const int32_t signed_k = k[i], negative = signed_k >> 31;
        offset[i] = lane_offset[i] + static_cast<uint32_t>((signed_k ^ negative) - negative) * kWidth;
        flip[i] = static_cast<uint32_t>(negative) & flip_word;
      }
      uint32_t* row_sums = sums + r * tile.columns;
      lookup<kWidth, kNarrow>({table, offset, flip, block.count, lines}, tile.columns, row_sums);
      if (layers == 0) continue;
      memcpy(e_table, plan.a.e.data() + (first + r) * kBlock, kBlock);
      const uint8_t* layer_lines = lines + int64_t{block.count} * 2 * tile.columns;
      lookup<kWidth, kNarrow>({e_table, kZeros, kZeros, layers, layer_lines}, tile.columns,
                              row_sums);
    }
  }

  int64_t chunk_start(const BlockRange& block) const { return block.chunk * p.chunk; }

  // Sums of flipped lookups to signed sums, then to float32.
  void finish_row(int64_t r, int64_t chunk, size_t first_block, size_t last_block) {
    const int64_t row = first_row + r;
    const int columns = tile.columns;
    const uint32_t* row_sums = sums + r * columns;
    const int32_t* constant = tile.layer_constant.data() + chunk * columns;
    alignas(64) int32_t total[kTileColumns];
    if (p.unipolar) {
      for (int c = 0; c < columns; ++c) {
        total[c] = static_cast<int32_t>(row_sums[c] - static_cast<uint32_t>(constant[c]));
      }
    } else {
      alignas(64) int64_t flipped[kTileColumns] = {};
      const uint64_t* a_signs = plan.a.negative.data() + (batch * p.n + row) * plan.blocks.size();
      for (size_t b = first_block; b < last_block; ++b) {
        const uint64_t a_word = a_signs[b];
        const uint64_t* b_words = tile.negative.data() + b * columns;
        for (int c = 0; c < columns; ++c) flipped[c] += __builtin_popcountll(a_word ^ b_words[c]);
      }
      const int32_t flip = layout.flip();
      for (int c = 0; c < columns; ++c) {
        total[c] = static_cast<int32_t>(row_sums[c] - static_cast<uint32_t>(constant[c]) -
                                        static_cast<uint32_t>(flipped[c]) * flip);
      }
    }
    const int64_t left = p.m - first_column;
    dequantize_row(p.dequantizer, total, batch, row, chunk, first_column,
                   left < columns ? left : columns,
                   p.out + (batch * p.n + row) * p.m + first_column);
  }
};

template <int kWidth, bool kNarrow>
void run_tasks(const BytePlan& plan, int64_t first_task, int64_t last_task) {
  const GemmProblem& p = *plan.problem;
  Buffer<uint32_t> sums(plan.rows_per_task * kTileColumns);
  Buffer<uint8_t> scratch(plan.tables->has_lanes() ? 0 : kBlock * plan.tables->lane_bytes());
  for (int64_t task = first_task; task < last_task; ++task) {
    const int64_t tile = task / plan.row_blocks, row_block = task % plan.row_blocks;
    const int64_t first_row = row_block * plan.rows_per_task, rows_left = p.n - first_row;
    TileTask<kWidth, kNarrow>{plan,
                              p,
                              plan.tables->layout(),
                              plan.tiles[tile],
                              tile / plan.tiles_per_batch,
                              tile % plan.tiles_per_batch * kTileColumns,
                              first_row,
                              rows_left < plan.rows_per_task ? rows_left : plan.rows_per_task,
                              sums.data(),
                              scratch.data()}
        .run();
  }
}

void encode(const EncodedCode* table, const int32_t* offset, const int16_t* codes, int count,
            int16_t* k, uint8_t* e) {
  alignas(64) uint32_t entries[kBlock];
  for (int i = 0; i < count; ++i) entries[i] = table[offset[i] + codes[i]];
  for (int i = 0; i < count; ++i) k[i] = encoded_cycles(entries[i]);
  if (e == nullptr) return;
  for (int i = 0; i < count; ++i) e[i] = encoded_extra(entries[i]);
}

void tiles(const BytePlan& plan, int64_t first_task, int64_t last_task) {
  const ByteLayout& layout = plan.tables->layout();
  if (layout.width == 128) {
    (layout.narrow ? run_tasks<128, true> : run_tasks<128, false>)(plan, first_task, last_task);
  } else {
    (layout.narrow ? run_tasks<256, true> : run_tasks<256, false>)(plan, first_task, last_task);
  }
}

}  // namespace

const ByteKernels kByteKernels = {encode, tiles};

}  // namespace SCMP_ISA
}  // namespace scmp
