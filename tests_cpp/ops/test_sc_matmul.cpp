// sc_matmul through the dispatcher, from C++, on every device.
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "scmp_kernels/scmp_kernels.h"
#include "support/catch.h"
#include "support/devices.h"

namespace {

at::Tensor reference(const at::Tensor& a, const at::Tensor& b, const scmp::MatmulOptions& options) {
  const ForcedKernel forced(at::kCPU, "reference");
  return scmp::sc_matmul(a, b, options);
}

at::Tensor run_on(const at::Device& device, const at::Tensor& a, const at::Tensor& b,
                  scmp::MatmulOptions options) {
  if (options.smooth_scales) options.smooth_scales = options.smooth_scales->to(device);
  return scmp::sc_matmul(a.to(device), b.to(device), options);
}

/// Every kernel of every device that takes the call, and the automatic choice, give the reference.
void check_kernels(const at::Tensor& a, const at::Tensor& b, const scmp::MatmulOptions& options) {
  const auto expected = reference(a, b, options);
  for (const auto& device : devices()) {
    auto names = kernels(device);
    names.emplace_back("auto");
    for (const auto& name : names) {
      INFO("on " << device.str() << ", kernel " << name);
      const ForcedKernel forced(device, name);
      at::Tensor actual;
      const auto error = value_error([&] { actual = run_on(device, a, b, options); });
      const bool refused = error.find("cannot run this") != std::string::npos;
      if (refused && name != "auto") continue;  // not for this GPU, or not for this problem
      REQUIRE(error == "");
      CHECK(actual.device() == device);
      CHECK(same_bits(actual, expected));
    }
  }
}

}  // namespace

TEST_CASE("every kernel gives the reference bits") {
  torch::manual_seed(1);
  const auto a = torch::randn({9, 150}), b = torch::randn({70, 150});
  scmp::MatmulOptions options;
  for (int64_t chunk : {0, 64}) {
    for (bool halve : {false, true}) {
      options.chunk_d = chunk;
      options.halve_bipolar_stoc_len = halve;
      check_kernels(a, b, options);
    }
  }
}

TEST_CASE("every kernel gives the reference bits: short streams, past one tile") {
  torch::manual_seed(4);
  scmp::MatmulOptions options;
  options.stoc_len = 64;
  options.halve_bipolar_stoc_len = true;
  const std::vector<std::pair<int64_t, int64_t>> rows = {{1, 300}, {131, 17}, {65, 137}};
  for (const auto& [n, m] : rows) {
    const auto a = torch::randn({n, 290}), b = torch::randn({m, 290});
    for (int64_t chunk : {0, 128}) {
      options.chunk_d = chunk;
      check_kernels(a, b, options);
    }
  }
}

TEST_CASE("every kernel gives the reference bits: unipolar") {
  torch::manual_seed(5);
  const auto a = torch::rand({33, 100}) - 0.3, b = torch::randn({70, 100});
  scmp::MatmulOptions options;
  options.mode = "unipolar";
  for (const char* granularity : {"per_row", "per_tensor"}) {
    options.granularity = granularity;
    for (int64_t length : {100, 256}) {
      options.stoc_len = length;
      check_kernels(a, b, options);
    }
  }
}

TEST_CASE("every kernel gives the reference bits: batches") {
  torch::manual_seed(6);
  const auto a = torch::randn({3, 20, 40}), b = torch::randn({3, 33, 40});
  scmp::MatmulOptions options;
  for (const char* granularity : {"per_head", "per_row", "per_tensor"}) {
    options.granularity = granularity;
    check_kernels(a, b, options);
  }
}

TEST_CASE("every kernel gives the reference bits: groups of rows and smooth scales") {
  torch::manual_seed(7);
  const auto a = torch::randn({23, 96}), b = torch::randn({31, 96});
  scmp::MatmulOptions options;
  options.group_a = 4;
  options.group_b = 3;
  options.smooth_scales = torch::rand({96}) + 0.5;
  for (int64_t chunk : {0, 40}) {
    options.chunk_d = chunk;
    check_kernels(a, b, options);
  }
}

TEST_CASE("the result approximates the product") {
  torch::manual_seed(2);
  const auto a = torch::randn({16, 64}), b = torch::randn({8, 64});
  const auto exact = a.matmul(b.t());
  const auto error = (scmp::sc_matmul(a, b) - exact).norm() / exact.norm();
  CHECK(error.item<float>() < 0.05f);
}

TEST_CASE("strides and storage offsets do not matter") {
  torch::manual_seed(3);
  const auto wide = torch::randn({40, 130}), row = torch::randn({1, 40});
  const auto strided = [](const at::Tensor& x) { return x.t().slice(0, 1, 31); };
  const auto expected =
      scmp::sc_matmul(strided(wide).contiguous(), row.expand({5, 40}).contiguous());
  for (const auto& device : devices()) {
    // Moved first: a copy to another device may come out contiguous.
    const auto a = strided(wide.to(device)), b = row.to(device).expand({5, 40});
    CHECK(same_bits(scmp::sc_matmul(a, b), expected));
  }
}

TEST_CASE("empty operands") {
  for (const auto& device : devices()) {
    CHECK(run_on(device, torch::empty({0, 5}), torch::randn({3, 5}), {}).sizes() ==
          at::IntArrayRef({0, 3}));
    CHECK(same_bits(run_on(device, torch::empty({2, 0}), torch::empty({3, 0}), {}),
                    torch::zeros({2, 3})));
  }
}

TEST_CASE("bad arguments raise ValueError with one line") {
  const auto a = torch::randn({2, 4}), b = torch::randn({3, 4});
  for (const auto& device : devices()) {
    INFO("on " << device.str());
    scmp::MatmulOptions options;
    options.stoc_len = 300;
    CHECK(value_error([&] { run_on(device, a, b, options); }) ==
          "sc_matmul: stoc_len must be in [1, 256] for sc_prec=8, got 300");
    options = {};
    options.granularity = "per_head";
    CHECK(value_error([&] { run_on(device, a, b, options); }) ==
          "sc_matmul: granularity 'per_head' needs 3D a and b, got 2D");
    CHECK(value_error([&] { run_on(device, a, torch::randn({3, 5}), {}); }) ==
          "sc_matmul: a and b must have the same last size D, got 4 and 5");
    CHECK(value_error([&] { run_on(device, a.to(at::kInt), b, {}); }) ==
          "sc_matmul: a must be float16, bfloat16, float32 or float64, got Int");
  }
}

TEST_CASE("operands on different devices raise ValueError", "[cuda]") {
  for (const auto& device : devices()) {
    if (!device.is_cuda()) continue;
    const auto a = torch::randn({2, 4}), b = torch::randn({3, 4});
    CHECK(value_error([&] { scmp::sc_matmul(a.to(device), b); }) ==
          "sc_matmul: b must be on a's device cuda:0, got cpu");
    CHECK(value_error([&] { scmp::sc_matmul(a, b.to(device)); }) ==
          "sc_matmul: b must be on a's device cpu, got cuda:0");
  }
}

TEST_CASE("straight-through gradients, and none twice") {
  for (const auto& device : devices()) {
    const auto leaf = torch::TensorOptions().device(device).requires_grad(true);
    const auto a = torch::randn({2, 3, 4}, leaf), b = torch::randn({2, 5, 4}, leaf);
    const auto g = torch::randn({2, 3, 5}, torch::TensorOptions().device(device));
    const auto y = scmp::sc_matmul(a, b);
    const auto grads = torch::autograd::grad({y}, {a, b}, {g}, true, true);
    // Products of different strides may add in another order.
    CHECK(torch::allclose(grads[0], g.matmul(b), 1e-4, 1e-5));
    CHECK(torch::allclose(grads[1], g.transpose(1, 2).matmul(a), 1e-4, 1e-5));
    CHECK_THROWS_WITH(grads[0].sum().backward(), Mentions("double backward", "sc_matmul"));
  }
}
