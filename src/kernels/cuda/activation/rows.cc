// Rows of the activation fusions. A body is read once, when binding: its leaves and results become indices of the
// node's inputs and results. What the kernels here do not take goes to fusion_member_rows.
#include <algorithm>

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"

namespace octet::cuda {
namespace {

constexpr const char* kKinds[] = {
    "bias_gelu_quantize",      "bias_gelu_amax",     "bias_gelu",           "gelu_quantize",  "gelu_grad_bias",
    "gelu_grad_bias_quantize", "gelu_grad_quantize", "gelu_grad_bias_amax", "gelu_grad_amax", "bias_grad_quantize",
    "bias_grad_amax",          "swiglu_quantize",    "swiglu_amax",         "swiglu",         "swiglu_grad",
    "swiglu_grad_quantize",    "swiglu_grad_amax",   "geglu_quantize",      "relu_quantize"};

std::string_view kind_of(const Node& node) { return node.attrs.get<std::string>("kind"); }
bool is_kind(const Node& node, std::initializer_list<const char*> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&](const char* kind) { return kind_of(node) == kind; });
}

// Every matrix of the body but codes is of this type.
bool matrices_are(const FusionBody& body, DType dtype) {
  return std::all_of(body.graph().nodes().begin(), body.graph().nodes().end(), [&](const Node& node) {
    const TensorType& type = node.results[0];
    return type.shape.rank() < 2 || is_fp8(type.dtype) || type.dtype == dtype;
  });
}

// Result r of the member of this name among the fusion's results; -1: no such member, or nobody outside reads it.
int result(const FusionBody& body, const char* name, int32_t r = 0) {
  const Node* member = body.member(name);
  return member != nullptr ? body.result(*member, r) : -1;
}

void* at(std::span<const Tensor> tensors, int i) { return i >= 0 ? tensors[static_cast<size_t>(i)].data : nullptr; }

bool in_16_bytes(const TensorType& type) { return type.shape.cols() * dtype_bytes(type.dtype) % 16 == 0; }
bool tanh_form(const Node& gelu) { return gelu.attrs.get<bool>("approximate"); }

// --- bias_gelu, bias_gelu_amax

bool accepts_bias_gelu(const Graph&, const Node& node) {
  if (!is_kind(node, {"bias_gelu", "bias_gelu_amax"})) return false;
  const FusionBody body(node);
  const Node &bias = *body.member("bias"), &gelu = *body.member("gelu");
  const DType dtype = gelu.results[0].dtype, bias_type = body.graph().dtype(bias.inputs[1]);
  return is_f32_or_bf16(dtype) && matrices_are(body, dtype) && in_16_bytes(gelu.results[0]) &&
         (bias_type == dtype || (bias_type == DType::kF32 && dtype == DType::kBF16));
}

BoundKernel bind_bias_gelu(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Node &add = *body.member("bias"), &gelu = *body.member("gelu");
  const int x = body.input(add, 0), bias = body.input(add, 1);
  const int biased = result(body, "bias"), y = result(body, "gelu"), amax = result(body, "amax");
  BiasGelu job{};
  job.tanh_form = tanh_form(gelu);
  job.dtype = gelu.results[0].dtype;
  job.bias_type = body.graph().dtype(add.inputs[1]);
  job.rows = gelu.results[0].shape.rows(), job.cols = gelu.results[0].shape.cols();
  job.counters = context.counters(), job.sm_count = context.sm_count();
  return [=](const KernelArgs& args) mutable {
    job.x = at(args.in, x), job.bias = at(args.in, bias);
    job.biased = at(args.out, biased), job.y = at(args.out, y), job.amax = static_cast<float*>(at(args.out, amax));
    launch_bias_gelu(job, args.stream);
  };
}

// --- swiglu, swiglu_amax

// up, the factor of mul that the activation did not make; -1: both are the activation's.
size_t up_slot(const FusionBody& body, const char* activation) {
  return body.reads(*body.member("mul"), 0, *body.member(activation)) ? 1 : 0;
}
int find_up(const FusionBody& body, const char* activation = "silu") {
  return body.input(*body.member("mul"), up_slot(body, activation));
}

bool accepts_swiglu(const Graph&, const Node& node) {
  if (!is_kind(node, {"swiglu", "swiglu_amax"})) return false;
  const FusionBody body(node);
  const DType dtype = body.member("mul")->results[0].dtype;
  return is_f32_or_bf16(dtype) && matrices_are(body, dtype) && find_up(body) >= 0;
}

BoundKernel bind_swiglu(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const int gate = body.input(*body.member("silu"), 0), up = find_up(body);
  const int silu = result(body, "silu"), y = result(body, "mul"), amax = result(body, "amax");
  const TensorType& type = body.member("mul")->results[0];
  Swiglu job{};
  job.dtype = type.dtype, job.rows = type.shape.rows(), job.cols = type.shape.cols();
  job.counters = context.counters(), job.sm_count = context.sm_count();
  return [=](const KernelArgs& args) mutable {
    job.gate = at(args.in, gate), job.up = at(args.in, up);
    job.silu = at(args.out, silu), job.y = at(args.out, y), job.amax = static_cast<float*>(at(args.out, amax));
    launch_swiglu(job, args.stream);
  };
}

// --- swiglu_grad, swiglu_grad_amax

struct SwigluGradPlaces {
  int gate, up, dy, silu;  // silu -1: made again
  int dsilu, dgate, dup, silu_out;
  explicit SwigluGradPlaces(const FusionBody& body) {
    const Node &first = *body.member("dsilu"), &second = *body.member("dup");
    gate = body.input(*body.member("dgate"), 0);
    const int a = body.input(first, 0), b = body.input(first, 1);
    const int c = body.input(second, 0), d = body.input(second, 1);
    dy = a == c || a == d ? a : b;  // the factor that both products have
    up = dy == a ? b : a;
    silu = c == dy ? d : c;
    dsilu = result(body, "dsilu"), dgate = result(body, "dgate"), dup = result(body, "dup");
    silu_out = result(body, "silu");
  }
  SwigluGrad job(const KernelArgs& args) const {
    SwigluGrad job{};
    job.gate = at(args.in, gate), job.up = at(args.in, up), job.dy = at(args.in, dy), job.silu = at(args.in, silu);
    job.dsilu = at(args.out, dsilu), job.dgate = at(args.out, dgate), job.dup = at(args.out, dup);
    job.silu_out = at(args.out, silu_out);
    return job;
  }
};

bool accepts_swiglu_grad(const Graph&, const Node& node) {
  if (!is_kind(node, {"swiglu_grad", "swiglu_grad_amax"})) return false;
  const FusionBody body(node);
  const DType dtype = body.member("dgate")->results[0].dtype;
  const SwigluGradPlaces places(body);
  return is_f32_or_bf16(dtype) && matrices_are(body, dtype) && places.gate >= 0 && places.up >= 0 && places.dy >= 0;
}

BoundKernel bind_swiglu_grad(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const SwigluGradPlaces p(body);
  const DType dtype = body.member("dgate")->results[0].dtype;
  const Shape shape = body.member("dgate")->results[0].shape;
  const int amax_dgate = result(body, "amax_dgate"), amax_dup = result(body, "amax_dup");
  return [=, counters = context.counters(), sm_count = context.sm_count()](const KernelArgs& args) {
    SwigluGrad job = p.job(args);
    job.dtype = dtype, job.rows = shape.rows(), job.cols = shape.cols();
    job.counters = counters, job.sm_count = sm_count;
    job.amax_dgate = static_cast<float*>(at(args.out, amax_dgate));
    job.amax_dup = static_cast<float*>(at(args.out, amax_dup));
    launch_swiglu_grad(job, args.stream);
  };
}

// --- with codes, sums over rows: in tiles

// The members that end a fusion: what they make, and of which results and inputs.
struct EndPlaces {
  TileEnd fixed;
  int scale = -1, codes = -1, scale_inv = -1, codes_t = -1, scale_inv_t = -1, amax = -1, row_sums = -1;

  TileEnd of(const KernelArgs& args) const {
    TileEnd end = fixed;
    end.job.scale = static_cast<const float*>(at(args.in, scale));
    end.job.codes = static_cast<uint8_t*>(at(args.out, codes));
    end.job.codes_t = static_cast<uint8_t*>(at(args.out, codes_t));
    end.job.scale_inv = static_cast<float*>(at(args.out, scale_inv));
    end.job.scale_inv_t = static_cast<float*>(at(args.out, scale_inv_t));
    end.job.amax = static_cast<float*>(at(args.out, amax));
    end.row_sums = static_cast<float*>(at(args.out, row_sums));
    end.scratch = reinterpret_cast<float*>(args.workspace.data());
    return end;
  }
};

// Of the members "quantize<suffix>", "amax<suffix>" and "bias_grad<suffix>", which read a matrix of this type.
EndPlaces find_end(const FusionBody& body, const TensorType& matrix, const std::string& suffix = "") {
  EndPlaces places;
  QuantizeJob& job = places.fixed.job;
  job.rows = matrix.shape.rows(), job.cols = matrix.shape.cols();
  places.row_sums = result(body, ("bias_grad" + suffix).c_str());
  places.amax = result(body, ("amax" + suffix).c_str());
  const Node* quantize = body.member("quantize" + suffix);
  if (quantize == nullptr) return places;
  places.fixed.quantizes = true;
  places.fixed.grouping = quantize_grouping(quantize->attrs.get_or<std::string>("scaling", "tensor"));
  job.max = static_cast<float>(dtype_max(quantize->results[0].dtype));
  job.margin = static_cast<int>(quantize->attrs.get_or<int64_t>("margin", 0));
  job.pow2 = quantize->attrs.get_or<bool>("pow2", false);
  places.scale = body.input(*quantize, 1);
  places.codes = body.result(*quantize, 0), places.scale_inv = body.result(*quantize, 1);
  places.codes_t = body.result(*quantize, 2), places.scale_inv_t = body.result(*quantize, 3);
  places.amax = body.result(*quantize, 4);
  return places;
}

// Whether the tiles take this matrix and, if there is one, the quantize that ends the fusion.
bool takes_tiles(const FusionBody& body, const TensorType& matrix, bool gradient, const std::string& suffix = "") {
  if (!matrices_are(body, DType::kBF16) || matrix.shape.cols() % 16 != 0) return false;
  const Node* quantize = body.member("quantize" + suffix);
  if (quantize == nullptr) return true;
  const bool transposed = body.result(*quantize, 2) >= 0;
  return !(transposed && matrix.shape.rows() % 16 != 0) &&
         takes_codes(gradient, quantize_grouping(quantize->attrs.get_or<std::string>("scaling", "tensor")),
                     quantize->results[0].dtype) &&
         (quantize->inputs.size() < 2 || body.input(*quantize, 1) >= 0);
}

bool accepts_gelu_tiles(const Graph&, const Node& node) {
  if (!is_kind(node, {"bias_gelu_quantize", "gelu_quantize"})) return false;
  const FusionBody body(node);
  const Node& gelu = *body.member("gelu");
  const Node* add = body.member("bias");
  const DType bias_type = add != nullptr ? body.graph().dtype(add->inputs[1]) : DType::kF32;
  return is_f32_or_bf16(bias_type) && takes_tiles(body, gelu.results[0], false);
}

BoundKernel bind_gelu_tiles(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Node& gelu = *body.member("gelu");
  const Node* add = body.member("bias");
  const int x = body.input(add != nullptr ? *add : gelu, 0), bias = add != nullptr ? body.input(*add, 1) : -1;
  const int biased = result(body, "bias"), y = result(body, "gelu");
  const EndPlaces end = find_end(body, gelu.results[0]);
  BiasGelu job{};
  job.tanh_form = tanh_form(gelu);
  job.bias_type = add != nullptr ? body.graph().dtype(add->inputs[1]) : DType::kF32;
  return [=](const KernelArgs& args) mutable {
    job.x = at(args.in, x), job.bias = at(args.in, bias);
    job.biased = at(args.out, biased), job.y = at(args.out, y);
    launch_gelu_tiles(job, end.of(args), args.stream);
  };
}

bool accepts_swiglu_tiles(const Graph&, const Node& node) {
  if (!is_kind(node, {"swiglu_quantize"})) return false;
  const FusionBody body(node);
  return find_up(body) >= 0 && takes_tiles(body, body.member("mul")->results[0], false);
}

BoundKernel bind_swiglu_tiles(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const int gate = body.input(*body.member("silu"), 0), up = find_up(body);
  const int silu = result(body, "silu"), y = result(body, "mul");
  const EndPlaces end = find_end(body, body.member("mul")->results[0]);
  return [=](const KernelArgs& args) {
    Swiglu job{};
    job.gate = at(args.in, gate), job.up = at(args.in, up);
    job.silu = at(args.out, silu), job.y = at(args.out, y);
    launch_swiglu_tiles(job, end.of(args), args.stream);
  };
}

// --- with codes, a scale a row: (bias,) activation (, mul), quantize; nothing but codes, scales and amax leaves.

struct RowPlaces {
  ActivationRows fixed{};
  FusionBody::Columns x, up;
  int bias = -1;
  bool known = false;  // the members are those above

  explicit RowPlaces(const FusionBody& body) {
    const char* name = "gelu";
    for (const char* other : {"silu", "relu"})
      if (body.member(other) != nullptr) name = other;
    const Node *activation = body.member(name), *add = body.member("bias"), *mul = body.member("mul");
    if (activation == nullptr || body.member("quantize") == nullptr) return;
    known = true;
    fixed.fn = activation->op == Op::kSilu   ? Activation::kSilu
               : activation->op == Op::kRelu ? Activation::kRelu
               : tanh_form(*activation)      ? Activation::kGeluTanh
                                             : Activation::kGeluErf;
    x = body.columns(add != nullptr ? *add : *activation, 0);
    if (add != nullptr) bias = body.input(*add, 1), fixed.bias_type = body.graph().dtype(add->inputs[1]);
    if (mul != nullptr) up = body.columns(*mul, up_slot(body, name));
    fixed.x_stride = x.stride, fixed.up_stride = up.stride;
  }
};

bool accepts_activation_rows(const Graph&, const Node& node) {
  if (!is_kind(node, {"bias_gelu_quantize", "gelu_quantize", "swiglu_quantize", "geglu_quantize", "relu_quantize"}))
    return false;
  const FusionBody body(node);
  const RowPlaces places(body);
  if (!places.known || places.x.input < 0) return false;
  const Node& quantize = *body.member("quantize");
  const bool gated = body.member("mul") != nullptr, biased = body.member("bias") != nullptr;
  if (gated ? places.up.input < 0 || biased || !takes_activation_rows(places.fixed.fn, true) : places.up.input >= 0)
    return false;
  for (const auto& columns : {places.x, places.up})
    if (columns.begin % 8 != 0 || columns.stride % 8 != 0) return false;
  if (biased && (places.bias < 0 || !is_f32_or_bf16(places.fixed.bias_type))) return false;
  const auto& outputs = body.graph().outputs();
  const bool codes_alone = std::all_of(outputs.begin(), outputs.end(), [&](const NamedValue& output) {
    return &body.graph().node(output.value.node) == &quantize && output.value.result != 2 && output.value.result != 3;
  });
  return codes_alone && matrices_are(body, DType::kBF16) && body.graph().shape(quantize.inputs[0]).cols() % 8 == 0 &&
         quantize_grouping(quantize.attrs.get_or<std::string>("scaling", "tensor")) == Grouping::kRow &&
         quantize.results[0].dtype == DType::kE4M3;
}

BoundKernel bind_activation_rows(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const RowPlaces places(body);
  const EndPlaces end = find_end(body, body.graph().type(body.member("quantize")->inputs[0]));
  return [=](const KernelArgs& args) {
    ActivationRows rows = places.fixed;
    rows.x = places.x.in(args.in), rows.bias = at(args.in, places.bias), rows.up = places.up.in(args.in);
    rows.job = end.of(args).job;
    launch_activation_rows(rows, args.stream);
  };
}

bool accepts_swiglu_grad_tiles(const Graph&, const Node& node) {
  if (!is_kind(node, {"swiglu_grad_quantize"})) return false;
  const FusionBody body(node);
  const TensorType& type = body.member("dgate")->results[0];
  const SwigluGradPlaces places(body);
  const auto grouping = [&](const char* name) {
    return body.member(name)->attrs.get_or<std::string>("scaling", "tensor");
  };
  const bool codes_only = places.dsilu < 0 && places.dgate < 0 && places.dup < 0 && places.silu_out < 0;
  return codes_only && places.gate >= 0 && places.up >= 0 && places.dy >= 0 &&
         takes_tiles(body, type, true, "_dgate") && takes_tiles(body, type, true, "_dup") &&
         grouping("quantize_dgate") == grouping("quantize_dup");
}

BoundKernel bind_swiglu_grad_tiles(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const SwigluGradPlaces p(body);
  const TensorType& type = body.member("dgate")->results[0];
  const EndPlaces dgate = find_end(body, type, "_dgate"), dup = find_end(body, type, "_dup");
  return
      [=](const KernelArgs& args) { launch_swiglu_grad_tiles(p.job(args), dgate.of(args), dup.of(args), args.stream); };
}

// gelu_grad_bias, gelu_grad_bias_amax, gelu_grad_quantize, gelu_grad_bias_quantize
bool accepts_gelu_grad_tiles(const Graph&, const Node& node) {
  if (!is_kind(node, {"gelu_grad_bias", "gelu_grad_bias_amax", "gelu_grad_quantize", "gelu_grad_bias_quantize"}))
    return false;
  const FusionBody body(node);
  const Node& gelu_grad = *body.member("gelu_grad");
  return tanh_form(gelu_grad) && takes_tiles(body, gelu_grad.results[0], true);
}

BoundKernel bind_gelu_grad_tiles(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Node& gelu_grad = *body.member("gelu_grad");
  const int x = body.input(gelu_grad, 0), dy = body.input(gelu_grad, 1), dx = result(body, "gelu_grad");
  const EndPlaces end = find_end(body, gelu_grad.results[0]);
  return [=](const KernelArgs& args) {
    GeluGrad job{};
    job.x = at(args.in, x), job.dy = at(args.in, dy), job.dx = at(args.out, dx);
    launch_gelu_grad_tiles(job, end.of(args), args.stream);
  };
}

// What the last member reads, of a fusion whose members all read one matrix.
const TensorType& plain_matrix(const FusionBody& body) {
  return body.graph().type(body.member("bias_grad")->inputs[0]);
}

bool accepts_plain_tiles(const Graph&, const Node& node) {
  if (!is_kind(node, {"bias_grad_quantize", "bias_grad_amax"})) return false;
  const FusionBody body(node);
  return plain_matrix(body).shape.rank() == 2 && takes_tiles(body, plain_matrix(body), true);
}

BoundKernel bind_plain_tiles(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const int x = body.input(*body.member("bias_grad"), 0);
  const EndPlaces end = find_end(body, plain_matrix(body));
  return [=, counters = context.counters()](const KernelArgs& args) {
    launch_plain_tiles(at(args.in, x), end.of(args), counters, args.stream);
  };
}

int64_t sums_workspace(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Node* sums = body.member("bias_grad");
  if (sums == nullptr) return 0;
  const Shape& shape = body.graph().shape(sums->inputs[0]);
  return tile_end_scratch(shape.rows(), shape.cols());
}

// --- gelu_grad_amax

bool accepts_gelu_grad(const Graph&, const Node& node) {
  if (!is_kind(node, {"gelu_grad_amax"})) return false;
  const FusionBody body(node);
  const DType dtype = body.member("gelu_grad")->results[0].dtype;
  return is_f32_or_bf16(dtype) && matrices_are(body, dtype);
}

BoundKernel bind_gelu_grad(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Node& gelu_grad = *body.member("gelu_grad");
  const int x = body.input(gelu_grad, 0), dy = body.input(gelu_grad, 1);
  const int dx = result(body, "gelu_grad"), amax = result(body, "amax");
  GeluGrad job{};
  job.tanh_form = tanh_form(gelu_grad), job.dtype = gelu_grad.results[0].dtype;
  job.rows = gelu_grad.results[0].shape.rows(), job.cols = gelu_grad.results[0].shape.cols();
  job.counters = context.counters(), job.sm_count = context.sm_count();
  return [=](const KernelArgs& args) mutable {
    job.x = at(args.in, x), job.dy = at(args.in, dy);
    job.dx = at(args.out, dx), job.amax = static_cast<float*>(at(args.out, amax));
    launch_gelu_grad(job, args.stream);
  };
}

constexpr KernelRow kRows[] = {
    {Op::kFusion, "bias_gelu", accepts_bias_gelu, bind_bias_gelu},
    {Op::kFusion, "gelu_tiles", accepts_gelu_tiles, bind_gelu_tiles},
    {Op::kFusion, "activation_rows", accepts_activation_rows, bind_activation_rows},
    {Op::kFusion, "gelu_grad", accepts_gelu_grad, bind_gelu_grad},
    {Op::kFusion, "gelu_grad_tiles", accepts_gelu_grad_tiles, bind_gelu_grad_tiles, sums_workspace},
    {Op::kFusion, "swiglu", accepts_swiglu, bind_swiglu},
    {Op::kFusion, "swiglu_tiles", accepts_swiglu_tiles, bind_swiglu_tiles},
    {Op::kFusion, "swiglu_grad", accepts_swiglu_grad, bind_swiglu_grad},
    {Op::kFusion, "swiglu_grad_tiles", accepts_swiglu_grad_tiles, bind_swiglu_grad_tiles},
    {Op::kFusion, "bias_grad_tiles", accepts_plain_tiles, bind_plain_tiles, sums_workspace},
};

}  // namespace

std::span<const KernelRow> activation_rows() { return kRows; }
std::span<const char* const> activation_fusion_kinds() { return kKinds; }

}  // namespace octet::cuda
