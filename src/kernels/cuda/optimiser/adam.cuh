// The moments of Adam, shared by AdamW and LAMB. Their bias corrections are made in float64 once a block.
#pragma once

#include "kernels/cuda/optimiser/update.cuh"

namespace octet::cuda::update {

struct AdamConstants {
  float clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

// Threads 0 and 1 make the constants; each takes the power of one beta. Thread 0 sets decay and step_size by
// set(correction of the first moment).
template <typename Set>
__device__ __forceinline__ void make_adam_constants(const UpdateTable& table, AdamConstants& to, const Set& set) {
  const bool first = threadIdx.x == 0;
  const double correction = 1 - pow(first ? table.beta1 : table.beta2, static_cast<double>(*table.step));
  if (first) {
    to.clip = *table.clip;
    to.beta1 = static_cast<float>(table.beta1), to.one_minus_beta1 = static_cast<float>(1 - table.beta1);
    to.beta2 = static_cast<float>(table.beta2), to.one_minus_beta2 = static_cast<float>(1 - table.beta2);
    to.eps = static_cast<float>(table.eps);
    set(correction);
  } else {
    to.root_correction = static_cast<float>(1 / sqrt(correction));
  }
}

// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; returns m / (sqrt(v) / sqrt(1 - b2^t) + eps)
__device__ __forceinline__ float refresh_moments(const AdamConstants& k, float g, float& m, float& v) {
  const float grad = g * k.clip;
  m = fmaf(m, k.beta1, grad * k.one_minus_beta1);
  v = fmaf(v, k.beta2, grad * grad * k.one_minus_beta2);
  const float denominator = sqrtf(v) * k.root_correction + k.eps;
  return m / denominator;
}

}  // namespace octet::cuda::update
