// What the CUDA kernels of sc_matmul share: operands as quantize arguments, and the gemm's problem.
#pragma once

#include <ATen/core/Tensor.h>

#include "gemm/cuda/problem.h"
#include "gemm/cuda/stage_codes.h"
#include "ops/cuda/operand.h"
#include "ops/sc_matmul.h"

namespace scmp::cuda {

/// The order in which the gemm kernels read operand a's cycles.
StageLayout stage_layout(int64_t rows, const MatmulPlan& plan, int positions);

/// The operand whose cycles count, in stages.
QuantizeArgs a_args(const at::Tensor& a, const MatmulKnobs& knobs, const MatmulPlan& plan,
                    const DeviceTables& tables, const Window& window);
/// b as that operand, where the two are exchanged.
QuantizeArgs staged_b_args(const at::Tensor& b, const MatmulKnobs& knobs, const MatmulPlan& plan,
                           const DeviceTables& tables);
/// Codes in the operand's own order, scales by row and chunk.
QuantizeArgs code_args(const at::Tensor& x, const Grouping& grouping, const MatmulKnobs& knobs,
                       const MatmulPlan& plan);
/// The operand whose bits are expanded, a column of the gemm for each of its rows: the same with
/// scales by chunk and row.
QuantizeArgs column_args(const at::Tensor& x, const Grouping& grouping, const MatmulKnobs& knobs,
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

/// The same with the two exchanged: a's bits are expanded, and b is the operand whose cycles count.
GemmProblem make_exchanged_problem(const QuantizeArgs& staged_b, const QuantizeArgs& a_columns,
                                   const MatmulKnobs& knobs, const MatmulPlan& plan,
                                   const DeviceTables& tables, float* out);

/// A quantized b for the kernels that stage it, without outputs; and what they made of it, as if b
/// had been quantized as the operand whose cycles count.
QuantizedB quantized_b(const Prepared& b, const MatmulKnobs& knobs, const MatmulPlan& plan,
                       const DeviceTables& tables);
QuantizeArgs as_cycles(const QuantizedB& b, const StageLayout& layout);

/// A prepared b as the operand whose cycles count: where in the workspace its stages and scales
/// lie, and the kernel that fills them.
class StagedB {
 public:
  StagedB(Workspace& workspace, const Prepared& b, const MatmulKnobs& knobs, const MatmulPlan& plan,
          const DeviceTables& tables);
  /// Launches it; what quantizing b itself would have been given.
  QuantizeArgs stage(const Workspace& workspace);

 private:
  StageCodesArgs args_;
  size_t codes_, scales_;
};

/// The tensors of b, and the work that fills them: b's operand of quantize().
struct UnquantizedB {
  Prepared b;
  QuantizeArgs work;
};
UnquantizedB unquantized_b(const at::Tensor& b, const MatmulKnobs& knobs,
                           const std::optional<at::Tensor>& smooth_scales);

/// The tensors of b, quantized; without expanded bits. b has elements.
Prepared quantize_b(const char* op, const at::Tensor& b, const MatmulKnobs& knobs,
                    const std::optional<at::Tensor>& smooth_scales);

}  // namespace scmp::cuda
