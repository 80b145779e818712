// quantize_folder (quantized_folder.h): scales and codes of a model, tensor by tensor.
#include <algorithm>

#include "base/error.h"
#include "base/threads.h"
#include "io/safetensors.h"
#include "weights/export_folder.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

std::string gemm_of(const std::string& param) { return param.substr(0, param.rfind('.')); }

// What becomes of one tensor of the folder.
struct Plan {
  CheckpointTensor tensor;
  Shape shape;  // as stored
  bool fp8 = false;
};

std::vector<Plan> plan_tensors(const ModelConfig& config, const LinearLayout& layout) {
  const ParamShapes shapes = param_shapes(config);
  std::vector<Plan> plans;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    Plan plan{.tensor = tensor, .shape = tensor_shape(tensor, shapes)};
    for (const std::string& param : tensor.params) {
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

class FolderMaker {
 public:
  FolderMaker(const WeightSource& source, const QuantizeFolderOptions& options)
      : source_(source),
        options_(options),
        layout_(linear_layout(source.config())),
        shapes_(param_shapes(source.config())) {
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
        return plan.fp8
                   ? make_codes(plan)
                   : stored_bytes(plan.tensor, plan.shape, tensor_values(source_, plan.tensor, shapes_), options_.rest);
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

  // The tensor quantized last: codes and scales are asked for one after the other.
  const QuantizedMatrix& quantized(const Plan& plan) {
    if (last_name_ == plan.tensor.name) return last_;
    const bool transposed = plan.tensor.transposed;
    const bool blocks = options_.scheme.weights == ScaleLayout::kTile128;
    last_ =
        quantize_matrix(tensor_values(source_, plan.tensor, shapes_), plan.shape[transposed ? 1 : 0],
                        plan.shape[transposed ? 0 : 1], {.layout = options_.scheme.weights, .power_of_two = blocks});
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
  ParamShapes shapes_;
  std::vector<Plan> plans_;
  std::vector<NamedType> types_;
  std::map<std::string, std::vector<std::byte>> small_;
  std::string last_name_;
  QuantizedMatrix last_;
};

}  // namespace

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
