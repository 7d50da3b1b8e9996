// Runs a TorchScript model that was saved in Python: torchscript MODEL INPUT OUTPUT. INPUT and
// OUTPUT are tensors that torch.jit.save wrote, or will read, as a module with one buffer "x".
#include <torch/script.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL INPUT OUTPUT\n", argv[0]);
    return 2;
  }
  torch::NoGradGuard no_grad;
  auto model = torch::jit::load(argv[1]);
  auto carrier = torch::jit::load(argv[2]);
  const auto y = model.forward({carrier.attr("x").toTensor()}).toTensor();
  carrier.setattr("x", y);
  carrier.save(argv[3]);
  std::printf("wrote %lld values\n", static_cast<long long>(y.numel()));
}
