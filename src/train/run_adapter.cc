#include "train/run_adapter.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "train/adapter_settings.h"
#include "train/checkpoint.h"

namespace octet {
namespace {

using Values = std::vector<float>;

// y = x W^T + b, of rows [n, in].
Values linear(const Values& x, const Values& weight, const Values& bias) {
  const int64_t out = std::ssize(bias), in = std::ssize(weight) / out, rows = std::ssize(x) / in;
  Values y(static_cast<size_t>(rows * out));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < out; ++n) {
      double sum = bias[static_cast<size_t>(n)];
      for (int64_t k = 0; k < in; ++k)
        sum += static_cast<double>(x[static_cast<size_t>(row * in + k)]) * weight[static_cast<size_t>(n * in + k)];
      y[static_cast<size_t>(row * out + n)] = static_cast<float>(sum);
    }
  return y;
}

// The rows that P-tuning's MLP makes: linear, ReLU, linear, ReLU, linear.
Values encoded_prompt(const TensorSource& tensors) {
  const auto read = [&](const std::string& name) { return floats_of(tensors.read("prompt_encoder." + name)); };
  Values x = read("embedding.weight");
  for (const char* layer : {"mlp_head.0.", "mlp_head.2.", "mlp_head.4."}) {
    if (layer != std::string_view("mlp_head.0."))
      for (float& value : x) value = std::max(value, 0.0f);
    x = linear(x, read(layer + std::string("weight")), read(layer + std::string("bias")));
  }
  return x;
}

class RunReader {
 public:
  RunReader(Adapter& adapter, const ModelConfig& base, const TensorSource& tensors)
      : to_(adapter), base_(base), tensors_(tensors) {}

  void read() {
    const AdapterSpec& spec = to_.spec;
    for (const LowRank& low : spec.low_rank) {
      keep(low.name + ".lora_a"), keep(low.name + ".lora_b");
      if (low.dora) keep(low.name + ".magnitude");
      to_.unties_head = to_.unties_head || (base_.tie_embeddings && (low.name == "head" || low.name == "embed"));
    }
    for (const std::string& param : spec.trained) keep(param);
    if (!spec.token_rows.empty()) keep("embed.token_rows");
    if (spec.virtual_tokens == 0) return;
    if (spec.encoder_hidden == 0) return keep("prompt.weight");
    keep("prompt.weight", encoded_prompt(tensors_), spec.virtual_tokens);
    to_.spec.encoder_hidden = 0;
  }

 private:
  void keep(const std::string& name) {
    const TensorType* type = tensors_.find_type(name);
    check(type != nullptr && type->shape.rank() > 0, ErrorCode::kCorrupt, "{}: tensor {} is missing", to_.folder, name);
    keep(name, floats_of(tensors_.read(name)), type->shape[0]);
  }
  void keep(const std::string& name, Values values, int64_t rows) {
    auto kept = std::make_shared<const Values>(std::move(values));
    to_.tensors[name] = view_of(DType::kF32, kept->data(), rows, std::ssize(*kept) / rows, to_.folder + ": " + name);
    to_.keeps.push_back(kept);
  }

  Adapter& to_;
  const ModelConfig& base_;
  const TensorSource& tensors_;
};

}  // namespace

bool is_adapter_checkpoint(const std::string& folder) {
  return path_exists(folder + "/run.json") && !path_exists(folder + "/config.json");
}

Adapter read_run_adapter(const std::string& checkpoint, std::string& base) {
  RunConfig config;
  settings_of(config).load_yaml_text(read_run_state(checkpoint).settings, checkpoint + "/run.json");
  check(config.adapter.is_on(), ErrorCode::kUnsupported, "{}: neither a model nor an adapter (adapter.method is {})",
        checkpoint, config.adapter.method);
  if (base.empty()) base = config.model_from;
  check(is_folder(base), ErrorCode::kNotFound,
        "{}: its base, model.from={}, is not a folder here: go to the folder that training ran in, or give --base DIR",
        checkpoint, base);
  const ModelConfig model = read_model_config(base);
  Adapter adapter{.folder = checkpoint, .spec = adapter_spec(config.adapter, model)};
  const auto& trained = adapter.spec.trained;
  check(!model.tie_embeddings || std::ranges::find(trained, "embed.weight") == trained.end(), ErrorCode::kUnsupported,
        "{}: embed.weight is trained as embedding and head at once, which is no adapter of PEFT", checkpoint);
  RunReader(adapter, model, *open_safetensors(checkpoint)).read();
  return adapter;
}

}  // namespace octet
