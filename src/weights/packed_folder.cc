#include "weights/packed_folder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/tokenizer_steps.h"
#include "weights/config_field.h"

namespace octet {
namespace {

ScaleLayout group_layout(const ConfigField& group) {
  if (!group.json.is_number_integer()) group.refuse("-1, 32, 64, 128");
  switch (group.json.get<int64_t>()) {
    case -1: return ScaleLayout::kRow;
    case 32: return ScaleLayout::kRow32;
    case 64: return ScaleLayout::kRow64;
    case 128: return ScaleLayout::kRow128;
    default: group.refuse("-1, 32, 64, 128");
  }
}

DType code_format(const ConfigField& bits) {
  if (bits.json != 4 && bits.json != 8) bits.refuse("4, 8");
  return bits.json == 4 ? DType::kI4 : DType::kI8;
}

void want_bool(const ConfigField& field) {
  if (!field.json.is_null() && !field.json.is_boolean()) field.refuse("true, false");
}

// `patterns`: of `dynamic` in the file's order, of which the first that matches counts.
PackedSchemes gptq(const ConfigField& config, const nlohmann::ordered_json& patterns) {
  PackedScheme scheme{.method = PackedMethod::kGptq,
                      .format = code_format(config["bits"]),
                      .layout = group_layout(config["group_size"])};
  for (const char* key : {"desc_act", "sym"}) want_bool(config[key]);
  for (const char* key : {"lm_head", "is_marlin_format"}) config[key].want_absent_or(false);
  const ConfigField dynamic = config["dynamic"], layout = config["checkpoint_format"];
  if (!layout.json.is_null() && layout.text() != "gptq" && layout.text() != "gptq_v2") layout.refuse("gptq, gptq_v2");
  scheme.zero_bias = layout.text() == "gptq_v2" ? 0 : 1;
  PackedSchemes all;
  if (!dynamic.json.is_null() && !dynamic.json.is_object()) dynamic.refuse("an object of patterns");
  for (const auto& item : patterns.items()) {
    const std::string& pattern = item.key();
    if (pattern.starts_with("-:")) continue;  // these are not in codes, as their tensors say
    const ConfigField of = dynamic[pattern.c_str()];
    PackedScheme& own =
        all.rules.emplace_back("re:" + pattern.substr(pattern.starts_with("+:") ? 2 : 0), scheme).second;
    if (!of["bits"].json.is_null()) own.format = code_format(of["bits"]);
    if (!of["group_size"].json.is_null()) own.layout = group_layout(of["group_size"]);
  }
  all.rules.emplace_back("Linear", scheme);
  return all;
}

PackedScheme awq(const ConfigField& config) {
  config["bits"].want(4);
  if (config["version"].text() != "GEMM") config["version"].want_absent_or("gemm");
  want_bool(config["zero_point"]);
  return {.method = PackedMethod::kAwq, .layout = group_layout(config["group_size"])};
}

// Codes of x are made as it comes, a scale a token and no zero point, also where a folder has a scale of each linear.
bool int8_activations(const ConfigField& x) {
  if (x.json.is_null()) return false;
  x["type"].want("int");
  x["num_bits"].want(8);
  for (const char* key : {"symmetric", "dynamic"}) want_bool(x[key]);
  const ConfigField strategy = x["strategy"];
  if (strategy.text() != "token" && strategy.text() != "tensor") strategy.refuse("token, tensor");
  return true;
}

PackedScheme compressed_group(const ConfigField& group) {
  PackedScheme scheme{.method = PackedMethod::kCompressed};
  group["output_activations"].want_absent_or(nullptr);
  const ConfigField weights = group["weights"];
  weights["type"].want("int");
  weights["dynamic"].want_absent_or(false);
  scheme.format = code_format(weights["num_bits"]);
  if (group["format"].text() == "int-quantized") weights["num_bits"].want(8);
  want_bool(weights["symmetric"]);
  scheme.symmetric = weights["symmetric"].json != false;
  const ConfigField strategy = weights["strategy"], order = weights["actorder"];
  if (strategy.text() != "group" && strategy.text() != "channel") strategy.refuse("group, channel");
  scheme.layout = strategy.text() == "channel" ? ScaleLayout::kRow : group_layout(weights["group_size"]);
  if (!order.json.is_null() && order.json != false && order.text() != "weight" && order.text() != "static" &&
      order.text() != "group")
    order.refuse("null, weight, static, group");
  scheme.int8_activations = int8_activations(group["input_activations"]);
  return scheme;
}

// Names go before regular expressions, these before "Linear", as compressed-tensors takes them.
PackedSchemes compressed(const ConfigField& config) {
  PackedSchemes all;
  for_groups(config, {"pack-quantized", "int-quantized", "naive-quantized", "mixed-precision"},
             [&](const ConfigField& group, const std::vector<std::string>& targets) {
               const PackedScheme scheme = compressed_group(group);
               for (const std::string& target : targets) all.rules.emplace_back(target, scheme);
             });
  std::ranges::stable_sort(all.rules, {}, [](const auto& rule) {
    return std::pair(rule.first == "Linear" ? 2 : rule.first.starts_with("re:") ? 1 : 0, rule.first);
  });
  config["kv_cache_scheme"].want_absent_or(nullptr);
  want_dense(config);
  return all;
}

// Some group of compressed-tensors has integer weights.
bool has_integer_group(const ConfigField& config) {
  const ConfigField groups = config["config_groups"];
  return groups.json.is_object() && std::ranges::any_of(groups.json.items(), [&](const auto& group) {
           return ConfigField{group.value(), ""}["weights"]["type"].text() == "int";
         });
}

constexpr std::string_view kWeight = ".weight";

int code_bits(DType format) { return format == DType::kI4 ? 4 : 8; }

int64_t groups(ScaleLayout layout, int64_t inputs) {
  return layout == ScaleLayout::kRow ? 1 : inputs / scale_group(layout);
}

// The scheme of each module by the rules.
class SchemeFinder {
 public:
  SchemeFinder(const PackedSchemes& schemes, const std::string& where) : schemes_(schemes), where_(where) {
    for (const auto& [target, scheme] : schemes.rules)
      patterns_.push_back(target.starts_with("re:") ? std::make_unique<Regex>(target.substr(3), false, where)
                                                    : nullptr);
  }
  const PackedScheme& find(const std::string& module) const {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const std::string& target = schemes_.rules[i].first;
      Regex::Span span;
      const bool fits = patterns_[i] == nullptr ? target == "Linear" || target == module
                                                : patterns_[i]->find(module, 0, scratch_, span) && span.begin == 0;
      if (fits) return schemes_.rules[i].second;
    }
    fail(ErrorCode::kUnsupported, "{}: {} is quantized, but no group of quantization_config names it", where_, module);
  }

 private:
  const PackedSchemes& schemes_;
  const std::string& where_;
  std::vector<std::unique_ptr<Regex>> patterns_;  // of the rules that are regular expressions
  mutable RegexScratch scratch_;
};

}  // namespace

std::optional<PackedSchemes> parse_packing(const std::string& json_text, const std::string& where) {
  const nlohmann::json json = parse_json(json_text, where);
  const ConfigField config = quantization_field(json, where);
  const std::string method = config["quant_method"].text();
  if (method == "gptq") {
    const auto ordered = parse_json<nlohmann::ordered_json>(json_text, where);
    const bool older = config.path.ends_with(kOlderField);
    return gptq(config, ordered.at(older ? kOlderField : kField).value("dynamic", nlohmann::ordered_json()));
  }
  if (method == "awq") return awq(config);
  if (method == "compressed-tensors" && has_integer_group(config)) return compressed(config);
  return std::nullopt;
}

PackedTensors::PackedTensors(const TensorSource& tensors, const ModelConfig& config, const PackedSchemes& schemes,
                             const std::string& where)
    : tensors_(tensors), where_(where), config_(config) {
  const ParamShapes params = param_shapes(config);
  const SchemeFinder schemes_of(schemes, where);
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    if (!tensor.name.ends_with(kWeight)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const TensorType* plain = tensors.find_type(tensor.name);
    const bool packed =
        tensors.find_type(module + ".weight_packed") != nullptr || tensors.find_type(module + ".qweight") != nullptr;
    if (!packed && (plain == nullptr || plain->dtype != DType::kI8)) continue;
    const PackedScheme scheme = schemes_of.find(module);
    Shape shape = tensor_shape(tensor, params);
    check(shape.rank() == 2 && (packed || scheme.method == PackedMethod::kCompressed), ErrorCode::kUnsupported,
          "{}: tensor {} is quantized, but is not the weight of a linear of this scheme", where, tensor.name);
    if (tensor.transposed) std::swap(shape[0], shape[1]);
    linears_[tensor.name] = read_linear(module, scheme, shape, !packed);
    for (const std::string& param : tensor.params) {
      std::vector<std::string>& held = tensors_of_[param];
      check(held.empty() || linears_.at(held[0]).scheme == scheme, ErrorCode::kUnsupported,
            "{}: {} and {} have schemes that differ: experts of one layer are run in one", where, held[0], tensor.name);
      held.push_back(tensor.name);
    }
  }
}

const TensorType& PackedTensors::expect(const std::string& name, const std::string& owner, const TensorType& want) {
  const TensorType* type = tensors_.find_type(name);
  check(type != nullptr, ErrorCode::kCorrupt, "{}: {} has no tensor {}", where_, owner, name);
  const bool dtype =
      want.dtype == DType::kF32 ? is_float(type->dtype) && !is_fp8(type->dtype) : type->dtype == want.dtype;
  check(dtype && (type->shape == want.shape || want.shape == Shape{2}), ErrorCode::kCorrupt,
        "{}: {} is {}, quantization_config and config.json want {}", where_, name, to_string(*type), to_string(want));
  parts_.insert(name);
  return *type;
}

PackedTensors::Linear PackedTensors::read_linear(const std::string& module, const PackedScheme& scheme,
                                                 const Shape& shape, bool plain) {
  const int64_t n = shape[0], k = shape[1], group = scale_group(scheme.layout), per = 32 / code_bits(scheme.format);
  check((group == 0 || k % group == 0) && k % 2 == 0, ErrorCode::kUnsupported,
        "{}: {} has {} inputs, which groups of {} do not divide", where_, module, k, group);
  const int64_t g = groups(scheme.layout, k);
  const auto words = [&](int64_t count) { return (count + per - 1) / per; };
  const bool compressed = scheme.method == PackedMethod::kCompressed;
  Linear linear{.scheme = scheme, .outputs = n, .inputs = k};
  if (compressed) {
    linear.codes = module + (plain ? ".weight" : ".weight_packed");
    expect(linear.codes, module, plain ? TensorType{DType::kI8, {n, k}} : TensorType{DType::kI32, {n, words(k)}});
    linear.scales = module + ".weight_scale";
    expect(linear.scales, module, {DType::kF32, {n, g}});
    if (!plain) expect(module + ".weight_shape", module, {DType::kI64, {2}});
    if (!scheme.symmetric) linear.zeros = module + ".weight_zero_point";
    if (!scheme.symmetric)
      expect(linear.zeros, module, plain ? TensorType{DType::kI8, {n, g}} : TensorType{DType::kI32, {words(n), g}});
    for (const char* part : {".input_scale", ".input_zero_point"})  // of x, whose codes are made as it comes
      if (tensors_.find_type(module + part) != nullptr) parts_.insert(module + part);
  } else {
    const bool awq = scheme.method == PackedMethod::kAwq;
    check(n % per == 0 && k % per == 0, ErrorCode::kUnsupported, "{}: {} is {}x{}, which words of {} do not hold",
          where_, module, n, k, per);
    linear.codes = module + ".qweight", linear.scales = module + ".scales", linear.zeros = module + ".qzeros";
    expect(linear.codes, module, {DType::kI32, awq ? Shape{k, n / per} : Shape{k / per, n}});
    expect(linear.scales, module, {DType::kF32, {g, n}});
    expect(linear.zeros, module, {DType::kI32, {g, n / per}});
  }
  const std::string order = module + (compressed ? ".weight_g_idx" : ".g_idx");
  if (tensors_.find_type(order) != nullptr) {
    expect(order, module, {DType::kI32, {k}});
    if (group > 0) linear.columns = sorted_columns(order, k, scheme.layout);
  }
  if (!linear.zeros.empty()) {
    const TensorView zeros = tensors_.read(linear.zeros);
    for (int64_t i = 0; i < n * g && !linear.has_zeros; ++i)
      linear.has_zeros = zero_at(linear, zeros, i / g, i % g) != 0;
  }
  return linear;
}

std::vector<int32_t> PackedTensors::sorted_columns(const std::string& name, int64_t inputs, ScaleLayout layout) const {
  const auto* group = reinterpret_cast<const int32_t*>(tensors_.read(name).bytes.data());
  std::vector<int64_t> sizes(static_cast<size_t>(groups(layout, inputs)), 0);
  for (int64_t k = 0; k < inputs; ++k) {
    check(group[k] >= 0 && group[k] < std::ssize(sizes), ErrorCode::kCorrupt, "{}: {} has group {} at {}, there are {}",
          where_, name, group[k], k, sizes.size());
    ++sizes[static_cast<size_t>(group[k])];
  }
  for (const int64_t size : sizes)
    check(size == scale_group(layout), ErrorCode::kUnsupported,
          "{}: {} has a group of {} columns (supported: all of {})", where_, name, size, scale_group(layout));
  std::vector<int32_t> columns(static_cast<size_t>(inputs));
  std::iota(columns.begin(), columns.end(), 0);
  std::ranges::stable_sort(columns, {}, [&](int32_t k) { return group[k]; });
  return std::ranges::is_sorted(columns) ? std::vector<int32_t>() : columns;
}

int PackedTensors::zero_at(const Linear& linear, const TensorView& zeros, int64_t n, int64_t g) const {
  constexpr int kPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};  // of outputs in a word of AWQ
  if (zeros.type.dtype == DType::kI8)
    return static_cast<int8_t>(zeros.bytes[static_cast<size_t>(n * zeros.type.shape[1] + g)]);
  const auto* words = reinterpret_cast<const uint32_t*>(zeros.bytes.data());
  const PackedScheme& scheme = linear.scheme;
  const int bits = code_bits(scheme.format), per = 32 / bits;
  const bool compressed = scheme.method == PackedMethod::kCompressed;
  const int64_t place = scheme.method == PackedMethod::kAwq ? kPlaces[n % per] : n % per;
  const uint32_t word =
      compressed ? words[n / per * zeros.type.shape[1] + g] : words[g * (linear.outputs / per) + n / per];
  const int stored = static_cast<int>(word >> place * bits & ((1u << bits) - 1));
  return stored + static_cast<int>(scheme.zero_bias) - (1 << (bits - 1));
}

ParamView PackedTensors::view(const CheckpointTensor& tensor, size_t i, const std::string& name) const {
  const Linear& linear = linears_.at(tensor.name);
  const PackedScheme& scheme = linear.scheme;
  const TensorView codes = tensors_.read(linear.codes), scales = tensors_.read(linear.scales);
  // As a plain tensor of one element a row: its rows are ours.
  CheckpointTensor rows = tensor;
  rows.transposed = false;
  ParamView view = view_of(rows, i, {.type = {DType::kI8, {linear.outputs, 1}}, .bytes = codes.bytes}, name);
  view.first_row = view.data - codes.bytes.data();
  view.data = codes.bytes.data();
  view.cols = linear.inputs;
  view.dtype = scheme.format;
  view.columns = linear.columns;
  view.layout = scheme.layout;
  if (codes.type.dtype == DType::kI8) {
    check(linear.columns.empty(), ErrorCode::kUnsupported, "{}: codes of a byte with groups out of order", name);
    view.data += view.first_row * view.cols;
    view.row_stride = view.cols, view.run_stride *= view.cols;
  } else {
    view.packing = scheme.method == PackedMethod::kGptq  ? Packing::kAlongInputs
                   : scheme.method == PackedMethod::kAwq ? Packing::kAlongOutputs
                                                         : Packing::kRows;
    view.packed_rows = linear.outputs;
    view.col_stride = linear.outputs;  // far apart: read many rows at once
  }
  const int64_t g = groups(scheme.layout, linear.inputs);
  view.scale_inv.resize(static_cast<size_t>(g * view.rows));
  if (linear.has_zeros) view.zero.resize(view.scale_inv.size());
  const TensorView zeros = linear.has_zeros ? tensors_.read(linear.zeros) : TensorView{};
  const int64_t run_stride = codes.type.dtype == DType::kI8 ? view.run_stride / view.cols : view.run_stride;
  for (int64_t row = 0; row < view.rows; ++row) {
    const int64_t n = view.first_row + row / view.run_rows * run_stride + row % view.run_rows;
    for (int64_t group = 0; group < g; ++group) {
      const bool by_row = scheme.method == PackedMethod::kCompressed;
      const auto scale = static_cast<float>(
          load_element(scales.type.dtype, scales.bytes.data(), by_row ? n * g + group : group * linear.outputs + n));
      check(std::isfinite(scale), ErrorCode::kCorrupt, "{}: {} contains {}: scales must be finite", where_,
            linear.scales, scale);
      const auto at = static_cast<size_t>(group * view.rows + row);  // [K/G, N], of whole rows [N]
      view.scale_inv[at] = scale;
      if (!linear.has_zeros) continue;
      const int zero = zero_at(linear, zeros, n, group);
      check(zero >= INT8_MIN && zero <= INT8_MAX, ErrorCode::kUnsupported, "{}: {} holds {}, beyond int8", where_,
            linear.zeros, zero);
      view.zero[at] = static_cast<int8_t>(zero);
    }
  }
  return view;
}

Recipe PackedTensors::recipe() const {
  const auto plain_of = [](const Linear& linear) {  // what recipe int8 runs
    return linear.scheme.int8_activations && linear.scheme.layout == ScaleLayout::kRow &&
           linear.scheme.format == DType::kI8 && !linear.has_zeros;
  };
  const bool plain =
      !linears_.empty() && std::ranges::all_of(linears_, [&](const auto& linear) { return plain_of(linear.second); });
  Recipe recipe = parse_recipe(plain ? "int8" : "w4i8");
  for (const auto& [name, linear] : linears_) {
    if (linear.scheme.int8_activations) recipe.head = false;  // the folder says what is quantized
    recipe.weights = {.format = linear.scheme.format, .layout = linear.scheme.layout};
  }
  for (const auto& [gemm, first] : linear_layout(config_).x_of) {
    const auto held = tensors_of_.find(gemm + std::string(kWeight));
    GemmPrecision& decision = recipe.decisions[gemm + "/fprop"];
    decision = {};
    if (held == tensors_of_.end()) continue;
    const PackedScheme& scheme = linears_.at(held->second[0]).scheme;
    IntegerWeights weights{.format = scheme.format, .layout = scheme.layout};
    for (const std::string& tensor : held->second) {
      weights.zero_points |= linears_.at(tensor).has_zeros;
      weights.sorted_columns |= !linears_.at(tensor).columns.empty();
    }
    // Experts that sort their columns each in an order of its own share no x: they are dequantized.
    if (weights.sorted_columns && held->second.size() > 1) continue;
    decision = {.codes = true, .scaling = plain ? Scaling::kCurrent : Scaling::kGroup, .weights = weights};
    if (plain) decision.weights = {};
  }
  return recipe;
}

}  // namespace octet
