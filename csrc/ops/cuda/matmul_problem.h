// What the CUDA kernels of sc_matmul share: operands as quantize arguments, and the gemm's problem.
#pragma once

#include <ATen/core/Tensor.h>

#include "gemm/cuda/problem.h"
#include "ops/cuda/operand.h"
#include "ops/sc_matmul.h"

namespace scmp::cuda {

/// The order in which the gemm kernels read operand a's cycles.
StageLayout stage_layout(int64_t rows, const MatmulPlan& plan, int positions);

QuantizeArgs a_args(const at::Tensor& a, const MatmulKnobs& knobs, const MatmulPlan& plan,
                    const DeviceTables& tables, const Window& window);
QuantizeArgs b_args(const at::Tensor& b, const MatmulKnobs& knobs, const MatmulPlan& plan);
/// Codes in the operand's own order, scales by row and chunk.
QuantizeArgs code_args(const at::Tensor& x, const Grouping& grouping, const MatmulKnobs& knobs,
                       const MatmulPlan& plan);
void set_smoothing(QuantizeArgs& args, const at::Tensor& scales, Smoothing smoothing);

/// ValueError inside a CUDA graph capture, where SCMP_SYNC_CHECKS=1 cannot look at values.
void refuse_capture(const char* op);

/// With SCMP_SYNC_CHECKS=1: values that only the device knows, checked as on the CPU.
void sync_check(const char* op, const MatmulKnobs& knobs, const at::Tensor& scales);

/// Where one operand's results lie in the workspace.
struct OperandParts {
  size_t codes, scales, zeros, sums, map;

  OperandParts(Workspace& workspace, const QuantizeArgs& args);
  void point(const Workspace& workspace, bool tensor, QuantizeArgs& args) const;
};

/// Where b's codes and scales lie, quantized in this call or before it.
struct OperandB {
  int64_t rows;
  const int16_t* codes;
  const float *scales, *zeros, *sums;
  const double* map;

  explicit OperandB(const QuantizeArgs& b);
  explicit OperandB(const Prepared& b);
};

GemmProblem make_problem(const QuantizeArgs& a, const OperandB& b, const MatmulKnobs& knobs,
                         const MatmulPlan& plan, const DeviceTables& tables, float* out);

/// The tensors of b, quantized; without expanded bits. b has elements.
Prepared quantize_b(const char* op, const at::Tensor& b, const MatmulKnobs& knobs,
                    const std::optional<at::Tensor>& smooth_scales);

}  // namespace scmp::cuda
