#include "weights/packed_folder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

PackedScheme gptq(const ConfigField& config) {
  PackedScheme scheme{.method = PackedMethod::kGptq,
                      .format = code_format(config["bits"]),
                      .layout = group_layout(config["group_size"])};
  for (const char* key : {"desc_act", "sym"}) want_bool(config[key]);
  for (const char* key : {"lm_head", "is_marlin_format"}) config[key].want_absent_or(false);
  const ConfigField dynamic = config["dynamic"], layout = config["checkpoint_format"];
  if (!dynamic.json.is_null() && !dynamic.json.empty()) dynamic.refuse("none");
  if (!layout.json.is_null() && layout.text() != "gptq" && layout.text() != "gptq_v2") layout.refuse("gptq, gptq_v2");
  scheme.zero_bias = layout.text() == "gptq_v2" ? 0 : 1;
  return scheme;
}

PackedScheme awq(const ConfigField& config) {
  config["bits"].want(4);
  config["version"].want_absent_or("gemm");
  want_bool(config["zero_point"]);
  return {.method = PackedMethod::kAwq, .layout = group_layout(config["group_size"])};
}

PackedScheme compressed(const ConfigField& config) {
  PackedScheme scheme{.method = PackedMethod::kCompressed};
  const ConfigField groups = config["config_groups"];
  if (!groups.json.is_object() || groups.json.size() != 1) groups.refuse("one group");
  const ConfigField group = groups[groups.json.begin().key().c_str()];
  group["targets"].want({"Linear"});
  group["output_activations"].want_absent_or(nullptr);
  group["format"].want_absent_or(config["format"].json);
  const ConfigField weights = group["weights"], x = group["input_activations"];
  weights["type"].want("int");
  weights["dynamic"].want_absent_or(false);
  scheme.format = code_format(weights["num_bits"]);
  if (config["format"].text() == "int-quantized") weights["num_bits"].want(8);
  want_bool(weights["symmetric"]);
  scheme.symmetric = weights["symmetric"].json != false;
  const ConfigField strategy = weights["strategy"], order = weights["actorder"];
  if (strategy.text() != "group" && strategy.text() != "channel") strategy.refuse("group, channel");
  scheme.layout = strategy.text() == "channel" ? ScaleLayout::kRow : group_layout(weights["group_size"]);
  if (!order.json.is_null() && order.json != false && order.text() != "weight" && order.text() != "static" &&
      order.text() != "group")
    order.refuse("null, weight, static, group");
  if (!x.json.is_null()) {
    x["type"].want("int");
    x["num_bits"].want(8);
    x["symmetric"].want_absent_or(true);
    x["strategy"].want("token");
    x["dynamic"].want(true);
    scheme.int8_activations = true;
  }
  config["kv_cache_scheme"].want_absent_or(nullptr);
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const ConfigField field = config[key];
    if (!field.json.is_null() && !field.json.empty()) field.refuse("none");
  }
  return scheme;
}

constexpr std::string_view kWeight = ".weight";

int code_bits(DType format) { return format == DType::kI4 ? 4 : 8; }

}  // namespace

std::optional<PackedScheme> parse_packing(const std::string& json_text, const std::string& where) {
  const nlohmann::json json = parse_json(json_text, where);
  const auto found = json.is_object() ? json.find("quantization_config") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_object()) return std::nullopt;
  const ConfigField config{*found, where + ": quantization_config"};
  const std::string method = config["quant_method"].text(), format = config["format"].text();
  if (method == "gptq") return gptq(config);
  if (method == "awq") return awq(config);
  if (method == "compressed-tensors" && (format == "pack-quantized" || format == "int-quantized"))
    return compressed(config);
  return std::nullopt;
}

PackedTensors::PackedTensors(const TensorSource& tensors, const ModelConfig& config, const PackedScheme& scheme,
                             const std::string& where)
    : tensors_(tensors), scheme_(scheme), where_(where), config_(config) {
  const ParamShapes params = param_shapes(config);
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    if (!tensor.name.ends_with(kWeight)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const TensorType* plain = tensors.find_type(tensor.name);
    const char* codes = scheme.method == PackedMethod::kCompressed ? ".weight_packed" : ".qweight";
    const bool packed = tensors.find_type(module + codes) != nullptr;
    if (!packed && (plain == nullptr || plain->dtype != DType::kI8)) continue;
    Shape shape = tensor_shape(tensor, params);
    check(shape.rank() == 2 && (packed || scheme.method == PackedMethod::kCompressed), ErrorCode::kUnsupported,
          "{}: tensor {} is in codes, and no weight of a linear of this scheme", where, tensor.name);
    if (tensor.transposed) std::swap(shape[0], shape[1]);
    linears_[tensor.name] = read_linear(module, shape, !packed);
    for (const std::string& param : tensor.params) tensors_of_[param].push_back(tensor.name);
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

int64_t PackedTensors::groups(int64_t inputs) const {
  return scheme_.layout == ScaleLayout::kRow ? 1 : inputs / scale_group(scheme_.layout);
}

PackedTensors::Linear PackedTensors::read_linear(const std::string& module, const Shape& shape, bool plain) {
  const int64_t n = shape[0], k = shape[1], group = scale_group(scheme_.layout), per = 32 / code_bits(scheme_.format);
  check((group == 0 || k % group == 0) && k % 2 == 0, ErrorCode::kUnsupported,
        "{}: {} has {} inputs, which groups of {} do not divide", where_, module, k, group);
  const int64_t g = groups(k);
  const auto words = [&](int64_t count) { return (count + per - 1) / per; };
  const bool compressed = scheme_.method == PackedMethod::kCompressed;
  Linear linear{.outputs = n, .inputs = k};
  if (compressed) {
    linear.codes = module + (plain ? ".weight" : ".weight_packed");
    expect(linear.codes, module, plain ? TensorType{DType::kI8, {n, k}} : TensorType{DType::kI32, {n, words(k)}});
    linear.scales = module + ".weight_scale";
    expect(linear.scales, module, {DType::kF32, {n, g}});
    if (!plain) expect(module + ".weight_shape", module, {DType::kI64, {2}});
    if (!scheme_.symmetric) linear.zeros = module + ".weight_zero_point";
    if (!scheme_.symmetric)
      expect(linear.zeros, module, plain ? TensorType{DType::kI8, {n, g}} : TensorType{DType::kI32, {words(n), g}});
  } else {
    const bool awq = scheme_.method == PackedMethod::kAwq;
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
    if (group > 0) linear.columns = sorted_columns(order, k);
  }
  if (!linear.zeros.empty()) {
    const TensorView zeros = tensors_.read(linear.zeros);
    for (int64_t i = 0; i < n * g && !linear.has_zeros; ++i)
      linear.has_zeros = zero_at(linear, zeros, i / g, i % g) != 0;
  }
  return linear;
}

std::vector<int32_t> PackedTensors::sorted_columns(const std::string& name, int64_t inputs) const {
  const auto* group = reinterpret_cast<const int32_t*>(tensors_.read(name).bytes.data());
  std::vector<int64_t> sizes(static_cast<size_t>(groups(inputs)), 0);
  for (int64_t k = 0; k < inputs; ++k) {
    check(group[k] >= 0 && group[k] < std::ssize(sizes), ErrorCode::kCorrupt, "{}: {} has group {} at {}, there are {}",
          where_, name, group[k], k, sizes.size());
    ++sizes[static_cast<size_t>(group[k])];
  }
  for (const int64_t size : sizes)
    check(size == scale_group(scheme_.layout), ErrorCode::kUnsupported,
          "{}: {} has a group of {} columns (supported: all of {})", where_, name, size, scale_group(scheme_.layout));
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
  const int bits = code_bits(scheme_.format), per = 32 / bits;
  const bool compressed = scheme_.method == PackedMethod::kCompressed;
  const int64_t place = scheme_.method == PackedMethod::kAwq ? kPlaces[n % per] : n % per;
  const uint32_t word =
      compressed ? words[n / per * zeros.type.shape[1] + g] : words[g * (linear.outputs / per) + n / per];
  const int stored = static_cast<int>(word >> place * bits & ((1u << bits) - 1));
  return stored + static_cast<int>(scheme_.zero_bias) - (1 << (bits - 1));
}

ParamView PackedTensors::view(const CheckpointTensor& tensor, size_t i, const std::string& name) const {
  const Linear& linear = linears_.at(tensor.name);
  const TensorView codes = tensors_.read(linear.codes), scales = tensors_.read(linear.scales);
  // As a plain tensor of one element a row: its rows are ours.
  CheckpointTensor rows = tensor;
  rows.transposed = false;
  ParamView view = view_of(rows, i, {.type = {DType::kI8, {linear.outputs, 1}}, .bytes = codes.bytes}, name);
  view.first_row = view.data - codes.bytes.data();
  view.data = codes.bytes.data();
  view.cols = linear.inputs;
  view.dtype = scheme_.format;
  view.columns = linear.columns;
  view.layout = scheme_.layout;
  if (codes.type.dtype == DType::kI8) {
    check(linear.columns.empty(), ErrorCode::kUnsupported, "{}: codes of a byte with groups out of order", name);
    view.data += view.first_row * view.cols;
    view.row_stride = view.cols, view.run_stride *= view.cols;
  } else {
    view.packing = scheme_.method == PackedMethod::kGptq  ? Packing::kAlongInputs
                   : scheme_.method == PackedMethod::kAwq ? Packing::kAlongOutputs
                                                          : Packing::kRows;
    view.packed_rows = linear.outputs;
    view.col_stride = linear.outputs;  // far apart: read many rows at once
  }
  const int64_t g = groups(linear.inputs);
  view.scale_inv.resize(static_cast<size_t>(g * view.rows));
  if (linear.has_zeros) view.zero.resize(view.scale_inv.size());
  const TensorView zeros = linear.has_zeros ? tensors_.read(linear.zeros) : TensorView{};
  const int64_t run_stride = codes.type.dtype == DType::kI8 ? view.run_stride / view.cols : view.run_stride;
  for (int64_t row = 0; row < view.rows; ++row) {
    const int64_t n = view.first_row + row / view.run_rows * run_stride + row % view.run_rows;
    for (int64_t group = 0; group < g; ++group) {
      const bool by_row = scheme_.method == PackedMethod::kCompressed;
      const auto scale = static_cast<float>(
          load_element(scales.type.dtype, scales.bytes.data(), by_row ? n * g + group : group * linear.outputs + n));
      check(std::isfinite(scale), ErrorCode::kCorrupt, "{}: {} holds {}: a scale is finite", where_, linear.scales,
            scale);
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
  const auto zeros = [](const auto& linear) { return linear.second.has_zeros; };
  const bool rows = scheme_.layout == ScaleLayout::kRow && scheme_.format == DType::kI8;
  const bool plain = scheme_.int8_activations && rows && std::ranges::none_of(linears_, zeros);
  Recipe recipe = parse_recipe(plain ? "int8" : "w4i8");
  if (scheme_.int8_activations) recipe.head = false;  // the folder says what is quantized
  recipe.weights = {.format = scheme_.format, .layout = scheme_.layout};
  for (const auto& [gemm, first] : linear_layout(config_).x_of) {
    const auto held = tensors_of_.find(gemm + std::string(kWeight));
    GemmPrecision& decision = recipe.decisions[gemm + "/fprop"];
    decision = {};
    if (held == tensors_of_.end()) continue;
    IntegerWeights weights = recipe.weights;
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
