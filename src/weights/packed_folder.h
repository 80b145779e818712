// Hugging Face folders whose linears have integer weights: GPTQ, AWQ (gemm) and compressed-tensors (pack-quantized,
// int-quantized). Which linears have codes is told by the tensors, so any mix with others runs (docs/numerics.md).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weights/quantized_folder.h"
#include "weights/weights.h"

namespace octet {

enum class PackedMethod : uint8_t { kGptq, kAwq, kCompressed };

struct PackedScheme {
  PackedMethod method = PackedMethod::kGptq;
  DType format = DType::kI4;                  // or kI8
  ScaleLayout layout = ScaleLayout::kRow128;  // kRow, kRow32, kRow64
  int64_t zero_bias = 0;                      // added to stored zero points: 1 in GPTQ's first layout
  bool symmetric = true;                      // compressed-tensors: no zero points are stored
  bool int8_activations = false;              // a token; else weights alone are quantized
  bool operator==(const PackedScheme&) const = default;
};

// Which linears have which scheme: the first of `rules` whose target is the module's name, "re:" and a regular
// expression that matches from its beginning, or "Linear", which is every linear.
struct PackedSchemes {
  PackedSchemes() = default;
  PackedSchemes(const PackedScheme& all) : rules{{"Linear", all}} {}
  std::vector<std::pair<std::string, PackedScheme>> rules = {};
};

// Nothing where config.json describes no such weights. Throws kUnsupported naming the field whose value is not run.
std::optional<PackedSchemes> parse_packing(const std::string& json_text, const std::string& where);

class PackedTensors {
 public:
  // Checks presence, type and shape of what belongs to codes, and reads the groups of columns; throws kCorrupt naming
  // the tensor.
  PackedTensors(const TensorSource& tensors, const ModelConfig& config, const PackedSchemes& schemes,
                const std::string& where);

  bool holds(const std::string& tensor) const { return linears_.contains(tensor); }  // "X.weight" is in codes
  bool is_part(const std::string& name) const { return parts_.contains(name); }
  // Parameter i of a tensor in codes, or an expert's part of it, with scales, zero points and columns. Throws kCorrupt
  // for scales that are not finite and zero points out of range.
  ParamView view(const CheckpointTensor& tensor, size_t i, const std::string& name) const;
  Recipe recipe() const;

 private:
  struct Linear {
    PackedScheme scheme;
    int64_t outputs = 0, inputs = 0;
    std::string codes, scales, zeros;  // names; zeros may be ""
    bool has_zeros = false;            // not all are zero
    std::vector<int32_t> columns;      // sorted by group; empty: in order
  };
  Linear read_linear(const std::string& module, const PackedScheme& scheme, const Shape& shape, bool plain);
  std::vector<int32_t> sorted_columns(const std::string& name, int64_t inputs, ScaleLayout layout) const;
  const TensorType& expect(const std::string& name, const std::string& owner, const TensorType& want);
  int zero_at(const Linear& linear, const TensorView& zeros, int64_t n, int64_t g) const;

  const TensorSource& tensors_;
  std::string where_;
  ModelConfig config_;
  std::map<std::string, Linear> linears_;                       // by tensor "X.weight"
  std::map<std::string, std::vector<std::string>> tensors_of_;  // by parameter; those of experts in several
  std::set<std::string> parts_;
};

}  // namespace octet
