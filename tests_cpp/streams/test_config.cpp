#include "streams/config.h"

#include "common/error.h"
#include "support/catch.h"

using namespace scmp;

namespace {

std::string error_of(const std::string& json, int sc_prec = 8) {
  try {
    check_config(*parse_config(json), sc_prec);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

std::string with_rng(const std::string& rng) {
  return R"({"rng_pool": [)" + rng + R"(], "sng": {"q": [], "k": []}})";
}

std::string with_sng(const std::string& sng) {
  return R"({"rng_pool": [{"type": "sobol"}], "sng": {"q": [)" + sng + R"(], "k": []}})";
}

}  // namespace

TEST_CASE("a full config parses") {
  const auto config = parse_config(R"({"rng_pool": [
      {"type": "sobol", "seed": null, "seed_type": "k"}, {"type": "lfsr", "seed": 5, "taps": [0, 2]},
      {"type": "true_random", "seed": 9223372036854775807}],
      "sng": {"q": [{"rng_id": 0, "scramble": null}],
              "k": [{"rng_id": 2, "scramble": [2, 1, 0], "complement": true}]}})");
  CHECK_NOTHROW(check_config(*config, 3));
  CHECK(config->pool.size() == 3);
  CHECK(config->b[0].complement);
  CHECK(parse_config(with_rng(""))->id != config->id);
}

TEST_CASE("config errors name the key, what is allowed and what came") {
  CHECK(error_of("{") != "");
  CHECK(error_of("[]") == "config: config must be an object, got []");
  CHECK(error_of(R"({"sng": {"q": [], "k": []}})") == "config: config needs the key \"rng_pool\"");
  CHECK(error_of(R"({"rng_pool": [], "sng": {"q": [], "k": []}, "x": 1})") ==
        "config: config has the unknown key \"x\"; allowed: rng_pool, sng");
  CHECK(error_of(with_rng(R"({"type": "halton"})")) ==
        "config: rng_pool[0].type must be \"sobol\", \"lfsr\" or \"true_random\", got \"halton\"");
  CHECK(error_of(with_rng(R"({"type": "sobol", "taps": [1]})")) ==
        "config: rng_pool[0] has the unknown key \"taps\"; allowed: type, seed, seed_type");
  CHECK(error_of(with_rng(R"({"type": "sobol", "seed": [1, 2]})"), 2) ==
        "config: rng_pool[0].seed[1] must be odd and in [1, 3], got 2");
  CHECK(error_of(with_rng(R"({"type": "sobol", "seed": [1]})"), 2) ==
        "config: rng_pool[0].seed must have 2 entries for sc_prec=2, got 1");
  CHECK(error_of(with_rng(R"({"type": "sobol", "seed": [1, 1.5]})")) ==
        "config: rng_pool[0].seed[] must be an integer, got 1.5");
  CHECK(error_of(with_rng(R"({"type": "sobol", "seed_type": "z"})")) ==
        "config: rng_pool[0].seed_type must be \"q\" or \"k\", got \"z\"");
  CHECK(error_of(with_rng(R"({"type": "lfsr", "seed": 0, "taps": [1]})")) ==
        "config: rng_pool[0].seed must be in [1, 255] for sc_prec=8, got 0");
  CHECK(error_of(with_rng(R"({"type": "lfsr", "seed": 1, "taps": [1, 1]})")) ==
        "config: rng_pool[0].taps must be distinct bits in [0, 7], got 1");
  CHECK(error_of(with_rng(R"({"type": "lfsr", "seed": 1, "taps": []})")) ==
        "config: rng_pool[0].taps must name at least one bit, got []");
  CHECK(error_of(with_rng(R"({"type": "true_random", "seed": -1})")) ==
        "config: rng_pool[0].seed must be in [0, 2**63-1], got -1");
  CHECK(error_of(with_rng(R"({"type": "true_random"})")) ==
        "config: rng_pool[0] needs the key \"seed\"");
  CHECK(error_of(with_sng(R"({"rng_id": 1})")) ==
        "config: sng.q[0].rng_id must be in [0, 0] (rng_pool has 1 entries), got 1");
  CHECK(error_of(with_sng(R"({"rng_id": 0, "scramble": [0, 0]})"), 2) ==
        "config: sng.q[0].scramble must be a permutation of 0..1 for sc_prec=2, got [0, 0]");
  CHECK(error_of(with_sng(R"({"rng_id": 0, "complement": 1})")) ==
        "config: sng.q[0].complement must be true or false, got 1");
}

TEST_CASE("scramble permutes bits, then complement flips") {
  const auto config = parse_config(R"({"rng_pool": [{"type": "lfsr", "seed": 1, "taps": [0]}],
      "sng": {"q": [{"rng_id": 0, "scramble": [2, 0, 1], "complement": true}], "k": []}})");
  // Source value 0b001: output bit i = source bit perm[i] -> bit 1 set -> 2; complement 7 - 2.
  CHECK(sng_sequence(*config, config->a[0], 3)[0] == 5);
}
