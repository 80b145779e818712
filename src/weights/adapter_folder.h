// Adapters in folders of PEFT: adapter_config.json and adapter_model.safetensors. Tensors are read into the names,
// shapes and row order of model/adapter.h, whichever way the base's family stores its linears (docs/adapters.md).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/model.h"
#include "weights/adapter_config.h"
#include "weights/weights.h"

namespace octet {

struct Adapter {
  std::string folder;
  PeftConfig config;  // as the folder says
  AdapterSpec spec;
  // By name: NAME.lora_a, NAME.lora_b and NAME.magnitude of a LowRank, in float32; the parameters that spec.trained
  // names; embed.token_rows; prompt.weight; of P-tuning, where the folder has it, "prompt_encoder." and PEFT's names.
  std::map<std::string, ParamView> tensors;
  // Parameters of the base that the folder holds too, untrained: they replace the base's.
  std::map<std::string, ParamView> base_copies;
  bool unties_head = false;  // the base's head is tied to its embedding, and one of them gets values of its own

  const ParamView* find(const std::string& name) const;
  std::vector<std::shared_ptr<const void>> keeps;  // what the views lie in
};

// A folder with adapter_config.json and no weights of a model.
bool is_adapter_folder(const std::string& path);
// The folder of its base: base_model_name_or_path as a folder, from the working folder or from the adapter's. Throws
// kNotFound with the ways on where it is neither.
std::string adapter_base(const std::string& folder);

// Where the tokenizer of a model's folder is: of an adapter without one in its base.
std::string tokenizer_folder(const std::string& folder);

// Throws kCorrupt or kInvalidArgument naming the tensor, field or module: of another base (shapes), rank 0, values that
// are not finite, truncated; tensors, targets and patterns that match nothing; tensors that are missing. kUnsupported
// for what is not run.
Adapter read_adapter(const std::string& folder, const ModelConfig& base);
// Tensors of an adapter's names in another file of its folder, STEM.safetensors, each behind `prefix`: gradients.
Adapter read_adapter_tensors(const std::string& folder, const ModelConfig& base, const std::string& stem,
                             const std::string& prefix);

// The base with the adapter merged: W + scale B A, of DoRA times magnitude / its rows' norms, computed in float32 as
// rows are read; biases, modules and rows of tokens as the adapter has them. Virtual tokens are no weights of the
// base: their "prompt.weight" is for graphs that the pass adapt made. Throws kUnsupported for a base whose linears of
// the adapter are integer codes.
std::unique_ptr<WeightSource> merge_adapter(std::unique_ptr<WeightSource> base, Adapter adapter);
// The base with the adapter's tensors beside it by their names, unmerged: for graphs that the pass adapt made.
std::unique_ptr<WeightSource> add_adapter(std::unique_ptr<WeightSource> base, Adapter adapter);
// Of an adapter's folder without virtual tokens; `base`: "" as it says.
std::unique_ptr<WeightSource> open_adapted(const std::string& folder, const std::string& base = {});

// A folder that PEFT loads, of values by the names of model/adapter.h: read(name). LowRanks of several parameters that
// lie in one module of the base (q, k and v of c_attn; gate and up of experts) become one, of their ranks' sum. Throws
// kUnsupported naming what such a folder cannot hold.
using AdapterReader = std::function<std::vector<float>(const std::string& name)>;
struct AdapterFolderText {
  std::string base;  // base_model_name_or_path
  DType dtype = DType::kF32;
};
void write_adapter(const std::string& folder, const AdapterSpec& spec, const ModelConfig& base,
                   const AdapterReader& read, const AdapterFolderText& text);

}  // namespace octet
