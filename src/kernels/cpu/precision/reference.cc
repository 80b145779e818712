// Quantization on doubles. Scales and products are float32 arithmetic, as on every device, so that codes and scales
// are equal bit for bit on identical input. amax is max |x|; a NaN or infinity goes through to it, and makes scale 1.
#include "kernels/cpu/reference.h"
#include "base/dtype.h"
#include "kernels/cpu/precision/scale_index.h"
#include "precision/recipe.h"

namespace octet::cpu::reference {
namespace {

void raise_amax(float& amax, double value) {
  const auto magnitude = static_cast<float>(std::fabs(value));
  if (!(magnitude <= amax) && !std::isnan(amax)) amax = magnitude;
}

float node_scale(const Node& node, float amax) {
  return scale_from_amax(amax, parse_dtype(node.attrs.get<std::string>("format")),
                         node.attrs.get_or<int64_t>("margin", 0), node.attrs.get_or<bool>("pow2", false));
}

// codes and scale_inv of x [rows, cols]: one scale per element of scale_inv, from its group's amax unless given.
void quantize_groups(const Node& node, const std::vector<double>& x, const RefTensor* given, RefTensor& codes,
                     RefTensor& scale_inv) {
  const int64_t cols = codes.type.shape.cols();
  const ScaleIndex at(codes.type.shape, scale_inv.type.shape);
  const DType format = codes.type.dtype;
  std::vector<float> scales(scale_inv.values.size(), 0.0f);  // amaxes first
  const auto count = static_cast<int64_t>(x.size());
  if (given != nullptr) {
    std::fill(scales.begin(), scales.end(), static_cast<float>(given->values[0]));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      raise_amax(scales[static_cast<size_t>(at(i / cols, i % cols))], x[static_cast<size_t>(i)]);
    }
    for (float& scale : scales) scale = node_scale(node, scale);
  }
  for (int64_t i = 0; i < count; ++i) {
    const float scaled =
        static_cast<float>(x[static_cast<size_t>(i)]) * scales[static_cast<size_t>(at(i / cols, i % cols))];
    codes.values[static_cast<size_t>(i)] = round_to(format, static_cast<double>(scaled));
  }
  for (size_t i = 0; i < scales.size(); ++i) scale_inv.values[i] = static_cast<double>(1.0f / scales[i]);
}

}  // namespace

void compute_scale(const Node& node, RefInputs in, RefResults out) {
  const float scale = node_scale(node, static_cast<float>(in[0]->values[0]));
  out[0].values[0] = static_cast<double>(scale);
  out[1].values[0] = static_cast<double>(1.0f / scale);
}

// codes_t and scale_inv_t are the same quantization of the transposed matrix: for 1x128 and row scaling the groups run
// along the other direction, for tensor and 128x128 scaling it is the transpose of codes.
void quantize(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const std::vector<double>& x = in[0]->values;
  const RefTensor* scale = present(in, 1) ? in[1] : nullptr;
  const std::string& scaling = node.attrs.get<std::string>("scaling");
  check((scaling == "tensor") == (scale != nullptr), ErrorCode::kInvalidArgument,
        "quantize \"{}\": scaling {} {} a scale input", node.name, scaling, scale == nullptr ? "needs" : "takes no");
  quantize_groups(node, x, scale, out[0], out[1]);
  std::vector<double> x_t(x.size());
  float amax = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const double value = x[static_cast<size_t>(r * cols + c)];
      x_t[static_cast<size_t>(c * rows + r)] = value;
      raise_amax(amax, value);
    }
  }
  quantize_groups(node, x_t, scale, out[2], out[3]);
  out[4].values[0] = static_cast<double>(amax);
}

// history = [amax, history[0], ..., history[L-2]]; the scale is of its maximum or of the newest entry. A history that
// holds a NaN or infinity keeps scale 1 until it has rolled out (algo max) or for one step (most_recent).
void update_scales(const Node& node, RefInputs in, RefResults out) {
  auto& history = out[0].values;
  history = in[0]->values;
  std::rotate(history.rbegin(), history.rbegin() + 1, history.rend());
  history[0] = in[1]->values[0];
  float amax = 0;
  if (node.attrs.get<std::string>("algo") == "max") {
    for (double value : history) raise_amax(amax, value);
  } else {
    raise_amax(amax, history[0]);
  }
  const float scale = node_scale(node, amax);
  out[1].values[0] = static_cast<double>(scale);
  out[2].values[0] = static_cast<double>(1.0f / scale);
}

}  // namespace octet::cpu::reference
