#include "streams/environment.h"

#include <set>

#include "common/error.h"
#include "support/catch.h"
#include "support/environment.h"

using namespace scmp;

TEST_CASE("defaults, and empty strings count as unset") {
  const ScopedVariable masks("SC_SCRAMBLE_MASKS", ""), mode("SC_OWEN_MODE", "");
  const ScopedVariable disable("SC_DISABLE_OWEN", ""), rescale("SC_SCRAMBLE_RESCALE", "");
  const auto settings = read_environment();
  CHECK(settings.masks == 64);
  CHECK(settings.mode == ScrambleMode::bitrev);
  CHECK(settings.rescaled_grid);
}

TEST_CASE("SC_DISABLE_OWEN wins over the mode") {
  const ScopedVariable mode("SC_OWEN_MODE", "random"), disable("SC_DISABLE_OWEN", "1");
  CHECK(read_environment().mode == ScrambleMode::off);
}

TEST_CASE("bad values name the variable") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"SC_SCRAMBLE_MASKS", "3"},   {"SC_SCRAMBLE_MASKS", "0"},
      {"SC_SCRAMBLE_MASKS", "064"}, {"SC_SCRAMBLE_MASKS", "+64"},
      {"SC_SCRAMBLE_MASKS", "64 "}, {"SC_SCRAMBLE_MASKS", "2147483648"},
      {"SC_OWEN_MODE", "BITREV"},   {"SC_DISABLE_OWEN", "yes"},
      {"SC_SCRAMBLE_RESCALE", "2"}};
  for (const auto& [name, value] : cases) {
    const ScopedVariable variable(name, value);
    CHECK_THROWS_WITH(read_environment(), Mentions(name, value));
  }
}

TEST_CASE("masks") {
  ScrambleSettings settings;
  CHECK(scramble_masks(settings, 8).size() == 64);
  CHECK(scramble_masks(settings, 4).size() == 16);
  CHECK(scramble_masks(settings, 3) == std::vector<uint16_t>{0, 4, 2, 6, 1, 5, 3, 7});
  settings.mode = ScrambleMode::counter;
  CHECK(scramble_masks(settings, 3) == std::vector<uint16_t>{0, 1, 2, 3, 4, 5, 6, 7});
  settings.mode = ScrambleMode::off;
  CHECK(scramble_masks(settings, 8) == std::vector<uint16_t>{0});
  settings.mode = ScrambleMode::random;
  settings.masks = 1 << 30;
  const auto all = scramble_masks(settings, 8);
  CHECK(std::set<uint16_t>(all.begin(), all.end()).size() == 256);
}
