// Quantization on doubles. Scales and products are float32 arithmetic, as on every device, so that codes and scales
// are equal bit for bit on identical input. amax is max |x|; a NaN or infinity propagates to it and gives scale 1.
#include "kernels/cpu/reference.h"
#include "base/dtype.h"
#include "ir/nf4.h"
#include "ir/tensor_stats.h"
#include "kernels/common/scale_index.h"
#include "precision/recipe.h"

namespace octet::cpu::reference {
namespace {

void raise_amax(float& amax, double value) {
  const auto magnitude = static_cast<float>(std::fabs(value));
  if (!(magnitude <= amax) && !std::isnan(amax)) amax = magnitude;
}

float node_scale(const Node& node, float amax) {
  return scale_from_amax(amax, parse_dtype(node.attr<std::string>("format")), node.attr<int64_t>("margin"),
                         node.attr<bool>("pow2"));
}

// codes and scale_inv of x, [rows, cols] as codes: one scale per element of scale_inv, from its group's amax unless
// given.
void quantize_groups(const Node& node, const std::vector<double>& x, const RefTensor* given, RefTensor& codes,
                     RefTensor& scale_inv) {
  const ScaleIndex at(codes.type.shape, scale_inv.type.shape);
  const auto group = [&](int64_t i) { return static_cast<size_t>(at(i / codes.cols(), i % codes.cols())); };
  std::vector<float> scales(scale_inv.values.size(), 0.0f);  // amaxes first
  for (int64_t i = 0; i < codes.size(); ++i) raise_amax(scales[group(i)], x[static_cast<size_t>(i)]);
  for (float& scale : scales) scale = given != nullptr ? static_cast<float>((*given)[0]) : node_scale(node, scale);
  for (int64_t i = 0; i < codes.size(); ++i) {
    const float scaled = static_cast<float>(x[static_cast<size_t>(i)]) * scales[group(i)];
    codes[i] = round_to(codes.type.dtype, static_cast<double>(scaled));
  }
  for (size_t i = 0; i < scales.size(); ++i) scale_inv.values[i] = static_cast<double>(1.0f / scales[i]);
}

// Powers of two from |low| to |high|, both included.
int64_t binades(double low, double high) { return std::ilogb(high) - std::ilogb(low) + 1; }

// Error power over signal power of each run of 128 elements, row by row: mean over the runs that are not all zeros.
double run_noise(const std::vector<double>& x, const std::vector<double>& rounded, int64_t cols) {
  double sum = 0, runs = 0;
  const auto count = static_cast<int64_t>(x.size());
  for (int64_t row = 0; row < count; row += cols) {
    for (int64_t c = 0; c < cols; c += kScaleBlock) {
      double signal = 0, noise = 0;
      for (int64_t i = row + c; i < row + std::min(cols, c + kScaleBlock); ++i) {
        const double value = x[static_cast<size_t>(i)], error = value - rounded[static_cast<size_t>(i)];
        signal += value * value;
        noise += error * error;
      }
      if (signal > 0) sum += noise / signal, ++runs;
    }
  }
  return runs > 0 ? sum / runs : 0;
}

// Underflow, saturation and noise of x [rows, cols] quantized with scales of this shape, to `results`.
void scaling_stats(const Node& node, const std::vector<double>& x, const Shape& shape, const Shape& scales,
                   double* results) {
  const DType format = parse_dtype(node.attr<std::string>("format"));
  RefTensor codes = zeros({format, shape}), scale_inv = zeros({DType::kF32, scales});
  quantize_groups(node, x, nullptr, codes, scale_inv);
  const ScaleIndex at(shape, scales);
  double non_zero = 0, underflow = 0, saturated = 0;
  std::vector<double> rounded(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    non_zero += x[i] != 0;
    underflow += x[i] != 0 && codes.values[i] == 0;
    saturated += std::fabs(codes.values[i]) == dtype_max(format);
    rounded[i] = codes.values[i] * scale_inv[at(position / shape.cols(), position % shape.cols())];
  }
  results[kUnderflow] = non_zero > 0 ? underflow / non_zero : 0;
  results[kSaturation] = non_zero > 0 ? saturated / non_zero : 0;
  results[kNoise] = std::max(run_noise(x, rounded, shape.cols()),
                             run_noise(transposed(x, shape.cols()), transposed(rounded, shape.cols()), shape.rows()));
}

// scale and its inverse of an amax.
void store_scale(const Node& node, float amax, RefTensor& scale_out, RefTensor& inverse_out) {
  const float scale = node_scale(node, amax);
  scale_out[0] = static_cast<double>(scale);
  inverse_out[0] = static_cast<double>(1.0f / scale);
}

}  // namespace

void compute_scale(const Node& node, RefInputs in, RefResults out) {
  store_scale(node, static_cast<float>((*in[0])[0]), out[0], out[1]);
}

// codes_t and scale_inv_t are the same quantization of the transposed matrix: for 1x128 and row scaling the groups run
// along the other direction, for tensor and 128x128 scaling it is the transpose of codes.
void quantize(const Node& node, RefInputs in, RefResults out) {
  const RefTensor* scale = present(in, 1) ? in[1] : nullptr;
  quantize_groups(node, in[0]->values, scale, out[0], out[1]);
  quantize_groups(node, transposed(in[0]->values, in[0]->cols()), scale, out[2], out[3]);
  float amax = 0;
  for (double value : in[0]->values) raise_amax(amax, value);
  out[4][0] = static_cast<double>(amax);
}

// history = [amax, history[0], ..., history[L-2]]; the scale is of its maximum or of the newest entry. An amax of 0, a
// NaN, an infinity and those of a step that is not finite leave the history, and so the scale, as they are.
void update_scales(const Node& node, RefInputs in, RefResults out) {
  auto& history = out[0].values;
  history = in[0]->values;
  const bool skipped = in.size() > 2 && (*in[2])[0] == 0;
  if (const double newest = (*in[1])[0]; std::isfinite(newest) && newest != 0 && !skipped) {
    std::rotate(history.rbegin(), history.rbegin() + 1, history.rend());
    history[0] = newest;
  }
  float amax = 0;
  for (size_t i = 0; i < (node.attr<std::string>("algo") == "max" ? history.size() : 1); ++i) {
    raise_amax(amax, history[i]);
  }
  store_scale(node, amax, out[1], out[2]);
}

// The codes are those of quantize: one scale in the node's format, 128-blocks in E4M3 with scales that are powers of
// two.
void tensor_stats(const Node& node, RefInputs in, RefResults out) {
  const Shape& shape = in[0]->type.shape;
  const int64_t rows = shape.rows(), cols = shape.cols();
  std::vector<double> x = in[0]->values;
  double* results = out[0].values.data();
  for (double& value : x) {
    if (std::isfinite(value)) continue;
    results[kStatNotFinite] += 1 / static_cast<double>(x.size());
    value = 0;
  }
  const bool tiles = node.attr<std::string>("blocks") == "128x128";
  const int64_t down = (rows + kScaleBlock - 1) / kScaleBlock, across = (cols + kScaleBlock - 1) / kScaleBlock;
  const Shape blocks = tiles ? Shape{down, across} : Shape{across, rows};
  const Shape blocks_t = tiles ? Shape{across, down} : Shape{down, cols};
  // Smallest and largest non-zero magnitude of the tensor, last, and of each block.
  const ScaleIndex at(shape, blocks);
  std::vector<double> low(static_cast<size_t>(blocks.elements()) + 1, INFINITY), high(low.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    if (x[i] == 0) continue;
    for (size_t group : {static_cast<size_t>(at(position / cols, position % cols)), low.size() - 1}) {
      low[group] = std::min(low[group], std::fabs(x[i]));
      high[group] = std::max(high[group], std::fabs(x[i]));
    }
  }
  results[kStatAmax] = high.back();
  if (high.back() > 0) results[kStatBinades] = static_cast<double>(binades(low.back(), high.back()));
  double sum = 0, filled = 0;
  for (size_t group = 0; group + 1 < low.size(); ++group) {
    if (high[group] > 0) sum += static_cast<double>(binades(low[group], high[group])), ++filled;
  }
  results[kStatBlockBinades] = filled > 0 ? sum / filled : 0;

  Node block = node;
  block.attrs.set("format", std::string("e4m3"));
  block.attrs.set("pow2", true);
  scaling_stats(node, x, shape, {1}, results + kStatTensor);
  scaling_stats(block, x, shape, blocks, results + kStatBlock);
  scaling_stats(block, transposed(x, cols), {cols, rows}, blocks_t, results + kStatBlockT);
}

// Magnitudes and products are float32 arithmetic, as on every device.
void dequantize_nf4(const Node& node, RefInputs in, RefResults out) {
  const RefTensor &codes = *in[0], &magnitudes = *in[1], &scales = *in[2], &offsets = *in[3];
  const int64_t group = node.attr<int64_t>("group"), row_blocks = magnitudes.cols();
  for (int64_t i = 0; i < codes.size(); ++i) {
    const int64_t block = i / kNf4Block;
    const float of_code = nf4_magnitude_values()[static_cast<size_t>(magnitudes[block] + 128)];
    const float scaled = of_code * static_cast<float>(scales[block / group]);
    const float magnitude = scaled + static_cast<float>(offsets[block / row_blocks]);
    out[0][i] = static_cast<double>(kNf4Values[static_cast<size_t>(codes[i] + 8)] * magnitude);
  }
}

}  // namespace octet::cpu::reference
