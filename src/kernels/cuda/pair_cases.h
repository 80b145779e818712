// Cases of fusions of two members, the second reading result 0 of the first: rope_amax, scale_quantize.
#pragma once

#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

struct RopeAmax {
  int64_t tokens = 0, heads = 0, head_dim = 128, rotary_dim = 128;
  bool interleaved = false;
  std::vector<std::string> results = {"rope.0", "amax.0"};  // what is read outside
};
cpu::Case rope_amax_case(const RopeAmax& fusion);

struct ScaleQuantize {
  int64_t rows = 0, cols = 0;
  double amax = 3.5;
  int64_t margin = 0;
  bool pow2 = false;
  const char* format = "e4m3";
  std::vector<std::string> results = {"scale.0",    "scale.1",    "quantize.0", "quantize.1",
                                      "quantize.2", "quantize.3", "quantize.4"};
};
cpu::Case scale_quantize_case(const ScaleQuantize& fusion);

}  // namespace octet::cuda
