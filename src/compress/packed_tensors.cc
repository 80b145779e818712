#include "compress/packed_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

using Json = nlohmann::json;

constexpr int64_t kInWord = 8;  // codes of 4 bits in an i32

std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

// Codes -8..7 at(i) of a line in words, the first in the lowest bits; a last word that is not full ends with zeros.
template <typename At>
void pack_line(int64_t count, const At& at, std::vector<uint32_t>& words) {
  for (int64_t first = 0; first < count; first += kInWord) {
    uint32_t word = 0;
    for (int64_t i = first; i < std::min(first + kInWord, count); ++i)
      word |= static_cast<uint32_t>(at(i) + 8) << (4 * (i - first));
    words.push_back(word);
  }
}

int8_t code_in(uint32_t word, int64_t place) { return static_cast<int8_t>(((word >> (4 * place)) & 15u) - 8); }

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// The rows of all parameters in the order the tensor has them.
GroupCodes join_codes(const CheckpointTensor& tensor, const std::vector<GroupCodes>& params) {
  if (params.size() == 1) return params[0];
  int64_t rows = 0;
  for (const GroupCodes& part : params) rows += part.rows;
  GroupCodes all = empty_codes(params[0].rule, rows, params[0].cols);
  all.group_of = params[0].group_of;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto join = [&](const auto& part, auto& whole) {
      for_each_piece(tensor, std::ssize(whole), i, [&](int64_t at, int64_t of_param, int64_t count) {
        std::copy_n(part.begin() + of_param, count, whole.begin() + at);
      });
    };
    join(params[i].codes, all.codes), join(params[i].scales, all.scales);
    if (!all.zeros.empty()) join(params[i].zeros, all.zeros);
  }
  return all;
}

std::vector<std::byte> converted(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(type)));
  convert(DType::kF32, values.data(), type, bytes.data(), std::ssize(values));
  return bytes;
}

template <typename T>
std::vector<T> transposed_codes(const std::vector<T>& from, int64_t rows, int64_t cols) {
  std::vector<T> to(from.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) to[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * cols + c)];
  return to;
}

class PackedReader {
 public:
  PackedReader(const TensorSource& tensors, const std::string& module, const std::string& where)
      : tensors_(tensors), module_(module), where_(where) {}

  bool has(const char* part) const { return tensors_.find_type(module_ + part) != nullptr; }

  template <typename T>
  std::vector<T> integers(const char* part, DType type, const Shape& shape) const {
    const TensorView view = get(part, shape);
    check(view.type.dtype == type, ErrorCode::kCorrupt, "{}: {}{} is {}, not {}", where_, module_, part,
          dtype_name(view.type.dtype), dtype_name(type));
    std::vector<T> values(view.bytes.size() / sizeof(T));
    std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
    return values;
  }
  std::vector<float> scales(int64_t rows, int64_t groups) const {
    std::vector<float> values = floats_of(get(".weight_scale", Shape{rows, groups}));
    for (const float value : values)
      check(std::isfinite(value) && value > 0, ErrorCode::kCorrupt, "{}: {}.weight_scale holds {}", where_, module_,
            value);
    return values;
  }
  const Shape& shape(const char* part) const {
    check(has(part), ErrorCode::kCorrupt, "{}: {} has no {}", where_, module_, part + 1);
    const Shape& shape = tensors_.find_type(module_ + part)->shape;
    check(shape.rank() == 2, ErrorCode::kCorrupt, "{}: {}{} has shape {}", where_, module_, part, to_string(shape));
    return shape;
  }

 private:
  TensorView get(const char* part, const Shape& shape) const {
    check(has(part), ErrorCode::kCorrupt, "{}: {} has no {}", where_, module_, part + 1);
    TensorView view = tensors_.read(module_ + part);
    check(view.type.shape == shape, ErrorCode::kCorrupt, "{}: {}{} has shape {}, not {}", where_, module_, part,
          to_string(view.type.shape), to_string(shape));
    return view;
  }

  const TensorSource& tensors_;
  const std::string& module_;
  const std::string& where_;
};

void unpack_zeros(const std::vector<int32_t>& words, GroupCodes& codes) {
  const int64_t groups = codes.groups();
  codes.zeros.resize(codes.scales.size());
  for (int64_t r = 0; r < codes.rows; ++r)
    for (int64_t g = 0; g < groups; ++g)
      codes.zeros[static_cast<size_t>(r * groups + g)] =
          code_in(static_cast<uint32_t>(words[static_cast<size_t>(r / kInWord * groups + g)]), r % kInWord);
}

}  // namespace

std::vector<StoredTensor> packed_tensors(const CheckpointTensor& tensor, const std::vector<GroupCodes>& params) {
  const GroupCodes codes = join_codes(tensor, params);
  const std::string module = module_of(tensor.name);
  const int64_t rows = codes.rows, cols = codes.cols, groups = codes.groups();
  std::vector<StoredTensor> stored;
  const auto add = [&](const char* part, DType type, const Shape& shape, std::vector<std::byte> bytes) {
    stored.push_back({{module + part, {type, shape}}, std::move(bytes)});
  };
  add(".weight_scale", codes.rule.scale_type, Shape{rows, groups}, converted(codes.scales, codes.rule.scale_type));
  if (codes.rule.bits == 8) {
    if (tensor.transposed)
      add(".weight", DType::kI8, Shape{cols, rows}, bytes_of(transposed_codes(codes.codes, rows, cols)));
    else
      add(".weight", DType::kI8, Shape{rows, cols}, bytes_of(codes.codes));
    return stored;
  }
  std::vector<uint32_t> words;
  for (int64_t r = 0; r < rows; ++r)
    pack_line(
        cols, [&](int64_t k) { return codes.codes[static_cast<size_t>(r * cols + k)]; }, words);
  add(".weight_packed", DType::kI32, Shape{rows, (cols + kInWord - 1) / kInWord}, bytes_of(words));
  add(".weight_shape", DType::kI64, Shape{2}, bytes_of(std::vector<int64_t>{rows, cols}));
  if (!codes.group_of.empty()) add(".weight_g_idx", DType::kI32, Shape{cols}, bytes_of(codes.group_of));
  if (codes.zeros.empty()) return stored;
  words.clear();
  for (int64_t first = 0; first < rows; first += kInWord)
    for (int64_t g = 0; g < groups; ++g)
      pack_line(
          std::min(kInWord, rows - first),
          [&](int64_t r) { return codes.zeros[static_cast<size_t>((first + r) * groups + g)]; }, words);
  add(".weight_zero_point", DType::kI32, Shape{(rows + kInWord - 1) / kInWord, groups}, bytes_of(words));
  return stored;
}

bool has_codes(const TensorSource& tensors, const std::string& tensor) {
  if (!tensor.ends_with(".weight")) return false;  // a bias beside it
  const TensorType* plain = tensors.find_type(tensor);
  return tensors.find_type(module_of(tensor) + ".weight_packed") != nullptr ||
         (plain != nullptr && plain->dtype == DType::kI8);
}

GroupCodes read_packed(const TensorSource& tensors, const CheckpointTensor& tensor, const std::string& where) {
  const std::string module = module_of(tensor.name);
  const PackedReader read(tensors, module, where);
  GroupCodes codes;
  if (!read.has(".weight_packed")) {
    const Shape& shape = read.shape(".weight");
    codes = empty_codes({.bits = 8, .group = 0}, shape[tensor.transposed ? 1 : 0], shape[tensor.transposed ? 0 : 1]);
    codes.codes = read.integers<int8_t>(".weight", DType::kI8, shape);
    if (tensor.transposed) codes.codes = transposed_codes(codes.codes, shape[0], shape[1]);
    codes.scales = read.scales(codes.rows, 1);
    return codes;
  }
  const auto size = read.integers<int64_t>(".weight_shape", DType::kI64, Shape{2});
  const int64_t rows = size[0], cols = size[1], groups = read.shape(".weight_scale")[1];
  check(rows > 0 && cols > 0 && rows <= kMaxWidth * 4 && cols <= kMaxWidth * 4 && groups > 0 && cols % groups == 0,
        ErrorCode::kCorrupt, "{}: {} has {} groups in {} x {}", where, module, groups, rows, cols);
  codes = empty_codes({.group = cols / groups, .symmetric = !read.has(".weight_zero_point")}, rows, cols);
  codes.scales = read.scales(rows, groups);
  const int64_t line = (cols + kInWord - 1) / kInWord;
  const auto words = read.integers<int32_t>(".weight_packed", DType::kI32, Shape{rows, line});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < cols; ++k)
      codes.codes[static_cast<size_t>(r * cols + k)] =
          code_in(static_cast<uint32_t>(words[static_cast<size_t>(r * line + k / kInWord)]), k % kInWord);
  if (!codes.rule.symmetric)
    unpack_zeros(
        read.integers<int32_t>(".weight_zero_point", DType::kI32, Shape{(rows + kInWord - 1) / kInWord, groups}),
        codes);
  if (read.has(".weight_g_idx")) codes.group_of = read.integers<int32_t>(".weight_g_idx", DType::kI32, Shape{cols});
  for (const int32_t group : codes.group_of)
    check(group >= 0 && group < groups, ErrorCode::kCorrupt, "{}: {}.weight_g_idx holds {} of {} groups", where, module,
          group, groups);
  return codes;
}

PackedWeights::PackedWeights(std::unique_ptr<TensorSource> tensors, const ModelConfig& config, std::string where)
    : tensors_(std::move(tensors)), where_(std::move(where)), list_(checkpoint_tensors(config)) {
  config_ = config;
}

ParamView PackedWeights::view(const std::string& param, const Shape& shape) const {
  for (const CheckpointTensor& tensor : list_) {
    const auto found = std::ranges::find(tensor.params, param);
    if (found == tensor.params.end()) continue;
    const auto i = static_cast<size_t>(found - tensor.params.begin());
    if (!has_codes(*tensors_, tensor.name))
      return view_of(tensor, i, tensors_->read(tensor.name), where_ + ": " + param);
    if (last_name_ != tensor.name) last_ = dequantize(read_packed(*tensors_, tensor, where_)), last_name_ = tensor.name;
    part_.resize(static_cast<size_t>(shape.elements()));
    for_each_piece(tensor, std::ssize(last_), i, [&](int64_t at, int64_t of_param, int64_t count) {
      check(of_param + count <= std::ssize(part_), ErrorCode::kCorrupt, "{}: {} values of {} do not hold {} {}", where_,
            last_.size(), tensor.name, param, to_string(shape));
      std::copy_n(last_.begin() + at, count, part_.begin() + of_param);
    });
    return view_of(DType::kF32, part_.data(), shape[0], shape.elements() / shape[0], where_ + ": " + param);
  }
  fail(ErrorCode::kInternal, "no checkpoint tensor holds parameter {}", param);
}

std::optional<Recipe> PackedWeights::recipe() const {
  Recipe recipe = parse_recipe("int8");
  recipe.head = false;
  bool codes = false;
  for (const CheckpointTensor& tensor : list_) {
    const TensorType* type = tensors_->find_type(tensor.name);
    const bool stored = type != nullptr && type->dtype == DType::kI8;
    codes |= stored;
    for (const std::string& param : tensor.params)
      if (!stored) recipe.decisions[module_of(param) + "/fprop"] = {};
  }
  if (!codes) return std::nullopt;
  return recipe;
}

std::string with_integer_codes(const std::string& config_json, const CodeRule& rule, const std::string& order,
                               const std::vector<std::string>& ignored) {
  Json json = parse_json(config_json, "config.json");
  const bool four = rule.bits == 4;
  Json weights = {{"num_bits", rule.bits},
                  {"type", "int"},
                  {"symmetric", rule.symmetric},
                  {"strategy", rule.group > 0 ? "group" : "channel"},
                  {"dynamic", false},
                  {"actorder", order.empty() ? Json(nullptr) : Json(order)}};
  if (rule.group > 0) weights["group_size"] = rule.group;
  Json inputs = nullptr;
  if (!four) inputs = {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
  const Json group = {
      {"targets", {"Linear"}}, {"weights", weights}, {"input_activations", inputs}, {"output_activations", nullptr}};
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", four ? "pack-quantized" : "int-quantized"},
                                 {"quantization_status", "compressed"},
                                 {"config_groups", {{"group_0", group}}},
                                 {"ignore", ignored},
                                 {"kv_cache_scheme", nullptr}};
  return json.dump(2) + "\n";
}

}  // namespace octet
