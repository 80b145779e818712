// Integer codes as compressed-tensors keeps them (weights/packed_folder.h reads them). 4 bits ("pack-quantized"):
// MODULE.weight_packed i32 [N, K / 8], the first column in the lowest bits, codes plus 8; .weight_scale [N, groups];
// .weight_zero_point i32 [N / 8, groups], packed along rows the same way, where there are any; .weight_shape i64 [2] =
// N, K; .weight_g_idx i32 [K] where groups follow an order of their own. 8 bits ("int-quantized"): MODULE.weight i8 [N,
// K] and .weight_scale [N, 1]. So too linears that a family stores transposed.
#pragma once

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

// quantization_config in config.json: `ignored` are modules that keep their values.
std::string with_integer_codes(const std::string& config_json, const CodeRule& rule, const std::string& order,
                               const std::vector<std::string>& ignored);

}  // namespace octet
