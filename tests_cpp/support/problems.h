// Random gemm problems, and a ParallelFor with real threads.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cache/stream_cache.h"
#include "common/parallel.h"
#include "gemm/problem.h"

struct ProblemSpec {
  int64_t batches, n, m, d, chunk;  // chunk 0: none
  int sc_prec, length, levels;
  bool unipolar = false;
  int top_percent = 5;  // share of codes at the top level
  std::shared_ptr<const scmp::RngConfig> config = nullptr;
};

/// Codes, sequences and scales of one random problem; outputs come from run().
struct RandomProblem {
  scmp::GemmProblem problem;
  std::shared_ptr<const scmp::StreamSet> streams;
  std::vector<int16_t> a, b;
  std::vector<float> a_scale, b_scale, out;

  RandomProblem(const ProblemSpec& spec, unsigned seed) {
    std::mt19937 random(seed);
    scmp::StreamSpec stream_spec;
    stream_spec.sc_prec = spec.sc_prec;
    stream_spec.length = spec.length;
    stream_spec.levels = spec.levels;
    stream_spec.positions = spec.chunk > 0 ? std::min(spec.chunk, spec.d) : spec.d;
    stream_spec.config = spec.config;
    streams = scmp::cached_streams(stream_spec);
    const auto codes = [&](int64_t rows) {
      std::vector<int16_t> values(rows * spec.d);
      for (auto& value : values) {
        const bool top = static_cast<int>(random() % 100) < spec.top_percent;
        value = static_cast<int16_t>(top ? spec.levels : random() % (spec.levels + 1));
        if (!spec.unipolar && random() % 2) value = static_cast<int16_t>(-value);
      }
      return values;
    };
    const auto scales = [&](int64_t count) {
      std::vector<float> values(count);
      for (auto& value : values) value = 0.001f + static_cast<float>(random() % 1000) / 777.0f;
      return values;
    };
    a = codes(spec.batches * spec.n);
    b = codes(spec.batches * spec.m);
    problem.batches = spec.batches;
    problem.n = spec.n;
    problem.m = spec.m;
    problem.d = spec.d;
    problem.chunk = stream_spec.positions;
    problem.chunks = spec.chunk > 0 ? (spec.d + spec.chunk - 1) / spec.chunk : 1;
    problem.unipolar = spec.unipolar;
    a_scale = scales(spec.batches * spec.n * problem.chunks);
    b_scale = scales(spec.batches * spec.m * problem.chunks);
    problem.a_codes = a.data();
    problem.b_codes = b.data();
    problem.streams = streams.get();
    problem.stream_key = scmp::stream_key(stream_spec);
    problem.dequantizer.kind = problem.chunks > 1 ? scmp::Epilogue::chunk : scmp::Epilogue::row;
    problem.dequantizer.c = 16129.0f / static_cast<float>(spec.length);
    problem.dequantizer.n = spec.n;
    problem.dequantizer.m = spec.m;
    problem.dequantizer.chunks = problem.chunks;
    problem.dequantizer.a_scale = a_scale.data();
    problem.dequantizer.b_scale = b_scale.data();
  }

  template <typename Run>
  std::vector<float> outputs(const Run& run) {
    out.assign(problem.batches * problem.n * problem.m, -12345.0f);
    problem.out = out.data();
    run(problem);
    return out;
  }
};

/// Four threads, whatever the grain.
inline void threaded_for(int64_t count, int64_t, const scmp::RangeFn& body) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const int64_t begin = count * i / 4, end = count * (i + 1) / 4;
      if (begin < end) body(begin, end);
    });
  }
  for (auto& thread : threads) thread.join();
}
