// The public quantizers through the dispatcher, from C++, on every device.
#include <torch/torch.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "scmp_kernels/scmp_kernels.h"
#include "support/catch.h"
#include "support/devices.h"

namespace {

/// What every quantizer makes of x (R, C).
std::vector<at::Tensor> all_outputs(const at::Tensor& x) {
  std::vector<at::Tensor> outputs;
  const auto add = [&](const auto&... tensors) { (outputs.push_back(tensors), ...); };
  std::apply(add, scmp::fused_quantize_bipolar(x, 2.5, 8));
  std::apply(add, scmp::fused_quantize_bipolar_perrow(x, 8, 128));
  const auto [boundary, row_sum] = scmp::fused_quantize_unipolar(x, 2.0, -1.5, 8, true);
  add(boundary, row_sum.value());
  std::apply(add, scmp::grouped_symmetric_quant(x, 3, 127));
  std::apply(add, scmp::grouped_asymmetric_quant(x, 2, 255));
  std::apply(add, scmp::grouped_symmetric_quant(x.unsqueeze(0), 3, 127));
  return outputs;
}

}  // namespace

TEST_CASE("fused bipolar") {
  const auto x = torch::tensor({{1.0f, -0.5f, NAN, 0.0f}});
  for (const auto& device : devices()) {
    const auto [boundary, sign] = scmp::fused_quantize_bipolar(x.to(device), 1.0, 8, 128);
    CHECK(same_bits(boundary, torch::tensor({{128, 65, 0, 0}}, torch::kInt16)));
    CHECK(same_bits(sign, torch::tensor({{1, -1, 0, 0}}, torch::kInt8)));
  }
}

TEST_CASE("fused bipolar per row") {
  const auto x = torch::tensor({{1.0f, -1.0f}, {INFINITY, 2.0f}});
  for (const auto& device : devices()) {
    const auto [boundary, sign, scale] = scmp::fused_quantize_bipolar_perrow(x.to(device), 8);
    CHECK(same_bits(boundary, torch::tensor({{256, 256}, {0, 0}}, torch::kInt16)));
    CHECK(same_bits(sign, torch::tensor({{1, -1}, {0, 0}}, torch::kInt8)));
    CHECK(std::isnan(scale[1].item<float>()));
  }
}

TEST_CASE("fused unipolar") {
  const auto x = torch::tensor({{0.0f, 1.0f, 3.0f}});
  for (const auto& device : devices()) {
    const auto on_device = x.to(device);
    const auto [boundary, sum] = scmp::fused_quantize_unipolar(on_device, 3.0, 0.0, 8, true);
    CHECK(same_bits(boundary, torch::tensor({{0, 85, 256}}, torch::kInt32)));
    CHECK(sum->item<float>() == 85 + 255);
    CHECK_FALSE(std::get<1>(scmp::fused_quantize_unipolar(on_device, 3.0, 0.0, 8)).has_value());
  }
}

TEST_CASE("grouped") {
  const auto x = torch::tensor({{1.0f, -2.0f}, {4.0f, 0.0f}});
  for (const auto& device : devices()) {
    const auto [scale, q, sign] = scmp::grouped_symmetric_quant(x.to(device), 2, 4);
    CHECK(same_bits(scale, torch::ones(2)));
    CHECK(same_bits(q, torch::tensor({{1.0f, -2.0f}, {4.0f, 0.0f}})));
    CHECK(same_bits(sign, torch::tensor({{1, -1}, {1, 1}}, torch::kInt8)));
    const auto [scale2, zero, q2] = scmp::grouped_asymmetric_quant(x.to(device), 1, 3);
    CHECK(same_bits(zero, torch::tensor({2.0f, 0.0f})));
    CHECK(same_bits(q2, torch::tensor({{3.0f, 0.0f}, {3.0f, 0.0f}})));
  }
}

TEST_CASE("every device gives the bits of the CPU") {
  torch::manual_seed(1);
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1}, {33, 517}, {5, 5000}, {70, 64}};
  for (const auto& [rows, columns] : shapes) {
    const auto x = torch::randn({rows, columns});
    for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble}) {
      const auto typed = x.to(dtype);
      const auto expected = all_outputs(typed);
      for (const auto& device : devices()) {
        INFO("on " << device.str() << ", " << rows << " x " << columns << " of " << dtype);
        const auto actual = all_outputs(typed.to(device));
        for (size_t i = 0; i < expected.size(); ++i) {
          INFO("output " << i);
          CHECK(actual[i].device() == device);
          CHECK(same_bits(actual[i], expected[i]));
        }
      }
    }
  }
}

TEST_CASE("bad arguments of quantizers raise ValueError with one line") {
  for (const auto& device : devices()) {
    const auto x = torch::randn({2, 4}).to(device);
    CHECK(value_error([&] { scmp::fused_quantize_bipolar_perrow(x, 13); }) ==
          "fused_quantize_bipolar_perrow: sc_prec must be in [2, 12], got 13");
    CHECK(value_error([&] { scmp::fused_quantize_unipolar(x, 1.0, 2.0, 8); }) ==
          "fused_quantize_unipolar: fp_min must not exceed fp_max = 1, got 2");
    CHECK(value_error([&] { scmp::grouped_symmetric_quant(x, 0, 127); }) ==
          "grouped_symmetric_quant: g must be at least 1, got 0");
  }
}
