// rope: cosines and sines once per token, then all heads. Angles are reduced in float64 (positions may be large), the
// functions of the rest are float32 polynomials (fitted on [-pi/4, pi/4], error 2e-11 and 8e-10).
#include "kernels/common/rope_frequencies.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;
using simd::Ints;
typedef double Doubles __attribute__((vector_size(simd::kLanes * 8)));

struct Turn {
  Floats cosine, sine;
};

OCTET_SIMD Turn turn(const double* frequencies, double position) {
  constexpr double kMagic = 0x1.8p52, kTwoOverPi = 0.63661977236758134308, kHalfPi = 1.5707963267948966192;
  Doubles angle;
  std::memcpy(&angle, frequencies, sizeof angle);
  angle *= position;
  const Doubles whole = (angle * kTwoOverPi + kMagic) - kMagic;
  const Floats r = __builtin_convertvector(angle - whole * kHalfPi, Floats);
  const Doubles low = whole - 4.0 * ((whole * 0.25 + kMagic) - kMagic);  // -2 .. 2
  const Ints quadrant = __builtin_convertvector(low, Ints) & 3;
  const Floats z = r * r;
  Floats s = simd::broadcast(0x1.6dbbeep-19f);
  s = simd::fma(s, z, simd::broadcast(-0x1.a013a2p-13f));
  s = simd::fma(s, z, simd::broadcast(0x1.11110ep-7f));
  s = simd::fma(s, z, simd::broadcast(-0x1.555556p-3f));
  s = simd::fma(s * z, r, r);
  Floats c = simd::broadcast(0x1.9bd670p-16f);
  c = simd::fma(c, z, simd::broadcast(-0x1.6c12cep-10f));
  c = simd::fma(c, z, simd::broadcast(0x1.555554p-5f));
  c = simd::fma(c * z, z, simd::fma(z, -0.5f, simd::broadcast(1.0f)));
  const Ints odd = (quadrant & 1) != 0;
  const Floats cosine = odd ? s : c, sine = odd ? c : s;
  return {((quadrant + 1) & 2) != 0 ? -cosine : cosine, (quadrant & 2) != 0 ? -sine : sine};
}

struct RopePlan {
  int64_t heads, dim, pairs;
  bool interleaved;
  float sign, factor;
  std::vector<double> frequencies;  // of every pair, or twice each when interleaved; padded to whole vectors
};

// Halves: y[i] = a cos - b sin, y[i + pairs] = b cos + a sin.
template <typename T>
void rotate_halves(const T* x, T* y, int64_t pairs, const float* cosines, const float* sines) {
  simd::for_lanes(pairs, [&](int64_t i, auto lanes) {
    const Floats a = simd::load(x + i, lanes), b = simd::load(x + pairs + i, lanes);
    const Floats c = simd::load(cosines + i, lanes), s = simd::load(sines + i, lanes);
    simd::store(y + i, simd::fma(a, c, -(b * s)), lanes);
    simd::store(y + pairs + i, simd::fma(b, c, a * s), lanes);
  });
}

// Neighbours: the same with a partner one lane away and the sign in the sines.
template <typename T>
void rotate_neighbours(const T* x, T* y, int64_t pairs, const float* cosines, const float* sines) {
  simd::for_lanes(2 * pairs, [&](int64_t i, auto lanes) {
    const Floats v = simd::load(x + i, lanes), other = simd::shuffle<[](int lane) { return lane ^ 1; }>(v, v);
    simd::store(y + i, simd::fma(v, simd::load(cosines + i, lanes), other * simd::load(sines + i, lanes)), lanes);
  });
}

template <typename T>
void rope(const RowCall& call, const RopePlan& plan) {
  const int32_t* positions = static_cast<const int32_t*>(call.in[1]);
  const auto angles = static_cast<int64_t>(plan.frequencies.size());
  float *cosines = call.scratch, *sines = call.scratch + angles;
  const int64_t rotary = 2 * plan.pairs;
  Floats sign = simd::broadcast(plan.sign * plan.factor);
  if (plan.interleaved) {
    for (int i = 0; i < simd::kLanes; i += 2) sign[i] = -sign[i];
  }
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t i = 0; i < angles; i += simd::kLanes) {
      const Turn t = turn(plan.frequencies.data() + i, positions[row]);
      simd::store(cosines + i, t.cosine * plan.factor, simd::Full{});
      simd::store(sines + i, t.sine * sign, simd::Full{});
    }
    for (int64_t head = 0; head < plan.heads; ++head) {
      const int64_t first = (row * plan.heads + head) * plan.dim;
      const T* x = static_cast<const T*>(call.in[0]) + first;
      T* y = static_cast<T*>(call.out[0]) + first;
      if (plan.interleaved) {
        rotate_neighbours(x, y, plan.pairs, cosines, sines);
      } else {
        rotate_halves(x, y, plan.pairs, cosines, sines);
      }
      if (x != y && rotary < plan.dim) {
        std::memcpy(y + rotary, x + rotary, static_cast<size_t>(plan.dim - rotary) * sizeof(T));
      }
    }
  }
}

}  // namespace

std::optional<RowKernel> rope_row_kernel(const Graph&, const Node& node, RowUse) {
  const DType dtype = node.results[0].dtype;
  if (!is_f32_or_bf16(dtype)) return std::nullopt;
  RopePlan plan{node.attr<int64_t>("heads"), node.attr<int64_t>("head_dim")};
  const std::vector<double> frequencies = rope_frequencies(node);
  plan.pairs = static_cast<int64_t>(frequencies.size());
  plan.interleaved = node.attr<bool>("interleaved");
  plan.sign = node.attr<bool>("inverse") ? -1.0f : 1.0f;
  plan.factor = static_cast<float>(node.attr<double>("attention_factor"));
  for (double frequency : frequencies) {
    plan.frequencies.insert(plan.frequencies.end(), plan.interleaved ? 2 : 1, frequency);
  }
  while (plan.frequencies.size() % simd::kLanes != 0) plan.frequencies.push_back(0);
  RowKernel kernel{
      node.results[0].shape.rows(), {OperandMapping::kRows, OperandMapping::kRows}, {OperandMapping::kRows}};
  kernel.scratch_floats = 2 * static_cast<int64_t>(plan.frequencies.size());
  with_float_type(dtype, [&]<typename T>(T) { kernel.run = [plan](const RowCall& call) { rope<T>(call, plan); }; });
  return kernel;
}

}  // namespace octet::cpu
