// Runs a package of torch._inductor.aoti_compile_and_package: aot_package PACKAGE INPUT OUTPUT,
// with INPUT and OUTPUT as in torchscript.cpp.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s PACKAGE INPUT OUTPUT\n", argv[0]);
    return 2;
  }
  torch::NoGradGuard no_grad;
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  auto carrier = torch::jit::load(argv[2]);
  const at::Tensor y = model.run({carrier.attr("x").toTensor()}).at(0);
  carrier.setattr("x", y);
  carrier.save(argv[3]);
  std::printf("wrote %lld values\n", static_cast<long long>(y.numel()));
}
