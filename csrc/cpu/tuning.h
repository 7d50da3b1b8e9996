// This thread's tuning scope (det_kernel_tuning): other tile sizes, the same bits.
#pragma once

namespace scmp {

inline int& det_tuning_depth() {
  static thread_local int depth = 0;
  return depth;
}

inline bool det_tuning() { return det_tuning_depth() > 0; }

}  // namespace scmp
