// A reader of ONNX backend node cases (model.onnx, input_*.pb, output_*.pb), for tests only: just enough of the
// protobuf wire format for one-node graphs and TensorProto. Types Octet does not have are read as empty values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace octet {

struct OnnxTensor {
  std::string name;
  int64_t onnx_type = 0;
  std::optional<DType> dtype;  // none: a type Octet does not have
  std::vector<int64_t> dims;
  std::vector<double> values;

  int64_t elements() const { return product(0, dims.size()); }
  int64_t product(size_t begin, size_t end) const {
    int64_t result = 1;
    for (size_t i = begin; i < end; ++i) result *= dims[i];
    return result;
  }
};

struct OnnxCase {
  std::string name, op;
  std::map<std::string, double> numbers;  // float and int attributes
  std::map<std::string, std::string> words;
  std::vector<std::string> input_names, output_names;
  std::vector<std::optional<OnnxTensor>> inputs, outputs;  // in the node's order

  double number(const std::string& key, double fallback) const {
    const auto found = numbers.find(key);
    return found == numbers.end() ? fallback : found->second;
  }
  std::string word(const std::string& key, const std::string& fallback) const {
    const auto found = words.find(key);
    return found == words.end() ? fallback : found->second;
  }
  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].has_value(); }
  bool all_types_known() const;
};

// The node alone; the op of a graph with more than one is "several nodes". Throws octet::Error when a file is damaged.
OnnxCase read_onnx_node(const std::string& folder);
// Its inputs and outputs, which must be tensors, as those of ops we have are.
void read_onnx_tensors(const std::string& folder, OnnxCase& node);

}  // namespace octet
