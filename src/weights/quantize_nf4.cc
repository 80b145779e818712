#include "weights/quantize_nf4.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/integers.h"
#include "base/json.h"
#include "base/threads.h"
#include "ir/nf4.h"
#include "weights/export_folder.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

constexpr size_t kStateBytes = 256;  // of the quant_state's JSON, spaces behind it

// The nearest of an ascending table; of two equally near ones the lower.
template <typename Table>
uint8_t nearest(const Table& table, float value) {
  const auto above = std::lower_bound(table.begin(), table.end(), value);
  if (above == table.begin()) return 0;
  const auto at = static_cast<uint8_t>(above - table.begin());
  if (above == table.end() || value <= (above[-1] + above[0]) / 2) return static_cast<uint8_t>(at - 1);
  return at;
}

std::vector<std::byte> bytes_of(const auto& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

bool in_codes(const CheckpointTensor& tensor, const LinearLayout& layout) {
  return !tensor.transposed && tensor.parts == 1 && std::ranges::all_of(tensor.params, [&](const std::string& param) {
    return param.ends_with(".weight") && layout.x_of.contains(param.substr(0, param.rfind('.')));
  });
}

std::string with_nf4(const std::string& config, DType rest) {
  auto json = parse_json(config, "config.json");
  json["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                 {"load_in_4bit", true},
                                 {"load_in_8bit", false},
                                 {"bnb_4bit_quant_type", "nf4"},
                                 {"bnb_4bit_use_double_quant", true},
                                 {"bnb_4bit_compute_dtype", rest == DType::kF32 ? "float32" : "bfloat16"},
                                 {"bnb_4bit_quant_storage", "uint8"}};
  return json.dump(2) + "\n";
}

}  // namespace

Nf4Matrix quantize_nf4(std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size()), blocks = ceil_div(count, kNf4Block);
  Nf4Matrix result{.codes = std::vector<uint8_t>(static_cast<size_t>(ceil_div(count, 2))),
                   .magnitudes = std::vector<float>(static_cast<size_t>(blocks))};
  parallel_for(blocks, 256, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const auto block = values.subspan(static_cast<size_t>(b * kNf4Block),
                                        static_cast<size_t>(std::min(kNf4Block, count - b * kNf4Block)));
      float most = 0;
      for (const float value : block) most = std::max(most, std::abs(value));
      result.magnitudes[static_cast<size_t>(b)] = most;
      const float inverse = most > 0 ? 1 / most : 0;
      for (size_t i = 0; i < block.size(); ++i) {
        uint8_t& pair = result.codes[static_cast<size_t>(b * kNf4Block / 2) + i / 2];
        pair = static_cast<uint8_t>(pair | nearest(kNf4Values, block[i] * inverse) << (i % 2 == 0 ? 4 : 0));
      }
    }
  });
  return result;
}

NestedMagnitudes quantize_magnitudes(std::span<const float> magnitudes) {
  const std::array<float, 256>& table = nf4_magnitude_values();
  NestedMagnitudes result{.table = {table.begin(), table.end()}};
  double sum = 0;
  for (const float value : magnitudes) sum += value;
  result.offset = static_cast<float>(sum / static_cast<double>(magnitudes.size()));
  for (size_t begin = 0; begin < magnitudes.size(); begin += kNf4Nested) {
    const auto block = magnitudes.subspan(begin, std::min<size_t>(kNf4Nested, magnitudes.size() - begin));
    float most = 0;
    for (const float value : block) most = std::max(most, std::abs(value - result.offset));
    result.scales.push_back(most);
    for (const float value : block)
      result.codes.push_back(nearest(result.table, most > 0 ? (value - result.offset) / most : 0));
  }
  return result;
}

void quantize_to_nf4(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                     DType rest, const std::function<void(int64_t, int64_t)>& on_progress) {
  const ModelConfig& model = source.config();
  const ParamShapes shapes = param_shapes(model);
  const LinearLayout layout = linear_layout(model);
  std::map<std::string, CheckpointTensor> tensors;
  std::vector<NamedType> types;
  bool any = false;
  for (const CheckpointTensor& tensor : checkpoint_tensors(model)) {
    const Shape shape = tensor_shape(tensor, shapes);
    tensors[tensor.name] = tensor;
    if (!in_codes(tensor, layout)) {
      types.push_back({tensor.name, {rest, shape}});
      continue;
    }
    any = true;
    const int64_t elements = shape.elements(), blocks = ceil_div(elements, kNf4Block);
    types.push_back({tensor.name, {DType::kU8, {ceil_div(elements, 2), 1}}});
    types.push_back({tensor.name + ".absmax", {DType::kU8, {blocks}}});
    types.push_back({tensor.name + ".nested_absmax", {DType::kF32, {ceil_div(blocks, kNf4Nested)}}});
    types.push_back({tensor.name + ".nested_quant_map", {DType::kF32, {256}}});
    types.push_back({tensor.name + ".quant_map", {DType::kF32, {16}}});
    types.push_back({tensor.name + ".quant_state.bitsandbytes__nf4", {DType::kU8, {kStateBytes}}});
  }
  check(any, ErrorCode::kUnsupported,
        "{} has no linears that a folder of bitsandbytes stores as matrices [out, in]: use --to int4 or fp8",
        model.architecture);
  // What a tensor's codes leave behind until its turn comes; the float32 ones are written first.
  std::map<std::string, std::vector<std::byte>> small;
  const auto make = [&](const std::string& name) -> std::vector<std::byte> {
    if (const auto made = small.find(name); made != small.end()) return std::move(made->second);
    const auto found = std::prev(tensors.upper_bound(name));
    const CheckpointTensor& tensor = found->second;
    const Shape shape = tensor_shape(tensor, shapes);
    const std::vector<float> values = tensor_values(source, tensor, shapes);
    if (!in_codes(tensor, layout)) return stored_bytes(tensor, shape, values, rest);
    const Nf4Matrix matrix = quantize_nf4(values);
    if (name == tensor.name) return bytes_of(matrix.codes);
    const NestedMagnitudes nested = quantize_magnitudes(matrix.magnitudes);
    std::string state = nlohmann::json{
        {"quant_type", "nf4"},
        {"blocksize", kNf4Block},
        {"dtype", rest == DType::kF32 ? "float32" : "bfloat16"},
        {"shape", shape.dims},
        {"nested_blocksize", kNf4Nested},
        {"nested_dtype", "float32"},
        {"nested_offset",
         nested.offset}}.dump();
    state.resize(kStateBytes, ' ');
    small[tensor.name + ".absmax"] = bytes_of(nested.codes);
    small[tensor.name + ".nested_absmax"] = bytes_of(nested.scales);
    small[tensor.name + ".nested_quant_map"] = bytes_of(nested.table);
    small[tensor.name + ".quant_map"] = bytes_of(kNf4Values);
    small[tensor.name + ".quant_state.bitsandbytes__nf4"] = bytes_of(state);
    return std::move(small.at(name));
  };
  const std::string config =
      to_hugging_face_config(model, source.special(), rest == DType::kF32 ? "float32" : "bfloat16");
  write_model_folder(folder, types, make, with_nf4(config, rest), tokenizer_folder, on_progress);
}

}  // namespace octet
