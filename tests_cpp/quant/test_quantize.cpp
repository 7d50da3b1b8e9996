#include "quant/quantize.h"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "support/problems.h"

using namespace scmp;

namespace {

Source source_of(const std::vector<float>& x, int64_t batches, int64_t rows) {
  Source source;
  source.data = x.data();
  source.batches = batches;
  source.rows = rows;
  source.dim = static_cast<int64_t>(x.size()) / (batches * rows);
  source.row_stride = source.dim;
  source.batch_stride = source.dim * rows;
  return source;
}

}  // namespace

TEST_CASE("boundary codes round q * G / qmax, never at a tie") {
  const BoundaryMap map(127, 128);
  CHECK(map[0] == 0);
  CHECK(map[63] == 63);
  CHECK(map[64] == 65);
  CHECK(map[127] == 128);
  CHECK(map.multiplier != 0);
  CHECK(BoundaryMap(1, 1)[1] == 1);
  CHECK(BoundaryMap(255, 1)[127] == 0);
  CHECK(BoundaryMap(255, 1)[128] == 1);
}

TEST_CASE("boundary codes by multiplication or by table are the same") {
  for (int sc_prec = 2; sc_prec <= 12; ++sc_prec) {
    for (int levels : {1, 2, 3, 100, 128, 256, 4095, 4096}) {
      for (int qmax : {bipolar_qmax(sc_prec), unipolar_qmax(sc_prec)}) {
        const BoundaryMap map(qmax, levels);
        std::vector<float> q(qmax + 1);
        for (int level = 0; level <= qmax; ++level) q[level] = static_cast<float>(-level);
        std::vector<int16_t> codes(q.size());
        row_kernels(current_isa()).encode(q.data(), qmax + 1, map, codes.data());
        int wrong = 0;
        for (int level = 0; level <= qmax; ++level) wrong += codes[level] != -map[level];
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a per-row group shares its scale, and never crosses a batch") {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};  // (2, 3, 1)
  const auto affines = find_affines(source_of(x, 2, 3), QuantScheme{},
                                    {Grouping::Kind::row_groups, 2, 0}, threaded_for);
  std::vector<float> scales;
  for (int row = 0; row < 6; ++row) scales.push_back(affines.at(row, 0).scale * 127.0f);
  const std::vector<float> expected = {2, 2, 3, 5, 5, 6};
  for (int row = 0; row < 6; ++row) CHECK(std::abs(scales[row] - expected[row]) < 1e-5f);
}

TEST_CASE("huge group sizes mean all rows of a batch") {
  const std::vector<float> x = {1, 2, 3, 4};
  const auto affines = find_affines(source_of(x, 2, 2), QuantScheme{},
                                    {Grouping::Kind::row_groups, INT64_MAX, 0}, serial_for);
  CHECK(affines.at(0, 0).scale == affines.at(1, 0).scale);
  CHECK(affines.at(1, 0).scale != affines.at(2, 0).scale);
}

TEST_CASE("chunks have a scale each; the last may be short") {
  const std::vector<float> x = {1, -2, 3, 4, 10};
  const auto quantized = quantize_operand(source_of(x, 1, 1), {Rounding::multiply, false, 127},
                                          {Grouping::Kind::row_groups, 1, 2}, 128, serial_for);
  CHECK(quantized.affines.chunks == 3);
  CHECK(quantized.codes[1] == -128);
  CHECK(quantized.codes[3] == 128);
  CHECK(quantized.codes[4] == 128);
}

TEST_CASE("a group with NaN or Inf has a NaN scale and zero codes; others do not notice") {
  std::vector<float> x = {1, 2, 3, std::nanf(""), 5, std::numeric_limits<float>::infinity(), 7, 8};
  for (bool unipolar : {false, true}) {
    const auto quantized = quantize_operand(source_of(x, 1, 4), {Rounding::divide, unipolar, 127},
                                            {Grouping::Kind::row_groups, 1, 0}, 128, serial_for);
    CHECK(std::isnan(quantized.affines.at(1, 0).scale));
    CHECK(std::isnan(quantized.affines.at(2, 0).scale));
    CHECK(quantized.codes[2] == 0);
    CHECK(quantized.codes[4] == 0);
    CHECK_FALSE(std::isnan(quantized.affines.at(0, 0).scale));
    CHECK(quantized.codes[1] == 128);
    CHECK(quantized.codes[7] == 128);
  }
}

TEST_CASE("per-tensor scales are made in double") {
  const Affine affine = make_affine({Rounding::tensor, false, 127}, 0.0f, 3.3f);
  CHECK(affine.scale64 == static_cast<double>(3.3f) / 127);
  CHECK(affine.factor == static_cast<float>(1.0 / affine.scale64));
  const Affine zero = make_affine({Rounding::tensor, true, 255}, 0.0f, 0.0f);
  CHECK(zero.scale64 == 1e-5 / 255);
  CHECK_FALSE(std::signbit(zero.zero_point));
}

TEST_CASE("unipolar level sums are exact") {
  const std::vector<float> x = {0, 0.4f, 1, 0.25f};
  const auto quantized = quantize_operand(source_of(x, 1, 1), {Rounding::divide, true, 255},
                                          {Grouping::Kind::row_groups, 1, 0}, 256, serial_for);
  CHECK(quantized.level_sum[0] == 0 + 102 + 255 + 64);
}

TEST_CASE("rows are read through strides, dtypes and smoothing") {
  const std::vector<double> x = {1, 9, 2, 9, 3, 9, 4, 9};  // column stride 2
  Source source;
  source.data = x.data();
  source.dtype = DType::float64;
  source.rows = 2;
  source.dim = 2;
  source.row_stride = 4;
  source.dim_stride = 2;
  float buffer[2];
  CHECK(read_row(source, 1, buffer)[1] == 4.0f);
  const float scales[] = {2.0f, 4.0f};
  source.smoothing = Smoothing::divide;
  source.smooth_scales = scales;
  CHECK(read_row(source, 1, buffer)[1] == 1.0f);
  source.smoothing = Smoothing::multiply;
  CHECK(read_row(source, 0, buffer)[0] == 2.0f);
  const uint16_t halves[] = {0x3c00, 0x0001, 0xfc00, 0x8000};
  source = Source{};
  source.data = halves;
  source.dtype = DType::float16;
  source.rows = 1;
  source.dim = 4;
  float wide[4];
  read_row(source, 0, wide);
  CHECK(wide[0] == 1.0f);
  CHECK(wide[1] == 0x1p-24f);
  CHECK(std::isinf(wide[2]));
  CHECK((wide[3] == 0.0f && std::signbit(wide[3])));
  source.dtype = DType::bfloat16;
  CHECK(read_row(source, 0, wide)[0] == 0x1p-7f);
}
