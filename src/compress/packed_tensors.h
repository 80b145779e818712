// Integer codes as compressed-tensors keeps them. 4 bits ("pack-quantized"): MODULE.weight_packed i32 [N, K / 8], the
// first column in the lowest bits, codes plus 8; .weight_scale [N, groups]; .weight_zero_point i32 [N / 8, groups],
// packed along rows the same way, where there are any; .weight_shape i64 [2] = N, K; .weight_g_idx i32 [K] where groups
// follow an order of their own. 8 bits ("int-quantized"): MODULE.weight i8 [N, K] and .weight_scale [N, 1]. Linears
// that a family stores transposed have their i8 codes transposed, packed ones always lie [N, K].
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compress/group_codes.h"
#include "io/safetensors.h"
#include "weights/weights.h"

namespace octet {

struct StoredTensor {
  NamedType type;
  std::vector<std::byte> bytes;
};

// The tensors of checkpoint tensor "MODULE.weight" from the codes of its parameters, of one rule and one group_of.
std::vector<StoredTensor> packed_tensors(const CheckpointTensor& tensor, const std::vector<GroupCodes>& params);

// Whether a checkpoint tensor is kept in codes.
bool has_codes(const TensorSource& tensors, const std::string& tensor);
// The codes of a whole checkpoint tensor. Throws kCorrupt naming what is absent or of another shape.
GroupCodes read_packed(const TensorSource& tensors, const CheckpointTensor& tensor, const std::string& where);

// A model whose linears may be in integer codes, its weights as float32; a view is valid until the next one is asked
// for. recipe(): int8 for codes of 8 bits, nothing for others.
class PackedWeights : public WeightSource {
 public:
  PackedWeights(std::unique_ptr<TensorSource> tensors, const ModelConfig& config, std::string where);
  ParamView view(const std::string& param, const Shape& shape) const override;
  std::optional<Recipe> recipe() const override;

 private:
  std::unique_ptr<TensorSource> tensors_;
  std::string where_;
  std::vector<CheckpointTensor> list_;
  mutable std::string last_name_;
  mutable std::vector<float> last_, part_;  // a dequantized tensor, and the parameter of it that was asked for
};

// quantization_config in config.json: `ignored` are modules that keep their values.
std::string with_integer_codes(const std::string& config_json, const CodeRule& rule, const std::string& order,
                               const std::vector<std::string>& ignored);

}  // namespace octet
