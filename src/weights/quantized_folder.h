// FP8 tensors of a Hugging Face folder: X.weight in F8_E4M3 beside X.weight_scale (one value, [N], [N, 1] or 128x128
// blocks; or X.weight_scale_inv, the same by another name), X.input_scale, and k_scale and v_scale of attention.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "ir/program.h"
#include "model/hugging_face.h"
#include "model/model.h"
#include "precision/recipe.h"
#include "weights/folder_quantization.h"
#include "weights/param_view.h"

namespace octet {

// Linears of a model as its graph has them: params "<gemm>.weight", and which of them read one x.
struct LinearLayout {
  std::map<std::string, std::string> x_of;  // by gemm: the first gemm that reads the same x
  std::set<std::string> attention;          // names of attention nodes: "layers.0.attn.attention"
};
LinearLayout linear_layout(const ModelConfig& config);

// Whether the linears of a tensor can have a scale for every 128x128 block: none lies across two of them.
bool has_blocks(const CheckpointTensor& tensor);

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

  const TensorSource& tensors_;
  FolderQuantization scheme_;
  std::string where_;
  LinearLayout layout_;
  std::map<std::string, CheckpointTensor> holder_;  // of each parameter, under the name the folder has
  std::map<std::string, std::string> scale_names_;  // by tensor
  std::set<std::string> scales_;
};

}  // namespace octet
