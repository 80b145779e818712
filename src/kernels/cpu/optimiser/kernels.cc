// square_sum: squares are summed in float32 within runs of fixed length and in float64 over runs and pieces in order,
// independent of the thread count. clip_factor: the norm and the factor that clips it, of that sum.
// Updates of float32 parameters and moments by float32 or bf16 gradients, in place, in one walk through memory. The
// order of operations is torch.optim's, in float32.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/threads.h"
#include "ir/facts.h"
#include "kernels/common/parts.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr int64_t kGrain = 16 * 1024;
constexpr int64_t kRun = 32 * simd::kLanes;  // elements summed in float32

// float32 squares overflow beyond 1.8e19: then the piece is summed again in float64. (x - x is 0 for finite x only.)
template <typename T>
double sum_piece(const T* x, int64_t count) {
  Floats rubbish{};
  double squares = 0;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    Floats sum{};
    simd::for_lanes(std::min(kRun, count - begin), [&](int64_t i, auto lanes) {
      const Floats v = simd::load(x + begin + i, lanes);
      sum = simd::fma(v, v, sum);
      rubbish += v - v;
    });
    squares += static_cast<double>(simd::sum(sum));
  }
  if (std::isfinite(squares) || simd::sum(rubbish) != 0.0f) return squares;
  squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<double>(simd::load(x + i, simd::Part{1})[0]);
    squares += v * v;
  }
  return squares;
}

BoundKernel bind_sum(const Graph& graph, const Node& node) {
  struct Piece {
    size_t input;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const TensorType& type = graph.type(node.inputs[i]);
    if (!is_f32_or_bf16(type.dtype)) return nullptr;
    const int64_t count = is_counted(node, i) ? type.shape.elements() : 0;
    for (int64_t begin = 0; begin < count; begin += kGrain)
      pieces.push_back({i, begin, std::min(kGrain, count - begin)});
  }
  // Sums of the pieces, allocated once here and not while running.
  auto sums = std::make_shared<std::vector<double>>(pieces.size());
  return [pieces = std::move(pieces), sums](const KernelArgs& args) {
    parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const Tensor& x = args.in[pieces[i].input];
        (*sums)[i] = with_float_type(
            x.dtype(), [&]<typename T>(T) { return sum_piece(x.as<const T>() + pieces[i].begin, pieces[i].count); });
      }
    });
    *args.out[0].as<double>() = std::accumulate(sums->begin(), sums->end(), 0.0);
  };
}

BoundKernel bind_clip(const Graph&, const Node& node) {
  return [max_norm = node.attr<double>("max_norm")](const KernelArgs& args) {
    const double squares = *args.in[0].as<double>(), norm = std::sqrt(squares);
    const double clip = max_norm > 0 ? std::fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
    const auto store = [&](size_t result, double value) {
      if (args.out[result].data != nullptr) *args.out[result].as<float>() = static_cast<float>(value);
    };
    store(0, norm), store(1, clip), store(2, std::isfinite(squares) ? 1 : 0);
  };
}

// The parameter and its moments, one vector of each.
template <int kMoments>
using Values = std::array<Floats, 1 + kMoments>;

// rule(gradient, values) makes the new values of elements [begin, end)
template <int kMoments, typename Rule>
void walk(const KernelArgs& args, int64_t begin, int64_t end, const Rule& rule) {
  constexpr size_t kFirstMoment = kMoments == 2 ? 2 : 6;
  std::array<const float*, 1 + kMoments> from;
  std::array<float*, 1 + kMoments> to;
  for (size_t i = 0; i <= kMoments; ++i) {
    from[i] = args.in[i == 0 ? 0 : kFirstMoment + i - 1].as<const float>() + begin;
    to[i] = args.out[i].data == nullptr ? nullptr : args.out[i].as<float>() + begin;
  }
  with_float_type(args.in[1].dtype(), [&]<typename G>(G) {
    const G* gradient = args.in[1].as<const G>() + begin;
    simd::for_lanes(end - begin, [&](int64_t at, auto lanes) {
      Values<kMoments> values;
      for (size_t i = 0; i <= kMoments; ++i) values[i] = simd::load(from[i] + at, lanes);
      rule(simd::load(gradient + at, lanes), values);
      for (size_t i = 0; i <= kMoments; ++i)
        if (to[i] != nullptr) simd::store(to[i] + at, values[i], lanes);
    });
  });
}

template <int kMoments, typename Rule>
void walk_all(const KernelArgs& args, const Rule& rule) {
  parallel_for(args.in[0].elements(), kGrain,
               [&](int64_t begin, int64_t end) { walk<kMoments>(args, begin, end, rule); });
}

struct Scalars {
  double lr, step;
  float clip;
};

// run(args, scalars) where the gradients are finite; else parameter and moments keep their values. The result of an
// absent moment is zeros.
template <typename Run>
BoundKernel update(const Graph& graph, const Node& node, Run run) {
  if (!is_f32_or_bf16(graph.dtype(node.inputs[1]))) return nullptr;
  const OpFacts& facts = op_facts(node.op);
  const auto first_moment = static_cast<size_t>(facts.first_moment), scalars = static_cast<size_t>(facts.scalars);
  const size_t end = static_cast<size_t>(facts.first_scalar) + scalars, moments = node.inputs.size() - 2 - scalars;
  return [=, run = std::move(run)](const KernelArgs& args) {
    for (const Tensor& none : args.out.subspan(1 + moments))
      if (none.data != nullptr) std::memset(none.data, 0, static_cast<size_t>(none.type->bytes()));
    const auto scalar = [&](size_t i) { return static_cast<double>(*args.in[end - i].template as<const float>()); };
    if (scalar(1) != 0)
      return run(args, Scalars{scalars == 4 ? scalar(4) : 0, scalar(3), static_cast<float>(scalar(2))});
    copy_tensor(args.in[0], args.out[0]);
    for (size_t i = 0; i < moments; ++i) copy_tensor(args.in[first_moment + i], args.out[i + 1]);
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
BoundKernel bind_adamw(const Graph& graph, const Node& node) {
  return update(graph, node, [attrs = node.attrs](const KernelArgs& args, const Scalars& scalars) {
    const Moments moments(attrs, scalars);
    const auto decay = static_cast<float>(1 - scalars.lr * attrs.get<double>("weight_decay"));
    const auto step_size = static_cast<float>(scalars.lr / moments.correction1);
    walk_all<2>(args, [&](Floats g, Values<2>& values) {
      const Floats ratio = moments.refresh(g, values);
      values[0] = values[0] * decay - step_size * ratio;
    });
  });
}

// g = grad clip + wd p; m = momentum m + g; p -= lr (g + momentum m with nesterov, else m). kInside: g takes lr before.
template <bool kInside>
BoundKernel bind_sgd(const Graph& graph, const Node& node) {
  const auto momentum = static_cast<float>(node.attr<double>("momentum"));
  const auto decay = static_cast<float>(node.attr<double>("weight_decay"));
  const bool nesterov = node.attr<bool>("nesterov"), buffered = node.inputs.size() == 7;
  if (node.attr<bool>("rate_inside") != kInside) return bind_sgd<!kInside>(graph, node);
  return update(graph, node, [=](const KernelArgs& args, const Scalars& scalars) {
    const auto lr = static_cast<float>(scalars.lr), clip = scalars.clip;
    const auto rule = [&]<size_t kValues>(Floats g, std::array<Floats, kValues>& values) {
      Floats direction = simd::fma(values[0], decay, g * clip);
      if constexpr (kInside) direction = lr * direction;
      if constexpr (kValues == 2) {
        values[1] = simd::fma(values[1], momentum, direction);
        direction = nesterov ? simd::fma(values[1], momentum, direction) : values[1];
      }
      values[0] = kInside ? values[0] - direction : values[0] - lr * direction;
    };
    buffered ? walk_all<1>(args, rule) : walk_all<0>(args, rule);
  });
}

// u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + wd p
BoundKernel bind_adam_direction(const Graph& graph, const Node& node) {
  return update(graph, node, [attrs = node.attrs](const KernelArgs& args, const Scalars& scalars) {
    const Moments moments(attrs, scalars);
    const auto decay = static_cast<float>(attrs.get<double>("weight_decay"));
    const auto unbiased = static_cast<float>(1 / moments.correction1);
    walk_all<2>(args, [&](Floats g, Values<2>& values) {
      const Floats ratio = moments.refresh(g, values);
      values[0] = simd::fma(values[0], decay, unbiased * ratio);
    });
  });
}

BoundKernel bind_trust_ratio(const Graph&, const Node& node) {
  return [coefficient = node.attr<double>("coefficient"), decay = node.attr<double>("weight_decay"),
          eps = node.attr<double>("eps")](const KernelArgs& args) {
    const double params = *args.in[0].as<const double>(), updates = *args.in[1].as<const double>();
    const double clip = args.in.size() > 3 && args.in[3].data != nullptr ? *args.in[3].as<const float>() : 1;
    double trust = 1;
    if (params > 0 && updates > 0 && clip > 0)
      trust = clip == 1 && decay == 0 && eps == 0
                  ? coefficient * std::sqrt(params / updates)
                  : coefficient * std::sqrt(params) / (clip * std::sqrt(updates) + decay * std::sqrt(params) + eps);
    *args.out[0].as<float>() = static_cast<float>(static_cast<double>(*args.in[2].as<const float>()) * trust);
  };
}

// state + rate (value / count - state); the state where finite or count is 0
BoundKernel bind_blend(const Graph& graph, const Node& node) {
  const int64_t elements = node.results[0].shape.elements();
  return [elements, rate = static_cast<float>(node.attr<double>("rate"))](const KernelArgs& args) {
    const auto scalar = [&](size_t i) {
      return args.in.size() > i && args.in[i].data != nullptr ? *args.in[i].as<const float>() : 1.0f;
    };
    const float count = scalar(2);
    if (count == 0 || scalar(3) == 0) return copy_tensor(args.in[0], args.out[0]);
    const float *state = args.in[0].as<const float>(), *value = args.in[1].as<const float>();
    float* to = args.out[0].as<float>();
    parallel_for(elements, kGrain, [&](int64_t begin, int64_t end) {
      simd::for_lanes(end - begin, [&](int64_t at, auto lanes) {
        const Floats old = simd::load(state + begin + at, lanes);
        const Floats difference = simd::load(value + begin + at, lanes) / count - old;
        simd::store(to + begin + at, simd::fma(difference, rate, old), lanes);
      });
    });
  };
}

}  // namespace

std::vector<KernelEntry> optimiser_kernels() {
  return {{Op::kSquareSum, "square_sum_pieces", bind_sum},
          {Op::kClipFactor, "clip_factor", bind_clip},
          {Op::kAdamw, "adamw_f32", bind_adamw},
          {Op::kSgd, "sgd_f32", bind_sgd<false>},
          {Op::kAdamDirection, "adam_direction_f32", bind_adam_direction},
          {Op::kTrustRatio, "trust_ratio", bind_trust_ratio},
          {Op::kBlend, "blend_f32", bind_blend}};
}

}  // namespace octet::cpu
