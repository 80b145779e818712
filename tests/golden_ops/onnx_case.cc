// The protobuf wire format: a message is a sequence of (field << 3 | wire type) varints and payloads.
#include "golden_ops/onnx_case.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string_view>

#include "base/error.h"

namespace octet {
namespace {

struct Field {
  uint64_t number = 0;
  int wire = 0;
  uint64_t value = 0;      // wire type 0
  std::string_view bytes;  // wire types 1, 2, 5
};

uint64_t read_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    check(!rest.empty(), ErrorCode::kCorrupt, "protobuf: a varint runs past the end");
    const auto byte = static_cast<uint8_t>(rest[0]);
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) break;
  }
  return value;
}

std::string_view take(std::string_view& rest, uint64_t size) {
  check(size <= rest.size(), ErrorCode::kCorrupt, "protobuf: {} bytes wanted, {} left", size, rest.size());
  const std::string_view bytes = rest.substr(0, size);
  rest.remove_prefix(size);
  return bytes;
}

void for_each_field(std::string_view message, const std::function<void(const Field&)>& visit) {
  while (!message.empty()) {
    const uint64_t key = read_varint(message);
    Field field{.number = key >> 3, .wire = static_cast<int>(key & 7)};
    if (field.wire == 0) {
      field.value = read_varint(message);
    } else {
      const uint64_t size = field.wire == 2 ? read_varint(message) : field.wire == 1 ? 8 : 4;
      field.bytes = take(message, size);
    }
    visit(field);
  }
}

// Repeated integers come packed or one by one.
void append_integers(const Field& field, std::vector<int64_t>& target) {
  if (field.wire == 0) return target.push_back(static_cast<int64_t>(field.value));
  for (std::string_view rest = field.bytes; !rest.empty();) target.push_back(static_cast<int64_t>(read_varint(rest)));
}

template <typename T>
void append_fixed(const Field& field, std::vector<double>& target) {
  for (size_t at = 0; at + sizeof(T) <= field.bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, field.bytes.data() + at, sizeof(T));
    target.push_back(static_cast<double>(value));
  }
}

std::optional<DType> dtype_of(int64_t onnx_type) {
  switch (onnx_type) {
    case 1: return DType::kF32;
    case 6: return DType::kI32;
    case 7: return DType::kI64;
    case 10: return DType::kF16;
    case 11: return DType::kF64;
    case 16: return DType::kBF16;
    case 17: return DType::kE4M3;
    case 19: return DType::kE5M2;
    default: return {};
  }
}

OnnxTensor parse_tensor(std::string_view message) {
  OnnxTensor tensor;
  std::vector<int64_t> integers;
  std::string_view raw;
  for_each_field(message, [&](const Field& field) {
    if (field.number == 1) append_integers(field, tensor.dims);
    if (field.number == 2) tensor.onnx_type = static_cast<int64_t>(field.value);
    if (field.number == 4) append_fixed<float>(field, tensor.values);
    if (field.number == 5 || field.number == 7) append_integers(field, integers);
    if (field.number == 8) tensor.name = std::string(field.bytes);
    if (field.number == 9) raw = field.bytes;
    if (field.number == 10) append_fixed<double>(field, tensor.values);
  });
  tensor.dtype = dtype_of(tensor.onnx_type);
  if (!tensor.dtype) return tensor;
  if (!raw.empty()) {
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.values.push_back(load_element(*tensor.dtype, raw.data(), i));
  }
  for (int64_t integer : integers) {  // float formats of 16 and 8 bits come as bit patterns
    tensor.values.push_back(is_float(*tensor.dtype) ? load_element(*tensor.dtype, &integer, 0)
                                                    : static_cast<double>(integer));
  }
  check(static_cast<int64_t>(tensor.values.size()) == tensor.elements(), ErrorCode::kCorrupt,
        "tensor {}: {} values for {} elements", tensor.name, tensor.values.size(), tensor.elements());
  return tensor;
}

void parse_attribute(std::string_view message, OnnxCase& result) {
  std::string name;
  for_each_field(message, [&](const Field& field) {
    if (field.number == 1) name = std::string(field.bytes);
    if (field.number == 2) {
      float value;
      std::memcpy(&value, field.bytes.data(), 4);
      result.numbers[name] = value;
    }
    if (field.number == 3) result.numbers[name] = static_cast<double>(static_cast<int64_t>(field.value));
    if (field.number == 4) result.words[name] = std::string(field.bytes);
  });
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check(file.good(), ErrorCode::kIo, "cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

bool OnnxCase::all_types_known() const {
  for (const auto* list : {&inputs, &outputs}) {
    for (const auto& tensor : *list) {
      if (tensor && !tensor->dtype) return false;
    }
  }
  return true;
}

OnnxCase read_onnx_node(const std::string& folder) {
  OnnxCase result;
  result.name = std::filesystem::path(folder).filename().string().substr(5);  // without "test_"
  int nodes = 0;
  const std::string model = read_file(folder + "/model.onnx");
  for_each_field(model, [&](const Field& graph) {
    if (graph.number != 7) return;
    for_each_field(graph.bytes, [&](const Field& node) {
      if (node.number != 1) return;
      ++nodes;
      for_each_field(node.bytes, [&](const Field& field) {
        if (field.number == 1) result.input_names.emplace_back(field.bytes);
        if (field.number == 2) result.output_names.emplace_back(field.bytes);
        if (field.number == 4) result.op = std::string(field.bytes);
        if (field.number == 5) parse_attribute(field.bytes, result);
      });
    });
  });
  if (nodes != 1) result.op = "several nodes";
  return result;
}

void read_onnx_tensors(const std::string& folder, OnnxCase& node) {
  std::map<std::string, OnnxTensor> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/test_data_set_0")) {
    OnnxTensor tensor = parse_tensor(read_file(entry.path().string()));
    tensors[tensor.name] = tensor;
  }
  const auto collect = [&](const std::vector<std::string>& names, std::vector<std::optional<OnnxTensor>>& list) {
    for (const std::string& name : names) {
      const auto found = tensors.find(name);
      list.push_back(found == tensors.end() ? std::nullopt : std::optional(found->second));
    }
  };
  collect(node.input_names, node.inputs);
  collect(node.output_names, node.outputs);
}

}  // namespace octet
