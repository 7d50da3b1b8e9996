// The public quantizers through the dispatcher, from C++.
#include <torch/torch.h>

#include "scmp_kernels/scmp_kernels.h"
#include "support/catch.h"

TEST_CASE("fused bipolar") {
  const auto x = torch::tensor({{1.0f, -0.5f, NAN, 0.0f}});
  const auto [boundary, sign] = scmp::fused_quantize_bipolar(x, 1.0, 8, 128);
  CHECK(torch::equal(boundary, torch::tensor({{128, 65, 0, 0}}, torch::kInt16)));
  CHECK(torch::equal(sign, torch::tensor({{1, -1, 0, 0}}, torch::kInt8)));
}

TEST_CASE("fused bipolar per row") {
  const auto x = torch::tensor({{1.0f, -1.0f}, {INFINITY, 2.0f}});
  const auto [boundary, sign, scale] = scmp::fused_quantize_bipolar_perrow(x, 8);
  CHECK(torch::equal(boundary, torch::tensor({{256, 256}, {0, 0}}, torch::kInt16)));
  CHECK(torch::equal(sign, torch::tensor({{1, -1}, {0, 0}}, torch::kInt8)));
  CHECK(std::isnan(scale[1].item<float>()));
}

TEST_CASE("fused unipolar") {
  const auto x = torch::tensor({{0.0f, 1.0f, 3.0f}});
  const auto [boundary, sum] = scmp::fused_quantize_unipolar(x, 3.0, 0.0, 8, true);
  CHECK(torch::equal(boundary, torch::tensor({{0, 85, 256}}, torch::kInt32)));
  CHECK(sum->item<float>() == 85 + 255);
  CHECK_FALSE(std::get<1>(scmp::fused_quantize_unipolar(x, 3.0, 0.0, 8)).has_value());
}

TEST_CASE("grouped") {
  const auto x = torch::tensor({{1.0f, -2.0f}, {4.0f, 0.0f}});
  const auto [scale, q, sign] = scmp::grouped_symmetric_quant(x, 2, 4);
  CHECK(torch::equal(scale, torch::ones(2)));
  CHECK(torch::equal(q, torch::tensor({{1.0f, -2.0f}, {4.0f, 0.0f}})));
  CHECK(torch::equal(sign, torch::tensor({{1, -1}, {1, 1}}, torch::kInt8)));
  const auto [scale2, zero, q2] = scmp::grouped_asymmetric_quant(x, 1, 3);
  CHECK(torch::equal(zero, torch::tensor({2.0f, 0.0f})));
  CHECK(torch::equal(q2, torch::tensor({{3.0f, 0.0f}, {3.0f, 0.0f}})));
}
