#include "gemm/cpu/pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gemm/cpu/bit_masks.h"
#include "gemm/cpu/transpose.h"

namespace scmp {
namespace {

constexpr int64_t kGrainElements = 1 << 14;

// One tile's staging area: a line per column, positions contiguous.
struct Staging {
  alignas(64) uint8_t index[kTileColumns][kBlock];
  alignas(64) uint8_t flip[kTileColumns][kBlock];
  uint64_t capped[kTileColumns];  // bit i: the column's code at position i is at the top
};

// The kernels add even and odd bytes of a 64-byte line apart: byte 2i is column i, 2i+1 column
// 32+i.
int column_of_byte(int byte) { return byte / 2 + (byte % 2) * 32; }
int byte_of_column(int column) {
  const int group = column / kColumnGroup * kColumnGroup, within = column % kColumnGroup;
  return group + (within < 32 ? 2 * within : 2 * (within - 32) + 1);
}

void stage_column(const int16_t* codes, int count, int levels, const ByteLayout& layout,
                  uint8_t* index, uint8_t* flip) {
  const auto mask = static_cast<uint8_t>(layout.flip());
  const int16_t top = static_cast<int16_t>(layout.capped ? levels - 1 : levels);
  for (int i = 0; i < count; ++i) {
    const int16_t magnitude = static_cast<int16_t>(codes[i] < 0 ? -codes[i] : codes[i]);
    index[i] = static_cast<uint8_t>(magnitude < top ? magnitude : top);
    flip[i] = codes[i] < 0 ? mask : uint8_t{0};
  }
}

void write_lines(const Staging& staging, int columns, int count, uint8_t* out) {
  const int64_t stride = 2 * columns;
  for (int part = 0; part < 2; ++part) {
    const auto& lines = part == 0 ? staging.index : staging.flip;
    for (int byte = 0; byte < columns; byte += 16) {
      const uint8_t* rows[16];
      const int group = byte / kColumnGroup * kColumnGroup;
      for (int j = 0; j < 16; ++j) rows[j] = lines[group + column_of_byte(byte - group + j)];
      for (int i = 0; i < count; i += 16) {
        const uint8_t* shifted[16];
        for (int j = 0; j < 16; ++j) shifted[j] = rows[j] + i;
        uint8_t* to = out + i * stride + part * columns + byte;
        if (i + 16 <= count) {
          transpose_16x16(shifted, to, stride);
        } else {
          uint8_t corner[256];
          transpose_16x16(shifted, corner, 16);
          for (int r = 0; r < count - i; ++r) std::memcpy(to + r * stride, corner + r * 16, 16);
        }
      }
    }
  }
}

void write_layers(Staging& staging, int columns, int layers, const int16_t* codes,
                  int64_t code_stride, const ByteLayout& layout, uint8_t* out, int32_t* constants) {
  const int flip = layout.flip(), offset = layout.offset();
  for (int layer = 0; layer < layers; ++layer, out += 2 * columns) {
    std::memset(out, kBlock, columns);
    std::memset(out + columns, 0, columns);
    for (int column = 0; column < columns; ++column) {
      uint64_t& capped = staging.capped[column];
      int constant = offset;
      if (capped != 0) {
        const int position = __builtin_ctzll(capped);
        capped &= capped - 1;
        const bool negative = codes[column * code_stride + position] < 0;
        out[byte_of_column(column)] = static_cast<uint8_t>(position);
        out[columns + byte_of_column(column)] = static_cast<uint8_t>(negative ? flip : 0);
        if (negative) constant = flip - offset;
      }
      constants[column] += constant;
    }
  }
}

PackedTile pack_tile(const GemmProblem& p, const std::vector<BlockRange>& blocks,
                     const ByteLayout& layout, int64_t batch, int64_t first_column) {
  const int levels = p.streams->levels;
  const int real = static_cast<int>(std::min<int64_t>(kTileColumns, p.m - first_column));
  PackedTile tile;
  tile.columns = (real + kColumnGroup - 1) / kColumnGroup * kColumnGroup;
  tile.negative = Buffer<uint32_t>(blocks.size() * 2 * tile.columns);
  tile.layer_constant = Buffer<int32_t>(p.chunks * tile.columns);
  std::fill_n(tile.layer_constant.data(), tile.layer_constant.size(), 0);
  const int16_t* codes = p.b_codes + (batch * p.m + first_column) * p.d;

  // First the top codes: they decide how many lines each block takes.
  const auto top = static_cast<int16_t>(levels);
  Buffer<uint64_t> capped(layout.capped ? blocks.size() * tile.columns : 0);
  size_t lines = 0;  // of 2 * columns bytes
  for (size_t b = 0; b < blocks.size(); ++b) {
    int layers = 0;
    for (int column = 0; layout.capped && column < tile.columns; ++column) {
      uint64_t& mask = capped[b * tile.columns + column];
      mask = column < real
                 ? magnitude_mask(codes + column * p.d + blocks[b].first, blocks[b].count, top)
                 : 0;
      layers = std::max(layers, __builtin_popcountll(mask));
    }
    tile.blocks.push_back({lines * 2 * tile.columns, layers});
    lines += blocks[b].count + layers;
  }
  tile.data = Buffer<uint8_t>(lines * 2 * tile.columns);

  auto staging = std::make_unique<Staging>();
  std::memset(staging->index, 0, sizeof staging->index);
  std::memset(staging->flip, 0, sizeof staging->flip);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const BlockRange& block = blocks[b];
    for (int column = 0; column < tile.columns; ++column) {
      uint32_t* negative = tile.negative.data() + 2 * b * tile.columns + column;
      negative[0] = negative[tile.columns] = 0;
      if (layout.capped) staging->capped[column] = capped[b * tile.columns + column];
      if (column >= real) continue;
      const int16_t* c = codes + column * p.d + block.first;
      stage_column(c, block.count, levels, layout, staging->index[column], staging->flip[column]);
      const uint64_t mask = negative_mask(c, block.count);
      negative[0] = static_cast<uint32_t>(mask);
      negative[tile.columns] = static_cast<uint32_t>(mask >> 32);
    }
    uint8_t* out = tile.data.data() + tile.blocks[b].offset;
    write_lines(*staging, tile.columns, block.count, out);
    write_layers(*staging, tile.columns, tile.blocks[b].layers, codes + block.first, p.d, layout,
                 out + int64_t{block.count} * 2 * tile.columns,
                 tile.layer_constant.data() + block.chunk * tile.columns);
  }
  return tile;
}

// e(k) of every number k of cycles, for the positions of a block: rows of (length + 1).
void build_extras(const StreamSet& streams, const BlockRange& block, int64_t chunk_start,
                  int16_t* tops) {
  for (int i = 0; i < block.count; ++i, tops += streams.length + 1) {
    const uint16_t* values = streams.b_lane(streams.lane(block.first - chunk_start + i));
    tops[0] = 0;
    for (int k = 0; k < streams.length; ++k) {
      tops[k + 1] = static_cast<int16_t>(tops[k] + (values[k] == streams.levels - 1));
    }
  }
}

// pack_a where the cycles are known: rows have streams of their own lengths.
void pack_cycles(const GemmProblem& p, const std::vector<BlockRange>& blocks,
                 const ByteLayout& layout, const ParallelFor& parallel, PackedA& packed) {
  const int64_t count = static_cast<int64_t>(blocks.size()), stride = p.streams->length + 1;
  parallel(count, 1, [&](int64_t begin, int64_t end) {
    Buffer<int16_t> tops(layout.capped ? kBlock * stride : 0);
    for (int64_t b = begin; b < end; ++b) {
      const BlockRange& block = blocks[b];
      if (layout.capped) build_extras(*p.streams, block, block.chunk * p.chunk, tops.data());
      for (int64_t row = 0; row < packed.rows; ++row) {
        const int16_t* cycles = p.a_cycles + row * p.d + block.first;
        int16_t* k = packed.k.data() + (b * packed.rows + row) * kBlock;
        std::copy_n(cycles, block.count, k);
        std::fill(k + block.count, k + kBlock, int16_t{0});
        packed.negative[row * count + b] = negative_mask(k, block.count);
        if (!layout.capped) continue;
        uint8_t* e = packed.e.data() + (b * packed.rows + row) * kBlock;
        for (int i = 0; i < block.count; ++i) {
          const int extra = tops[i * stride + std::abs(k[i])];
          e[i] = static_cast<uint8_t>(layout.offset() + (k[i] < 0 ? -extra : extra));
        }
      }
    }
  });
}

}  // namespace

std::vector<BlockRange> make_blocks(const GemmProblem& p) {
  std::vector<BlockRange> blocks;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    const int64_t end = std::min(p.d, (chunk + 1) * p.chunk);
    for (int64_t first = chunk * p.chunk; first < end; first += kBlock) {
      blocks.push_back({first, static_cast<int>(std::min<int64_t>(kBlock, end - first)), chunk});
    }
  }
  return blocks;
}

PackedA pack_a(const GemmProblem& p, const std::vector<BlockRange>& blocks,
               const ByteTables& tables, EncodeFn encode, const ParallelFor& parallel) {
  const int64_t rows = p.batches * p.n, count = static_cast<int64_t>(blocks.size());
  const bool capped = tables.layout().capped;
  PackedA packed;
  packed.rows = rows;
  packed.k = Buffer<int16_t>(count * rows * kBlock);
  packed.negative = Buffer<uint64_t>(rows * count);
  if (capped) packed.e = Buffer<uint8_t>(count * rows * kBlock);
  if (p.a_cycles) {
    pack_cycles(p, blocks, tables.layout(), parallel, packed);
    return packed;
  }
  const int64_t encode_size = tables.encode_size();
  const bool cached = tables.has_lanes();
  // Rows are the parallel axis when the encode tables exist, blocks when they are built on the fly.
  const auto encode_block = [&](int64_t b, EncodedCode* scratch, int64_t begin, int64_t end) {
    const BlockRange& block = blocks[b];
    int32_t offset[kBlock];  // of code 0 of each position's lane
    for (int i = 0; i < block.count; ++i) {
      const int64_t lane = p.streams->lane(block.first - block.chunk * p.chunk + i);
      const int64_t slot = cached ? lane : i;
      if (!cached) tables.build_encode(*p.streams, lane, scratch + i * encode_size);
      offset[i] = static_cast<int32_t>(slot * encode_size + p.streams->levels);
    }
    const EncodedCode* table = cached ? tables.encode_lanes() : scratch;
    for (int64_t row = begin; row < end; ++row) {
      int16_t* k = packed.k.data() + (b * rows + row) * kBlock;
      uint8_t* e = capped ? packed.e.data() + (b * rows + row) * kBlock : nullptr;
      encode(table, offset, p.a_codes + row * p.d + block.first, block.count, k, e);
      std::fill(k + block.count, k + kBlock, int16_t{0});
      packed.negative[row * count + b] =
          negative_mask(k, block.count);  // a code may enable 0 cycles
    }
  };
  if (cached) {
    const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, p.d));
    parallel(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = 0; b < count; ++b) encode_block(b, nullptr, begin, end);
    });
  } else {
    parallel(count, 1, [&](int64_t begin, int64_t end) {
      Buffer<EncodedCode> scratch(kBlock * encode_size);
      for (int64_t b = begin; b < end; ++b) encode_block(b, scratch.data(), 0, rows);
    });
  }
  return packed;
}

std::vector<PackedTile> pack_b(const GemmProblem& p, const std::vector<BlockRange>& blocks,
                               const ByteLayout& layout, const ParallelFor& parallel) {
  const int64_t per_batch = (p.m + kTileColumns - 1) / kTileColumns;
  std::vector<PackedTile> tiles(p.batches * per_batch);
  const int64_t tile_elements = std::max<int64_t>(1, std::min<int64_t>(p.m, kTileColumns) * p.d);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / tile_elements);
  parallel(p.batches * per_batch, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      tiles[i] = pack_tile(p, blocks, layout, i / per_batch, i % per_batch * kTileColumns);
    }
  });
  return tiles;
}

}  // namespace scmp
