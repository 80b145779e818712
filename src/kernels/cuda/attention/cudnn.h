// cuDNN, opened at run time: attention of bf16 on tensor cores. Plans are built once a shape and kept with the handle.
//
// Looked for in the Python packages of this machine (nvidia/cudnn/lib), then where the loader looks.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <memory>

#include "kernels/cuda/context.h"

namespace octet::cuda {

// One attention node as cuDNN sees it: bf16 operands.
struct CudnnProblem {
  bool backward = false;
  bool ragged = false;  // segments of any length; else `batch` of exactly `length` tokens
  int64_t batch = 0;    // segments
  int64_t length = 0;   // the longest one
  int64_t tokens = 0;   // of the packed tensors
  int64_t heads = 0, kv_heads = 0, dim = 0;
  int64_t window = 0;  // 0: none
  bool causal = true;  // false: no window
  float scale = 1;
  float dropout = 0;           // of probabilities, by a mask that cuDNN draws from CudnnBuffers::draw
  bool deterministic = false;  // backward: no atomics

  auto operator<=>(const CudnnProblem&) const = default;
};

// Device pointers of one call. q, out, dout, dq bf16[tokens, heads D]; k, v, dk, dv bf16[tokens, kv_heads D]. stats:
// the log-sum-exp, f32[tokens, heads] when written or ragged, f32[batch, heads, length] when read dense. Ragged calls
// also give i32[batch] lengths, and where the segments start in each tensor, in elements, i32[batch + 1].
struct CudnnBuffers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* stats = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const int64_t* draw = nullptr;  // with dropout: seed, offset
  const int32_t *lengths = nullptr, *q_starts = nullptr, *kv_starts = nullptr, *stats_starts = nullptr;
};

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual void run(const CudnnBuffers& buffers, void* workspace, cudaStream_t stream) = 0;
};

class CudnnHandle final : public DeviceLibrary {
 public:
  // Throws kUnsupported: no library, or one too old, or built without the headers of cudnn-frontend.
  explicit CudnnHandle(DeviceContext& context);
  ~CudnnHandle() override;
  CudnnHandle(const CudnnHandle&) = delete;

  // Null where cuDNN does not support the problem; its words are logged, once.
  CudnnPlan* attention(const CudnnProblem& problem);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octet::cuda
