// Hugging Face folders in FP8: their quantization_config, their tensors, and how they are written. X.weight in F8_E4M3
// beside X.weight_scale (one value, [N], [N, 1] or 128x128 blocks; or X.weight_scale_inv, the same by another name),
// X.input_scale, and scales of an attention's keys and values under any of the names in use.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "precision/quantized_matrix.h"
#include "weights/weights.h"

namespace octet {

enum class ActivationScales : uint8_t {
  kToken,   // one a token, as it comes
  kStatic,  // one a linear, kept in the folder
  kBlock,   // 1x128, as they come
  kNone,    // weights alone are in FP8: they are dequantized as they are read
};

// The quantization_config: FP8 weights as compressed-tensors ("float-quantized", "naive-quantized") and the
// DeepSeek-style method "fp8" describe them. What a tensor holds is told by the tensors; this says how to run them.
struct FolderQuantization {
  ScaleLayout weights = ScaleLayout::kRow;  // kTensor, kRow or kTile128
  ActivationScales activations = ActivationScales::kToken;
  bool kv_cache = false;  // FP8, with scales of keys and values in every layer
  bool operator==(const FolderQuantization&) const = default;
};

// Nothing where config.json has no quantization_config. Throws kUnsupported naming the field whose value Octet cannot
// run, kCorrupt for one of the wrong type.
std::optional<FolderQuantization> parse_quantization(const std::string& json_text, const std::string& where);

// config.json with a quantization_config in the compressed-tensors layout added.
std::string with_quantization(const std::string& json_text, const FolderQuantization& quantization);

// Linears of a model as its graph has them: params "<gemm>.weight", and which of them read one x.
struct LinearLayout {
  std::map<std::string, std::string> x_of;  // by gemm: the first gemm that reads the same x
  std::set<std::string> attention;          // names of attention nodes: "layers.0.attn.attention"
};
LinearLayout linear_layout(const ModelConfig& config);

// Whether the linears of a tensor of this shape can have a scale for every 128x128 block: none lies across two of them.
bool has_blocks(const CheckpointTensor& tensor, const Shape& shape);

class QuantizedTensors {
 public:
  // Checks presence, type and shape of every scale; throws kCorrupt naming the tensor.
  QuantizedTensors(const TensorSource& tensors, const ModelConfig& config, const FolderQuantization& scheme,
                   const std::string& where);

  // Names among the folder's tensors that are scales of this scheme.
  bool is_scale(const std::string& name) const { return scales_.contains(name); }
  // Scales of a parameter's codes, by the scheme; nothing is added to one that is not stored in FP8.
  void add_scales(const std::string& param, ParamView& view) const;
  std::optional<float> scale(StateRole role, const std::string& tensor, int32_t index) const;  // WeightSource::scale
  // How the folder is served: the scheme, and linears that are not in FP8 in the compute type.
  Recipe recipe() const;
  bool kv_cache() const { return scheme_.kv_cache; }

 private:
  std::vector<float> floats(const std::string& name) const;
  // A block of 128 rows of it holds rows of two parameters, or of two experts: these are dequantized.
  bool shares_blocks(const CheckpointTensor& tensor) const;
  void add_row_scales(const CheckpointTensor& tensor, const std::string& param, const std::vector<float>& scales,
                      ParamView& view) const;
  std::vector<CheckpointTensor> holders(const std::string& param) const;  // none: unknown

  const TensorSource& tensors_;
  FolderQuantization scheme_;
  std::string where_;
  LinearLayout layout_;
  bool by_rows_ = false;  // scales a tensor are spread over rows: one parameter has those of many experts
  // Of each parameter, or of its parts in their order, under the names the folder has.
  std::map<std::string, std::vector<CheckpointTensor>> holders_;
  std::map<std::string, std::string> scale_names_;  // by tensor
  std::set<std::string> scales_;
};

// Largest |x| a text made, by name: "<gemm>" for the x of a linear, "<attention>.k" and "<attention>.v".
using CalibratedAmax = std::map<std::string, float>;

struct QuantizeFolderOptions {
  FolderQuantization scheme = {};
  DType rest = DType::kBF16;  // of embeddings, norms, biases, head
  CalibratedAmax amax = {};   // needed for static activations and for a KV cache
};

// Before anything is written: kUnsupported or kInvalidArgument for what the model or the options do not allow.
void check_quantize_options(const WeightSource& source, const QuantizeFolderOptions& options);

// Writes a model as an FP8 folder in the compressed-tensors layout. `folder` is made; tokenizer files of
// `tokenizer_folder` come along. `on_progress` gets tensors done, of how many.
void quantize_folder(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                     const QuantizeFolderOptions& options,
                     const std::function<void(int64_t, int64_t)>& on_progress = {});

}  // namespace octet
