// dropout: divides kept elements by 1 - p; each element has its own random word, so results do not depend on the split.
#include "kernels/common/keep_threshold.h"
#include "kernels/cpu/random_words.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t kPiece = 512;  // elements whose words fit the level 1 cache

template <typename T>
void drop(const RowCall& call, int64_t cols, uint32_t node_key, uint32_t threshold, float factor) {
  const RandomStream stream = RandomStream::of(static_cast<const int64_t*>(call.in[1]), node_key);
  const T* x = static_cast<const T*>(call.in[0]);
  T* y = static_cast<T*>(call.out[0]);
  const int64_t count = call.rows * cols, first = call.first_row * cols;
  alignas(64) uint32_t buffer[kPiece + kRandomGroup + simd::kLanes];
  for (int64_t done = 0; done < count; done += kPiece) {
    const int64_t piece = std::min(kPiece, count - done);
    const uint32_t* words = random_words(stream, static_cast<uint64_t>(first + done), piece, buffer);
    simd::for_lanes(piece, [&](int64_t i, auto lanes) {
      simd::Words bits;
      std::memcpy(&bits, words + i, sizeof bits);
      const simd::Floats kept = simd::load(x + done + i, lanes) * factor;
      simd::store(y + done + i, (bits >> 8) >= threshold ? kept : simd::Floats{}, lanes);
    });
  }
}

}  // namespace

std::optional<RowKernel> dropout_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  const DType dtype = node.results[0].dtype;
  const double p = node.attr<double>("p");
  if (graph.dtype(node.inputs[0]) != dtype || !is_f32_or_bf16(dtype) || !(p >= 0 && p < 1)) return std::nullopt;
  const ElementRows at(node.results[0].shape, use, false);
  RowKernel kernel{at.rows,     {OperandMapping::kRows, OperandMapping::kWhole}, {OperandMapping::kRows}, {}, 0,
                   at.alignment};
  const auto key = static_cast<uint32_t>(node.attr<int64_t>("key"));
  const uint32_t threshold = keep_threshold(p);
  const auto factor = static_cast<float>(1 / (1 - p));
  with_float_type(dtype, [&]<typename T>(T) {
    kernel.run = [=, cols = at.cols](const RowCall& call) { drop<T>(call, cols, key, threshold, factor); };
  });
  return kernel;
}

}  // namespace octet::cpu
