#include "weights/weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "exec/logical_states.h"
#include "io/safetensors.h"
#include "weights/adapter_folder.h"
#include "weights/config_field.h"
#include "weights/nf4_folder.h"
#include "weights/packed_folder.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 24;
constexpr int64_t kPieceElements = int64_t{1} << 22;

std::string find_tensor(const TensorSource& tensors, const ModelConfig& config, const std::string& name) {
  if (tensors.find_type(name) != nullptr) return name;
  size_t dot = name.find('.');  // folders written without the "transformer." / "model." prefix
  std::string bare = dot == std::string::npos ? name : name.substr(dot + 1);
  if (tensors.find_type(bare) != nullptr && canonical_tensor_name(config, bare) == name) return bare;
  // Norms of older BERT folders.
  for (const auto& [now, once] :
       {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}})
    if (!config.causal && name.ends_with(now))
      return find_tensor(tensors, config, name.substr(0, name.size() - std::string_view(now).size()) + once);
  return {};
}

bool same_values(const TensorView& a, const TensorView& b) {
  if (a.type.shape != b.type.shape) return false;
  if (a.type.dtype == b.type.dtype) return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
  const auto wide = [](DType dtype) {
    return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  };
  if (!wide(a.type.dtype) || !wide(b.type.dtype)) return false;
  std::vector<float> left(kPieceElements), right(kPieceElements);
  const int64_t count = a.type.shape.elements();
  for (int64_t first = 0; first < count; first += kPieceElements) {
    const int64_t elements = std::min(kPieceElements, count - first);
    const auto read = [&](const TensorView& view, std::vector<float>& to) {
      convert(view.type.dtype, view.bytes.data() + first * dtype_bytes(view.type.dtype), DType::kF32, to.data(),
              elements);
    };
    read(a, left), read(b, right);
    if (!std::equal(left.begin(), left.begin() + elements, right.begin())) return false;
  }
  return true;
}

// A head of its own in a folder that says it is tied: see read_model_config. A bare encoder may lack its pooler.
void settle_head(ModelConfig& config, const TensorSource& tensors, const std::string& folder) {
  if (config.pooler && config.labels == 0)
    for (const CheckpointTensor& tensor : checkpoint_tensors(config))
      if (tensor.params[0] == "pooler.weight") config.pooler = !find_tensor(tensors, config, tensor.name).empty();
  if (!config.tie_embeddings || config.head != Head::kNextToken) return;
  const std::string head = find_tensor(tensors, config, head_tensor(config));
  const std::string embedding = find_tensor(tensors, config, embedding_tensor(config));
  if (head.empty() || embedding.empty() || same_values(tensors.read(head), tensors.read(embedding))) return;
  config.tie_embeddings = false;
  log_warning(
      "{}: config.json says \"tie_word_embeddings\": true, but {} and {} differ: both are used; set it to false",
      folder, head, embedding);
}

// config.json with the quantization_config that AutoGPTQ and AutoAWQ kept in a file of its own, and the file to name.
std::pair<std::string, std::string> with_quantization_file(const std::string& config, const std::string& folder) {
  const std::string where = folder + "/config.json";
  const nlohmann::json plain = parse_json(config, where);
  if (!quantization_field(plain, where).json.is_null()) return {config, where};
  for (const auto& [name, method] : {std::pair("quantize_config.json", "gptq"), {"quant_config.json", "awq"}}) {
    const std::string path = folder + "/" + name;
    if (!path_exists(path)) continue;
    auto own = parse_json<nlohmann::ordered_json>(read_file(path, kMaxConfigBytes), path);
    check(own.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", path);
    if (!own.contains("quant_method")) own["quant_method"] = method;
    for (const auto& [usual, older] : {std::pair("bits", "w_bit"), {"group_size", "q_group_size"}})
      if (!own.contains(usual) && own.contains(older)) own[usual] = own.at(older);
    return {nlohmann::ordered_json{{kField, own}}.dump(), path};
  }
  return {config, where};
}

class HuggingFaceWeights : public WeightSource {
 public:
  explicit HuggingFaceWeights(const std::string& folder) : folder_(folder) {
    std::string config_path = folder + "/config.json", text = read_file(config_path, kMaxConfigBytes);
    config_ = parse_hugging_face_config(text, config_path);
    special_ = read_special_tokens(folder);
    const auto [quantized, where] = with_quantization_file(text, folder);
    const bool four_bit = is_four_bit(quantized, where);
    const std::optional<PackedSchemes> packing = four_bit ? std::nullopt : parse_packing(quantized, where);
    const std::optional<FolderQuantization> scheme =
        packing || four_bit ? std::nullopt : parse_quantization(quantized, where);
    tensors_ = open_safetensors(folder);
    settle_head(config_, *tensors_, folder);
    if (four_bit) four_bit_ = std::make_unique<FourBitTensors>(*tensors_, config_, folder);
    if (packing) packed_ = std::make_unique<PackedTensors>(*tensors_, config_, *packing, folder);
    if (scheme) quantized_ = std::make_unique<QuantizedTensors>(*tensors_, config_, *scheme, folder);
    check_tensors();
    if (path_exists(folder + "/scales.safetensors"))
      scales_ = std::make_unique<TensorSource>(folder + "/scales.safetensors");
  }

  ParamView view(const std::string& param, const Shape& shape) const override {
    const auto found = places_.find(param);
    check(found != places_.end(), ErrorCode::kInternal, "no checkpoint tensor holds parameter {}", param);
    std::vector<ParamView> parts;
    const std::string name = folder_ + ": " + param;
    if (four_bit_ != nullptr && four_bit_->holds(found->second[0].first.name))
      return four_bit_->view(found->second, name);
    for (const auto& [tensor, i] : found->second)
      parts.push_back(packed_ != nullptr && packed_->holds(tensor.name)
                          ? packed_->view(tensor, i, name)
                          : view_of(tensor, i, tensors_->read(tensor.name), name));
    ParamView view = stacked(parts);
    check(view.elements() == shape.elements(), ErrorCode::kCorrupt, "{}: {} elements do not hold {} of parameter {}",
          folder_, view.elements(), shape.elements(), param);
    if (quantized_ != nullptr) quantized_->add_scales(param, view);
    return view;
  }

  std::optional<Recipe> recipe() const override {
    if (packed_ != nullptr) return packed_->recipe();
    if (quantized_ == nullptr) return std::nullopt;
    return quantized_->recipe();
  }
  bool has_kv_scales() const override { return quantized_ != nullptr && quantized_->kv_cache(); }

  std::optional<float> scale(StateRole role, const std::string& tensor, int32_t index) const override {
    if (quantized_ != nullptr) return quantized_->scale(role, tensor, index);
    const std::string state = state_name(role, tensor, index);
    const TensorType* type = scales_ != nullptr ? scales_->find_type(state) : nullptr;
    if (type == nullptr || *type != TensorType{DType::kF32, {1}}) return std::nullopt;
    float value = 0;
    std::memcpy(&value, scales_->read(state).bytes.data(), sizeof value);
    return value;
  }

 private:
  void check_tensors() {
    const ParamShapes params = param_shapes(config_);
    std::set<std::string> known;
    for (const CheckpointTensor& tensor : checkpoint_tensors(config_)) {
      const auto place = [&](const std::string& name) {
        known.insert(name);
        for (size_t i = 0; i < tensor.params.size(); ++i) {
          Place& at = places_[tensor.params[i]].emplace_back(tensor, i);
          at.first.name = name;
        }
      };
      if ((packed_ != nullptr && packed_->holds(tensor.name)) ||
          (four_bit_ != nullptr && four_bit_->holds(tensor.name))) {
        place(tensor.name);
        continue;
      }
      std::string name = find_tensor(*tensors_, config_, tensor.name);
      check(!name.empty(), ErrorCode::kCorrupt, "{}: tensor {} is missing", folder_, tensor.name);
      const TensorType& type = *tensors_->find_type(name);
      Shape wanted = tensor_shape(tensor, params);
      check(type.shape == wanted, ErrorCode::kCorrupt, "{}: tensor {} has shape {}, config.json says {}", folder_, name,
            to_string(type.shape), to_string(wanted));
      const bool codes = type.dtype == DType::kE4M3 && quantized_ != nullptr && name == tensor.name;
      check(codes || type.dtype == DType::kF32 || type.dtype == DType::kBF16 || type.dtype == DType::kF16 ||
                type.dtype == DType::kF64,
            ErrorCode::kUnsupported, "{}: tensor {} is {} (supported: f64 f32 bf16 f16)", folder_, name,
            dtype_name(type.dtype));
      place(name);
    }
    for (const std::string& name : tensors_->names())
      check(known.contains(name) || is_ignored_tensor(config_, name) ||
                (quantized_ != nullptr && quantized_->is_scale(name)) ||
                (packed_ != nullptr && packed_->is_part(name)) || (four_bit_ != nullptr && four_bit_->is_part(name)),
            ErrorCode::kUnsupported, "{}: tensor {} is not part of a {} model of this config.json", folder_, name,
            config_.architecture);
  }

  std::string folder_;
  std::unique_ptr<TensorSource> tensors_;
  std::unique_ptr<QuantizedTensors> quantized_;  // null: nothing in FP8
  std::unique_ptr<PackedTensors> packed_;        // null: nothing in integers
  std::unique_ptr<FourBitTensors> four_bit_;     // null: nothing in codes of bitsandbytes
  std::unique_ptr<TensorSource> scales_;
  using Place = std::pair<CheckpointTensor, size_t>;  // under the name the folder has, and which of its parameters
  std::map<std::string, std::vector<Place>> places_;  // of each parameter, or of its parts in their order
};

}  // namespace

ParamShapes param_shapes(const ModelConfig& config) {
  Graph graph;
  Builder builder(graph);
  build_outputs(builder, config, {.tokens = 1, .max_segments = 1, .max_length = 1});
  ParamShapes result;
  for (const Node& node : graph.nodes())
    if (node.op == Op::kParam) result[node.name] = node.results[0].shape;
  return result;
}

Shape tensor_shape(const CheckpointTensor& tensor, const ParamShapes& params) {
  Shape shape = params.at(tensor.params.front());
  shape[0] /= tensor.parts;
  for (size_t i = 1; i < tensor.params.size(); ++i) shape[0] += params.at(tensor.params[i])[0];
  if (tensor.transposed) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<float> join_params(const CheckpointTensor& tensor, int64_t elements,
                               const std::function<std::vector<float>(size_t)>& read) {
  if (tensor.params.size() == 1) return read(0);
  std::vector<float> all(static_cast<size_t>(elements));
  for (size_t i = 0; i < tensor.params.size(); ++i) {
    const std::vector<float> part = read(i);
    for_each_piece(tensor, elements, i, [&](int64_t at, int64_t of_param, int64_t count) {
      std::copy_n(part.begin() + of_param, count, all.begin() + at);
    });
  }
  return all;
}

std::vector<std::byte> stored_bytes(const CheckpointTensor& tensor, const Shape& stored,
                                    const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  if (tensor.transposed)
    read_all(transposed(view_of(DType::kF32, values.data(), stored[1], stored[0])), dtype, bytes.data());
  else
    convert(DType::kF32, values.data(), dtype, bytes.data(), std::ssize(values));
  return bytes;
}

ModelConfig read_model_config(const std::string& folder) {
  if (is_adapter_folder(folder)) return open_weights(folder)->config();
  const std::string path = folder + "/config.json";
  ModelConfig config = parse_hugging_face_config(read_file(path, kMaxConfigBytes), path);
  if (path_exists(folder + "/model.safetensors") || path_exists(folder + "/model.safetensors.index.json"))
    settle_head(config, *open_safetensors(folder), folder);
  return config;
}

SpecialTokens read_special_tokens(const std::string& folder) {
  if (is_adapter_folder(folder)) return read_special_tokens(adapter_base(folder));
  const std::string config = folder + "/config.json", generation = folder + "/generation_config.json";
  SpecialTokens special = parse_special_tokens(read_file(config, kMaxConfigBytes), config);
  if (path_exists(generation))
    special.add_ends(parse_special_tokens(read_file(generation, kMaxConfigBytes), generation).eos);
  return special;
}

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  if (is_adapter_folder(path)) return open_adapted(path);
  if (is_folder(path)) return std::make_unique<HuggingFaceWeights>(path);
  return open_llama2c(path);
}

Recipe serving_recipe(const WeightSource& source, const Target& target, const std::string& name,
                      const std::string& otherwise) {
  const std::optional<Recipe> stored = source.recipe();
  const bool groups = stored && stored->scaling == Scaling::kGroup;
  if (name.empty() && !groups) return stored ? *stored : parse_recipe(otherwise);
  Recipe recipe = parse_recipe(!name.empty() ? name : target.device == Device::kCuda ? "w4a8" : stored->name);
  if (groups && recipe.scaling == Scaling::kGroup) {
    recipe.weights = stored->weights;
    recipe.decisions = stored->decisions;
  }
  if (!name.empty()) return recipe;
  const auto has_kernels = [&](DType format) { return target.find_product(recipe.forward_format, format) != nullptr; };
  bool some = has_kernels(recipe.weights.format);
  std::optional<DType> without;
  for (auto& [gemm, decision] : recipe.decisions) {
    if (!decision.codes) continue;
    const DType format = decision.weights.format;
    if (has_kernels(format)) {
      some = true, recipe.weights.format = format;
    } else {
      without = format, decision = {};
    }
  }
  if (!some) without = stored->weights.format;
  if (without)
    log_info("weights of {} bits by groups have no kernels on {}: they are dequantized to bf16 when loaded",
             *without == DType::kI8 ? 8 : 4, target.name);
  return some ? recipe : parse_recipe("bf16");
}

std::vector<float> read_parameter(const TensorSource& tensors, const ModelConfig& config, const std::string& param,
                                  const std::string& name_prefix) {
  std::vector<ParamView> parts;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    const auto i = std::find(tensor.params.begin(), tensor.params.end(), param) - tensor.params.begin();
    if (i == std::ssize(tensor.params)) continue;
    const std::string name = name_prefix + tensor.name;
    parts.push_back(view_of(tensor, static_cast<size_t>(i), tensors.read(name), name));
  }
  check(!parts.empty(), ErrorCode::kInternal, "no checkpoint tensor holds parameter {}", param);
  return read_floats(stacked(parts));
}

}  // namespace octet
