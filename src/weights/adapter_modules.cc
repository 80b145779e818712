#include "weights/adapter_modules.h"

#include <algorithm>

#include "weights/weights.h"

namespace octet {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string without_weight(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }

// "layers.0.attn.qkv" of ".q.weight", ".k.weight", ".v.weight"; "layers.0.mlp.gate_up".
std::string joined_name(const std::vector<std::string>& params) {
  std::string name = without_weight(params[0]);
  for (size_t i = 1; i < params.size(); ++i) {
    const std::string next = without_weight(params[i]);
    const std::string last = next.substr(next.rfind('.') + 1);
    name += (last.size() > 1 ? "_" : "") + last;
  }
  return name;
}

// Of an expert's module the one of all: "model.layers.0.mlp.experts" of "model.layers.0.mlp.experts.3.gate_proj".
std::string container_of(const std::string& module) {
  const size_t linear = module.rfind('.');
  return module.substr(0, module.rfind('.', linear - 1));
}

// The modules of a layer's experts in one, as transformers has had them since version 5, by names of a folder's own and
// by those of its classes.
void add_stacked(const std::vector<AdapterModule>& each, const std::string& layer,
                 std::vector<AdapterModule>& modules) {
  std::vector<AdapterModule> both;
  for (const char* part : {"gate", "down"}) {
    const std::string name = layer + "mlp.experts." + part;
    const auto of = std::ranges::find_if(each, [&](const AdapterModule& one) { return one.name == name; });
    if (of == each.end()) return;
    AdapterModule all = *of;
    all.kind = ModuleKind::kExperts, all.module = container_of(of->module);
    if (part == std::string_view("gate")) {
      all.parameter = "gate_up_proj", all.out = 2 * of->out;
      all.tensor.params = {name + ".weight", layer + "mlp.experts.up.weight"};
      all.tensor.rows = {of->out, of->out};
    } else {
      all.parameter = "down_proj";
    }
    all.tensor.part = 0, all.tensor.parts = 1, all.name = joined_name(all.tensor.params);
    both.push_back(all);
  }
  const std::string& own = both[0].module;
  const std::string usual = own.substr(0, own.find('.', own.find(".layers.") + 8)) + ".mlp.experts";
  for (const std::string& module : {own, usual}) {
    for (AdapterModule& one : both) one.module = module, modules.push_back(one);
    if (own == usual) break;
  }
}

template <typename Copy>
std::vector<float> reordered(const AdapterModule& module, std::span<const float> b, const Copy& copy) {
  std::vector<float> result(b.size());
  const int64_t elements = std::ssize(b);
  int64_t before = 0;  // of the parameters in front
  for (size_t i = 0; i < module.tensor.params.size(); ++i) {
    int64_t count = 0;
    for_each_piece(module.tensor, elements, i, [&](int64_t at, int64_t of_param, int64_t piece) {
      copy(result, at, before + of_param, piece), count += piece;
    });
    before += count;
  }
  return result;
}

}  // namespace

ModelConfig untied(const ModelConfig& config) {
  ModelConfig own = config;
  if (own.head == Head::kNextToken) own.tie_embeddings = false;
  return own;
}

std::vector<AdapterModule> adapter_modules(const ModelConfig& config) {
  const ModelConfig own = untied(config);
  const ParamShapes shapes = param_shapes(own);
  std::vector<AdapterModule> modules, experts;
  for (const CheckpointTensor& tensor : checkpoint_tensors(own)) {
    const std::string& param = tensor.params[0];
    const Shape& shape = shapes.at(param);
    if (!tensor.name.ends_with(kWeight) || shape.rank() != 2 || param == "pos_embed.weight" ||
        param == "type_embed.weight")
      continue;
    Shape stored = tensor_shape(tensor, shapes);
    if (tensor.transposed) std::swap(stored[0], stored[1]);
    AdapterModule module{.module = without_weight(tensor.name),
                         .name = joined_name(tensor.params),
                         .tensor = tensor,
                         .out = stored[0],
                         .in = stored[1]};
    if (param == "embed.weight") module.kind = ModuleKind::kEmbedding, std::swap(module.out, module.in);
    module.head = param == "head.weight";
    module.router = param.ends_with(".router.weight");
    if (tensor.parts > 1) {
      module.kind = ModuleKind::kExpert, module.expert = tensor.part, module.experts = tensor.parts;
      experts.push_back(module);
    }
    modules.push_back(std::move(module));
  }
  for (int64_t i = 0; i < own.layers && !experts.empty(); ++i)
    add_stacked(experts, "layers." + std::to_string(i) + ".", modules);
  return modules;
}

std::vector<float> to_parameter_rows(const AdapterModule& module, std::span<const float> b) {
  return reordered(module, b, [&](std::vector<float>& to, int64_t tensor, int64_t param, int64_t count) {
    std::copy_n(b.begin() + tensor, count, to.begin() + param);
  });
}

std::vector<float> to_tensor_rows(const AdapterModule& module, std::span<const float> b) {
  return reordered(module, b, [&](std::vector<float>& to, int64_t tensor, int64_t param, int64_t count) {
    std::copy_n(b.begin() + param, count, to.begin() + tensor);
  });
}

}  // namespace octet
