// Every schema of the scmp namespace, declared once.
#include <torch/library.h>

TORCH_LIBRARY(scmp, m) {
  m.def(
      "sc_matmul(Tensor a, Tensor b, str granularity=\"per_row\", *, str mode=\"bipolar\", "
      "int sc_prec=8, int? stoc_len=None, int chunk_d=0, int group_a=1, int group_b=1, "
      "int? rng_levels=None, str? config=None, bool halve_bipolar_stoc_len=False, "
      "Tensor? smooth_scales=None, Tensor? row_stoc_len=None, Tensor? rung_table=None, "
      "int[]? level_lens=None) -> Tensor");
  m.def(
      "sc_matmul.prepared(Tensor a, Tensor[] b, str spec, *, int group_a=1, int? stoc_len=None, "
      "Tensor? row_stoc_len=None, Tensor? rung_table=None, int[]? level_lens=None) -> Tensor");
  m.def(
      "prepare(Tensor b, str granularity=\"per_row\", *, str mode=\"bipolar\", int sc_prec=8, "
      "int chunk_d=0, int group_b=1, int? rng_levels=None, str? config=None, "
      "bool halve_bipolar_stoc_len=False, Tensor? smooth_scales=None, bool expand=False, "
      "int groups=1) -> Tensor[]");
  m.def(
      "prepare_spec(int[] shape, str granularity=\"per_row\", *, str mode=\"bipolar\", "
      "int sc_prec=8, int chunk_d=0, int group_b=1, int? rng_levels=None, str? config=None, "
      "bool halve_bipolar_stoc_len=False, Tensor? smooth_scales=None, bool expand=False, "
      "int groups=1) -> str");
  m.def("expand_prepared(Tensor[] b, str spec) -> Tensor");
  m.def(
      "fused_quantize_bipolar(Tensor x, float abs_max, int sc_prec, int? rng_levels=None) -> "
      "(Tensor boundary, Tensor sign)");
  m.def(
      "fused_quantize_bipolar_perrow(Tensor x, int sc_prec, int? rng_levels=None) -> "
      "(Tensor boundary, Tensor sign, Tensor scale)");
  m.def(
      "fused_quantize_unipolar(Tensor x, float fp_max, float fp_min, int sc_prec, "
      "bool compute_sum=False, int? rng_levels=None) -> (Tensor boundary, Tensor? row_sum)");
  m.def(
      "grouped_symmetric_quant(Tensor x, int g, int qmax) -> "
      "(Tensor scale, Tensor q, Tensor sign)");
  m.def(
      "grouped_asymmetric_quant(Tensor x, int g, int qmax) -> "
      "(Tensor scale, Tensor zero_point, Tensor q)");
  m.def("accumulate_act_scales(Tensor x, Tensor? running=None) -> Tensor");
  m.def(
      "compute_smooth_scales(Tensor act, Tensor weight, float alpha=0.5, float eps=1e-05) -> "
      "Tensor");
  m.def("apply_smoothing(Tensor a, Tensor b, Tensor s) -> (Tensor, Tensor)");
  m.def("apply_smoothing_offline(Tensor weight, Tensor s) -> Tensor");
  m.def("compute_row_metric(Tensor x, str name=\"amax\") -> Tensor");
  m.def("classify_rows_by_metric(Tensor metric, float[] level_fractions) -> Tensor");
  m.def(
      "adaptive_classify_rows(Tensor metric, float[]? target_fractions=None, "
      "float[]? thresholds=None) -> Tensor");
  m.def(
      "classify_groups_by_range(Tensor weight, int group_size, float threshold, int levels) -> "
      "Tensor");
  m.def(
      "sc_conv2d(Tensor x, Tensor weight, Tensor? bias=None, *, int[2] stride=1, int[2] padding=0, "
      "int[2] dilation=1, int groups=1, str granularity=\"per_row\", str mode=\"bipolar\", "
      "int sc_prec=8, int? stoc_len=None, int chunk_d=0, int group_a=1, int group_b=1, "
      "int? rng_levels=None, str? config=None, bool halve_bipolar_stoc_len=False, "
      "Tensor? smooth_scales=None, Tensor? row_stoc_len=None, Tensor? rung_table=None, "
      "int[]? level_lens=None) -> Tensor");
  m.def(
      "sc_conv2d.padding(Tensor x, Tensor weight, Tensor? bias=None, *, int[2] stride=1, "
      "str padding=\"valid\", int[2] dilation=1, int groups=1, str granularity=\"per_row\", "
      "str mode=\"bipolar\", int sc_prec=8, int? stoc_len=None, int chunk_d=0, int group_a=1, "
      "int group_b=1, int? rng_levels=None, str? config=None, "
      "bool halve_bipolar_stoc_len=False, Tensor? smooth_scales=None, "
      "Tensor? row_stoc_len=None, Tensor? rung_table=None, int[]? level_lens=None) -> Tensor");
  m.def(
      "sc_conv2d.prepared(Tensor x, Tensor[] weight, str spec, Tensor? bias=None, *, "
      "int[2] stride=1, int[2] padding=0, int[2] dilation=1, int group_a=1, int? stoc_len=None, "
      "Tensor? row_stoc_len=None, Tensor? rung_table=None, int[]? level_lens=None) -> Tensor");
  m.def(
      "sc_conv2d.prepared_padding(Tensor x, Tensor[] weight, str spec, Tensor? bias=None, *, "
      "int[2] stride=1, str padding=\"valid\", int[2] dilation=1, int group_a=1, "
      "int? stoc_len=None, Tensor? row_stoc_len=None, Tensor? rung_table=None, "
      "int[]? level_lens=None) -> Tensor");
  // What sc_conv2d calls where the lowered input is gathered on the fly. Padding: top, bottom,
  // left, right.
  m.def(
      "conv2d_products(Tensor x, Tensor weight, int[2] stride, int[4] padding, int[2] dilation, "
      "int groups, str granularity, str mode, int sc_prec, int? stoc_len, int chunk_d, "
      "int group_a, int group_b, int? rng_levels, str? config, bool halve_bipolar_stoc_len, "
      "Tensor? smooth_scales, Tensor? row_stoc_len, Tensor? rung_table, int[]? level_lens) -> "
      "Tensor");
  m.def(
      "conv2d_products.prepared(Tensor x, Tensor[] weight, str spec, int[2] stride, "
      "int[4] padding, int[2] dilation, int group_a, int? stoc_len, Tensor? row_stoc_len, "
      "Tensor? rung_table, int[]? level_lens) -> Tensor");
  m.def(
      "conv2d_lowered_rows(Tensor x, Tensor weight, *, int[2] stride=1, int[2] padding=0, "
      "int[2] dilation=1) -> Tensor");
  m.def(
      "conv2d_lowered_rows.padding(Tensor x, Tensor weight, *, int[2] stride=1, "
      "str padding=\"valid\", int[2] dilation=1) -> Tensor");
}
