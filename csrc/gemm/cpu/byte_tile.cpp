// Compiled once per instruction set (SCMP_ISA): the loops around the lookups, and the epilogue.
#include <cstring>

#include "gemm/cpu/byte_gemm.h"
#include "gemm/cpu/lookup.h"

namespace scmp {
namespace SCMP_ISA {
namespace {

constexpr int kPass = 32;        // positions per pass over the rows
constexpr int kMostSteps = 256;  // of at most 255 each: 16-bit sums do not overflow

template <int kWidth, bool kNarrow>
struct TileTask {
  const BytePlan& plan;
  const GemmProblem& p;
  const ByteLayout& layout;
  const PackedTile& tile;
  int64_t batch, first_column, first_row, rows;
  uint16_t* partial;  // (rows, columns) sums of at most kMostSteps steps
  uint32_t* sums;     // (rows, columns) the others
  uint8_t* scratch;   // lanes of one block, when they are not cached

  void run() {
    const size_t count = plan.blocks.size();
    for (size_t b = 0; b < count;) {
      const int64_t chunk = plan.blocks[b].chunk;
      const size_t first_block = b;
      int steps = 0;
      bool widened = false;
      clear_partial();
      for (; b < count && plan.blocks[b].chunk == chunk; ++b) {
        const int more = plan.blocks[b].count + tile.blocks[b].layers;
        if (steps + more > kMostSteps) {
          widen(widened);
          widened = true;
          steps = 0;
        }
        add_block(b);
        steps += more;
      }
      if (widened) widen(true);
      for (int64_t r = 0; r < rows; ++r) {
        if (widened) {
          finish_row(sums + r * tile.columns, r, chunk, first_block, b);
        } else {
          finish_row(partial + r * tile.columns, r, chunk, first_block, b);
        }
      }
    }
  }

  void clear_partial() { memset(partial, 0, rows * tile.columns * sizeof *partial); }

  // sums (+)= partial; partial = 0.
  void widen(bool add) {
    const int64_t count = rows * tile.columns;
    if (!add) memset(sums, 0, count * sizeof *sums);
    for (int64_t i = 0; i < count; ++i) sums[i] += partial[i];
    clear_partial();
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
    for (int begin = 0; begin < block.count; begin += kPass) {
      add_pass(b, begin, block.count - begin < kPass ? block.count - begin : kPass, table,
               lane_offset + begin);
    }
  }

  // All rows over `count` positions of a block: few enough that their lines of b stay in the
  // first-level cache beside the table rows that stream through it.
  void add_pass(size_t b, int begin, int count, const uint8_t* table, const uint32_t* lane_offset) {
    const bool last = begin + count == plan.blocks[b].count;
    const int layers = last ? tile.blocks[b].layers : 0;
    const uint8_t* lines =
        tile.data.data() + tile.blocks[b].offset + int64_t{begin} * 2 * tile.columns;
    alignas(64) uint8_t e_table[kWidth];
    memset(e_table, layout.offset(), sizeof e_table);
    const uint32_t flip_word = static_cast<uint32_t>(layout.flip()) * 0x01010101u;
    const int64_t first = b * plan.a.rows + batch * p.n + first_row;
    for (int64_t r = 0; r < rows; ++r) {
      if (!row_counts(p.dequantizer, batch, first_row + r, plan.blocks[b].chunk)) continue;
      const int16_t* k = plan.a.k.data() + (first + r) * kBlock + begin;
      alignas(64) uint32_t offset[kPass], flip[kPass];
      for (int i = 0; i < kPass; ++i) {
        const int32_t signed_k = k[i], negative = signed_k >> 31;
        offset[i] =
            lane_offset[i] + static_cast<uint32_t>((signed_k ^ negative) - negative) * kWidth;
        flip[i] = static_cast<uint32_t>(negative) & flip_word;
      }
      if (layers > 0) memcpy(e_table, plan.a.e.data() + (first + r) * kBlock, kBlock);
      lookup<kWidth, kNarrow>({table, offset, flip, count, lines, e_table, layers}, tile.columns,
                              partial + r * tile.columns);
    }
  }

  int64_t chunk_start(const BlockRange& block) const { return block.chunk * p.chunk; }

  // Sums of flipped lookups to signed sums, then to float32.
  template <typename Sum>
  void finish_row(const Sum* row_sums, int64_t r, int64_t chunk, size_t first_block,
                  size_t last_block) {
    const int64_t row = first_row + r;
    if (!row_counts(p.dequantizer, batch, row, chunk)) return;
    const int columns = tile.columns;
    const int32_t* constant = tile.layer_constant.data() + chunk * columns;
    alignas(64) int32_t total[kTileColumns];
    if (p.unipolar) {
      for (int c = 0; c < columns; ++c) {
        total[c] = static_cast<int32_t>(uint32_t{row_sums[c]} - static_cast<uint32_t>(constant[c]));
      }
    } else {
      alignas(64) int32_t flipped[kTileColumns] = {};
      const uint64_t* a_signs = plan.a.negative.data() + (batch * p.n + row) * plan.blocks.size();
      for (size_t b = first_block; b < last_block; ++b) {
        const auto low = static_cast<uint32_t>(a_signs[b]);
        const auto high = static_cast<uint32_t>(a_signs[b] >> 32);
        const uint32_t* b_low = tile.negative.data() + 2 * b * columns;
        const uint32_t* b_high = b_low + columns;
        for (int c = 0; c < columns; ++c) {
          flipped[c] += __builtin_popcount(low ^ b_low[c]) + __builtin_popcount(high ^ b_high[c]);
        }
      }
      const int32_t flip = layout.flip();
      for (int c = 0; c < columns; ++c) {
        total[c] = static_cast<int32_t>(uint32_t{row_sums[c]} - static_cast<uint32_t>(constant[c]) -
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
  Buffer<uint16_t> partial(plan.rows_per_task * kTileColumns);
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
                              partial.data(),
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
