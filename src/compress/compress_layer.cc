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
  observed.stats[0].divide(scales);
}

GroupCodes rounded(const InputStats& stats, std::span<const float> weight, const InputFactor& factor,
                   const CompressRule& rule) {
  const int64_t cols = stats.width, rows = std::ssize(weight) / cols;
  if (rule.method == CompressMethod::kGptq) return gptq(weight, rows, cols, rule.codes, factor);
  std::vector<float> clips;
  if (rule.method == CompressMethod::kAwq) clips = search_clips(stats, weight, rule.codes);
  return round_to_nearest(weight, rows, cols, rule.codes, clips);
}

// The linears of an input in codes, those of experts one after the other; the report gets their errors.
std::vector<std::vector<GroupCodes>> round_all(const ObservedInput& observed, EditedWeights& weights,
                                               const CompressRule& rule, std::span<LinearReport> report) {
  const LinearInput& input = observed.input;
  const size_t parts = observed.stats.size(), moments = observed.gram.size() / parts;
  std::vector<std::vector<GroupCodes>> made(input.gemms.size());
  std::vector<OutputError> errors(input.gemms.size());
  for (size_t e = 0; e < parts; ++e) {
    const InputStats& stats = observed.stats[e];
    InputFactor factor;
    if (rule.method == CompressMethod::kGptq)
      factor =
          factor_inputs(std::span(observed.gram).subspan(e * moments, moments), input.width, rule.damping, rule.order);
    for (size_t i = 0; i < input.gemms.size(); ++i) {
      const std::span<const float> all = weights.edit(weight_of(input.gemms[i]));
      const auto weight = all.subspan(e * (all.size() / parts), all.size() / parts);
      made[i].push_back(rounded(stats, weight, factor, rule));
      errors[i].add(stats, weight, dequantize(made[i].back()));
      report[i].unseen += stats.rows == 0;
    }
  }
  for (size_t i = 0; i < input.gemms.size(); ++i) report[i].error = errors[i].relative();
  return made;
}

bool is_kept(const LinearInput& input, const CompressRule& rule) {
  return std::ranges::any_of(rule.keep, [&](const std::string& word) {
    return std::ranges::any_of(input.gemms, [&](const std::string& gemm) { return names_linear(word, gemm); });
  });
}

}  // namespace

CompressMethod parse_compress_method(const std::string& name) {
  const auto found = std::ranges::find_if(kMethods, [&](const char* method) { return name == method; });
  check(found != kMethods.end(), ErrorCode::kInvalidArgument, "unknown method {} (want rtn, smoothquant, awq or gptq)",
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
      fold(observed, smooth_scales(observed.stats[0], matrices(observed.input, weights), rule.alpha), weights);
    if (rule.method == CompressMethod::kAwq)
      fold(observed, search_scales(observed.stats[0], matrices(observed.input, weights), rule.codes), weights);
  }
  for (ObservedInput& observed : inputs) {
    const std::vector<std::string>& gemms = observed.input.gemms;
    bool keep = is_kept(observed.input, rule);
    const size_t first = layer.report.size();
    for (const std::string& gemm : gemms) layer.report.push_back({.gemm = gemm});
    const auto report = std::span(layer.report).subspan(first);
    std::vector<std::vector<GroupCodes>> made;
    if (!keep) {
      check_rule(rule.codes, observed.input.width, gemms[0]);
      made = round_all(observed, weights, rule, report);
    }
    observed.gram = {};
    for (const LinearReport& linear : report) keep = keep || (rule.bound > 0 && linear.error > rule.bound);
    for (LinearReport& linear : report) linear.kept = keep;
    if (keep) continue;
    for (size_t i = 0; i < gemms.size(); ++i) {
      float* values = weights.edit(weight_of(gemms[i])).data();
      for (const GroupCodes& part : made[i]) values = std::ranges::copy(dequantize(part), values).out;
      layer.codes[gemms[i]] = std::move(made[i]);
    }
  }
  return layer;
}

}  // namespace octet
