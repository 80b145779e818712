// Folders of PEFT from adapters: adapter_config.json and adapter_model.safetensors with PEFT's names and row order.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "weights/adapter_folder.h"
#include "weights/adapter_modules.h"

namespace octet {
namespace {

using Values = std::vector<float>;

// The LoRA of one module, as PEFT stores it.
struct ModuleLora {
  const AdapterModule* module = nullptr;
  int64_t rank = 0;
  double scale = 1;
  Values a, b, magnitude;  // A [experts x rank, in], B [experts x out, rank] in the order of parameters
  bool dora = false;
};

class PeftWriter {
 public:
  PeftWriter(const AdapterSpec& spec, const ModelConfig& base, const AdapterReader& read)
      : spec_(spec), base_(base), own_(untied(base)), read_(read), modules_(adapter_modules(base)) {}

  void write(const std::string& folder, const AdapterFolderText& text) {
    check(text.dtype == DType::kF32 || text.dtype == DType::kBF16 || text.dtype == DType::kF16, ErrorCode::kUnsupported,
          "adapters are not stored in {} (want f32, bf16 or f16)", dtype_name(text.dtype));
    if (spec_.virtual_tokens > 0) {
      check(spec_.low_rank.empty() && spec_.trained.empty() && spec_.token_rows.empty(), ErrorCode::kUnsupported,
            "PEFT's folders hold virtual tokens alone, not beside LoRA or other parameters");
      set_prompt();
    } else {
      collect();
      set_lora();
      set_trained();
      set_token_rows();
    }
    config_["base_model_name_or_path"] = text.base;
    config_["task_type"] = "CAUSAL_LM";
    config_["inference_mode"] = true;
    make_folders(folder);
    std::vector<NamedType> types;
    for (const auto& [name, tensor] : tensors_) types.push_back({name, {text.dtype, tensor.first}});
    SafetensorsWriter writer(folder + "/adapter_model.safetensors", std::move(types), {{"format", "pt"}});
    for (const NamedType& type : writer.tensors()) {
      const Values& values = tensors_.at(type.name).second;
      std::vector<std::byte> bytes(static_cast<size_t>(type.type.bytes()));
      convert(DType::kF32, values.data(), text.dtype, bytes.data(), std::ssize(values));
      writer.write(type.name, bytes);
    }
    writer.finish();
    write_file(folder + "/adapter_config.json", config_.dump(2) + "\n");
  }

 private:
  void put(const std::string& name, const Shape& shape, Values values) {
    check(shape.elements() == std::ssize(values), ErrorCode::kInternal, "{}: {} values of {}", name, values.size(),
          to_string(shape));
    tensors_["base_model.model." + name] = {shape, std::move(values)};
  }

  void set_prompt() {
    Values prompt = read_("prompt.weight");
    const Shape shape = {spec_.virtual_tokens, base_.hidden};
    check(shape.elements() == std::ssize(prompt), ErrorCode::kInternal, "prompt.weight: {} values of {}", prompt.size(),
          to_string(shape));
    tensors_["prompt_embeddings"] = {shape, std::move(prompt)};
    config_ = {{"peft_type", "PROMPT_TUNING"},       {"num_virtual_tokens", spec_.virtual_tokens},
               {"token_dim", base_.hidden},          {"num_transformer_submodules", 1},
               {"num_attention_heads", base_.heads}, {"num_layers", base_.layers},
               {"prompt_tuning_init", "RANDOM"}};
  }

  // The parameter of a LowRank among those of the untied model.
  static std::string param_of(const LowRank& low, const std::string& param) {
    return low.name == "head" ? "head.weight" : param;
  }

  // Of each module that PEFT knows the LowRanks of its parameters, as one.
  void collect() {
    std::set<const LowRank*> taken;
    for (const AdapterModule& module : modules_) {
      if (module.kind == ModuleKind::kExpert || is_alias(module)) continue;
      std::vector<const LowRank*> parts(module.tensor.params.size());
      for (const LowRank& low : spec_.low_rank)
        for (const std::string& name : low.params) {
          const auto at = std::ranges::find(module.tensor.params, param_of(low, name));
          if (at != module.tensor.params.end()) parts[static_cast<size_t>(at - module.tensor.params.begin())] = &low;
        }
      if (std::ranges::all_of(parts, [](const LowRank* part) { return part == nullptr; })) continue;
      for (const LowRank* part : parts)
        if (part != nullptr) taken.insert(part);
      loras_.push_back(joined(module, parts));
    }
    for (const LowRank& low : spec_.low_rank)
      check(taken.contains(&low), ErrorCode::kInvalidArgument, "adapter {}: a {} model has no module of {}", low.name,
            base_.architecture, low.params.empty() ? "nothing" : low.params[0]);
  }
  // Modules of experts that have a second name.
  bool is_alias(const AdapterModule& module) const {
    return module.kind == ModuleKind::kExperts &&
           &module != &*std::find_if(modules_.rbegin(), modules_.rend(), [&](const AdapterModule& other) {
             return other.name == module.name && other.kind == module.kind;
           });
  }

  // One LowRank of all parameters as it is; else A are stacked, and each parameter's rows of B read its own part.
  ModuleLora joined(const AdapterModule& module, const std::vector<const LowRank*>& parts) const {
    ModuleLora lora{.module = &module};
    const LowRank& first = **std::ranges::find_if(parts, [](const LowRank* part) { return part != nullptr; });
    lora.scale = first.scale, lora.dora = first.dora;
    const int64_t experts = std::max<int64_t>(module.experts, 1);
    std::vector<const LowRank*> kinds;  // each once
    for (const LowRank* part : parts)
      if (part != nullptr && std::ranges::find(kinds, part) == kinds.end()) kinds.push_back(part);
    for (const LowRank* kind : kinds) lora.rank += kind->rank;
    for (const LowRank* part : parts)
      check(lora.dora == (part != nullptr && part->dora), ErrorCode::kUnsupported,
            "adapter {}: PEFT has one module of {}, whose parts must all have DoRA or none", first.name, module.name);
    if (kinds.size() == 1 && first.params.size() == parts.size()) {
      lora.a = read_(first.name + ".lora_a"), lora.b = read_(first.name + ".lora_b");
      if (lora.dora) lora.magnitude = read_(first.name + ".magnitude");
      return lora;
    }
    lora.a.assign(static_cast<size_t>(experts * lora.rank * module.in), 0);
    lora.b.assign(static_cast<size_t>(experts * module.out * lora.rank), 0);
    int64_t before = 0;
    for (const LowRank* kind : kinds) {
      const Values a = read_(kind->name + ".lora_a"), b = read_(kind->name + ".lora_b");
      const double share = lora.scale == 0 ? 0 : kind->scale / lora.scale;
      for (int64_t e = 0; e < experts; ++e) {
        std::copy_n(a.begin() + e * kind->rank * module.in, kind->rank * module.in,
                    lora.a.begin() + (e * lora.rank + before) * module.in);
        int64_t own_row = 0, row = 0;  // of the LowRank, and of the module
        const int64_t own_rows = std::ssize(b) / kind->rank / experts;
        for (size_t i = 0; i < parts.size(); ++i) {
          const int64_t rows = rows_of(module, i);
          for (int64_t n = 0; n < rows && parts[i] == kind; ++n, ++own_row)
            for (int64_t r = 0; r < kind->rank; ++r)
              lora.b[static_cast<size_t>((e * module.out + row + n) * lora.rank + before + r)] =
                  static_cast<float>(share * b[static_cast<size_t>((e * own_rows + own_row) * kind->rank + r)]);
          row += rows;
        }
      }
      before += kind->rank;
    }
    for (size_t i = 0; lora.dora && i < parts.size(); ++i) {
      const Values own = read_(parts[i]->name + ".magnitude");
      lora.magnitude.insert(lora.magnitude.end(), own.begin(), own.end());
    }
    return lora;
  }
  static int64_t rows_of(const AdapterModule& module, size_t i) {
    return module.tensor.params.size() == 1 ? module.out : module.tensor.rows[i] * module.tensor.groups;
  }

  static std::string key_of(const AdapterModule& module) {
    return module.parameter.empty() ? module.module : module.module + "." + module.parameter;
  }

  void set_lora() {
    nlohmann::ordered_json targets = nlohmann::ordered_json::array(), parameters = targets;
    nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
    check(!loras_.empty(), ErrorCode::kUnsupported,
          "PEFT's folders hold a LoRA beside parameters that are trained whole; this adapter has none");
    const int64_t rank = loras_[0].rank;
    const double alpha = loras_[0].scale * static_cast<double>(rank);
    bool transposed = false;
    for (ModuleLora& lora : loras_) {
      const AdapterModule& module = *lora.module;
      const std::string key = key_of(module);
      const bool stacked = module.kind == ModuleKind::kExperts;
      (stacked ? parameters : targets).push_back(key);
      check(lora.dora == loras_[0].dora, ErrorCode::kUnsupported,
            "adapter {}: PEFT's folders have DoRA of all modules or of none", module.name);
      transposed = transposed || module.tensor.transposed;
      if (lora.rank != rank) ranks[key] = lora.rank;
      const double own = lora.scale * static_cast<double>(lora.rank);
      if (own != alpha) alphas[key] = own;
      store(lora);
    }
    config_ = {{"peft_type", "LORA"},
               {"r", rank},
               {"lora_alpha", number(alpha)},
               {"lora_dropout", spec_.dropout},
               {"target_modules", targets.empty() ? nlohmann::ordered_json() : targets},
               {"target_parameters", parameters.empty() ? nlohmann::ordered_json() : parameters},
               {"rank_pattern", ranks},
               {"alpha_pattern", alphas},
               {"use_rslora", false},
               {"use_dora", loras_[0].dora},
               {"bias", "none"},
               {"fan_in_fan_out", transposed},
               {"init_lora_weights", true}};
    for (auto& item : config_["alpha_pattern"].items()) item.value() = number(item.value().get<double>());
  }
  // PEFT writes whole alphas as integers.
  static nlohmann::ordered_json number(double value) {
    const auto whole = static_cast<int64_t>(value);
    if (static_cast<double>(whole) == value) return whole;
    return value;
  }

  void store(ModuleLora& lora) {
    const AdapterModule& module = *lora.module;
    const int64_t experts = std::max<int64_t>(module.experts, 1), rank = lora.rank;
    std::string name = module.module;
    if (module.kind == ModuleKind::kEmbedding) {
      put(name + ".lora_embedding_A", {rank, module.in}, std::move(lora.a));
      put(name + ".lora_embedding_B", {module.out, rank}, std::move(lora.b));
      return;
    }
    const bool outer = std::ranges::any_of(loras_, [&](const ModuleLora& other) {  // down_proj around gate_up_proj
      return other.module->module == module.module && other.module->parameter == "down_proj";
    });
    if (module.parameter == "gate_up_proj" && outer) name += ".base_layer";
    put(name + ".lora_A.weight", {experts * rank, module.in}, std::move(lora.a));
    if (module.kind == ModuleKind::kExperts) {  // [experts, out, rank] -> [out, rank, experts]
      Values b(lora.b.size());
      for (int64_t e = 0; e < experts; ++e)
        for (int64_t row = 0; row < module.out; ++row)
          for (int64_t r = 0; r < rank; ++r)
            b[static_cast<size_t>((row * rank + r) * experts + e)] =
                lora.b[static_cast<size_t>((e * module.out + row) * rank + r)];
      put(name + ".lora_B.weight", {module.out, rank * experts}, std::move(b));
      return;
    }
    put(name + ".lora_B.weight", {module.out, rank}, to_tensor_rows(module, lora.b));
    if (lora.dora) put(name + ".lora_magnitude_vector", {module.out}, to_tensor_rows(module, lora.magnitude));
  }

  bool is_adapted(const std::string& module) const {
    return std::ranges::any_of(loras_, [&](const ModuleLora& lora) { return lora.module->module == module; });
  }

  // Whole modules by modules_to_save; biases alone by bias.
  void set_trained() {
    const ParamShapes shapes = param_shapes(own_);
    std::set<std::string> trained(spec_.trained.begin(), spec_.trained.end()), saved;
    std::map<std::string, bool> whole;  // by module: whether all of it is trained
    const std::vector<CheckpointTensor> tensors = checkpoint_tensors(own_);
    const auto module_of = [](const std::string& name) { return name.substr(0, name.rfind('.')); };
    const auto is_trained = [&](const CheckpointTensor& tensor) {
      const auto count = std::ranges::count_if(tensor.params, [&](const auto& p) { return trained.contains(p); });
      check(count == 0 || count == std::ssize(tensor.params), ErrorCode::kUnsupported,
            "{}: {} of its {} parameters are trained: PEFT's folders hold whole tensors", tensor.name, count,
            tensor.params.size());
      check(count == 0 || tensor.parts == 1, ErrorCode::kUnsupported,
            "{} is trained whole: PEFT's folders hold experts in one module, trained whole or by LoRA", tensor.name);
      return count > 0;
    };
    bool all_biases = true, own_biases = true, others = false;  // if trained biases alone are these
    for (const CheckpointTensor& tensor : tensors) {
      const bool is = is_trained(tensor);
      const auto [at, added] = whole.try_emplace(module_of(tensor.name), is);
      at->second = at->second && is;
    }
    for (const CheckpointTensor& tensor : tensors) {
      const std::string module = module_of(tensor.name);
      const bool is = is_trained(tensor), bias = tensor.name.ends_with(".bias");
      if (bias && !(whole[module] && !is_adapted(module))) {
        all_biases = all_biases && is, own_biases = own_biases && is == is_adapted(module), others = others || is;
        if (!is) continue;
      } else if (!is) {
        continue;
      } else {
        check(whole[module] && !is_adapted(module), ErrorCode::kUnsupported,
              "{} is trained, but not all of its module by itself: PEFT's folders hold whole modules or biases",
              tensor.name);
        saved.insert(module);
      }
      const Shape shape = tensor_shape(tensor, shapes);
      const Values values = join_params(tensor, shape.elements(), [&](size_t i) { return read_(tensor.params[i]); });
      const std::vector<std::byte> bytes = stored_bytes(tensor, shape, values, DType::kF32);
      Values stored(values.size());
      std::memcpy(stored.data(), bytes.data(), bytes.size());
      put(bias && is_adapted(module) ? module + ".base_layer.bias" : tensor.name, shape, std::move(stored));
    }
    check(!others || all_biases || own_biases, ErrorCode::kUnsupported,
          "some biases are trained: PEFT's folders hold all, or those of the modules with a LoRA");
    if (others) config_["bias"] = own_biases ? "lora_only" : "all";
    config_["modules_to_save"] = saved.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(saved);
    for (const std::string& key : saved)  // PEFT compares the ends of names
      for (const auto& [module, all] : whole)
        check(!module.ends_with(key) || saved.contains(module), ErrorCode::kUnsupported,
              "{} is trained whole, and by the end of its name PEFT takes {} too: train both", key, module);
  }

  void set_token_rows() {
    if (spec_.token_rows.empty()) return;
    const std::string table = embedding_tensor(base_);
    const std::string module = table.substr(0, table.rfind('.'));
    config_["trainable_token_indices"] =
        nlohmann::ordered_json{{module.substr(module.rfind('.') + 1), spec_.token_rows}};
    put(module + ".token_adapter.trainable_tokens_delta", {std::ssize(spec_.token_rows), base_.hidden},
        read_("embed.token_rows"));
  }

  const AdapterSpec& spec_;
  const ModelConfig& base_;
  const ModelConfig own_;
  const AdapterReader& read_;
  const std::vector<AdapterModule> modules_;
  std::vector<ModuleLora> loras_;
  nlohmann::ordered_json config_;
  std::map<std::string, std::pair<Shape, Values>> tensors_;
};

}  // namespace

void write_adapter(const std::string& folder, const AdapterSpec& spec, const ModelConfig& base,
                   const AdapterReader& read, const AdapterFolderText& text) {
  PeftWriter(spec, base, read).write(folder, text);
}

}  // namespace octet
