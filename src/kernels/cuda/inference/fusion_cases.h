// Cases of the fusions of rope and scatter_rows: for the test that compares them with their members.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

struct RopeAppend {
  int64_t tokens = 0, heads = 0, kv_heads = 0, dim = 0;
  int64_t rotary_dim = 0;  // 0: dim
  DType cache = DType::kBF16;
  bool turns = true;  // else kind "scatter_rows_pair": no rope
  bool interleaved = false;
  bool scaled = false;  // both caches have scales
  bool sliced = false;  // q, k and v are columns of one matrix; turns
  bool normed = false;  // heads of q and k are rms_norms before they turn
};
// Tokens have positions up to 100,000 and slots of their own, every third one none.
cpu::Case rope_append_case(const RopeAppend& fusion);

}  // namespace octet::cuda
