// The depthwise kernel against its definition: quantize every window, count cycle by cycle.
#include "conv/cpu/depthwise.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "gemm/reference.h"
#include "quant/affine.h"
#include "support/catch.h"

using namespace scmp;

namespace {

struct Random {
  DepthwiseProblem problem;
  StreamSet streams;
  std::vector<float> x, scales, out;
  std::vector<int16_t> weights;

  Random(DepthwiseProblem p, int sc_prec, int length, int levels, unsigned seed) : problem(p) {
    std::mt19937 random(seed);
    StreamSpec spec;
    spec.sc_prec = sc_prec;
    spec.length = length;
    spec.levels = levels;
    spec.positions = p.kernel_y * p.kernel_x;
    streams = prepare_streams(spec);
    x.resize(p.images * p.channels * p.height * p.width);
    for (float& value : x) value = std::normal_distribution<float>()(random);
    weights.resize(p.channels * spec.positions);
    for (int16_t& w : weights) {
      w = static_cast<int16_t>(std::uniform_int_distribution<int>(-levels, levels)(random));
    }
    scales.assign(p.channels, 0.25f);
    problem.out_height =
        (p.height + 2 * p.pad_y - p.dilation_y * (p.kernel_y - 1) - 1) / p.stride_y + 1;
    problem.out_width =
        (p.width + 2 * p.pad_x - p.dilation_x * (p.kernel_x - 1) - 1) / p.stride_x + 1;
    problem.scheme.qmax = bipolar_qmax(sc_prec);
    problem.c = 0.75f;
    out.assign(p.images * p.channels * problem.out_height * problem.out_width, -1.0f);
  }

  void run() {
    problem.x = x.data();
    problem.streams = &streams;
    problem.weights = weights.data();
    problem.scales = scales.data();
    problem.out = out.data();
    depthwise_conv2d(problem, serial_for);
  }

  float input(int64_t plane, int64_t y, int64_t x_) const {
    const auto& p = problem;
    if (y < 0 || y >= p.height || x_ < 0 || x_ >= p.width) return 0.0f;
    return x[(plane * p.height + y) * p.width + x_];
  }

  float expected(int64_t plane, int64_t out_y, int64_t out_x) const {
    const auto& p = problem;
    const int64_t taps = p.kernel_y * p.kernel_x;
    std::vector<float> window(taps);
    float amax = 0.0f;
    for (int64_t tap = 0; tap < taps; ++tap) {
      window[tap] = input(plane, out_y * p.stride_y - p.pad_y + tap / p.kernel_x * p.dilation_y,
                          out_x * p.stride_x - p.pad_x + tap % p.kernel_x * p.dilation_x);
      if (!std::isfinite(window[tap])) return std::numeric_limits<float>::quiet_NaN();
      amax = std::max(amax, std::fabs(window[tap]));
    }
    const Affine affine = make_affine(p.scheme, 0.0f, amax);
    const BoundaryMap boundary(p.scheme.qmax, streams.levels);
    int64_t sum = 0;
    for (int64_t tap = 0; tap < taps; ++tap) {
      const float r = p.scheme.rounding == Rounding::divide ? window[tap] / affine.factor
                                                            : window[tap] * affine.factor;
      const int level = static_cast<int>(std::rint(r));
      const int weight = weights[plane % p.channels * taps + tap];
      const int64_t lane = streams.lane(tap);
      const int64_t ones = count_ones(streams.a_lane(lane), streams.b_lane(lane), streams.length,
                                      boundary[std::abs(level)], std::abs(weight));
      sum += (level < 0) != (weight < 0) ? -ones : ones;
    }
    return scaled_value(static_cast<float>(sum), p.c, affine.scale, scales[plane % p.channels]);
  }

  void check() {
    run();
    const auto& p = problem;
    for (int64_t plane = 0; plane < p.images * p.channels; ++plane) {
      for (int64_t y = 0; y < p.out_height; ++y) {
        for (int64_t x_ = 0; x_ < p.out_width; ++x_) {
          const float got = out[(plane * p.out_height + y) * p.out_width + x_];
          const float wanted = expected(plane, y, x_);
          if (std::isnan(wanted)) {
            CHECK(std::isnan(got));
          } else {
            CHECK(got == wanted);
          }
        }
      }
    }
  }
};

DepthwiseProblem shape(int64_t images, int64_t channels, int64_t height, int64_t width) {
  DepthwiseProblem p;
  p.images = images;
  p.channels = channels;
  p.height = height;
  p.width = width;
  p.kernel_y = p.kernel_x = 3;
  return p;
}

}  // namespace

TEST_CASE("depthwise equals its definition on every geometry and grid") {
  DepthwiseProblem p = shape(2, 3, 6, 7);
  Random(p, 8, 256, 256, 1).check();
  Random(p, 8, 100, 77, 2).check();
  p.pad_y = p.pad_x = 1;
  Random(p, 8, 128, 128, 3).check();
  p.stride_y = 2;
  p.dilation_x = 2;
  p.kernel_x = 2;
  Random(p, 10, 600, 1024, 4).check();
}

TEST_CASE("depthwise rounds by multiplication where the scheme says so") {
  Random random(shape(1, 2, 5, 5), 8, 256, 256, 5);
  random.problem.scheme.rounding = Rounding::multiply;
  random.check();
}

TEST_CASE("windows with NaN or Inf are NaN, the others as before") {
  Random random(shape(1, 2, 6, 6), 8, 256, 256, 6);
  random.x[7] = std::numeric_limits<float>::quiet_NaN();
  random.x[40] = -std::numeric_limits<float>::infinity();
  random.check();
}
