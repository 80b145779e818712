// Shared by the loops of attention's gradient: the task, its operands, and the arithmetic of one vector of scores.
#pragma once

#include "kernels/cpu/attention/problem.h"

namespace octet::cpu {

// Operands: q k v segments out lse dout rng; results dq dk dv.
struct GradientInputs {
  const int32_t* starts;
  int64_t segments;
  const RandomStream* stream;
  const float* lse;
  float* delta;  // [tokens, heads], in the workspace
};

// Range of one task: heads of one kv head, and token ranges of one segment that start on the block grid.
struct GradientTask {
  int64_t start, end;  // the segment
  int64_t kv_head, first_head, last_head;
  int64_t first_key, last_key, first_query, last_query;
  bool want_dq, want_dkv;
};

// Probabilities times dropout, and dS, from a vector of scores and dP; keep: dropout factors, if any.
struct Slopes {
  simd::Floats kept, ds;
};
OCTET_SIMD Slopes slopes_of(simd::Floats score, simd::Floats dp, simd::Ints seen, const float* keep, float scale,
                            float lse, float delta) {
  using simd::Floats;
  Floats probability = simd::exp(simd::fma(score, scale, simd::broadcast(-lse)));
  probability = seen & ~(probability < 0x1p-126f) ? probability : Floats{};
  Floats kept = probability;
  if (keep != nullptr) {
    const Floats factor = simd::load(keep, simd::Full{});
    dp *= factor, kept *= factor;
  }
  const Floats ds = probability * (dp - delta) * scale;
  return {kept, seen ? ds : Floats{}};
}

// Copies rows of `from`, from_row apart, to rows of a result.
template <typename T>
void store_rows(const float* from, int64_t from_row, int64_t rows, int64_t dim, T* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    simd::for_lanes(dim, [&](int64_t i, auto lanes) {
      simd::store(to + r * to_row + i, simd::load(from + r * from_row + i, lanes), lanes);
    });
  }
}

}  // namespace octet::cpu
