// Folders of bitsandbytes in 4 bits (nf4, fp4): values are read dequantized. Of X.weight there are two codes a byte,
// the first in the high half, in blocks of `blocksize` along the flattened tensor; X.weight.quant_map [16] has the
// codes' values and X.weight.absmax one factor a block, itself in 8 bits under double quantization (nested_absmax,
// nested_quant_map, an offset). Source: github.com/bitsandbytes-foundation/bitsandbytes, functional.py.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weights/weights.h"

namespace octet {

// One tensor's codes and what they mean.
struct FourBitCodes {
  const uint8_t* codes = nullptr;
  const float* map = nullptr;     // [16]
  const float* absmax = nullptr;  // one a block; null: nested
  const uint8_t* nested_codes = nullptr;
  const float *nested_map = nullptr, *nested_absmax = nullptr;  // [256], one a block of nested_block factors
  float nested_offset = 0;
  int64_t block = 64, nested_block = 256;

  bool is_nf4() const;  // with bitsandbytes' tables, of codes and of magnitudes
  float factor(int64_t of_block) const {
    if (absmax != nullptr) return absmax[of_block];
    return nested_map[nested_codes[of_block]] * nested_absmax[of_block / nested_block] + nested_offset;
  }
  void read(int64_t first, int64_t count, float* to) const;  // elements of the flattened tensor
};

// Whether config.json says that the folder is one. Throws kUnsupported naming the field whose value is not run.
bool is_four_bit(const std::string& json_text, const std::string& where);

// How many magnitudes share a scale in a folder in nf4: 256, or 1 where it has them in float32; 0 of one in fp4; none
// of a folder that is not in 4 bits.
std::optional<int64_t> nf4_group_of(const std::string& folder);

class FourBitTensors {
 public:
  // Checks presence, type and shape of what belongs to codes; throws kCorrupt naming the tensor.
  FourBitTensors(const TensorSource& tensors, const ModelConfig& config, const std::string& where);

  bool holds(const std::string& tensor) const { return linears_.contains(tensor); }  // "X.weight" is in codes
  bool is_part(const std::string& name) const { return parts_.contains(name); }
  // A parameter from the tensors that it lies in: a part of one, or experts, one below the other.
  ParamView view(const std::vector<std::pair<CheckpointTensor, size_t>>& places, const std::string& name) const;

 private:
  struct Linear {
    FourBitCodes codes;
    int64_t rows = 0, cols = 0;
  };
  Linear read_linear(const std::string& name, const Shape& shape, const std::string& state);
  std::span<const std::byte> part(const std::string& name, DType dtype, int64_t elements);

  const TensorSource& tensors_;
  std::string where_;
  std::map<std::string, Linear> linears_;
  std::set<std::string> parts_;
};

}  // namespace octet
