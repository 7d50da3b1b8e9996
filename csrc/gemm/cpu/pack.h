// Operands in the order in which the table kernels read them.
//
// Positions are cut into blocks of 64 (never across a chunk). A tile of b is up to 256 columns
// wide; per position it holds one line of table indices and one line of sign flips. Behind the
// positions of a block stand its layers: extra lines whose "table" is the row's 64 stored e values,
// indexed by the position at which a column holds the capped top code (entry 64 and up stands for
// "none").
#pragma once

#include <cstdint>
#include <vector>

#include "common/buffer.h"
#include "common/parallel.h"
#include "gemm/byte_tables.h"
#include "gemm/problem.h"

namespace scmp {

constexpr int kBlock = 64;         // positions per block
constexpr int kTileColumns = 256;  // most columns of b per tile
constexpr int kColumnGroup = 64;   // a tile's width is a multiple of this

struct BlockRange {
  int64_t first;  // position within the row
  int count;
  int64_t chunk;
};

std::vector<BlockRange> make_blocks(const GemmProblem& problem);

struct PackedA {
  int64_t rows = 0;
  Buffer<int16_t> k;          // (blocks, rows, 64) sign * cycles, zero-padded
  Buffer<uint8_t> e;          // (blocks, rows, 64), capped layouts only
  Buffer<uint64_t> negative;  // (rows, blocks) sign bits of k
};

struct PackedTile {
  struct Block {
    size_t offset;  // of its lines in data
    int layers;
  };
  int columns = 0;  // multiple of 64
  Buffer<uint8_t> data;
  std::vector<Block> blocks;
  Buffer<uint32_t> negative;       // (blocks, 2, columns) sign bits, positions 0-31 and 32-63
  Buffer<int32_t> layer_constant;  // (chunks, columns) what the layers add besides e
};

/// k and e (null: not wanted) of up to 64 codes: entry offset[i] + codes[i] of `table` each.
using EncodeFn = void (*)(const EncodedCode* table, const int32_t* offset, const int16_t* codes,
                          int count, int16_t* k, uint8_t* e);

PackedA pack_a(const GemmProblem& problem, const std::vector<BlockRange>& blocks,
               const ByteTables& tables, EncodeFn encode, const ParallelFor& parallel);

/// Tiles of every batch, batch-major.
std::vector<PackedTile> pack_b(const GemmProblem& problem, const std::vector<BlockRange>& blocks,
                               const ByteLayout& layout, const ParallelFor& parallel);

}  // namespace scmp
