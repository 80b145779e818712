// Rows of the fusions around activations, their gradients and plain gradients. A body is read once, when binding: its
// leaves and results become indices of the node's inputs and results. What the kernels here do not take goes to
// fusion_member_rows.
#include <algorithm>

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"

namespace octet::cuda {
namespace {

using Form = ActivationForm;

// Every matrix of the body but codes is of this type.
bool matrices_are(const FusionBody& body, DType dtype) {
  return std::all_of(body.graph().nodes().begin(), body.graph().nodes().end(), [&](const Node& node) {
    const TensorType& type = node.results[0];
    return type.shape.rank() < 2 || is_code(type.dtype) || type.dtype == dtype;
  });
}

bool in_16_bytes(const TensorType& type) { return type.shape.cols() * dtype_bytes(type.dtype) % 16 == 0; }

Form form_of(const Chain& chain) {
  if (chain.squared) return Form::kSquared;
  return chain.producer == Producer::kGated || chain.producer == Producer::kGatedGrad ? Form::kGated : Form::kPlain;
}

// Whether these members alone have results that leave the fusion, but for sinks'.
bool only_leave(const FusionBody& body, std::initializer_list<const Node*> members) {
  return std::all_of(body.graph().outputs().begin(), body.graph().outputs().end(), [&](const NamedValue& output) {
    const Node& node = body.graph().node(output.value);
    return node.op == Op::kQuantize || node.op == Op::kReduce ||
           std::find(members.begin(), members.end(), &node) != members.end();
  });
}

// --- sinks in tiles

struct EndPlaces : SinkPlaces {
  TileEnd fixed;

  EndPlaces(const FusionBody& body, const Sinks& sinks, const TensorType& matrix) : SinkPlaces(body, sinks) {
    QuantizeJob& job = fixed.job;
    job.rows = matrix.shape.rows(), job.cols = matrix.shape.cols();
    const Node* quantize = sinks.quantize;
    if (quantize == nullptr) return;
    fixed.quantizes = true;
    fixed.grouping = parse_scale_layout(quantize->attr<std::string>("scaling"));
    job.formula = scale_formula(*quantize, quantize->results[0].dtype);
  }

  TileEnd of(const KernelArgs& args) const {
    TileEnd end = fixed;
    end.job.scale = at<const float>(args.in, scale);
    put_results(args, end.job);
    end.column_sums = at<float>(args.out, column_sums);
    end.job.next_reads_ahead = args.next_reads_ahead;
    end.scratch = reinterpret_cast<float*>(args.workspace.data());
    return end;
  }
};

// Whether the tiles take this matrix and, if there is one, the quantize that reads it.
bool takes_tiles(const FusionBody& body, const TensorType& matrix, bool gradient, const Node* quantize) {
  if (!matrices_are(body, DType::kBF16) || matrix.shape.cols() % 16 != 0) return false;
  if (quantize == nullptr) return true;
  const bool transposed = body.result(*quantize, 2) >= 0;
  return !(transposed && matrix.shape.rows() % 16 != 0) &&
         takes_codes(gradient, parse_scale_layout(quantize->attr<std::string>("scaling")),
                     quantize->results[0].dtype) &&
         (quantize->inputs.size() < 2 || body.input(*quantize, 1) >= 0);
}

// Where the end has column sums.
int64_t sums_workspace(const FusionBody& body, const Sinks& sinks) {
  if (sinks.column_sum == nullptr) return 0;
  const Shape& shape = body.graph().shape(sinks.column_sum->inputs[0]);
  return tile_end_scratch(shape.rows(), shape.cols());
}

// --- forward

struct ForwardPlaces {
  ActivationForward fixed{};
  FusionBody::Columns x, up;
  int bias = -1, biased, a, y, amax;

  ForwardPlaces(const FusionBody& body, const Chain& chain) {
    const TensorType& type = body.graph().type(chain.result);
    fixed.fn = activation_of(*chain.core), fixed.form = form_of(chain);
    fixed.dtype = type.dtype, fixed.rows = type.shape.rows(), fixed.cols = type.shape.cols();
    x = body.columns(chain.bias != nullptr ? *chain.bias : *chain.core, 0);
    fixed.bias_type = fixed.dtype;
    if (chain.bias != nullptr) {
      bias = body.input(*chain.bias, 1);
      fixed.bias_type = body.graph().dtype(chain.bias->inputs[1]);
    }
    if (fixed.form == Form::kGated)
      up = body.columns(*chain.product, body.reads(*chain.product, 0, *chain.core) ? 1 : 0);
    fixed.x_stride = x.stride, fixed.up_stride = up.stride;
    biased = body.result(chain.bias), a = chain.product != nullptr ? body.result(chain.core) : -1;
    y = body.result(chain.product != nullptr ? chain.product : chain.core);
    amax = body.result(chain.sinks[0].amax);
  }
  bool has_kernel(const FusionBody& body, const Chain& chain, bool rows = false) const {
    const DType bias_type = fixed.bias_type;
    return has_activation_kernels(fixed.fn, fixed.form, rows) && x.input >= 0 &&
           (fixed.form != Form::kGated || up.input >= 0) && matrices_are(body, fixed.dtype) &&
           (chain.bias == nullptr ||
            (bias >= 0 && (bias_type == fixed.dtype || (bias_type == DType::kF32 && fixed.dtype == DType::kBF16))));
  }
  bool whole() const {
    return x.begin == 0 && x.stride == fixed.cols && (up.input < 0 || (up.begin == 0 && up.stride == fixed.cols));
  }
  ActivationForward of(const KernelArgs& args) const {
    ActivationForward job = fixed;
    job.x = x.in(args.in), job.up = up.in(args.in), job.bias = at(args.in, bias);
    job.biased = at(args.out, biased), job.a = at(args.out, a), job.y = at(args.out, y);
    job.amax = at<float>(args.out, amax);
    return job;
  }
};

BoundKernel bind_forward_pointwise(DeviceContext& context, const Fusion& fusion) {
  const Chain& chain = *fusion.chain;
  if (chain.sinks[0].quantize != nullptr || chain.sinks[0].column_sum != nullptr) return {};
  ForwardPlaces places(fusion.body, chain);
  const bool amax = chain.sinks[0].amax != nullptr, plain = places.fixed.form == Form::kPlain;
  const bool takes = is_f32_or_bf16(places.fixed.dtype) && places.has_kernel(fusion.body, chain) && places.whole() &&
                     (chain.bias != nullptr || (amax ? places.fixed.dtype == DType::kBF16 : !plain)) &&
                     (chain.bias == nullptr || in_16_bytes(fusion.body.graph().type(chain.result)));
  if (!takes) return {};
  places.fixed.counters = context.counters(), places.fixed.sm_count = context.sm_count();
  return [places](const KernelArgs& args) { launch_activation_pointwise(places.of(args), args.stream); };
}

BoundKernel bind_forward_tiles(DeviceContext&, const Fusion& fusion) {
  const Chain& chain = *fusion.chain;
  if (chain.sinks[0].quantize == nullptr || chain.sinks[0].column_sum != nullptr) return {};
  const TensorType& matrix = fusion.body.graph().type(chain.result);
  const ForwardPlaces places(fusion.body, chain);
  if (!places.has_kernel(fusion.body, chain) || !places.whole() ||
      !takes_tiles(fusion.body, matrix, false, chain.sinks[0].quantize))
    return {};
  const EndPlaces end(fusion.body, chain.sinks[0], matrix);
  return [=](const KernelArgs& args) { launch_activation_tiles(places.of(args), end.of(args), args.stream); };
}

// Nothing but codes, scales and amax leaves.
BoundKernel bind_forward_rows(DeviceContext&, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Chain& chain = *fusion.chain;
  if (chain.sinks[0].quantize == nullptr || chain.sinks[0].column_sum != nullptr) return {};
  const ForwardPlaces places(body, chain);
  for (const auto& columns : {places.x, places.up})
    if (columns.begin % 8 != 0 || columns.stride % 8 != 0) return {};
  const Node& quantize = *chain.sinks[0].quantize;
  const DType format = quantize.results[0].dtype;
  const bool transposed = body.result(quantize, 2) >= 0 || body.result(quantize, 3) >= 0;
  const bool takes = places.fixed.dtype == DType::kBF16 && places.has_kernel(body, chain, true) &&
                     only_leave(body, {}) && !transposed && places.fixed.cols % 8 == 0 &&
                     parse_scale_layout(quantize.attr<std::string>("scaling")) == ScaleLayout::kRow &&
                     (format == DType::kE4M3 || format == DType::kI8);
  if (!takes) return {};
  const EndPlaces end(body, chain.sinks[0], body.graph().type(chain.result));
  return
      [=](const KernelArgs& args) { launch_activation_rows(places.of(args), end.of(args).job, format, args.stream); };
}

// --- gradients

struct GradientPlaces {
  ActivationGradient fixed{};
  int x, up = -1, dy = -1, a = -1;  // a -1: made again
  int da = -1, dx, dup = -1, a_out = -1, amax, amax_up;
  bool known = true;  // the operands are inputs, and nothing leaves that has no place

  GradientPlaces(const FusionBody& body, const Chain& chain) {
    const TensorType& type = chain.core->results[0];
    fixed.fn = activation_of(*chain.core), fixed.form = form_of(chain);
    fixed.dtype = type.dtype, fixed.rows = type.shape.rows(), fixed.cols = type.shape.cols();
    x = body.input(*chain.core, 0), dx = body.result(chain.core);
    amax = body.result(chain.sinks[0].amax), amax_up = body.result(chain.sinks[1].amax);
    if (fixed.form == Form::kPlain) {
      dy = body.input(*chain.core, 1);
      known = only_leave(body, {chain.core});
    } else if (fixed.form == Form::kSquared) {  // the factors of dy * a may change places
      const Node& product = body.graph().node(chain.dact->inputs[0]);
      dy = body.input(product, 0), a = body.input(product, 1);
      if (chain.remade != nullptr && dy < 0) std::swap(dy, a);
      known = only_leave(body, {chain.core}) && (a >= 0) == (chain.remade == nullptr);
    } else {
      const int first[2] = {body.input(*chain.dact, 0), body.input(*chain.dact, 1)};
      const int second[2] = {body.input(*chain.product, 0), body.input(*chain.product, 1)};
      const bool shared = first[0] == second[0] || first[0] == second[1];
      dy = shared ? first[0] : first[1], up = shared ? first[1] : first[0];
      a = second[0] == dy ? second[1] : second[0];
      da = body.result(chain.dact), dup = body.result(chain.product), a_out = body.result(chain.remade);
      known = up >= 0 && (a >= 0) == (chain.remade == nullptr);
    }
    known = known && x >= 0 && dy >= 0;
  }
  bool has_kernel() const { return known && has_activation_kernels(fixed.fn, fixed.form); }
  ActivationGradient of(const KernelArgs& args) const {
    ActivationGradient job = fixed;
    job.x = at(args.in, x), job.up = at(args.in, up), job.dy = at(args.in, dy), job.a = at(args.in, a);
    job.da = at(args.out, da), job.dx = at(args.out, dx), job.dup = at(args.out, dup);
    job.a_out = at(args.out, a_out);
    job.amax = at<float>(args.out, amax), job.amax_up = at<float>(args.out, amax_up);
    return job;
  }
};

bool has_quantize(const Chain& chain) {
  return chain.sinks[0].quantize != nullptr || chain.sinks[1].quantize != nullptr;
}
bool has_column_sum(const Chain& chain) {
  return chain.sinks[0].column_sum != nullptr || chain.sinks[1].column_sum != nullptr;
}

BoundKernel bind_gradient_pointwise(DeviceContext& context, const Fusion& fusion) {
  const Chain& chain = *fusion.chain;
  if (has_quantize(chain) || has_column_sum(chain)) return {};
  GradientPlaces places(fusion.body, chain);
  const bool amax = chain.sinks[0].amax != nullptr || chain.sinks[1].amax != nullptr;
  const bool takes = (amax ? places.fixed.dtype == DType::kBF16
                           : is_f32_or_bf16(places.fixed.dtype) && places.fixed.form != Form::kPlain) &&
                     matrices_are(fusion.body, places.fixed.dtype) && places.has_kernel();
  if (!takes) return {};
  places.fixed.counters = context.counters(), places.fixed.sm_count = context.sm_count();
  return [places](const KernelArgs& args) { launch_activation_grad_pointwise(places.of(args), args.stream); };
}

bool takes_gradient_tiles(const FusionBody& body, const Chain& chain, const GradientPlaces& places) {
  const TensorType& type = chain.core->results[0];
  const Node *one = chain.sinks[0].quantize, *two = chain.sinks[1].quantize;
  if (!places.has_kernel() || !takes_tiles(body, type, true, one)) return false;
  if (places.fixed.form != Form::kGated) return one != nullptr || chain.sinks[0].column_sum != nullptr;
  const auto grouping = [](const Node& quantize) { return quantize.attr<std::string>("scaling"); };
  return one != nullptr && two != nullptr && !has_column_sum(chain) && only_leave(body, {}) &&
         takes_tiles(body, type, true, two) && grouping(*one) == grouping(*two);
}

BoundKernel bind_gradient_tiles(DeviceContext&, const Fusion& fusion) {
  const Chain& chain = *fusion.chain;
  const GradientPlaces places(fusion.body, chain);
  if (!takes_gradient_tiles(fusion.body, chain, places)) return {};
  const TensorType& type = chain.core->results[0];
  const EndPlaces dx(fusion.body, chain.sinks[0], type), dup(fusion.body, chain.sinks[1], type);
  const auto run = [=](const KernelArgs& args) {
    launch_activation_grad_tiles(places.of(args), dx.of(args), dup.of(args), args.stream);
  };
  return {run, sums_workspace(fusion.body, chain.sinks[0])};
}

// --- plain: a gradient's column sums with its codes or amax

BoundKernel bind_plain_tiles(DeviceContext& context, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Sinks& sinks = fusion.chain->sinks[0];
  if (fusion.chain->scale != nullptr || sinks.column_sum == nullptr) return {};
  const TensorType& matrix = body.graph().type(fusion.chain->result);
  if (matrix.shape.rank() != 2 || !takes_tiles(body, matrix, true, sinks.quantize)) return {};
  const int x = body.input(*sinks.column_sum, 0);
  const EndPlaces end(body, sinks, matrix);
  const auto run = [=, counters = context.counters()](const KernelArgs& args) {
    launch_plain_tiles(at(args.in, x), end.of(args), counters, args.stream);
  };
  return {run, sums_workspace(body, sinks)};
}

constexpr KernelEntry kKernels[] = {
    {{Producer::kActivation, Producer::kGated}, "activation_pointwise", bind_forward_pointwise},
    {{Producer::kActivation, Producer::kGated}, "activation_tiles", bind_forward_tiles},
    {{Producer::kActivation, Producer::kGated}, "activation_rows", bind_forward_rows},
    {{Producer::kActivationGrad, Producer::kGatedGrad}, "activation_grad_pointwise", bind_gradient_pointwise},
    {{Producer::kActivationGrad, Producer::kGatedGrad}, "activation_grad_tiles", bind_gradient_tiles},
    {{Producer::kPlain}, "plain_tiles", bind_plain_tiles},
};

}  // namespace

std::span<const KernelEntry> activation_kernels() { return kKernels; }

}  // namespace octet::cuda
