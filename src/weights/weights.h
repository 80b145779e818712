// Where weights come from and go to: Hugging Face folders (checkpoints of Octet are such folders too) and llama2.c
// files. Parameters are [out, in] for linears on this side, in whatever type they are stored; the executor's state may
// be of any float type.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "io/safetensors.h"
#include "model/hugging_face.h"
#include "model/model.h"
#include "precision/recipe.h"
#include "weights/param_view.h"

namespace octet {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  const ModelConfig& config() const { return config_; }
  const SpecialTokens& special() const { return special_; }
  // The parameter where it lies, as it is stored: in any float type, or in FP8 codes with scales. Throws kCorrupt for a
  // shape that disagrees with config(), naming tensor and shapes; reading it does for values that are not finite.
  virtual ParamView view(const std::string& param, const Shape& shape) const = 0;
  std::vector<float> read(const std::string& param, const Shape& shape) const {
    return read_floats(view(param, shape));
  }
  // How a source in FP8 wants to be run; nothing when any recipe will do.
  virtual std::optional<Recipe> recipe() const { return std::nullopt; }
  virtual bool has_kv_scales() const { return false; }
  // A static FP8 scale: kScale of "layers.0.mlp.up.x", kCacheScale or kCacheScaleInv of a side of an attention; nothing
  // when the source has none.
  virtual std::optional<float> scale(StateRole role, const std::string& tensor, int32_t index = 0) const {
    return std::nullopt;
  }

 protected:
  ModelConfig config_;
  SpecialTokens special_;
};

// The model of a folder with config.json. Where it says that the head is tied to the embedding and tensors of both are
// there, with other values, the head is the file's own, with a warning, as in transformers. The one reader of folders'
// sizes: a folder may still lack its weights.
ModelConfig read_model_config(const std::string& folder);

// Of config.json, and the ends that generation_config.json of the folder names besides.
SpecialTokens read_special_tokens(const std::string& folder);

// `path`: a folder with config.json and safetensors, or a llama2.c .bin file. Every tensor's presence, type and shape
// is checked here, before anything is allocated; unknown tensors are an error that names them.
std::unique_ptr<WeightSource> open_weights(const std::string& path);

// The recipe of this name; "": as the source is stored (its FP8 scheme, else `otherwise`).
Recipe serving_recipe(const WeightSource& source, const std::string& name, const std::string& otherwise = "fp32");

// One parameter among named tensors, as checkpoint_tensors() says: gradients in verification.
std::vector<float> read_parameter(const TensorSource& tensors, const ModelConfig& config, const std::string& param,
                                  const std::string& name_prefix);

// Fills every master of the executor's program from the source, piece by piece by all threads: copied, converted; FP8
// weights by stored codes or quantized on the way; scales from the source's static ones (a program that needs those of
// activations refuses a source without; scales of a KV cache stay 1). Then prepares. `loaded` gets the bytes of every
// state that has been filled.
using BytesLoaded = std::function<void(int64_t bytes)>;
void load_weights(const WeightSource& source, Executor& executor, const BytesLoaded& loaded = {});

// Fresh weights as the model's params say (init, std), from the seed; then prepares.
void initialize_weights(Executor& executor, uint64_t seed);

// Writes config.json and the masters as safetensors of `dtype` (f32 or bf16) into the folder, which must exist.
void save_weights(Executor& executor, const ModelConfig& config, const SpecialTokens& special,
                  const std::string& folder, DType dtype = DType::kF32, int64_t max_shard_bytes = 4'000'000'000);

}  // namespace octet
