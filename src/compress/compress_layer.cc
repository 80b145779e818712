#include "compress/compress_layer.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace octet {
namespace {

constexpr std::array<const char*, 4> kMethods = {"rtn", "smoothquant", "awq", "gptq"};

std::string weight_of(const std::string& gemm) { return gemm + ".weight"; }

Matrices matrices(const LinearInput& input, EditedWeights& weights) {
  Matrices result;
  for (const std::string& gemm : input.gemms) result.emplace_back(weights.edit(weight_of(gemm)));
  return result;
}

// x / scales from what makes x, the scales into the weights that read it.
void fold(ObservedInput& observed, const std::vector<float>& scales, EditedWeights& weights) {
  const FoldPlace& place = *observed.input.fold;
  for (const std::string& gemm : observed.input.gemms) scale_columns(weights.edit(weight_of(gemm)), scales);
  for (const std::string& vector : place.vectors) {
    std::vector<float>& values = weights.edit(vector);
    const float plus = place.plus_one && vector == place.vectors.front() ? 1.0f : 0.0f;
    for (size_t k = 0; k < scales.size(); ++k) values[k] = (values[k] + plus) / scales[k] - plus;
  }
  const auto divide_rows = [&](const std::string& param) {
    std::vector<float>& values = weights.edit(param);
    const size_t width = values.size() / scales.size();
    for (size_t i = 0; i < values.size(); ++i) values[i] /= scales[i / width];
  };
  if (!place.linear.empty()) divide_rows(weight_of(place.linear));
  if (!place.linear_bias.empty()) divide_rows(place.linear_bias);
  observed.stats.divide(scales);
}

GroupCodes rounded(const ObservedInput& observed, const std::vector<float>& weight, const InputFactor& factor,
                   const CompressRule& rule) {
  const int64_t cols = observed.input.width, rows = std::ssize(weight) / cols;
  if (rule.method == CompressMethod::kGptq) return gptq(weight, rows, cols, rule.codes, factor);
  std::vector<float> clips;
  if (rule.method == CompressMethod::kAwq) clips = search_clips(observed.stats, weight, rule.codes);
  return round_to_nearest(weight, rows, cols, rule.codes, clips);
}

bool is_kept(const LinearInput& input, const CompressRule& rule) {
  return std::ranges::any_of(rule.keep, [&](const std::string& word) {
    return std::ranges::any_of(input.gemms, [&](const std::string& gemm) { return names_linear(word, gemm); });
  });
}

}  // namespace

CompressMethod parse_compress_method(const std::string& name) {
  const auto found = std::ranges::find_if(kMethods, [&](const char* method) { return name == method; });
  check(found != kMethods.end(), ErrorCode::kInvalidArgument, "no method is named {} (rtn, smoothquant, awq, gptq)",
        name);
  return static_cast<CompressMethod>(found - kMethods.begin());
}
const char* compress_method_name(CompressMethod method) { return kMethods[static_cast<size_t>(method)]; }

bool names_linear(const std::string& word, const std::string& gemm) {
  return gemm == word || gemm.starts_with(word + ".") || gemm.ends_with("." + word);
}

EditedWeights::EditedWeights(const WeightSource& source) : source_(source), shapes_(param_shapes(source.config())) {
  config_ = source.config();
}

ParamView EditedWeights::view(const std::string& param, const Shape& shape) const {
  const auto edited = edits_.find(param);
  if (edited == edits_.end()) return source_.view(param, shape);
  return view_of(DType::kF32, edited->second.data(), shape[0], shape.elements() / shape[0], param);
}

std::vector<float>& EditedWeights::edit(const std::string& param) {
  const auto edited = edits_.find(param);
  if (edited != edits_.end()) return edited->second;
  return edits_[param] = source_.read(param, shapes_.at(param));
}

CompressedLayer compress_layer(std::vector<ObservedInput> inputs, EditedWeights& weights, const CompressRule& rule) {
  CompressedLayer layer;
  for (ObservedInput& observed : inputs) {
    if (is_kept(observed.input, rule) || !observed.input.fold) continue;
    if (rule.method == CompressMethod::kSmoothQuant)
      fold(observed, smooth_scales(observed.stats, matrices(observed.input, weights), rule.alpha), weights);
    if (rule.method == CompressMethod::kAwq)
      fold(observed, search_scales(observed.stats, matrices(observed.input, weights), rule.codes), weights);
  }
  for (ObservedInput& observed : inputs) {
    bool keep = is_kept(observed.input, rule);
    InputFactor factor;
    if (!keep && rule.method == CompressMethod::kGptq) {
      check_rule(rule.codes, observed.input.width, observed.input.gemms[0]);
      factor = factor_inputs(observed.gram, observed.input.width, rule.damping, rule.order);
      observed.gram = {};
    }
    const size_t first = layer.report.size();
    std::vector<std::pair<std::string, GroupCodes>> made;
    for (const std::string& gemm : observed.input.gemms) {
      layer.report.push_back({.gemm = gemm});
      if (keep) continue;
      check_rule(rule.codes, observed.input.width, gemm);
      const std::vector<float>& weight = weights.edit(weight_of(gemm));
      made.emplace_back(gemm, rounded(observed, weight, factor, rule));
      layer.report.back().error = output_error(observed.stats, weight, dequantize(made.back().second));
    }
    for (size_t i = first; i < layer.report.size(); ++i)
      keep = keep || (rule.bound > 0 && layer.report[i].error > rule.bound);
    for (size_t i = first; i < layer.report.size(); ++i) layer.report[i].kept = keep;
    if (keep) continue;
    for (auto& [gemm, codes] : made) {
      weights.edit(weight_of(gemm)) = dequantize(codes);
      layer.codes[gemm] = std::move(codes);
    }
  }
  return layer;
}

}  // namespace octet
