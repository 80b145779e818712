// What is known of the inputs of linears from a calibration text, and what follows from it before weights are rounded:
// scales of channels (SmoothQuant, arXiv 2211.10438; AWQ, arXiv 2306.00978) and clipped ranges (AWQ's code).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/group_codes.h"

namespace octet {

// Of x [tokens, K] as the text makes it.
struct InputStats {
  int64_t width = 0, rows = 0;           // K; rows of the sample
  std::vector<float> mean_abs, max_abs;  // [K]
  std::vector<float> sample;             // [rows, K], tokens at equal distances

  // Those of x / scales.
  void divide(std::span<const float> scales);
};

// The linears that read one x, each [N_i, K]. Scales s make x / s and W s of x and W: the same product.
using Matrices = std::vector<std::span<const float>>;

// SmoothQuant's: max|x_k|^alpha / max|W_k|^(1 - alpha).
std::vector<float> smooth_scales(const InputStats& x, const Matrices& weights, double alpha);

// AWQ's: mean|x_k|^alpha, of alphas 0, 0.05 .. 0.95 the one whose rounded weights change the outputs of the sample
// least; alpha 0 is no scaling.
std::vector<float> search_scales(const InputStats& x, const Matrices& weights, const CodeRule& rule);

// Of each group's range, 1 down to 0.5 in steps of 0.05, the part whose rounding changes the group's share of the
// sample's outputs least: [N, groups].
std::vector<float> search_clips(const InputStats& x, std::span<const float> weights, const CodeRule& rule);

// |x W'^T - x W^T| / |x W^T| over the samples of linears, or experts, that are added (2-norms).
class OutputError {
 public:
  void add(const InputStats& x, std::span<const float> weights, std::span<const float> rounded);
  double relative() const;

 private:
  double all_ = 0, lost_ = 0;  // energies
};

// Column k of w [N, K] times scales[k].
void scale_columns(std::span<float> weights, std::span<const float> scales);

}  // namespace octet
