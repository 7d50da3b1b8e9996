// What is asked once for each device, because the question takes microseconds.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <optional>

namespace scmp::cuda {

/// ask() for the current device, or what it said there before: nothing means that it does not know
/// yet, false for now. Every lambda has answers of its own.
template <typename Ask>
bool once_per_device(const Ask& ask) {
  enum : char { kUnknown, kNo, kYes };
  static std::array<std::atomic<char>, 64> answers{};
  int device = 0;
  cudaGetDevice(&device);
  const bool kept = device < static_cast<int>(answers.size());
  const char before = kept ? answers[device].load(std::memory_order_relaxed) : char{kUnknown};
  if (before != kUnknown) return before == kYes;
  const std::optional<bool> answer = ask();
  if (answer && kept) answers[device].store(*answer ? kYes : kNo, std::memory_order_relaxed);
  return answer.value_or(false);
}

}  // namespace scmp::cuda
