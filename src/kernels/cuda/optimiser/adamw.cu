// AdamW: 28 bytes a parameter. The order of operations is torch.optim.AdamW's, in float32.
#include "kernels/cuda/optimiser/adam.cuh"

namespace octet::cuda {
namespace {

struct AdamwRule {
  static constexpr int kMoments = 2;
  using Constants = update::AdamConstants;

  static __device__ __forceinline__ void make(const UpdateTable& table, const UpdateEntry& e, Constants& to) {
    update::make_adam_constants(table, to, [&](double correction) {
      to.decay = static_cast<float>(1 - static_cast<double>(*table.lr) * e.weight_decay);
      to.step_size = static_cast<float>(static_cast<double>(*table.lr) / correction);
    });
  }
  static __device__ __forceinline__ void step(const Constants& k, float& p, float g, float& m, float& v) {
    const float ratio = update::refresh_moments(k, g, m, v);
    p = p * k.decay - k.step_size * ratio;
  }
};

}  // namespace

void launch_adamw(const UpdateTable& table, cudaStream_t stream) { update::launch<AdamwRule>(table, stream); }

}  // namespace octet::cuda
