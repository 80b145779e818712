// quantize_folder (quantized_folder.h): scales and codes of a model, tensor by tensor.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "io/safetensors.h"
#include "io/tokenizer.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

std::string gemm_of(const std::string& param) { return param.substr(0, param.rfind('.')); }

// Whether the rows of q and k must change places: llama2.c files rotate neighbours (2i, 2i + 1), Llama folders halves
// (i, i + d/2).
bool pairs_differ(const ModelConfig& config, const std::string& param) {
  return config.architecture == "llama" && config.rope.interleaved &&
         (param.ends_with("attn.q.weight") || param.ends_with("attn.k.weight"));
}

std::vector<float> in_halves(const std::vector<float>& from, int64_t rows, int64_t cols, int64_t head) {
  std::vector<float> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r % head, source = r - at + (at < head / 2 ? 2 * at : 2 * (at - head / 2) + 1);
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(source * cols), cols,
                to.begin() + static_cast<ptrdiff_t>(r * cols));
  }
  return to;
}

// What becomes of one tensor of the folder.
struct Plan {
  CheckpointTensor tensor;
  Shape shape;  // as stored
  bool fp8 = false;
  std::vector<Shape> params;
};

std::vector<Plan> plan_tensors(const ModelConfig& config, const LinearLayout& layout) {
  const ParamShapes shapes = param_shapes(config);
  std::vector<Plan> plans;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    Plan plan{.tensor = tensor, .shape = tensor_shape(tensor, shapes)};
    for (const std::string& param : tensor.params) {
      plan.params.push_back(shapes.at(param));
      plan.fp8 = param.ends_with(".weight") && layout.x_of.contains(gemm_of(param));
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

float amax_of(const CalibratedAmax& amax, const std::string& name) {
  const auto found = amax.find(name);
  check(found != amax.end(), ErrorCode::kInvalidArgument, "no amax of {} is known: calibrate with a text", name);
  return found->second;
}

// A folder and its parents; those that were not there before go again unless keep() was called.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) {
    for (std::string at = path; !path_exists(at) && parent_folder(at) != at; at = parent_folder(at)) made_ = at;
    make_folders(path);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (!made_.empty()) std::filesystem::remove_all(made_, ignored);
  }
  void keep() { made_.clear(); }

 private:
  std::string made_;  // the topmost that was not there
};

class FolderMaker {
 public:
  FolderMaker(const WeightSource& source, const QuantizeFolderOptions& options)
      : source_(source), options_(options), layout_(linear_layout(source.config())) {
    plans_ = plan_tensors(source.config(), layout_);
    for (const Plan& plan : plans_) declare(plan);
    if (options.scheme.kv_cache) declare_cache();
  }

  // Everything that goes into the folder. Small tensors are made when they are declared.
  std::vector<NamedType> types() const { return types_; }
  const std::vector<Plan>& plans() const { return plans_; }

  // The bytes of a tensor; those of a weight leave its scales behind.
  std::vector<std::byte> make(const std::string& name) {
    if (auto small = small_.find(name); small != small_.end()) return small->second;
    for (const Plan& plan : plans_) {
      if (plan.tensor.name == name)
        return plan.fp8 ? make_codes(plan) : stored_bytes(plan.tensor, plan.shape, values(plan), options_.rest);
      if (plan.fp8 && plan.tensor.name + "_scale" == name) return as_bytes(quantized(plan).scale_inv);
    }
    fail(ErrorCode::kInternal, "tensor {} was not declared", name);
  }

 private:
  static std::vector<std::byte> as_bytes(const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }

  void declare_value(const std::string& name, float value) {
    types_.push_back({name, {DType::kF32, {1}}});
    small_[name] = as_bytes({value});
  }

  void declare(const Plan& plan) {
    const std::string& name = plan.tensor.name;
    types_.push_back({name, {plan.fp8 ? DType::kE4M3 : options_.rest, plan.shape}});
    if (!plan.fp8) return;
    const int64_t outputs = plan.shape[plan.tensor.transposed ? 1 : 0];
    Shape scales{1};
    if (options_.scheme.weights == ScaleLayout::kRow) scales = Shape{outputs, 1};
    if (options_.scheme.weights == ScaleLayout::kTile128)
      scales = Shape{(plan.shape[0] + 127) / 128, (plan.shape[1] + 127) / 128};
    types_.push_back({name + "_scale", {DType::kF32, scales}});
    if (options_.scheme.activations != ActivationScales::kStatic) return;
    const std::string& x = layout_.x_of.at(gemm_of(plan.tensor.params[0]));
    const std::string module = name.substr(0, name.rfind('.'));
    declare_value(module + ".input_scale", 1 / scale_from_amax(amax_of(options_.amax, x), DType::kE4M3, 0, false));
  }

  // Scales stand beside the projections: "model.layers.0.self_attn.k_scale".
  void declare_cache() {
    for (const std::string& attention : layout_.attention) {
      const std::string output = attention.substr(0, attention.rfind('.')) + ".o.weight";
      for (const Plan& plan : plans_) {
        if (plan.tensor.params[0] != output) continue;
        const std::string module = plan.tensor.name.substr(0, plan.tensor.name.rfind('.'));
        for (const char* side : {"k", "v"})
          declare_value(module.substr(0, module.rfind('.') + 1) + side + "_scale",
                        1 / scale_from_amax(amax_of(options_.amax, attention + "." + side), DType::kE4M3, 0, false));
      }
    }
  }

  std::vector<float> values(const Plan& plan) const { return tensor_values(source_, plan.tensor); }

  // The tensor quantized last: codes and scales are asked for one after the other.
  const QuantizedMatrix& quantized(const Plan& plan) {
    if (last_name_ == plan.tensor.name) return last_;
    const bool transposed = plan.tensor.transposed;
    const bool blocks = options_.scheme.weights == ScaleLayout::kTile128;
    last_ = quantize_matrix(values(plan), plan.shape[transposed ? 1 : 0], plan.shape[transposed ? 0 : 1],
                            {.layout = options_.scheme.weights, .power_of_two = blocks});
    last_name_ = plan.tensor.name;
    return last_;
  }

  std::vector<std::byte> make_codes(const Plan& plan) {
    const QuantizedMatrix& matrix = quantized(plan);
    if (!plan.tensor.transposed) return matrix.codes;
    std::vector<std::byte> codes(matrix.codes.size());
    read_all(transposed(view_of(DType::kE4M3, matrix.codes.data(), plan.shape[1], plan.shape[0])), DType::kE4M3,
             codes.data());
    return codes;
  }

  const WeightSource& source_;
  const QuantizeFolderOptions& options_;
  LinearLayout layout_;
  std::vector<Plan> plans_;
  std::vector<NamedType> types_;
  std::map<std::string, std::vector<std::byte>> small_;
  std::string last_name_;
  QuantizedMatrix last_;
};

}  // namespace

std::vector<float> tensor_values(const WeightSource& source, const CheckpointTensor& tensor) {
  const ParamShapes shapes = param_shapes(source.config());
  if (tensor.parts > 1)
    return read_part(source.view(tensor.params[0], shapes.at(tensor.params[0])), tensor.part, tensor.parts);
  return join_params(tensor, tensor_shape(tensor, shapes).elements(), [&](size_t i) {
    const std::string& param = tensor.params[i];
    const Shape& shape = shapes.at(param);
    std::vector<float> part = source.read(param, shape);
    if (!pairs_differ(source.config(), param)) return part;
    return in_halves(part, shape[0], shape[1], source.config().head_size());
  });
}

void write_model_folder(const std::string& folder, const std::vector<NamedType>& types, const MakeTensor& make,
                        const std::string& config, const std::string& tokenizer_folder,
                        const std::function<void(int64_t, int64_t)>& on_progress) {
  NewFolder made(folder);
  SafetensorsFolderWriter writer(folder, types, {{"format", "pt"}});
  const auto total = static_cast<int64_t>(writer.tensors().size());
  int64_t done = 0;
  for (const NamedType& entry : writer.tensors()) {
    writer.write(entry.name, make(entry.name));
    if (on_progress) on_progress(++done, total);
  }
  writer.finish();
  write_file(folder + "/config.json", config);
  copy_tokenizer_files(tokenizer_folder, folder);
  made.keep();
}

void check_quantize_options(const WeightSource& source, const QuantizeFolderOptions& options) {
  const FolderQuantization& scheme = options.scheme;
  const ParamShapes params = param_shapes(source.config());
  const bool blocks = scheme.weights == ScaleLayout::kTile128;
  check(blocks == (scheme.activations == ActivationScales::kBlock), ErrorCode::kInvalidArgument,
        "block-scaled weights need block-scaled activations, whose scales are dynamic: leave out --activations");
  for (const CheckpointTensor& tensor : checkpoint_tensors(source.config()))
    check(!blocks || has_blocks(tensor, tensor_shape(tensor, params)), ErrorCode::kUnsupported,
          "{}: {}, which the layout has no blocks for: use --weights row or tensor", tensor.name,
          tensor.parts > 1    ? "an expert's rows are not whole blocks of 128"
          : tensor.transposed ? "stored transposed"
                              : "holds several linears, not all in whole blocks of 128 rows");
}

void quantize_folder(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                     const QuantizeFolderOptions& options, const std::function<void(int64_t, int64_t)>& on_progress) {
  check_quantize_options(source, options);
  const std::string config =  // before the work: not every model can be said there
      to_hugging_face_config(source.config(), source.special(), options.rest == DType::kF32 ? "float32" : "bfloat16");
  FolderMaker maker(source, options);
  // In the writer's order scales (float32) come before all codes: a weight is quantized once for each.
  write_model_folder(
      folder, maker.types(), [&](const std::string& name) { return maker.make(name); },
      with_quantization(config, options.scheme), tokenizer_folder, on_progress);
}

}  // namespace octet
