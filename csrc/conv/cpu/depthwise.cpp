#include "conv/cpu/depthwise.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/float_ops.h"
#include "gemm/dequantize.h"
#include "quant/affine.h"

namespace scmp {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;  // bits; of a NaN they are more

// Rounds half to even, exactly, what lies below 2**22 in magnitude.
float rounded(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// Works on one row of outputs at a time, tap by tap.
class Channel {
 public:
  explicit Channel(const DepthwiseProblem& problem)
      : p_(problem),
        taps_(p_.kernel_y * p_.kernel_x),
        entries_(2 * p_.scheme.qmax + 1),
        boundary_(p_.scheme.qmax, p_.streams->levels),
        reciprocal_(reciprocal_qmax(p_.scheme)),
        ones_(taps_ * entries_),
        windows_(taps_ * p_.out_width),
        magnitude_(p_.out_width),
        sums_(p_.out_width),
        affine_(p_.out_width) {}

  // Signed ones by tap and signed level of the input.
  void take_weights(int64_t channel) {
    const StreamSet& s = *p_.streams;
    std::vector<uint16_t> cycles(s.levels + 1), before(s.length + 1);
    for (int64_t tap = 0; tap < taps_; ++tap) {
      const int weight = p_.weights[channel * taps_ + tap];
      const int64_t lane = s.lane(tap);
      prefix_counts(s.a_lane(lane), s.length, s.levels, cycles.data());
      for (int i = 0; i < s.length; ++i) {
        before[i + 1] =
            static_cast<uint16_t>(before[i] + (s.b_lane(lane)[i] < std::abs(weight) ? 1 : 0));
      }
      int32_t* zero = ones_.data() + tap * entries_ + p_.scheme.qmax;
      for (int level = 0; level <= p_.scheme.qmax; ++level) {
        const int count = before[cycles[boundary_[level]]];
        zero[level] = weight < 0 ? -count : count;
        zero[-level] = -zero[level];
      }
    }
  }

  void row(const float* plane, int64_t out_y, float scale, float* out) {
    const int64_t width = p_.out_width;
    std::fill(magnitude_.begin(), magnitude_.end(), 0u);
    for (int64_t tap = 0; tap < taps_; ++tap) {
      float* window = windows_.data() + tap * width;
      gather(plane, out_y, tap, window);
      for (int64_t i = 0; i < width; ++i) {
        uint32_t bits;
        std::memcpy(&bits, window + i, sizeof bits);
        magnitude_[i] = std::max(magnitude_[i], bits & 0x7fffffffu);
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      float amax;
      std::memcpy(&amax, &magnitude_[i], sizeof amax);
      affine_[i] = magnitude_[i] < kInfinity ? make_bipolar_affine(p_.scheme, amax, reciprocal_)
                                             : nonfinite_affine();
    }
    std::fill(sums_.begin(), sums_.end(), 0);
    const bool divide = p_.scheme.rounding == Rounding::divide;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      const float* window = windows_.data() + tap * width;
      const int32_t* zero = ones_.data() + tap * entries_ + p_.scheme.qmax;
      for (int64_t i = 0; i < width; ++i) {
        if (magnitude_[i] >= kInfinity) continue;  // its scale is NaN
        const float factor = affine_[i].factor;
        sums_[i] +=
            zero[static_cast<int>(rounded(divide ? window[i] / factor : window[i] * factor))];
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      out[i] = scaled_value(static_cast<float>(sums_[i]), p_.c, affine_[i].scale, scale);
    }
  }

 private:
  // The inputs of one tap for a row of outputs; zeros outside.
  void gather(const float* plane, int64_t out_y, int64_t tap, float* window) const {
    const int64_t y = out_y * p_.stride_y - p_.pad_y + tap / p_.kernel_x * p_.dilation_y;
    if (y < 0 || y >= p_.height) {
      std::fill(window, window + p_.out_width, 0.0f);
      return;
    }
    int64_t x = tap % p_.kernel_x * p_.dilation_x - p_.pad_x;
    for (int64_t i = 0; i < p_.out_width; ++i, x += p_.stride_x) {
      window[i] = x >= 0 && x < p_.width ? plane[y * p_.width + x] : 0.0f;
    }
  }

  const DepthwiseProblem& p_;
  int64_t taps_, entries_;
  BoundaryMap boundary_;
  float reciprocal_;
  std::vector<int32_t> ones_;
  std::vector<float> windows_;  // (taps, out_width)
  std::vector<uint32_t> magnitude_;
  std::vector<int32_t> sums_;
  std::vector<Affine> affine_;
};

}  // namespace

void depthwise_conv2d(const DepthwiseProblem& p, const ParallelFor& parallel) {
  parallel(p.channels, 1, [&](int64_t begin, int64_t end) {
    Channel worker(p);
    for (int64_t channel = begin; channel < end; ++channel) {
      worker.take_weights(channel);
      for (int64_t image = 0; image < p.images; ++image) {
        const int64_t at = image * p.channels + channel;
        for (int64_t y = 0; y < p.out_height; ++y) {
          worker.row(p.x + at * p.height * p.width, y, p.scales[channel],
                     p.out + (at * p.out_height + y) * p.out_width);
        }
      }
    }
  });
}

}  // namespace scmp
