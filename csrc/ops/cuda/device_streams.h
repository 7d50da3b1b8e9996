// Prepared sequences as device tables, kept in the same cache as the host's.
#pragma once

#include <memory>

#include "gemm/cuda/problem.h"
#include "gemm/cuda/row_lengths.h"
#include "streams/prepare.h"

namespace scmp::cuda {

struct DeviceStreams {
  std::shared_ptr<void> storage;  // one allocation for all tables
  size_t size = 0;
  DeviceTables tables;
  size_t bytes() const { return size; }
};

/// The sequences of operand a for streams of any length.
struct DeviceRanks {
  std::shared_ptr<void> storage;
  size_t size = 0;
  CycleTables tables;
  size_t bytes() const { return size; }
};

/// What exchanged operands need where rows have lengths of their own; no tables where they would be
/// too large.
struct DeviceClasses {
  std::shared_ptr<void> storage;
  size_t size = 0;
  LengthTables tables;
  size_t bytes() const { return size; }
};

/// Whether the current stream is being captured into a CUDA graph.
bool capturing();

/// Tables of `spec` on the current device. A cold call uploads them and waits for the upload; warm
/// calls do nothing on the device. Inside a CUDA graph capture a cold cache is a ValueError, and
/// what a capture touched stays alive for good.
std::shared_ptr<const DeviceStreams> device_streams(const StreamSpec& spec);
std::shared_ptr<const DeviceRanks> device_ranks(const StreamSpec& spec);
std::shared_ptr<const DeviceClasses> device_classes(const StreamSpec& spec);

}  // namespace scmp::cuda
