#include "serve/kserve_tensors.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "io/tokenizer_utf8.h"
#include "serve/fields.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "tensors are little-endian on the wire");

constexpr int64_t kMaxElements = 1'000'000;

// A datatype of fixed size, and its elements as JSON values.
struct NumberType {
  const char* name;
  size_t size;
  bool (*fits)(const Json& value);
  Json (*decode)(const char* bytes);
  void (*encode)(const Json& value, std::string& bytes);
};

template <typename T>
bool fits(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean();
  } else if constexpr (std::is_floating_point_v<T>) {
    return value.is_number();
  } else {
    if (value.is_number_unsigned()) return std::in_range<T>(value.get<uint64_t>());
    return value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
  }
}

template <typename T>
constexpr NumberType number_type(const char* name) {
  return {name, sizeof(T), fits<T>,
          [](const char* bytes) {
            if constexpr (std::is_same_v<T, bool>) return Json(*bytes != 0);
            T value;
            std::memcpy(&value, bytes, sizeof(value));
            return Json(value);
          },
          [](const Json& json, std::string& bytes) {
            const T value = json.get<T>();
            bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
          }};
}

constexpr NumberType kNumberTypes[] = {
    number_type<bool>("BOOL"),       number_type<int8_t>("INT8"),     number_type<int16_t>("INT16"),
    number_type<int32_t>("INT32"),   number_type<int64_t>("INT64"),   number_type<uint8_t>("UINT8"),
    number_type<uint16_t>("UINT16"), number_type<uint32_t>("UINT32"), number_type<uint64_t>("UINT64"),
    number_type<float>("FP32"),      number_type<double>("FP64"),
};

// nullptr: BYTES.
const NumberType* find_type(const std::string& datatype, const std::string& where) {
  if (datatype == "BYTES") return nullptr;
  for (const NumberType& type : kNumberTypes)
    if (datatype == type.name) return &type;
  throw ApiError(fmt::format("{} has the datatype '{}', which is not supported", where, datatype), where);
}

std::vector<int64_t> read_shape(Fields& fields, const std::string& where, int64_t& elements) {
  if (fields.find("shape") == nullptr) fields.fail("shape", "want a list of sizes");
  std::vector<int64_t> shape = fields.integers("shape", 0, kMaxElements, 8);
  elements = 1;
  for (int64_t size : shape)
    if ((elements *= size) > kMaxElements)
      throw ApiError(fmt::format("{} has more than {} elements", where, kMaxElements), where);
  return shape;
}

// Appends the values of a list, whose rows may be lists of their own.
void flatten(const Json& data, Json& values) {
  for (const Json& value : data) {
    if (value.is_array()) {
      flatten(value, values);
    } else {
      values.push_back(value);
    }
  }
}

Json read_data(const Json& data, const NumberType* type, const std::string& datatype, const std::string& where) {
  Json values = Json::array();
  flatten(data, values);
  for (const Json& value : values)
    if (type != nullptr ? !type->fits(value) : !value.is_string())
      throw ApiError(fmt::format("{} contains {} (want {})", where, value.dump().substr(0, 60), datatype), where);
  return values;
}

// Each element is its length in 4 bytes and its text.
Json read_texts(std::string_view bytes, const std::string& where) {
  Json values = Json::array();
  while (!bytes.empty()) {
    uint32_t length = 0;
    if (bytes.size() >= sizeof(length)) std::memcpy(&length, bytes.data(), sizeof(length));
    if (bytes.size() < sizeof(length) + length)
      throw ApiError(fmt::format("{}: its binary data ends within element {}", where, values.size()), where);
    const std::string_view text = bytes.substr(sizeof(length), length);
    if (utf8_valid_prefix(text) != text.size())
      throw ApiError(fmt::format("{}: element {} is not UTF-8", where, values.size()), where);
    values.push_back(std::string(text));
    bytes.remove_prefix(sizeof(length) + length);
  }
  return values;
}

Json read_numbers(std::string_view bytes, const NumberType& type, int64_t elements, const std::string& where) {
  if (bytes.size() != static_cast<size_t>(elements) * type.size)
    throw ApiError(fmt::format("{}: its shape requires {} bytes of binary data, but binary_data_size is {}", where,
                               static_cast<size_t>(elements) * type.size, bytes.size()),
                   where);
  Json values = Json::array();
  for (size_t at = 0; at < bytes.size(); at += type.size) values.push_back(type.decode(bytes.data() + at));
  return values;
}

Tensor read_tensor(const Json& input, std::string_view& bytes) {
  Fields fields(input, "inputs.");
  Tensor tensor{.name = fields.text("name").value_or("")};
  if (tensor.name.empty()) fields.fail("name", "want the name of a tensor");
  const std::string where = "inputs." + tensor.name;
  tensor.datatype = fields.text("datatype").value_or("");
  const NumberType* type = find_type(tensor.datatype, where);
  int64_t elements = 0;
  tensor.shape = read_shape(fields, where, elements);
  std::optional<int64_t> size;
  if (const Json* parameters = fields.find("parameters")) {
    Fields inner(*parameters, where + ".parameters.");
    inner.refuse("shared_memory_region", "shared memory is not supported");
    size = inner.integer("binary_data_size", 0, static_cast<int64_t>(bytes.size()));
  }
  const Json* data = fields.find("data");
  if (size.has_value() == (data != nullptr))
    throw ApiError(fmt::format("{}: want its values either as data or as binary_data_size bytes", where), where);
  if (data != nullptr) {
    if (!data->is_array()) fields.fail("data", "want a list");
    tensor.values = read_data(*data, type, tensor.datatype, where);
  } else {
    const std::string_view own = bytes.substr(0, static_cast<size_t>(*size));
    bytes.remove_prefix(own.size());
    tensor.values = type == nullptr ? read_texts(own, where) : read_numbers(own, *type, elements, where);
  }
  if (tensor.values.size() != static_cast<size_t>(elements))
    throw ApiError(fmt::format("{} has {} values (want {}, by its shape)", where, tensor.values.size(), elements),
                   where);
  return tensor;
}

}  // namespace

TensorBody split_body(std::string_view body, std::string_view json_bytes) {
  size_t size = body.size();
  if (!json_bytes.empty()) {
    const auto [end, error] = std::from_chars(json_bytes.data(), json_bytes.data() + json_bytes.size(), size);
    if (error != std::errc() || end != json_bytes.data() + json_bytes.size() || size == 0 || size > body.size())
      throw ApiError(
          fmt::format("Inference-Header-Content-Length is '{}' (want a number from 1 to {}, the bytes of the JSON)",
                      json_bytes.substr(0, 40), body.size()),
          "Inference-Header-Content-Length");
  }
  return {.json = parse_body(body.substr(0, size)), .bytes = body.substr(size)};
}

std::vector<Tensor> read_tensors(const Json& inputs, std::string_view bytes) {
  constexpr size_t kMaxTensors = 64;
  if (!inputs.is_array() || inputs.size() > kMaxTensors)
    throw ApiError(fmt::format("inputs is not a list of at most {} tensors", kMaxTensors), "inputs");
  std::vector<Tensor> tensors;
  int64_t elements = 0;
  for (const Json& input : inputs) {
    tensors.push_back(read_tensor(input, bytes));
    elements += static_cast<int64_t>(tensors.back().values.size());
    if (elements > kMaxElements)
      throw ApiError(fmt::format("the inputs have more than {} elements", kMaxElements), "inputs");
  }
  if (!bytes.empty()) throw ApiError(fmt::format("{} bytes after the JSON are of no tensor", bytes.size()), "inputs");
  return tensors;
}

void write_tensor(const Tensor& tensor, bool binary, Json& list, std::string& bytes) {
  Json json = {{"name", tensor.name}, {"datatype", tensor.datatype}, {"shape", tensor.shape}};
  if (!binary) {
    json["data"] = tensor.values;
  } else {
    const size_t before = bytes.size();
    const NumberType* type = find_type(tensor.datatype, tensor.name);
    for (const Json& value : tensor.values) {
      if (type != nullptr) {
        type->encode(value, bytes);
        continue;
      }
      const auto& text = value.get_ref<const std::string&>();
      const auto length = static_cast<uint32_t>(text.size());
      bytes.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(text);
    }
    json["parameters"] = {{"binary_data_size", bytes.size() - before}};
  }
  list.push_back(std::move(json));
}

}  // namespace octet::serve
