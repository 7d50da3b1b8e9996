// sc_matmul on at::Tensor, without Python: how far is a product on bit streams from the exact one?
#include <scmp_kernels/scmp_kernels.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  torch::manual_seed(0);
  const bool cuda = torch::cuda::is_available() && !scmp::cuda_kernels().empty();
  const auto device = cuda ? torch::kCUDA : torch::kCPU;
  const auto a = torch::randn({64, 256}, device), b = torch::randn({32, 256}, device);
  const auto exact = a.matmul(b.t());
  for (const int64_t length : {256, 64, 16}) {
    scmp::MatmulOptions options;
    options.stoc_len = length;
    const auto error = (scmp::sc_matmul(a, b, options) - exact).norm() / exact.norm();
    std::printf("%3lld cycles: relative error %.4f\n", static_cast<long long>(length),
                error.item<double>());
  }
  try {
    scmp::sc_matmul(a, torch::randn({32, 255}, device));
  } catch (const c10::ValueError& error) {
    std::printf("refused: %s\n", error.what_without_backtrace());
    return 0;
  }
  return 1;
}
