// square_sum: squares are summed in float32 within runs of fixed length and in float64 over runs and pieces in order,
// independent of the thread count. clip_factor: the norm and the factor that clips it, of that sum.
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/threads.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr int64_t kPiece = 16 * 1024;

bool accepts_sum(const Graph& graph, const Node& node) {
  for (Value input : node.inputs) {
    if (!is_f32_or_bf16(graph.dtype(input))) return false;
  }
  return true;
}

// float32 squares overflow beyond 1.8e19: then the piece is summed again in float64. (x - x is 0 for finite x only.)
template <typename T>
double sum_piece(const T* x, int64_t count) {
  constexpr int64_t kRun = 32 * simd::kLanes;
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
  std::vector<bool> bf16;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const TensorType& type = graph.type(node.inputs[i]);
    bf16.push_back(type.dtype == DType::kBF16);
    const int64_t count = type.shape.elements();
    for (int64_t begin = 0; begin < count; begin += kPiece)
      pieces.push_back({i, begin, std::min(kPiece, count - begin)});
  }
  // Sums of the pieces, allocated once here and not while running.
  auto sums = std::make_shared<std::vector<double>>(pieces.size());
  return [pieces = std::move(pieces), bf16 = std::move(bf16), sums](const KernelArgs& args) {
    parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces[static_cast<size_t>(i)];
        const Tensor& x = args.in[piece.input];
        (*sums)[static_cast<size_t>(i)] = bf16[piece.input] ? sum_piece(x.as<const BF16>() + piece.begin, piece.count)
                                                            : sum_piece(x.as<const float>() + piece.begin, piece.count);
      }
    });
    double& squares = *args.out[0].as<double>();
    squares = 0;
    for (const double sum : *sums) squares += sum;
  };
}

bool accepts_clip(const Graph&, const Node&) { return true; }

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

}  // namespace

std::span<const KernelEntry> gradient_norm_kernels() {
  static const KernelEntry kernels[] = {{Op::kSquareSum, "square_sum_pieces", accepts_sum, bind_sum},
                                        {Op::kClipFactor, "clip_factor", accepts_clip, bind_clip}};
  return kernels;
}

}  // namespace octet::cpu
