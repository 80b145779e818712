#include "compress/packed_tensors.h"

#include <algorithm>

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
