// SGD as torch.optim.SGD has it (dampening 0): 20 bytes a parameter with a momentum buffer, 12 without.
#include "kernels/cuda/optimiser/update.cuh"

namespace octet::cuda {
namespace {

struct SgdRule {
  static constexpr int kMoments = 1;
  struct Constants {
    float clip, decay, lr, momentum;
    bool buffer, nesterov;
  };

  static __device__ __forceinline__ void make(const UpdateTable& table, const UpdateEntry& e, Constants& to) {
    if (threadIdx.x != 0) return;
    to.clip = *table.clip, to.lr = *table.lr;
    to.decay = static_cast<float>(e.weight_decay), to.momentum = static_cast<float>(table.beta1);
    to.buffer = e.m != nullptr, to.nesterov = table.nesterov;
  }
  // g = grad clip + wd p; m = momentum m + g; p -= lr (g + momentum m with nesterov, else m)
  static __device__ __forceinline__ void step(const Constants& k, float& p, float g, float& m, float&) {
    float direction = fmaf(p, k.decay, g * k.clip);
    if (k.buffer) {
      m = fmaf(m, k.momentum, direction);
      direction = k.nesterov ? fmaf(m, k.momentum, direction) : m;
    }
    p -= k.lr * direction;
  }
};

}  // namespace

void launch_sgd(const UpdateTable& table, cudaStream_t stream) { update::launch<SgdRule>(table, stream); }

}  // namespace octet::cuda
