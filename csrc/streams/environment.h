// The scramble settings, which callers steer through environment variables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace scmp {

enum class ScrambleMode { bitrev, counter, off, random };

struct ScrambleSettings {
  ScrambleMode mode = ScrambleMode::bitrev;
  int64_t masks = 64;         // distinct masks asked for, before the bound of 2**sc_prec
  bool rescaled_grid = true;  // scramble when rng_levels != 2**sc_prec
};

/// Reads and checks SC_SCRAMBLE_MASKS, SC_OWEN_MODE, SC_DISABLE_OWEN and SC_SCRAMBLE_RESCALE.
/// Called by every operator call; a bad value is a ValueError that names the variable.
ScrambleSettings read_environment();

/// SCMP_SYNC_CHECKS=1: CUDA operators wait for the device to check values that only it knows.
bool read_sync_checks();

/// The distinct masks, position d using entry d mod size; {0} when scrambling is off.
std::vector<uint16_t> scramble_masks(const ScrambleSettings& settings, int sc_prec);

}  // namespace scmp
