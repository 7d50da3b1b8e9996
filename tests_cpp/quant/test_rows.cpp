// The row kernels: every instruction set gives the scalar bits.
#include "quant/rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quant/scheme.h"
#include "support/catch.h"

using namespace scmp;

namespace {

std::vector<Isa> isas_here() {
  std::vector<Isa> isas{Isa::scalar};
  for (const auto& name : available_cpu_kernels()) {
    if (name == "avx2") isas.push_back(Isa::avx2);
    if (name == "avx512") isas.push_back(Isa::avx512);
  }
  return isas;
}

std::vector<float> random_row(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (auto& value : x) value = normal(random);
  return x;
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("levels, codes and sums agree on every instruction set") {
  for (size_t count : {1u, 15u, 16u, 67u, 1000u}) {
    const auto x = random_row(count, static_cast<unsigned>(count));
    const RowKernels& base = row_kernels(Isa::scalar);
    const BoundaryMap boundary(127, 128);
    std::vector<float> expected(count), q(count);
    std::vector<int16_t> expected_codes(count), codes(count);
    for (Isa isa : isas_here()) {
      const RowKernels& kernels = row_kernels(isa);
      CHECK(kernels.absmax_bits(x.data(), count) == base.absmax_bits(x.data(), count));
      float low, high, expected_low, expected_high;
      base.minmax(x.data(), count, &expected_low, &expected_high);
      kernels.minmax(x.data(), count, &low, &high);
      CHECK(low == expected_low);
      CHECK(high == expected_high);
      base.levels_divide(x.data(), count, 0.017f, 127, expected.data());
      kernels.levels_divide(x.data(), count, 0.017f, 127, q.data());
      CHECK(same_bits(q, expected));
      base.encode(q.data(), count, boundary, expected_codes.data());
      kernels.encode(q.data(), count, boundary, codes.data());
      CHECK(codes == expected_codes);
      base.levels_multiply(x.data(), count, 51.3f, 127, expected.data());
      kernels.levels_multiply(x.data(), count, 51.3f, 127, q.data());
      CHECK(same_bits(q, expected));
      base.levels_divide_zero(x.data(), count, 0.017f, 99.0f, 255, expected.data());
      kernels.levels_divide_zero(x.data(), count, 0.017f, 99.0f, 255, q.data());
      CHECK(same_bits(q, expected));
      CHECK(kernels.sum(q.data(), count) == base.sum(q.data(), count));
      base.levels_fma(x.data(), count, 51.3f, 99.0f, 255, expected.data());
      kernels.levels_fma(x.data(), count, 51.3f, 99.0f, 255, q.data());
      CHECK(same_bits(q, expected));
    }
  }
}

TEST_CASE("symmetric levels keep the sign of zero, asymmetric ones have none") {
  const float x[] = {-0.2f, 0.2f, -0.0f};
  float q[3];
  for (Isa isa : isas_here()) {
    const RowKernels& kernels = row_kernels(isa);
    kernels.levels_divide(x, 3, 1.0f, 127, q);
    CHECK(std::signbit(q[0]));
    CHECK_FALSE(std::signbit(q[1]));
    CHECK(std::signbit(q[2]));
    kernels.levels_divide_zero(x, 3, 1.0f, 0.0f, 255, q);
    CHECK_FALSE(std::signbit(q[0]));
    CHECK_FALSE(std::signbit(q[2]));
    kernels.levels_fma(x, 3, 1.0f, 0.0f, 255, q);
    CHECK_FALSE(std::signbit(q[0]));
  }
}

TEST_CASE("the fma is fused and halves go to even") {
  // 4097 * 4097 = 2**24 + 2**13 + 1 does not fit float32: only a fused product keeps the 1.
  const float x[] = {4097.0f, 2.5f, 3.5f, -2.5f};
  float q[4];
  for (Isa isa : isas_here()) {
    row_kernels(isa).levels_fma(x, 1, 4097.0f, -16785408.0f, 255, q);
    CHECK(q[0] == 1.0f);
    row_kernels(isa).levels_divide(x + 1, 3, 1.0f, 127, q);
    CHECK(q[0] == 2.0f);
    CHECK(q[1] == 4.0f);
    CHECK(q[2] == -2.0f);
  }
}

TEST_CASE("non-finite values show in the bits of the maximum") {
  for (Isa isa : isas_here()) {
    std::vector<float> x(33, 1.0f);
    CHECK(row_kernels(isa).absmax_bits(x.data(), 33) < kNonFiniteBits);
    x[17] = -std::numeric_limits<float>::infinity();
    CHECK(row_kernels(isa).absmax_bits(x.data(), 33) == kNonFiniteBits);
    x[17] = std::nanf("");
    CHECK(row_kernels(isa).absmax_bits(x.data(), 33) > kNonFiniteBits);
    CHECK(row_kernels(isa).absmax_bits(x.data(), 0) == 0);
  }
}
