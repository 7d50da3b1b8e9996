// sc_matmul through the dispatcher, from C++.
#include <torch/torch.h>

#include "scmp_kernels/scmp_kernels.h"
#include "support/catch.h"

namespace {

struct ForcedKernel {
  explicit ForcedKernel(const std::string& name) { scmp::set_cpu_kernel(name); }
  ~ForcedKernel() { scmp::set_cpu_kernel("auto"); }
};

at::Tensor reference(const at::Tensor& a, const at::Tensor& b, const scmp::MatmulOptions& options) {
  const ForcedKernel forced("reference");
  return scmp::sc_matmul(a, b, options);
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
      const auto expected = reference(a, b, options);
      for (const auto& name : scmp::cpu_kernels()) {
        const ForcedKernel forced(name);
        CHECK(torch::equal(scmp::sc_matmul(a, b, options), expected));
      }
    }
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
  const auto wide = torch::randn({40, 130});
  const auto a = wide.t().slice(0, 1, 31), b = torch::randn({1, 40}).expand({5, 40});
  const auto expected = scmp::sc_matmul(a.contiguous(), b.contiguous());
  CHECK(torch::equal(scmp::sc_matmul(a, b), expected));
}

TEST_CASE("empty operands") {
  CHECK(scmp::sc_matmul(torch::empty({0, 5}), torch::randn({3, 5})).sizes() ==
        at::IntArrayRef({0, 3}));
  CHECK(torch::equal(scmp::sc_matmul(torch::empty({2, 0}), torch::empty({3, 0})),
                     torch::zeros({2, 3})));
}

TEST_CASE("bad arguments raise ValueError with one line") {
  const auto a = torch::randn({2, 4}), b = torch::randn({3, 4});
  scmp::MatmulOptions options;
  options.stoc_len = 300;
  try {
    scmp::sc_matmul(a, b, options);
    FAIL("no error");
  } catch (const c10::ValueError& error) {
    CHECK(std::string(error.what_without_backtrace()) ==
          "sc_matmul: stoc_len must be in [1, 256] for sc_prec=8, got 300");
  }
}

TEST_CASE("straight-through gradients, and none twice") {
  const auto a = torch::randn({2, 3, 4}, torch::requires_grad());
  const auto b = torch::randn({2, 5, 4}, torch::requires_grad());
  const auto g = torch::randn({2, 3, 5});
  const auto y = scmp::sc_matmul(a, b);
  const auto grads = torch::autograd::grad({y}, {a, b}, {g}, true, true);
  CHECK(torch::allclose(grads[0], g.matmul(b)));
  CHECK(torch::allclose(grads[1], g.transpose(1, 2).matmul(a)));
  CHECK_THROWS_WITH(grads[0].sum().backward(), Mentions("double backward", "sc_matmul"));
}
