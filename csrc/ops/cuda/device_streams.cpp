#include "ops/cuda/device_streams.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>
#include <vector>

#include "cache/stream_cache.h"
#include "gemm/byte_tables.h"

namespace scmp::cuda {
namespace {

constexpr int64_t kMostBitBytes = int64_t{256} << 20;
constexpr int64_t kMostRankedBytes = int64_t{32} << 20;
constexpr int kMostRankedWords = 8;  // wgmma_b1's longest patterns
constexpr int64_t kMostCountBytes = int64_t{8} << 20;

// Host image of the tables, 256-byte aligned parts.
class Image {
 public:
  template <typename T>
  size_t add(size_t count) {
    const size_t offset = bytes_.size();
    bytes_.resize((offset + count * sizeof(T) + 255) / 256 * 256);
    return offset;
  }
  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(bytes_.data() + offset);
  }
  size_t size() const { return bytes_.size(); }
  const char* data() const { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

// Words per bit pattern: one of the sizes that the gemm kernels are built for.
int words_for(int length) {
  for (int words : {2, 4, 8, 32}) {
    if (length <= 32 * words) return words;
  }
  return 128;
}

// Of one lane's values: a pattern per code.
void fill_bits(const StreamSet& streams, const uint16_t* values, int words, uint32_t* bits) {
  for (int code = 0; code <= streams.levels; ++code, bits += words) {
    for (int t = 0; t < streams.length; ++t) {
      bits[t / 32] |= static_cast<uint32_t>(values[t] < code) << (t % 32);
    }
  }
}

// Where b's values of the first `cycles` cycles come in their order.
std::vector<int> ranks_of(const uint16_t* b, int cycles) {
  std::vector<int> cycle(cycles), rank(cycles);
  std::iota(cycle.begin(), cycle.end(), 0);
  std::stable_sort(cycle.begin(), cycle.end(), [&](int i, int j) { return b[i] < b[j]; });
  for (int r = 0; r < cycles; ++r) rank[cycle[r]] = r;
  return rank;
}

void set_bit(uint32_t* bits, int i) { bits[i / 32] |= uint32_t{1} << (i % 32); }

// A pattern per code of a, in the order of b's values: bit r for the cycle of the r-th smallest.
void fill_ranked_bits(const StreamSet& streams, int64_t lane, int words, uint32_t* bits) {
  const uint16_t* a = streams.a_lane(lane);
  const std::vector<int> rank = ranks_of(streams.b_lane(lane), streams.length);
  std::vector<uint16_t> enabled(streams.levels + 1);  // cycles, by code of a
  prefix_counts(a, streams.length, streams.levels, enabled.data());
  int t = 0;
  for (int code = 0; code <= streams.levels; ++code, bits += words) {
    if (code > 0) std::copy(bits - words, bits, bits);
    for (; t < enabled[code]; ++t) set_bit(bits, rank[t]);
  }
}

// Memory of its own, not the caching allocator's: tables may be made inside the private pool of a
// CUDA graph and must outlive it. cudaFree waits for the device, so no stream can still read them.
std::shared_ptr<void> device_memory(size_t bytes) {
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    c10::cuda::CUDACachingAllocator::emptyCache();
    C10_CUDA_CHECK(cudaMalloc(&memory, bytes));
  }
  return {memory, [](void* p) {
            const c10::cuda::CUDAStreamCaptureModeGuard relaxed_free(cudaStreamCaptureModeRelaxed);
            (void)cudaFree(p);
          }};
}

// The image on the device; waits, so that from then on every stream may read it.
std::shared_ptr<void> upload_image(const Image& image) {
  std::shared_ptr<void> storage = device_memory(image.size());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(
      cudaMemcpyAsync(storage.get(), image.data(), image.size(), cudaMemcpyHostToDevice, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return storage;
}

// The sequences of one operand in an image: values, the lanes of positions, and bit patterns where
// those fit.
struct Sequences {
  const StreamSet& streams;
  int words;
  size_t values, lane_of, bits;
  bool with_bits;

  Sequences(Image& image, const StreamSet& set, int words_per_pattern)
      : streams(set), words(words_per_pattern) {
    const size_t patterns = static_cast<size_t>(set.lanes) * (set.levels + 1) * words;
    with_bits = static_cast<int64_t>(patterns * sizeof(uint32_t)) <= kMostBitBytes;
    values = image.add<uint16_t>(static_cast<size_t>(set.lanes) * set.length);
    lane_of = image.add<int32_t>(set.lane_of.size());
    bits = image.add<uint32_t>(with_bits ? patterns : 0);
  }
  /// `lane(i)` is the sequence of lane i.
  template <typename Lane>
  void fill(Image& image, const Lane& lane) const {
    std::memcpy(image.at<int32_t>(lane_of), streams.lane_of.data(),
                streams.lane_of.size() * sizeof(int32_t));
    const size_t codes = streams.levels + 1;
    for (int64_t i = 0; i < streams.lanes; ++i) {
      std::memcpy(image.at<uint16_t>(values) + i * streams.length, lane(i),
                  streams.length * sizeof(uint16_t));
      if (!with_bits) continue;
      fill_bits(streams, lane(i), words, image.at<uint32_t>(bits) + i * codes * words);
    }
  }
  /// Sets what tables of both kinds have, with the image at `base` on the device.
  template <typename Tables>
  void point(const char* base, Tables& t, const uint16_t*& to_values,
             const uint32_t*& to_bits) const {
    t.length = streams.length;
    t.levels = streams.levels;
    t.words = words;
    t.lanes = streams.lanes;
    to_values = reinterpret_cast<const uint16_t*>(base + values);
    if (!streams.lane_of.empty()) t.lane_of = reinterpret_cast<const int32_t*>(base + lane_of);
    if (with_bits) to_bits = reinterpret_cast<const uint32_t*>(base + bits);
  }
};

// The tables of length classes in an image, where they are small enough.
struct ClassTables {
  const StreamSet& streams;
  int classes;
  bool wide, fit = false;
  size_t ranked[kLengthClasses] = {}, a_counts = 0, b_counts = 0;

  ClassTables(Image& image, const StreamSet& set)
      : streams(set),
        classes(set.length > 32 * kMostClassWords ? 0 : class_of_words((set.length + 31) / 32) + 1),
        wide(wide_counts(words_for(set.length))) {
    auto bytes = static_cast<int64_t>(2 * count_bytes());
    for (int c = 0; c < classes; ++c) bytes += patterns(c) * int64_t{sizeof(uint32_t)};
    fit = classes > 0 && bytes <= kMostRankedBytes;
    if (!fit) return;
    for (int c = 0; c < classes; ++c) ranked[c] = image.add<uint32_t>(patterns(c));
    a_counts = image.add<uint8_t>(count_bytes());
    b_counts = image.add<uint8_t>(count_bytes());
  }
  void fill(Image& image) const {
    for (int64_t lane = 0; lane < streams.lanes; ++lane) {
      for (int c = 0; c < classes; ++c) {
        const int cycles = std::min(streams.length, 32 * class_words(c)), step = class_stride(c);
        const std::vector<int> rank = ranks_of(streams.b_lane(lane), cycles);
        uint32_t* bits = image.at<uint32_t>(ranked[c]) + lane * (patterns(c) / streams.lanes);
        for (int k = 1; k <= cycles; ++k) {
          std::copy(bits, bits + step, bits + step);
          bits += step;
          set_bit(bits, rank[k - 1]);
        }
      }
      fill_counts(streams.a_lane(lane), lane, image.at<uint8_t>(a_counts));
      fill_counts(streams.b_lane(lane), lane, image.at<uint8_t>(b_counts));
    }
  }
  void point(const char* base, LengthTables& t) const {
    for (int c = 0; c < classes; ++c) {
      t.ranked[c] = reinterpret_cast<const uint32_t*>(base + ranked[c]);
    }
    t.a_counts = {reinterpret_cast<const uint8_t*>(base + a_counts), wide};
    t.b_counts = {reinterpret_cast<const uint8_t*>(base + b_counts), wide};
  }

 private:
  size_t patterns(int length_class) const {
    return streams.lanes * (32 * class_words(length_class) + 1) * class_stride(length_class);
  }
  size_t count_bytes() const {
    return streams.lanes * (streams.levels + 1) * PrefixCounts{nullptr, wide}.entry_bytes();
  }
  void fill_counts(const uint16_t* values, int64_t lane, uint8_t* out) const {
    const int marks = wide ? kWideMarks : kNarrowMarks;
    std::vector<uint16_t> counts(streams.levels + 1);
    out += lane * (count_bytes() / streams.lanes);
    for (int mark = 0; mark < marks; ++mark) {
      prefix_counts(values, std::min(streams.length, 32 * (mark + 1)), streams.levels,
                    counts.data());
      for (size_t code = 0; code < counts.size(); ++code) {
        if (wide) {
          std::memcpy(out + 2 * (code * marks + mark), &counts[code], sizeof(uint16_t));
        } else {
          out[code * marks + mark] = static_cast<uint8_t>(counts[code]);
        }
      }
    }
  }
};

DeviceClasses upload_classes(const StreamSet& streams) {
  Image image;
  const ClassTables tables(image, streams);
  DeviceClasses device;
  if (!tables.fit) return device;
  tables.fill(image);
  device.storage = upload_image(image);
  device.size = image.size();
  tables.point(static_cast<const char*>(device.storage.get()), device.tables);
  return device;
}

DeviceRanks upload_ranks(const StreamSet& streams) {
  Image image;
  const int least = (streams.length + 31) / 32, padded = words_for(streams.length);
  const Sequences a(image, streams, padded <= kMostClassWords ? padded : least);
  a.fill(image, [&](int64_t lane) { return streams.a_lane(lane); });
  DeviceRanks device;
  device.storage = upload_image(image);
  device.size = image.size();
  CycleTables& t = device.tables;
  a.point(static_cast<const char*>(device.storage.get()), t, t.values, t.bits);
  return device;
}

DeviceStreams upload(const StreamSet& streams) {
  const size_t codes = streams.levels + 1, lanes = streams.lanes;
  Image image;
  const size_t cycles = image.add<uint16_t>(lanes * codes),
               ones = image.add<uint16_t>(lanes * codes);
  const Sequences b(image, streams, words_for(streams.length));
  b.fill(image, [&](int64_t lane) { return streams.b_lane(lane); });
  const int stride = count_stride(streams.levels);
  const size_t lane_counts = (streams.length + size_t{1}) * stride;
  const bool with_counts = streams.length < 256 && streams.levels < stride &&
                           static_cast<int64_t>(lanes * lane_counts) <= kMostCountBytes;
  const size_t counts_of_codes = image.add<uint8_t>(with_counts ? lanes * lane_counts : 0);
  const int words = words_for(streams.length);
  const bool with_ranked =
      b.with_bits && words <= kMostRankedWords &&
      static_cast<int64_t>(lanes * codes * words * sizeof(uint32_t)) <= kMostRankedBytes;
  const size_t ranked = image.add<uint32_t>(with_ranked ? lanes * codes * words : 0);
  bool identity = true;        // every code of a enables as many cycles
  bool ones_are_codes = true;  // every code of b has as many ones
  for (size_t lane = 0; lane < lanes; ++lane) {
    prefix_counts(streams.a_lane(lane), streams.length, streams.levels,
                  image.at<uint16_t>(cycles) + lane * codes);
    prefix_counts(streams.b_lane(lane), streams.length, streams.levels,
                  image.at<uint16_t>(ones) + lane * codes);
    const uint16_t *of_a = image.at<uint16_t>(cycles) + lane * codes,
                   *of_b = image.at<uint16_t>(ones) + lane * codes;
    for (size_t code = 0; code < codes; ++code) {
      identity = identity && of_a[code] == code;
      ones_are_codes = ones_are_codes && of_b[code] == code;
    }
    if (with_ranked) {
      fill_ranked_bits(streams, static_cast<int64_t>(lane), words,
                       image.at<uint32_t>(ranked) + lane * codes * words);
    }
    if (with_counts) {
      fill_count_rows(streams.b_lane(lane), streams.length, stride,
                      image.at<uint8_t>(counts_of_codes) + lane * lane_counts);
    }
  }
  DeviceStreams device;
  device.storage = upload_image(image);
  device.size = image.size();
  const char* base = static_cast<const char*>(device.storage.get());
  DeviceTables& t = device.tables;
  b.point(base, t, t.b_values, t.b_bits);
  if (!identity) t.a_cycles = reinterpret_cast<const uint16_t*>(base + cycles);
  t.b_ones = reinterpret_cast<const uint16_t*>(base + ones);
  t.ones_are_codes = ones_are_codes;
  if (with_ranked) t.a_bits = reinterpret_cast<const uint32_t*>(base + ranked);
  if (with_counts) t.counts = reinterpret_cast<const uint8_t*>(base + counts_of_codes);
  return device;
}

void keep_forever(const std::shared_ptr<const void>& tables) {
  static std::mutex mutex;
  static auto* kept = new std::set<std::shared_ptr<const void>>;
  std::lock_guard<std::mutex> lock(mutex);
  kept->insert(tables);
}

// What `upload` makes of the sequences of `spec` on the current device, from the cache.
template <typename T>
std::shared_ptr<const T> on_device(const char* kind, const StreamSpec& spec,
                                   T (*upload)(const StreamSet&)) {
  const bool in_capture = capturing();
  const std::string key =
      kind + std::to_string(at::cuda::current_device()) + "/" + stream_key(spec);
  auto tables = rng_cache().get<T>(key, [&] {
    TORCH_CHECK_VALUE(!in_capture,
                      "sc_matmul: its tables are not on the device yet and cannot be built during "
                      "CUDA graph capture; make the same call once before capturing");
    return upload(*cached_streams(spec));
  });
  if (in_capture) keep_forever(tables);
  return tables;
}

}  // namespace

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

std::shared_ptr<const DeviceStreams> device_streams(const StreamSpec& spec) {
  return on_device("cuda:", spec, upload);
}

std::shared_ptr<const DeviceRanks> device_ranks(const StreamSpec& spec) {
  return on_device("cuda-ranks:", spec, upload_ranks);
}

std::shared_ptr<const DeviceClasses> device_classes(const StreamSpec& spec) {
  return on_device("cuda-classes:", spec, upload_classes);
}

}  // namespace scmp::cuda
