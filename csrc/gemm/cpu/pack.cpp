#include "gemm/cpu/pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "gemm/cpu/transpose.h"

namespace scmp {
namespace {

constexpr int64_t kGrainElements = 1 << 14;

uint64_t sign_bits(const int16_t* values, int count) {
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i) bits |= uint64_t{values[i] < 0} << i;
  return bits;
}

// One tile's staging area: a line per column, positions contiguous.
struct Staging {
  alignas(64) uint8_t index[kTileColumns][kBlock];
  alignas(64) uint8_t flip[kTileColumns][kBlock];
  std::array<std::vector<uint8_t>, kTileColumns> capped;  // positions with the top code
};

// The kernels add even and odd bytes of a 64-byte line apart: byte 2i is column i, 2i+1 column 32+i.
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

void write_layers(const Staging& staging, int columns, int layers, const int16_t* codes,
                  int64_t code_stride, int real_columns, const ByteLayout& layout, uint8_t* out,
                  int32_t* constants) {
  const int flip = layout.flip(), offset = layout.offset();
  for (int layer = 0; layer < layers; ++layer, out += 2 * columns) {
    std::memset(out, kBlock, columns);
    std::memset(out + columns, 0, columns);
    for (int column = 0; column < columns; ++column) {
      const auto& capped = staging.capped[column];
      int constant = offset;
      if (column < real_columns && layer < static_cast<int>(capped.size())) {
        const int position = capped[layer];
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
  tile.negative = Buffer<uint64_t>(blocks.size() * tile.columns);
  tile.layer_constant = Buffer<int32_t>(p.chunks * tile.columns);
  std::fill_n(tile.layer_constant.data(), tile.layer_constant.size(), 0);
  const int16_t* codes = p.b_codes + (batch * p.m + first_column) * p.d;

  size_t lines = 0;  // of 2 * columns bytes
  for (const BlockRange& block : blocks) {
    int layers = 0;
    for (int column = 0; layout.capped && column < real; ++column) {
      const int16_t* c = codes + column * p.d + block.first;
      int tops = 0;
      for (int i = 0; i < block.count; ++i) tops += c[i] == levels || c[i] == -levels;
      layers = std::max(layers, tops);
    }
    tile.blocks.push_back({lines * 2 * tile.columns, layers});
    lines += block.count + layers;
  }
  tile.data = Buffer<uint8_t>(lines * 2 * tile.columns);

  auto staging = std::make_unique<Staging>();
  std::memset(staging->index, 0, sizeof staging->index);
  std::memset(staging->flip, 0, sizeof staging->flip);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const BlockRange& block = blocks[b];
    for (int column = 0; column < tile.columns; ++column) {
      uint64_t& negative = tile.negative[b * tile.columns + column];
      negative = 0;
      auto& capped = staging->capped[column];
      capped.clear();
      if (column >= real) continue;
      const int16_t* c = codes + column * p.d + block.first;
      stage_column(c, block.count, levels, layout, staging->index[column], staging->flip[column]);
      negative = sign_bits(c, block.count);
      if (tile.blocks[b].layers == 0) continue;
      for (int i = 0; i < block.count; ++i) {
        if (c[i] == levels || c[i] == -levels) capped.push_back(static_cast<uint8_t>(i));
      }
    }
    uint8_t* out = tile.data.data() + tile.blocks[b].offset;
    write_lines(*staging, tile.columns, block.count, out);
    write_layers(*staging, tile.columns, tile.blocks[b].layers, codes + block.first, p.d, real,
                 layout, out + int64_t{block.count} * 2 * tile.columns,
                 tile.layer_constant.data() + block.chunk * tile.columns);
  }
  return tile;
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
               const ByteTables& tables, const ParallelFor& parallel) {
  const int64_t rows = p.batches * p.n, count = static_cast<int64_t>(blocks.size());
  const int levels = p.streams->levels;
  const bool capped = tables.layout().capped;
  PackedA packed;
  packed.k = Buffer<int16_t>(rows * p.d);
  packed.negative = Buffer<uint64_t>(rows * count);
  if (capped) packed.e = Buffer<uint8_t>(rows * count * kBlock);
  const int64_t encode_size = tables.encode_size();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, p.d));
  // Rows are the parallel axis when the encode tables exist, blocks when they are built on the fly.
  const auto encode_block = [&](int64_t b, const EncodedCode* const* lanes, int64_t row_begin,
                                int64_t row_end) {
    const BlockRange& block = blocks[b];
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int16_t* codes = p.a_codes + row * p.d + block.first;
      int16_t* k = packed.k.data() + row * p.d + block.first;
      uint8_t* e = capped ? packed.e.data() + (row * count + b) * kBlock : nullptr;
      for (int i = 0; i < block.count; ++i) {
        const EncodedCode code = lanes[i][codes[i] + levels];
        k[i] = code.k;
        if (e) e[i] = code.e;
      }
      packed.negative[row * count + b] = sign_bits(k, block.count);  // a code may enable 0 cycles
    }
  };
  if (tables.has_lanes()) {
    parallel(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = 0; b < count; ++b) {
        const EncodedCode* lanes[kBlock];
        for (int i = 0; i < blocks[b].count; ++i) {
          const int64_t position = blocks[b].first - blocks[b].chunk * p.chunk + i;
          lanes[i] = tables.encode_lanes() + p.streams->lane(position) * encode_size;
        }
        encode_block(b, lanes, begin, end);
      }
    });
  } else {
    parallel(count, 1, [&](int64_t begin, int64_t end) {
      Buffer<EncodedCode> scratch(kBlock * encode_size);
      for (int64_t b = begin; b < end; ++b) {
        const EncodedCode* lanes[kBlock];
        for (int i = 0; i < blocks[b].count; ++i) {
          const int64_t position = blocks[b].first - blocks[b].chunk * p.chunk + i;
          tables.build_encode(*p.streams, p.streams->lane(position),
                              scratch.data() + i * encode_size);
          lanes[i] = scratch.data() + i * encode_size;
        }
        encode_block(b, lanes, 0, rows);
      }
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
