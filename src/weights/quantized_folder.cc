#include "weights/quantized_folder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "ir/facts.h"
#include "weights/config_field.h"

namespace octet {
namespace {

using Json = nlohmann::json;

void check_e4m3(const ConfigField& scheme) {
  scheme["type"].want("float");
  scheme["num_bits"].want(8);
  scheme["symmetric"].want_absent_or(true);
}

ScaleLayout weight_layout(const ConfigField& weights) {
  if (!weights.json.is_object()) weights.refuse("an FP8 scheme");
  check_e4m3(weights);
  weights["dynamic"].want_absent_or(false);
  const ConfigField strategy = weights["strategy"];
  if (strategy.text() == "channel") return ScaleLayout::kRow;
  if (strategy.text() == "tensor") return ScaleLayout::kTensor;
  if (strategy.text() != "block") strategy.refuse("channel, tensor, block");
  weights["block_structure"].want({128, 128});
  return ScaleLayout::kTile128;
}

ActivationScales activation_scales(const ConfigField& activations) {
  if (activations.json.is_null()) return ActivationScales::kNone;
  if (!activations.json.is_object()) activations.refuse("an FP8 scheme, or null");
  check_e4m3(activations);
  const ConfigField strategy = activations["strategy"], dynamic = activations["dynamic"];
  if (!dynamic.json.is_boolean()) dynamic.refuse("true, false");
  const bool as_it_comes = dynamic.json.get<bool>();
  if (strategy.text() == "token" && as_it_comes) return ActivationScales::kToken;
  // One scale a batch would make a request depend on its neighbours: each token gets its own.
  if (strategy.text() == "tensor") return as_it_comes ? ActivationScales::kToken : ActivationScales::kStatic;
  if (strategy.text() == "group" && as_it_comes) {
    activations["group_size"].want(128);
    return ActivationScales::kBlock;
  }
  strategy.refuse("token, tensor, group of 128");
}

FolderQuantization compressed_tensors(const ConfigField& config) {
  std::optional<FolderQuantization> first;
  for_groups(config, {"float-quantized", "naive-quantized"},
             [&](const ConfigField& group, const std::vector<std::string>&) {
               group["output_activations"].want_absent_or(nullptr);
               const FolderQuantization own{.weights = weight_layout(group["weights"]),
                                            .activations = activation_scales(group["input_activations"])};
               if (first && *first != own) group.refuse("groups in FP8 that all have one scheme");
               first = own;
             });
  FolderQuantization result = *first;
  const ConfigField cache = config["kv_cache_scheme"];
  if (!cache.json.is_null()) {
    check_e4m3(cache);
    cache["strategy"].want("tensor");
    cache["dynamic"].want_absent_or(false);
    result.kv_cache = true;
  }
  want_dense(config);
  return result;
}

FolderQuantization method_fp8(const ConfigField& config) {
  config["fmt"].want_absent_or("e4m3");
  const ConfigField scheme = config["activation_scheme"], blocks = config["weight_block_size"];
  if (scheme.text() != "dynamic" && scheme.text() != "static") scheme.refuse("dynamic, static");
  if (blocks.json.is_null()) {
    return {.weights = ScaleLayout::kTensor,
            .activations = scheme.text() == "static" ? ActivationScales::kStatic : ActivationScales::kToken};
  }
  blocks.want({128, 128});
  scheme.want("dynamic");
  return {.weights = ScaleLayout::kTile128, .activations = ActivationScales::kBlock};
}

Json scheme(const char* strategy, bool dynamic) {
  return {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}, {"dynamic", dynamic}};
}

constexpr std::string_view kWeight = ".weight";

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.size() - kWeight.size()); }

Shape tiles(const Shape& codes) { return Shape{(codes[0] + 127) / 128, (codes[1] + 127) / 128}; }

// Whether scales of this shape belong to codes [N, K] (as stored; transposed: [K, N]).
bool fits(const Shape& scale, const Shape& codes, bool transposed, ScaleLayout layout) {
  const int64_t outputs = codes[transposed ? 1 : 0];
  switch (layout) {
    case ScaleLayout::kTensor: return scale.elements() == 1;
    case ScaleLayout::kRow: return scale == Shape{outputs, 1} || scale == Shape{outputs};
    default: return !transposed && scale == tiles(codes);
  }
}

// The `count` values of one parameter of a tensor.
template <typename T>
void take_part(const CheckpointTensor& tensor, const std::string& param, const std::vector<T>& all, int64_t count,
               std::vector<T>& part) {
  const auto i = std::find(tensor.params.begin(), tensor.params.end(), param) - tensor.params.begin();
  part.resize(static_cast<size_t>(count));
  for_each_piece(tensor, static_cast<int64_t>(all.size()), static_cast<size_t>(i),
                 [&](int64_t at, int64_t of_param, int64_t elements) {
                   check(of_param + elements <= count, ErrorCode::kCorrupt, "{}: {} values do not hold {} of {}",
                         tensor.name, all.size(), count, param);
                   std::copy_n(all.begin() + at, elements, part.begin() + of_param);
                 });
}

}  // namespace

std::optional<FolderQuantization> parse_quantization(const std::string& json_text, const std::string& where) {
  const Json json = parse_json(json_text, where);
  check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
  const ConfigField config = quantization_field(json, where);
  if (config.json.is_null()) return std::nullopt;
  check(config.json.is_object(), ErrorCode::kCorrupt, "{} is not an object", config.path);
  const ConfigField method = config["quant_method"];
  FolderQuantization result;
  if (method.text() == "compressed-tensors") {
    result = compressed_tensors(config);
  } else if (method.text() == "fp8") {
    result = method_fp8(config);
  } else {
    method.refuse("awq, bitsandbytes, compressed-tensors, fp8, gptq");
  }
  const bool blocks = result.weights == ScaleLayout::kTile128;
  check(blocks == (result.activations == ActivationScales::kBlock) || result.activations == ActivationScales::kNone,
        ErrorCode::kUnsupported, "{}: weights in blocks of 128x128 require activations in groups of 128", config.path);
  return result;
}

std::string with_quantization(const std::string& json_text, const FolderQuantization& quantization) {
  Json json = parse_json(json_text, "config.json");
  Json weights = scheme(quantization.weights == ScaleLayout::kRow      ? "channel"
                        : quantization.weights == ScaleLayout::kTensor ? "tensor"
                                                                       : "block",
                        false);
  Json activations = scheme("token", true);
  if (quantization.weights == ScaleLayout::kTile128) weights["block_structure"] = {128, 128};
  if (quantization.activations == ActivationScales::kStatic) activations = scheme("tensor", false);
  if (quantization.activations == ActivationScales::kBlock) {
    activations = scheme("group", true);
    activations["group_size"] = 128;
  }
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", activations},
                      {"output_activations", nullptr}};
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", "float-quantized"},
                                 {"quantization_status", "compressed"},
                                 {"config_groups", {{"group_0", group}}},
                                 {"ignore", {"lm_head"}},
                                 {"kv_cache_scheme", quantization.kv_cache ? scheme("tensor", false) : Json(nullptr)}};
  return json.dump(2) + "\n";
}

bool has_blocks(const CheckpointTensor& tensor, const Shape& shape) {
  const auto whole = [](int64_t rows) { return rows % 128 == 0; };
  if (tensor.parts > 1 && !whole(shape[0])) return false;
  return !tensor.transposed && std::all_of(tensor.rows.begin(), tensor.rows.end(), whole);
}

LinearLayout linear_layout(const ModelConfig& config) {
  Graph graph;
  Builder builder(graph);
  build_outputs(builder, config, {.tokens = 1, .max_segments = 1, .max_length = 1});
  LinearLayout layout;
  std::map<std::pair<int32_t, int32_t>, std::string> first;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::kAttention) layout.attention.insert(node.name);
    if (!is_linear(node)) continue;
    const std::string& gemm = node.attrs.get<std::string>("gemm");
    const auto key = std::pair(index(node.inputs[0].node), node.inputs[0].result);
    layout.x_of[gemm] = first.try_emplace(key, gemm).first->second;
  }
  return layout;
}

QuantizedTensors::QuantizedTensors(const TensorSource& tensors, const ModelConfig& config,
                                   const FolderQuantization& scheme, const std::string& where)
    : tensors_(tensors), scheme_(scheme), where_(where), layout_(linear_layout(config)) {
  const auto expect = [&](const std::string& name, const std::string& owner) -> const Shape& {
    const TensorType* type = tensors.find_type(name);
    check(type != nullptr, ErrorCode::kCorrupt, "{}: {} has no tensor {}", where, owner, name);
    check(type->dtype == DType::kF32 || type->dtype == DType::kBF16 || type->dtype == DType::kF16, ErrorCode::kCorrupt,
          "{}: the scale {} is {}", where, name, dtype_name(type->dtype));
    scales_.insert(name);
    return type->shape;
  };
  for (CheckpointTensor tensor : checkpoint_tensors(config)) {
    const TensorType* type = tensors.find_type(tensor.name);
    for (const std::string& param : tensor.params) holders_[param].push_back(tensor);
    if (type == nullptr || type->dtype != DType::kE4M3) continue;
    by_rows_ |= tensor.parts > 1 && scheme.weights == ScaleLayout::kTensor;
    check(tensor.name.ends_with(kWeight) && type->shape.rank() == 2, ErrorCode::kUnsupported,
          "{}: tensor {} is e4m3, which only weights of linears may be", where, tensor.name);
    std::string scale = tensor.name + "_scale";
    if (tensors.find_type(scale + "_inv") != nullptr) scale += "_inv";
    const Shape& shape = expect(scale, tensor.name);
    check(fits(shape, type->shape, tensor.transposed, scheme.weights), ErrorCode::kCorrupt,
          "{}: {} has shape {} beside codes {}, which does not fit the scheme \"{}\" of quantization_config", where,
          scale, to_string(shape), to_string(type->shape), scale_layout_name(scheme.weights));
    scale_names_[tensor.name] = scale;
    if (scheme.activations == ActivationScales::kStatic)
      check(expect(module_of(tensor.name) + ".input_scale", tensor.name).elements() == 1, ErrorCode::kCorrupt,
            "{}: {}.input_scale must be one value", where, module_of(tensor.name));
  }
  for (const std::string& name : tensors.names()) {  // scales that need not be there, or are not used
    const auto is = [&](const char* part) { return name.ends_with(part); };
    if (!is(".k_scale") && !is(".v_scale") && !is(".kv_scale") && !is(".input_scale") && !is(".output_scale")) continue;
    check(expect(name, "the folder").elements() == 1, ErrorCode::kCorrupt, "{}: {} has shape {}, it must be one value",
          where, name, to_string(tensors.find_type(name)->shape));
  }
}

std::vector<float> QuantizedTensors::floats(const std::string& name) const {
  std::vector<float> values = floats_of(tensors_.read(name));
  for (float value : values)
    check(std::isfinite(value) && value > 0, ErrorCode::kCorrupt,
          "{}: {} contains {}: scales must be positive and finite", where_, name, value);
  return values;
}

void QuantizedTensors::add_scales(const std::string& param, ParamView& view) const {
  for (const CheckpointTensor& tensor : holders(param)) {
    const auto scale = scale_names_.find(tensor.name);
    if (scale == scale_names_.end()) return;
    std::vector<float> scales = floats(scale->second), own;
    const int64_t rows = view.rows / tensor.parts;
    if (shares_blocks(tensor)) {
      add_row_scales(tensor, param, scales, view);
      continue;
    }
    view.layout = by_rows_ ? ScaleLayout::kRow : scheme_.weights;
    if (by_rows_) {
      own.assign(static_cast<size_t>(rows), scales[0]);
    } else if (scheme_.weights == ScaleLayout::kTensor) {
      own = std::move(scales);
    } else {  // rows have scales as they have codes; so have blocks, of which a part has whole ones
      take_part(tensor, param, scales, scale_shape(scheme_.weights, rows, view.cols).elements(), own);
    }
    view.scale_inv.insert(view.scale_inv.end(), own.begin(), own.end());
  }
}

bool QuantizedTensors::shares_blocks(const CheckpointTensor& tensor) const {
  return scheme_.weights == ScaleLayout::kTile128 && !has_blocks(tensor, tensors_.find_type(tensor.name)->shape);
}

// The scale of every row in each 128 columns: blocks of other rows need not fill those of the parameter.
void QuantizedTensors::add_row_scales(const CheckpointTensor& tensor, const std::string& param,
                                      const std::vector<float>& scales, ParamView& view) const {
  const int64_t groups = (view.cols + 127) / 128, first = view.rows / tensor.parts * tensor.part;
  const auto i = std::ranges::find(tensor.params, param) - tensor.params.begin();
  view.layout = ScaleLayout::kRow128;
  view.scale_inv.resize(static_cast<size_t>(groups * view.rows));
  for_each_piece(tensor, tensors_.find_type(tensor.name)->shape[0], static_cast<size_t>(i),
                 [&](int64_t at, int64_t of_param, int64_t rows) {
                   for (int64_t row = 0; row < rows; ++row)
                     for (int64_t g = 0; g < groups; ++g)
                       view.scale_inv[static_cast<size_t>(g * view.rows + first + of_param + row)] =
                           scales[static_cast<size_t>((at + row) / 128 * groups + g)];
                 });
}

std::vector<CheckpointTensor> QuantizedTensors::holders(const std::string& param) const {
  const auto found = holders_.find(param);
  return found == holders_.end() ? std::vector<CheckpointTensor>{} : found->second;
}

std::optional<float> QuantizedTensors::scale(StateRole role, const std::string& tensor, int32_t index) const {
  if (role == StateRole::kScale) {
    float most = 0;  // of the linears that read this x: codes of all of them must fit
    for (const auto& [gemm, first] : layout_.x_of) {
      if (first + ".x" != tensor) continue;
      for (const CheckpointTensor& holder : holders(gemm + std::string(kWeight))) {
        const std::string name = module_of(holder.name) + ".input_scale";
        if (tensors_.find_type(name) != nullptr) most = std::max(most, floats(name)[0]);
      }
    }
    if (most > 0) return 1 / most;
    return std::nullopt;
  }
  const std::string block = tensor.substr(0, tensor.rfind('.'));  // of the attention
  for (const char* projection : {".q", ".o"}) {
    const std::vector<CheckpointTensor> found = holders(block + projection + std::string(kWeight));
    if (found.empty()) continue;
    const std::string module = module_of(found[0].name);
    const std::string attention = module.substr(0, module.rfind('.') + 1), side = index == kKeys ? "k" : "v";
    for (const std::string& name : {side + "_scale", side + "_proj." + side + "_scale", side + "_proj.output_scale",
                                    "attn." + side + "_scale", std::string("kv_scale")}) {
      if (tensors_.find_type(attention + name) == nullptr) continue;
      const float scale_inv = floats(attention + name)[0];
      return role == StateRole::kCacheScaleInv ? scale_inv : 1 / scale_inv;
    }
  }
  return std::nullopt;
}

Recipe QuantizedTensors::recipe() const {
  if (scheme_.activations == ActivationScales::kNone) return parse_recipe("bf16");
  Recipe recipe = parse_recipe(scheme_.activations == ActivationScales::kToken    ? "fp8-current"
                               : scheme_.activations == ActivationScales::kStatic ? "fp8-delayed"
                                                                                  : "fp8-block");
  recipe.per_channel_weights = by_rows_ || scheme_.weights == ScaleLayout::kRow;
  for (const auto& [gemm, first] : layout_.x_of) {
    const std::vector<CheckpointTensor> found = holders(gemm + std::string(kWeight));
    const bool stored = std::ranges::all_of(found, [&](const CheckpointTensor& tensor) {
      return scale_names_.contains(tensor.name) && !shares_blocks(tensor);
    });
    if (found.empty() || !stored) recipe.decisions[gemm + "/fprop"] = {};
  }
  return recipe;
}

}  // namespace octet
