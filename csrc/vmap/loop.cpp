// torch.vmap of every operator: a call per entry of the batch, with the bits of that loop.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

namespace scmp {
namespace {

using c10::IValue;

// `value` with `change` applied to its tensors: a tensor, or a list of them; all else as it is.
template <typename Change>
IValue with_tensors(const IValue& value, Change&& change) {
  if (value.isTensor() && value.toTensor().defined()) return change(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> changed;
  for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
  return changed;
}

// The size of the batch at this level; none where no argument has one.
std::optional<int64_t> batch_size(const std::vector<IValue>& args, int64_t level) {
  std::optional<int64_t> size;
  for (const IValue& arg : args) {
    with_tensors(arg, [&](const at::Tensor& tensor) {
      const auto [value, dim] = at::functorch::unwrapTensorAtLevel(tensor, level);
      if (dim) size = value.sym_size(*dim).guard_int(__FILE__, __LINE__);
      return tensor;
    });
  }
  return size;
}

// Lists are the parts of prepared operands, which must be contiguous.
IValue entry_of(const IValue& arg, int64_t level, int64_t index) {
  return with_tensors(arg, [&](const at::Tensor& tensor) {
    const auto [value, dim] = at::functorch::unwrapTensorAtLevel(tensor, level);
    if (!dim) return value;
    const at::Tensor entry = value.select(*dim, index);
    return arg.isTensorList() ? entry.contiguous() : entry;
  });
}

at::Tensor batched(const std::vector<at::Tensor>& entries, int64_t level) {
  return at::functorch::makeBatched(at::stack(entries), 0, level);
}

// One return of all entries; what holds no tensor is the same for all.
IValue joined(const std::vector<IValue>& entries, int64_t level) {
  const IValue& first = entries.front();
  if (first.isTensor() && first.toTensor().defined()) {
    std::vector<at::Tensor> tensors;
    for (const IValue& entry : entries) tensors.push_back(entry.toTensor());
    return batched(tensors, level);
  }
  if (!first.isTensorList()) return first;
  c10::List<at::Tensor> lists;
  for (size_t i = 0; i < first.toTensorList().size(); ++i) {
    std::vector<at::Tensor> tensors;
    for (const IValue& entry : entries) tensors.push_back(entry.toTensorList().get(i));
    lists.push_back(batched(tensors, level));
  }
  return lists;
}

void loop(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  TORCH_CHECK_VALUE(layer, name,
                    ": a tensor inside torch.vmap must not be used outside, got one that was");
  const int64_t level = layer->layerId();
  const std::vector<IValue> args = torch::jit::pop(*stack, schema.arguments().size());
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const std::optional<int64_t> size = batch_size(args, level);
  if (!size) {
    stack->insert(stack->end(), args.begin(), args.end());
    return op.callBoxed(*stack);
  }
  TORCH_CHECK_VALUE(*size > 0, name,
                    ": the dimension that torch.vmap maps over must have at least 1 entry, got 0");
  std::vector<std::vector<IValue>> returns(schema.returns().size());
  for (int64_t i = 0; i < *size; ++i) {
    for (const IValue& arg : args) stack->push_back(entry_of(arg, level, i));
    op.callBoxed(*stack);
    for (auto entries = returns.rbegin(); entries != returns.rend(); ++entries) {
      entries->push_back(torch::jit::pop(*stack));
    }
  }
  for (const std::vector<IValue>& entries : returns) stack->push_back(joined(entries, level));
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, FuncTorchBatched, m) {
  for (const char* op : {"sc_matmul",
                         "sc_matmul.prepared",
                         "prepare",
                         "prepare_spec",
                         "expand_prepared",
                         "fused_quantize_bipolar",
                         "fused_quantize_bipolar_perrow",
                         "fused_quantize_unipolar",
                         "grouped_symmetric_quant",
                         "grouped_asymmetric_quant",
                         "accumulate_act_scales",
                         "compute_smooth_scales",
                         "apply_smoothing",
                         "apply_smoothing_offline",
                         "compute_row_metric",
                         "classify_rows_by_metric",
                         "adaptive_classify_rows",
                         "classify_groups_by_range",
                         "sc_conv2d",
                         "sc_conv2d.padding",
                         "sc_conv2d.prepared",
                         "sc_conv2d.prepared_padding",
                         "conv2d_products",
                         "conv2d_products.prepared",
                         "conv2d_lowered_rows",
                         "conv2d_lowered_rows.padding"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&loop>());
  }
}

}  // namespace scmp
