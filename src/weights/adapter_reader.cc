#include "weights/adapter_reader.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "weights/adapter_modules.h"

namespace octet {
namespace {

// What one module has in the file, by the tensor's name.
struct ModuleTensors {
  std::string a, b, magnitude;
};

// `name` without `end`, or nothing.
std::optional<std::string> before(const std::string& name, std::string_view end) {
  if (name.size() <= end.size() || !name.ends_with(end)) return std::nullopt;
  return name.substr(0, name.size() - end.size());
}

std::string without(std::string name, std::string_view part) {
  for (size_t at; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size() - 1);
  return name;
}

class LoraReader {
 public:
  LoraReader(Adapter& adapter, const ModelConfig& base, std::shared_ptr<const TensorSource> file,
             const std::string& prefix)
      : to_(adapter),
        config_(adapter.config),
        base_(base),
        own_(untied(base)),
        file_(std::move(file)),
        shapes_(param_shapes(own_)),
        tensors_(checkpoint_tensors(own_)),
        modules_(adapter_modules(base)),
        where_(adapter.folder),
        prefix_(prefix + "base_model.model.") {}

  void read() {
    sort_tensors();
    read_modules();
    check_targets();
    read_whole();
    read_token_rows();
    to_.spec.dropout = config_.dropout;
  }

 private:
  // Tensors by module: those of LoRA, whole ones, rows of tokens.
  void sort_tensors() {
    for (const std::string& stored : file_->names()) {
      check(stored.starts_with(prefix_), ErrorCode::kCorrupt,
            "{}: tensor {} does not begin with {}: it is no adapter of PEFT for a whole model", where_, stored,
            prefix_);
      std::string name = without(stored.substr(prefix_.size()), ".modules_to_save.");
      for (const char* part : {".lora_A", ".lora_B", ".lora_embedding_A", ".lora_embedding_B",
                               ".lora_magnitude_vector"})  // "lora_A.default.weight" of older folders
        if (const size_t at = name.find(part + std::string(".default")); at != std::string::npos)
          name.erase(at + std::string_view(part).size(), std::string_view(".default").size());
      const auto module_of = [&](std::string_view end) -> ModuleTensors* {
        const auto module = before(name, end);
        return module ? &found_[canonical_module(*module)] : nullptr;
      };
      if (auto* m = module_of(".lora_A.weight"))
        m->a = stored;
      else if (auto* m = module_of(".lora_B.weight"))
        m->b = stored;
      else if (auto* m = module_of(".lora_embedding_A"))
        m->a = stored;
      else if (auto* m = module_of(".lora_embedding_B"))
        m->b = stored;
      else if (auto* m = module_of(".lora_magnitude_vector"))
        m->magnitude = stored;
      else if (auto* m = module_of(".lora_magnitude_vector.weight"))
        m->magnitude = stored;
      else if (const auto of = before(name, ".token_adapter.trainable_tokens_delta"))
        token_rows_[canonical_module(*of)] = stored;
      else
        whole_[canonical(without(name, ".base_layer."))] = stored;
    }
  }
  std::string canonical(const std::string& name) const { return canonical_tensor_name(own_, name); }
  std::string canonical_module(const std::string& name) const {
    return *before(canonical(name + ".weight"), ".weight");
  }

  void read_modules() {
    std::map<std::string, std::vector<const AdapterModule*>> experts;  // by LowRank
    for (const auto& [name, stored] : found_) {
      const AdapterModule& module = find_module(name, stored);
      check(!stored.a.empty() && !stored.b.empty(), ErrorCode::kCorrupt, "{}: tensor {} is there, but not its {}",
            where_, stored.a.empty() ? stored.b.empty() ? stored.magnitude : stored.b : stored.a,
            stored.a.empty() ? "lora_A" : "lora_B");
      check(stored.magnitude.empty() != (config_.dora && module.kind != ModuleKind::kEmbedding), ErrorCode::kCorrupt,
            "{}: use_dora is {}, but {} has {} magnitude (lora_magnitude_vector)", where_, config_.dora, name,
            stored.magnitude.empty() ? "no" : "a");
      check(!config_.dora || module.kind == ModuleKind::kLinear, ErrorCode::kUnsupported,
            "{}: use_dora is true, and {} is no linear by itself (supported: DoRA of linears)", where_, name);
      modules_with_[module.module].insert(module.parameter);
      if (module.kind == ModuleKind::kExpert)
        experts[module.name].push_back(&module);
      else
        add(module, stored);
    }
    for (const auto& [name, list] : experts) add_experts(name, list);
  }

  // That of tensors "NAME.lora_A"...; of a layer's experts in one module the one whose parameter they fit.
  const AdapterModule& find_module(const std::string& name, const ModuleTensors& stored) const {
    std::string module = name;
    while (const auto inner = before(module, ".base_layer")) module = *inner;
    const TensorType* a = stored.a.empty() ? nullptr : file_->find_type(stored.a);
    const TensorType* b = stored.b.empty() ? nullptr : file_->find_type(stored.b);
    const AdapterModule* found = nullptr;
    std::vector<std::string> names;
    for (const AdapterModule& one : modules_) {
      names.push_back(one.module);
      if (one.module != module) continue;
      const bool fits = a != nullptr && b != nullptr && a->shape.rank() == 2 && b->shape.rank() == 2 &&
                        a->shape[1] == one.in && b->shape[0] == one.out;
      if (found == nullptr || fits) found = &one;
    }
    check(found != nullptr, ErrorCode::kInvalidArgument,
          "{}: tensor {} is of module {}, which the base, a {} model, does not have{}", where_,
          stored.a.empty() ? stored.b.empty() ? stored.magnitude : stored.b : stored.a, module, base_.architecture,
          if_near(module, names, " (nearest: {})"));
    return *found;
  }

  void expect(const std::string& tensor, const Shape& wanted) const {
    const TensorType& type = *file_->find_type(tensor);
    check(type.shape == wanted, ErrorCode::kInvalidArgument,
          "{}: tensor {} has shape {}, this base and adapter_config.json want {}: is it an adapter of another base?",
          where_, tensor, to_string(type.shape), to_string(wanted));
    check(is_wide(type.dtype), ErrorCode::kUnsupported, "{}: tensor {} is {} (supported: f64 f32 bf16 f16)", where_,
          tensor, dtype_name(type.dtype));
  }
  static bool is_wide(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
  }

  std::vector<float> floats(const std::string& tensor) const {
    const TensorView stored = file_->read(tensor);
    const Shape& shape = stored.type.shape;
    return read_floats(
        view_of(stored.type.dtype, stored.bytes.data(), shape[0], shape.elements() / shape[0], where_ + ": " + tensor));
  }

  void keep(const std::string& name, std::vector<float> values, int64_t rows) {
    auto kept = std::make_shared<const std::vector<float>>(std::move(values));
    to_.tensors[name] = view_of(DType::kF32, kept->data(), rows, std::ssize(*kept) / rows, where_ + ": " + name);
    to_.keeps.push_back(kept);
  }

  // Where the patterns of ranks and alphas look for a module.
  static std::string key_of(const AdapterModule& module) {
    return module.parameter.empty() ? module.module : module.module + "." + module.parameter;
  }

  void add(const AdapterModule& module, const ModuleTensors& stored) {
    const int64_t rank = config_.rank_of(key_of(module)), experts = std::max<int64_t>(module.experts, 1);
    expect(stored.a, {experts * rank, module.in});
    expect(stored.b, {module.out, rank * experts});
    LowRank low{.name = module.name,
                .params = module.tensor.params,
                .rank = rank,
                .scale = config_.scale_of(key_of(module)),
                .dora = config_.dora};
    if (module.head && base_.tie_embeddings) low.params = {"embed.weight"};  // model/adapter.h
    keep(low.name + ".lora_a", floats(stored.a), experts * rank);
    std::vector<float> b = floats(stored.b);
    if (experts > 1) {  // [out, rank, experts] -> [experts, out, rank]
      std::vector<float> by_expert(b.size());
      for (int64_t row = 0; row < module.out; ++row)
        for (int64_t r = 0; r < rank; ++r)
          for (int64_t e = 0; e < experts; ++e)
            by_expert[static_cast<size_t>((e * module.out + row) * rank + r)] =
                b[static_cast<size_t>((row * rank + r) * experts + e)];
      b = std::move(by_expert);
    } else {
      b = to_parameter_rows(module, b);
    }
    keep(low.name + ".lora_b", std::move(b), experts * module.out);
    if (low.dora) {
      expect(stored.magnitude, {module.out});
      keep(low.name + ".magnitude", to_parameter_rows(module, floats(stored.magnitude)), module.out);
    }
    touches_table_ = touches_table_ || module.head || module.kind == ModuleKind::kEmbedding;
    to_.spec.low_rank.push_back(std::move(low));
  }

  // A module for each expert becomes one LowRank of all: of the largest rank, zeros where an expert has less.
  void add_experts(const std::string& name, const std::vector<const AdapterModule*>& list) {
    const AdapterModule& first = *list.front();
    LowRank low{.name = name, .params = first.tensor.params, .scale = config_.scale_of(first.module)};
    for (const AdapterModule* one : list) low.rank = std::max(low.rank, config_.rank_of(one->module));
    const int64_t out = first.out, in = first.in;
    std::vector<float> a(static_cast<size_t>(first.experts * low.rank * in));
    std::vector<float> b(static_cast<size_t>(first.experts * out * low.rank));
    for (const AdapterModule* one : list) {
      const ModuleTensors& stored = found_.at(one->module);
      const int64_t rank = config_.rank_of(one->module);
      expect(stored.a, {rank, in}), expect(stored.b, {out, rank});
      const std::vector<float> own_a = floats(stored.a), own_b = floats(stored.b);
      const double share = low.scale == 0 ? 0 : config_.scale_of(one->module) / low.scale;
      std::ranges::copy(own_a, a.begin() + one->expert * low.rank * in);
      for (int64_t row = 0; row < out; ++row)
        for (int64_t r = 0; r < rank; ++r)
          b[static_cast<size_t>((one->expert * out + row) * low.rank + r)] =
              static_cast<float>(share * own_b[static_cast<size_t>(row * rank + r)]);
    }
    keep(name + ".lora_a", std::move(a), first.experts * low.rank);
    keep(name + ".lora_b", std::move(b), first.experts * out);
    to_.spec.low_rank.push_back(std::move(low));
  }

  bool has(const std::string& module) const { return modules_with_.contains(module); }

  // Modules and tensors agree with what adapter_config.json names.
  void check_targets() const {
    std::set<std::string> names;
    for (const AdapterModule& module : modules_) {
      const bool stacked = module.kind == ModuleKind::kExperts, linear = module.kind == ModuleKind::kLinear;
      if (!stacked) names.insert(module.module);
      const auto by_parameter = [&](const std::string& of) {
        return std::ranges::any_of(config_.parameters,
                                   [&](const std::string& name) { return ends_as(module.module + "." + of, name); });
      };
      const bool asked = stacked ? by_parameter(module.parameter)
                                 : config_.is_target(module.module, linear && !module.head) || by_parameter("weight");
      const auto parts = modules_with_.find(module.module);
      const bool is_there = parts != modules_with_.end() && parts->second.contains(module.parameter);
      check(asked || !is_there, ErrorCode::kCorrupt,
            "{}: it holds tensors of {}, which target_modules and target_parameters of adapter_config.json do not name",
            where_, key_of(module));
      // Experts and routers are modules or not, by the version of transformers that they were trained in.
      const bool optional = module.router || module.kind == ModuleKind::kExpert || (stacked && !has(module.module));
      check(!asked || is_there || optional, ErrorCode::kCorrupt, "{}: tensors of {} are missing (lora_A, lora_B)",
            where_, key_of(module));
    }
    const auto matched = [&](const auto& matches) { return std::ranges::any_of(modules_, matches); };
    const auto nothing = [&](const char* field, const std::string& name) {
      fail(ErrorCode::kInvalidArgument, "{}: {} names {}, which no module of the base, a {} model, is called{}", where_,
           field, name, base_.architecture, if_near(name, names, " (nearest: {})"));
    };
    for (const std::string& name : config_.targets.names)
      if (!matched([&](const AdapterModule& module) {
            return ends_as(module.module, name) &&
                   (has(module.module) || !config_.is_target(module.module, false) || !optional_only(name));
          }))
        nothing("target_modules", name);
    for (const std::string& name : config_.parameters)
      if (!matched([&](const AdapterModule& module) {
            return has(module.module) &&
                   ends_as(module.module + "." + (module.parameter.empty() ? "weight" : module.parameter), name);
          }))
        nothing("target_parameters", name);
    if (!config_.targets.expression.empty() &&
        !matched([&](const AdapterModule& module) { return config_.targets.matches(module.module); }))
      nothing("target_modules", config_.targets.expression);
    check(!to_.spec.low_rank.empty(), ErrorCode::kCorrupt, "{}: it holds no tensors of LoRA", where_);
  }
  // Whether a target names experts and routers alone, none of which the file has.
  bool optional_only(const std::string& name) const {
    return std::ranges::all_of(modules_, [&](const AdapterModule& module) {
      return !ends_as(module.module, name) || module.router || module.kind == ModuleKind::kExpert;
    });
  }

  // Whether modules_to_save names the module of a tensor, or one around it: by the end of a name, without a dot.
  bool is_saved(const std::string& tensor, const std::string& key) const {
    for (size_t dot = tensor.rfind('.'); dot != std::string::npos && dot > 0; dot = tensor.rfind('.', dot - 1))
      if (tensor.substr(0, dot).ends_with(key)) return true;
    return false;
  }
  bool is_trained(const std::string& tensor) const {
    if (std::ranges::any_of(config_.saved, [&](const std::string& key) { return is_saved(tensor, key); })) return true;
    if (config_.bias == "none" || !tensor.ends_with(".bias")) return false;
    return config_.bias == "all" || has(*before(tensor, ".bias"));
  }

  void read_whole() {
    for (const std::string& key : config_.saved)
      check(std::ranges::any_of(tensors_, [&](const CheckpointTensor& t) { return is_saved(t.name, key); }),
            ErrorCode::kInvalidArgument,
            "{}: modules_to_save names {}, which no module of the base, a {} model, is called", where_, key,
            base_.architecture);
    for (const CheckpointTensor& tensor : tensors_) {
      const auto stored = whole_.find(tensor.name);
      const bool trained = is_trained(tensor.name);
      const bool table = tensor.params[0] == "embed.weight" || tensor.params[0] == "head.weight";
      if (stored == whole_.end()) {
        check(!trained, ErrorCode::kCorrupt, "{}: tensor {} is missing, which modules_to_save or bias asks for", where_,
              tensor.name);
        continue;
      }
      check(trained || table, ErrorCode::kCorrupt,
            "{}: it holds tensor {}, which modules_to_save and bias of adapter_config.json do not ask for", where_,
            stored->second);
      check(tensor.parts == 1, ErrorCode::kUnsupported,
            "{}: tensor {} is one expert's (supported: LoRA of experts, not experts trained whole)", where_,
            stored->second);
      const Shape wanted = tensor_shape(tensor, shapes_);
      const TensorType& type = *file_->find_type(stored->second);
      check(!table || type.shape.rank() != 2 || type.shape[1] != wanted[1] || type.shape[0] == wanted[0],
            ErrorCode::kUnsupported,
            "{}: tensor {} has {} rows, the base's vocabulary {}: save the base with its grown vocabulary, and name "
            "that folder",
            where_, stored->second, type.shape[0], wanted[0]);
      expect(stored->second, wanted);
      for (size_t i = 0; i < tensor.params.size(); ++i) {
        const ParamView view = view_of(tensor, i, file_->read(stored->second), where_ + ": " + stored->second);
        (trained ? to_.tensors : to_.base_copies)[tensor.params[i]] = view;
        if (trained) to_.spec.trained.push_back(tensor.params[i]);
        largest_magnitude(view);  // throws where a value is not finite
      }
      touches_table_ = touches_table_ || (trained && table);
      whole_.erase(stored);
    }
    check(whole_.empty(), ErrorCode::kInvalidArgument, "{}: tensor {} matches nothing of the base, a {} model", where_,
          whole_.empty() ? "" : whole_.begin()->second, base_.architecture);
    check(!base_.tie_embeddings || !touches_table_ || !config_.tie_weights, ErrorCode::kUnsupported,
          "{}: ensure_weight_tying is true, and the base's head is its embedding table (supported: false, or an "
          "adapter of neither)",
          where_);
    to_.unties_head = base_.tie_embeddings && touches_table_;
  }

  void read_token_rows() {
    if (config_.token_rows.empty()) {
      check(token_rows_.empty(), ErrorCode::kCorrupt,
            "{}: it holds tensor {}, but trainable_token_indices of adapter_config.json is not set", where_,
            token_rows_.empty() ? "" : token_rows_.begin()->second);
      return;
    }
    const std::string table = *before(embedding_tensor(base_), ".weight");
    check(config_.token_module.empty() || ends_as(table, config_.token_module), ErrorCode::kUnsupported,
          "{}: trainable_token_indices is of {} (supported: {}, the embedding table)", where_, config_.token_module,
          table);
    const auto stored = token_rows_.find(table);
    check(stored != token_rows_.end() && token_rows_.size() == 1, ErrorCode::kCorrupt,
          "{}: it has tensors trainable_tokens_delta of {} modules (want one of {})", where_, token_rows_.size(),
          table);
    const auto count = std::ssize(config_.token_rows);
    expect(stored->second, {count, base_.hidden});
    const std::vector<float> values = floats(stored->second);
    std::map<int64_t, int64_t> place;  // of a token among the tensor's rows
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = config_.token_rows[static_cast<size_t>(i)];
      check(token < base_.vocab_size, ErrorCode::kInvalidArgument,
            "{}: trainable_token_indices names token {} of a vocabulary of {}", where_, token, base_.vocab_size);
      place[token] = i;
    }
    std::vector<float> sorted;
    for (const auto& [token, i] : place) {
      to_.spec.token_rows.push_back(token);
      const auto row = values.begin() + i * base_.hidden;
      sorted.insert(sorted.end(), row, row + base_.hidden);
    }
    keep("embed.token_rows", std::move(sorted), count);
  }

  Adapter& to_;
  const PeftConfig& config_;
  const ModelConfig& base_;
  const ModelConfig own_;  // with a head of its own
  std::shared_ptr<const TensorSource> file_;
  const ParamShapes shapes_;
  const std::vector<CheckpointTensor> tensors_;
  const std::vector<AdapterModule> modules_;
  const std::string where_, prefix_;                           // of names in the file
  std::map<std::string, ModuleTensors> found_;                 // of LoRA, by module
  std::map<std::string, std::string> whole_, token_rows_;      // names in the file, by tensor and by module
  std::map<std::string, std::set<std::string>> modules_with_;  // which parameters of a module have a LoRA; "": itself
  bool touches_table_ = false;                                 // of the embedding or the head
};

}  // namespace

void read_lora(Adapter& adapter, const ModelConfig& base, std::shared_ptr<const TensorSource> file,
               const std::string& prefix) {
  LoraReader(adapter, base, std::move(file), prefix).read();
}

}  // namespace octet
