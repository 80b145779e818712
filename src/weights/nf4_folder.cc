#include "weights/nf4_folder.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "ir/nf4.h"
#include "weights/config_field.h"

namespace octet {
namespace {

constexpr int64_t kMaxNf4ConfigBytes = 1 << 24;
constexpr std::string_view kStates[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};

int64_t size_of(const nlohmann::json& state, const char* key, const std::string& where) {
  const auto value = json_get<int64_t>(state, key, where);
  check(value > 0 && value <= 1 << 20, ErrorCode::kCorrupt, "{}: {} is {} (want 1 to {})", where, key, value, 1 << 20);
  return value;
}

}  // namespace

void FourBitCodes::read(int64_t first, int64_t count, float* to) const {
  for (int64_t at = first; at < first + count;) {
    const int64_t of_block = at / block, end = std::min((of_block + 1) * block, first + count);
    const float scale = factor(of_block);
    for (; at < end; ++at) {
      const uint8_t byte = codes[at / 2];
      *to++ = map[at % 2 == 0 ? byte >> 4 : byte & 15] * scale;
    }
  }
}

bool FourBitCodes::is_nf4() const {
  return std::ranges::equal(std::span(map, 16), kNf4Values) &&
         (absmax != nullptr || std::ranges::equal(std::span(nested_map, 256), nf4_magnitude_values()));
}

std::optional<int64_t> nf4_group_of(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (!path_exists(path)) return std::nullopt;
  const std::string text = read_file(path, kMaxNf4ConfigBytes);
  if (!is_four_bit(text, path)) return std::nullopt;
  const nlohmann::json json = parse_json(text, path);
  const ConfigField config = quantization_field(json, path);
  if (config["bnb_4bit_quant_type"].text() != "nf4") return 0;
  return config["bnb_4bit_use_double_quant"].json == true ? kNf4Nested : 1;
}

bool is_four_bit(const std::string& json_text, const std::string& where) {
  const nlohmann::json json = parse_json(json_text, where);
  const ConfigField config = quantization_field(json, where);
  if (config["quant_method"].text() != "bitsandbytes") return false;
  config["load_in_8bit"].want_absent_or(false), config["_load_in_8bit"].want_absent_or(false);
  config["load_in_4bit"].want(true);
  return true;
}

FourBitTensors::FourBitTensors(const TensorSource& tensors, const ModelConfig& config, const std::string& where)
    : tensors_(tensors), where_(where) {
  const ParamShapes shapes = param_shapes(config);
  for (const CheckpointTensor& tensor : checkpoint_tensors(config))
    for (const std::string_view state : kStates) {
      const std::string name = tensor.name + std::string(state);
      if (tensors.find_type(name) == nullptr) continue;
      check(!tensor.transposed, ErrorCode::kUnsupported,
            "{}: {} is stored [in, out] (supported in 4 bits: linears that are stored [out, in])", where, tensor.name);
      linears_[tensor.name] = read_linear(tensor.name, tensor_shape(tensor, shapes), name);
    }
}

std::span<const std::byte> FourBitTensors::part(const std::string& name, DType dtype, int64_t elements) {
  const TensorType* type = tensors_.find_type(name);
  check(type != nullptr, ErrorCode::kCorrupt, "{}: tensor {} is missing", where_, name);
  check(type->dtype == dtype && type->shape.elements() == elements, ErrorCode::kCorrupt,
        "{}: tensor {} is {}, want {} values of {}", where_, name, to_string(*type), elements, dtype_name(dtype));
  parts_.insert(name);
  return tensors_.read(name).bytes;
}

FourBitTensors::Linear FourBitTensors::read_linear(const std::string& name, const Shape& shape,
                                                   const std::string& state_name) {
  const auto floats = [](std::span<const std::byte> bytes) { return reinterpret_cast<const float*>(bytes.data()); };
  const auto codes = [](std::span<const std::byte> bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); };
  parts_.insert(state_name);
  const TensorView text = tensors_.read(state_name);
  const std::string where = where_ + ": " + state_name;
  const nlohmann::json state = parse_json({reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size()}, where);
  const auto said = json_get<std::vector<int64_t>>(state, "shape", where);
  check(Shape(said) == shape, ErrorCode::kCorrupt, "{}: it is of a matrix {}, config.json says {}", where,
        to_string(Shape(said)), to_string(shape));
  const int64_t elements = shape.elements();
  Linear linear{.rows = shape[0], .cols = shape[1]};
  FourBitCodes& all = linear.codes;
  all.block = size_of(state, "blocksize", where);
  const int64_t blocks = (elements + all.block - 1) / all.block;
  const TensorView stored = tensors_.read(name);  // bytes, whatever type they are stored as
  check(std::ssize(stored.bytes) == (elements + 1) / 2, ErrorCode::kCorrupt, "{}: tensor {} has {} bytes, want {}",
        where_, name, stored.bytes.size(), (elements + 1) / 2);
  all.codes = codes(stored.bytes);
  all.map = floats(part(name + ".quant_map", DType::kF32, 16));
  if (!state.contains("nested_blocksize")) {
    all.absmax = floats(part(name + ".absmax", DType::kF32, blocks));
    return linear;
  }
  all.nested_block = size_of(state, "nested_blocksize", where);
  all.nested_offset = static_cast<float>(json_get<double>(state, "nested_offset", where));
  all.nested_codes = codes(part(name + ".absmax", DType::kU8, blocks));
  all.nested_map = floats(part(name + ".nested_quant_map", DType::kF32, 256));
  all.nested_absmax =
      floats(part(name + ".nested_absmax", DType::kF32, (blocks + all.nested_block - 1) / all.nested_block));
  return linear;
}

ParamView FourBitTensors::view(const std::vector<std::pair<CheckpointTensor, size_t>>& places,
                               const std::string& name) const {
  struct Run {  // rows of the parameter that lie one after the other in a tensor
    const FourBitCodes* codes = nullptr;
    int64_t begin = 0, rows = 0, at = 0;
  };
  std::vector<Run> runs;
  int64_t rows = 0, cols = 0;
  for (const auto& [tensor, i] : places) {
    const Linear& linear = linears_.at(tensor.name);
    cols = linear.cols;
    for_each_piece(tensor, linear.rows * cols, i, [&, codes = &linear.codes](int64_t at, int64_t, int64_t count) {
      runs.push_back({codes, rows, count / cols, at / cols});
      rows += count / cols;
    });
  }
  ParamView view = view_of(DType::kF32, nullptr, rows, cols, name);
  const auto shared = std::make_shared<const std::vector<Run>>(std::move(runs));
  const auto run_of = [shared](int64_t row) { return std::ranges::upper_bound(*shared, row, {}, &Run::begin) - 1; };
  view.computed = std::make_shared<const RowFunction>([run_of, cols](int64_t first, int64_t count, float* to) {
    auto run = run_of(first);
    for (int64_t row = first; row < first + count; ++run) {
      const int64_t length = std::min(run->begin + run->rows, first + count) - row;
      run->codes->read((run->at + row - run->begin) * cols, length * cols, to + (row - first) * cols);
      row += length;
    }
  });
  view.four_bit = std::make_shared<const std::function<FourBitRow(int64_t)>>([run_of, cols](int64_t row) {
    const auto run = run_of(row);
    return FourBitRow{run->codes, (run->at + row - run->begin) * cols};
  });
  return view;
}

}  // namespace octet
