// A convolution as products of its lowered input, which sc_matmul computes: in differentiable,
// symbolic tensor arithmetic, so that gradients and dynamic shapes follow from sc_matmul's own.
#pragma once

#include "conv/geometry.h"
#include "ops/sc_matmul.h"

namespace scmp {

/// (B, C, H, W) -> (B, Hout * Wout, C * kh * kw): positions row-major, columns (channel, ky, kx).
at::Tensor lower(at::Tensor x, const Geometry& g);

/// ValueError unless there is a smoothing scale per column of all groups.
void check_lowered_scales(const char* op, const std::optional<at::Tensor>& scales,
                          const c10::SymInt& in, const Geometry& g);

/// float32 (B, Hout * Wout, Cout), without bias; positions = Hout * Wout.
at::Tensor lowered_products(const char* op, const at::Tensor& x, const at::Tensor& weight,
                            const Geometry& g, const MatmulArgs& args,
                            const c10::SymInt& positions);
/// The same with a prepared weight of `out_group` output channels per group.
at::Tensor lowered_products(const char* op, const at::Tensor& x, at::TensorList weight,
                            const Geometry& g, const PreparedArgs& args, int64_t out_group,
                            const c10::SymInt& positions);

/// (B, Hout * Wout, Cout) as (B, Cout, Hout, Wout) in x's memory format.
at::Tensor as_images(const at::Tensor& y, const at::Tensor& x, const c10::SymInt& height,
                     const c10::SymInt& width);

}  // namespace scmp
