// Launchers of softmax cross-entropy over rows of logits [T, V], or over the columns [T, V] of a part of the classes;
// columns from `classes` on are padding.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

struct CrossEntropy {
  DType dtype = DType::kBF16;  // of logits and dlogits: f32 or bf16
  int64_t tokens = 0, cols = 0, classes = 0;
  int32_t first = 0;                 // class of column 0; targets of other columns' classes are other ranks'
  const void* logits = nullptr;      // [T, V]
  const int32_t* targets = nullptr;  // [T], -1: ignored; may be null where no loss is wanted
};
// lse = log sum exp(logits), or `given` [T] where that is not null; loss = lse - logits[target], 0 where ignored or
// another rank's.
// Either may be null.
void launch_cross_entropy(const CrossEntropy& call, const float* given, float* loss, float* lse, cudaStream_t stream);
// dlogits = (exp(logits - lse) - onehot(target)) dloss, 0 where ignored and in padding; may stand where logits stand.
void launch_cross_entropy_grad(const CrossEntropy& call, const float* lse, const float* dloss, void* dlogits,
                               cudaStream_t stream);

}  // namespace octet::cuda
