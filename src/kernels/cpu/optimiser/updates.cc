// Updates of float32 parameters and moments by float32 or bf16 gradients, in place: AdamW and SGD in one walk through
// memory, LAMB in two, the first for its norms. The order of operations is torch.optim's, in float32.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "ir/facts.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr int64_t kGrain = 16 * 1024;

bool accepts(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (i != 1 && graph.dtype(node.inputs[i]) != DType::kF32) return false;
  }
  return is_f32_or_bf16(graph.dtype(node.inputs[1]));
}

// The parameter and its moments, one vector of each.
template <int kMoments>
using Values = std::array<Floats, 1 + kMoments>;

// rule(gradient, values, lanes) makes the new values of elements [begin, end); kWrite: which are then stored.
template <int kMoments, bool kWrite = true, typename G, typename Rule>
void walk(const KernelArgs& args, const G* gradient, int64_t begin, int64_t end, const Rule& rule) {
  constexpr size_t kFirstMoment = kMoments == 2 ? 2 : 6;
  std::array<const float*, 1 + kMoments> from;
  std::array<float*, 1 + kMoments> to;
  for (size_t i = 0; i <= kMoments; ++i) {
    from[i] = args.in[i == 0 ? 0 : kFirstMoment + i - 1].as<const float>() + begin;
    to[i] = args.out[i].data == nullptr ? nullptr : args.out[i].as<float>() + begin;
  }
  simd::for_lanes(end - begin, [&](int64_t at, auto lanes) {
    Values<kMoments> values;
    for (size_t i = 0; i <= kMoments; ++i) values[i] = simd::load(from[i] + at, lanes);
    rule(simd::load(gradient + begin + at, lanes), values);
    for (size_t i = 0; kWrite && i <= kMoments; ++i)
      if (to[i] != nullptr) simd::store(to[i] + at, values[i], lanes);
  });
}

// Calls visit with the gradients' pointer, as float or BF16.
template <typename Visit>
void with_gradient(const Tensor& gradient, const Visit& visit) {
  with_float_type(gradient.dtype(), [&](auto type) { visit(gradient.as<const decltype(type)>()); });
}

void copy_unless_same(const Tensor& from, const Tensor& to) {
  if (to.data != nullptr && from.data != to.data)
    std::memcpy(to.data, from.data, static_cast<size_t>(to.type->bytes()));
}

struct Scalars {
  double lr, step;
  float clip;
};

// run(args, scalars) where the gradients are finite; else parameter and moments keep their values. The result of an
// absent moment is zeros.
template <typename Run>
BoundKernel update(const Node& node, Run run) {
  const OpFacts& facts = op_facts(node.op);
  return
      [run = std::move(run), moments = node.inputs.size() - 6, first_moment = static_cast<size_t>(facts.first_moment),
       first_scalar = static_cast<size_t>(facts.first_scalar)](const KernelArgs& args) {
        for (const Tensor& none : args.out.subspan(1 + moments))
          if (none.data != nullptr) std::memset(none.data, 0, static_cast<size_t>(none.type->bytes()));
        const auto scalar = [&](size_t i) { return static_cast<double>(*args.in[first_scalar + i].as<const float>()); };
        if (scalar(3) != 0) return run(args, Scalars{scalar(0), scalar(1), static_cast<float>(scalar(2))});
        copy_unless_same(args.in[0], args.out[0]);
        for (size_t i = 0; i < moments; ++i) copy_unless_same(args.in[first_moment + i], args.out[i + 1]);
      };
}

// The moments of Adam, and their bias corrections at a step.
struct Moments {
  float clip, beta1, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps;
  double correction1;

  Moments(const Attrs& attrs, const Scalars& scalars) {
    const double b1 = attrs.get<double>("beta1"), b2 = attrs.get<double>("beta2");
    clip = scalars.clip;
    beta1 = static_cast<float>(b1), one_minus_beta1 = static_cast<float>(1 - b1);
    beta2 = static_cast<float>(b2), one_minus_beta2 = static_cast<float>(1 - b2);
    correction1 = 1 - std::pow(b1, scalars.step);
    root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(b2, scalars.step)));
    eps = static_cast<float>(attrs.get<double>("eps"));
  }
  // m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; returns m / (sqrt(v) / sqrt(1 - b2^t) + eps)
  OCTET_SIMD Floats refresh(Floats gradient, Values<2>& values) const {
    const Floats g = gradient * clip;
    values[1] = simd::fma(values[1], beta1, g * one_minus_beta1);
    values[2] = simd::fma(values[2], beta2, g * g * one_minus_beta2);
    return values[1] / (simd::sqrt(values[2]) * root_correction + eps);
  }
};

// p *= 1 - lr wd; p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
BoundKernel bind_adamw(const Graph&, const Node& node) {
  return update(node, [attrs = node.attrs, count = node.results[0].shape.elements()](const KernelArgs& args,
                                                                                     const Scalars& scalars) {
    const Moments moments(attrs, scalars);
    const auto decay = static_cast<float>(1 - scalars.lr * attrs.get<double>("weight_decay"));
    const auto step_size = static_cast<float>(scalars.lr / moments.correction1);
    with_gradient(args.in[1], [&](const auto* gradient) {
      parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
        walk<2>(args, gradient, begin, end, [&](Floats g, Values<2>& values) {
          const Floats ratio = moments.refresh(g, values);
          values[0] = values[0] * decay - step_size * ratio;
        });
      });
    });
  });
}

// g = grad clip + wd p; m = momentum m + g; p -= lr (g + momentum m with nesterov, else m)
template <int kMoments>
BoundKernel bind_sgd_of(const Node& node) {
  const auto momentum = static_cast<float>(node.attrs.get<double>("momentum"));
  const auto decay = static_cast<float>(node.attrs.get<double>("weight_decay"));
  return update(node, [=, nesterov = node.attrs.get<bool>("nesterov"), count = node.results[0].shape.elements()](
                          const KernelArgs& args, const Scalars& scalars) {
    const auto lr = static_cast<float>(scalars.lr), clip = scalars.clip;
    with_gradient(args.in[1], [&](const auto* gradient) {
      parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
        walk<kMoments>(args, gradient, begin, end, [&](Floats g, Values<kMoments>& values) {
          Floats direction = simd::fma(values[0], decay, g * clip);
          if constexpr (kMoments == 1) {
            values[1] = simd::fma(values[1], momentum, direction);
            direction = nesterov ? simd::fma(values[1], momentum, direction) : values[1];
          }
          values[0] = values[0] - lr * direction;
        });
      });
    });
  });
}

BoundKernel bind_sgd(const Graph&, const Node& node) {
  return node.inputs.size() == 7 ? bind_sgd_of<1>(node) : bind_sgd_of<0>(node);
}

// u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + wd p; p -= lr |p| / |u| u. Squares are summed in float32 in
// runs of fixed length, in float64 over runs and pieces in order: the same for any thread count.
BoundKernel bind_lamb(const Graph&, const Node& node) {
  const int64_t count = node.results[0].shape.elements(), pieces = (count + kGrain - 1) / kGrain;
  struct Squares {
    double param = 0, update = 0;
  };
  auto sums = std::make_shared<std::vector<Squares>>(static_cast<size_t>(pieces));
  return update(node, [attrs = node.attrs, count, pieces, sums](const KernelArgs& args, const Scalars& scalars) {
    const Moments moments(attrs, scalars);
    const auto decay = static_cast<float>(attrs.get<double>("weight_decay"));
    const auto unbiased = static_cast<float>(1 / moments.correction1);
    const auto direction = [&](Floats g, Values<2>& values) {
      const Floats ratio = moments.refresh(g, values);
      return simd::fma(values[0], decay, unbiased * ratio);
    };
    with_gradient(args.in[1], [&](const auto* gradient) {
      double trust = 1;
      if (decay != 0) {
        parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
          for (int64_t piece = first; piece < last; ++piece) {
            constexpr int64_t kRun = 32 * simd::kLanes;
            Squares& sum = (*sums)[static_cast<size_t>(piece)] = {};
            const int64_t end = std::min(count, (piece + 1) * kGrain);
            for (int64_t begin = piece * kGrain; begin < end; begin += kRun) {
              Floats param{}, change{};
              walk<2, false>(args, gradient, begin, std::min(end, begin + kRun), [&](Floats g, Values<2>& values) {
                param = simd::fma(values[0], values[0], param);
                const Floats u = direction(g, values);
                change = simd::fma(u, u, change);
              });
              sum.param += static_cast<double>(simd::sum(param));
              sum.update += static_cast<double>(simd::sum(change));
            }
          }
        });
        Squares all;
        for (const Squares& sum : *sums) all.param += sum.param, all.update += sum.update;
        if (all.param > 0 && all.update > 0) trust = std::sqrt(all.param / all.update);
      }
      const auto step_size = static_cast<float>(scalars.lr * trust);
      parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
        walk<2>(args, gradient, begin, end, [&](Floats g, Values<2>& values) {
          const Floats u = direction(g, values);
          values[0] = values[0] - step_size * u;
        });
      });
    });
  });
}

}  // namespace

std::span<const KernelEntry> update_kernels() {
  static const KernelEntry kernels[] = {{Op::kAdamw, "adamw_f32", accepts, bind_adamw},
                                        {Op::kSgd, "sgd_f32", accepts, bind_sgd},
                                        {Op::kLamb, "lamb_f32", accepts, bind_lamb}};
  return kernels;
}

}  // namespace octet::cpu
