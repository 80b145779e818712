#include "weights/adapter_folder.h"

#include "base/error.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "weights/adapter_reader.h"

namespace octet {
namespace {

constexpr const char* kConfig = "/adapter_config.json";
constexpr int64_t kMaxConfigBytes = 1 << 24;

void read_prompt(Adapter& adapter, const ModelConfig& base, const std::shared_ptr<const TensorSource>& file) {
  constexpr const char* kName = "prompt_embeddings";
  const PeftConfig& config = adapter.config;
  check(config.token_dim == 0 || config.token_dim == base.hidden, ErrorCode::kInvalidArgument,
        "{}: token_dim is {}, the base's hidden size {}: is it an adapter of another base?", adapter.folder,
        config.token_dim, base.hidden);
  for (const std::string& name : file->names())
    check(name == kName, ErrorCode::kInvalidArgument, "{}: tensor {} matches nothing (want {})", adapter.folder, name,
          kName);
  const TensorView stored = file->read(kName);
  const Shape wanted = {config.virtual_tokens, base.hidden};
  check(stored.type.shape == wanted, ErrorCode::kInvalidArgument,
        "{}: tensor {} has shape {}, this base and "
        "adapter_config.json want {}: is it an adapter of another base?",
        adapter.folder, kName, to_string(stored.type.shape), to_string(wanted));
  adapter.spec.virtual_tokens = config.virtual_tokens;
  ParamView view = view_of(stored.type.dtype, stored.bytes.data(), wanted[0], wanted[1], adapter.folder + ": " + kName);
  largest_magnitude(view);  // throws where a value is not finite
  adapter.tensors["prompt.weight"] = view;
  if (config.method != PeftMethod::kPTuning || !path_exists(adapter.folder + "/prompt_encoder.safetensors")) return;
  const std::shared_ptr<const TensorSource> encoder = open_safetensors(adapter.folder, "prompt_encoder");
  for (const std::string& name : encoder->names()) {
    const TensorView tensor = encoder->read(name);
    const Shape& shape = tensor.type.shape;
    adapter.tensors["prompt_encoder." + name] =
        view_of(tensor.type.dtype, tensor.bytes.data(), shape.rank() > 0 ? shape[0] : 1,
                shape.rank() > 1 ? shape[1] : 1, adapter.folder + "/prompt_encoder.safetensors: " + name);
  }
  adapter.keeps.push_back(encoder);
}

}  // namespace

const ParamView* Adapter::find(const std::string& name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

bool is_adapter_folder(const std::string& path) {
  return path_exists(path + kConfig) && !path_exists(path + "/model.safetensors") &&
         !path_exists(path + "/model.safetensors.index.json");
}

namespace {

PeftConfig read_config(const std::string& folder) {
  const std::string path = folder + kConfig;
  return parse_adapter_config(read_file(path, kMaxConfigBytes), path);
}

}  // namespace

std::string adapter_base(const std::string& folder) {
  std::string base = read_config(folder).base;
  if (!base.empty() && base[0] != '/' && is_folder(folder + "/" + base)) base = folder + "/" + base;
  check(
      !base.empty() && is_folder(base), ErrorCode::kNotFound,
      "{}: base_model_name_or_path of adapter_config.json is \"{}\", which is not a folder here or in {}: download the "
      "base and write its folder there (octet verify and octet export take --base DIR)",
      folder, base, folder);
  check(!is_adapter_folder(base), ErrorCode::kUnsupported,
        "{}: its base {} is an adapter too: merge that one first (octet export {} --merge --out DIR)", folder, base,
        base);
  return base;
}

std::string tokenizer_folder(const std::string& folder) {
  if (!is_adapter_folder(folder)) return folder;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "encoder.json", "characters.json"})
    if (path_exists(folder + "/" + name)) return folder;
  return adapter_base(folder);
}

std::unique_ptr<WeightSource> open_adapted(const std::string& folder, const std::string& base) {
  std::unique_ptr<WeightSource> weights = open_weights(base.empty() ? adapter_base(folder) : base);
  Adapter adapter = read_adapter(folder, weights->config());
  check(
      adapter.spec.virtual_tokens == 0, ErrorCode::kUnsupported,
      "{}: its {} virtual tokens stand in front of a sequence and are no weights that can be merged (octet verify runs "
      "them)",
      folder, adapter.spec.virtual_tokens);
  return merge_adapter(std::move(weights), std::move(adapter));
}

Adapter read_adapter_tensors(const std::string& folder, const ModelConfig& base, const std::string& stem,
                             const std::string& prefix) {
  check(path_exists(folder + kConfig), ErrorCode::kNotFound, "{}: no adapter: it has no adapter_config.json", folder);
  check(base.causal || base.head == Head::kNextToken || base.head == Head::kNone, ErrorCode::kUnsupported,
        "{}: the base is an encoder (supported: adapters of decoders)", folder);
  Adapter adapter{.folder = folder, .config = read_config(folder)};
  const std::string file = folder + "/" + stem;
  check(path_exists(file + ".safetensors") || !path_exists(file + ".bin"), ErrorCode::kUnsupported,
        "{}.bin is a pickle: save the adapter with safe_serialization=True", file);
  const std::shared_ptr<const TensorSource> tensors = open_safetensors(folder, stem);
  adapter.keeps.push_back(tensors);
  if (adapter.config.method == PeftMethod::kLora)
    read_lora(adapter, base, tensors, prefix);
  else
    read_prompt(adapter, base, tensors);
  return adapter;
}

Adapter read_adapter(const std::string& folder, const ModelConfig& base) {
  return read_adapter_tensors(folder, base, "adapter_model", "");
}

}  // namespace octet
