// rope, alone, with its amax, and with the scatter_rowss of a layer's keys and values. Frequencies are computed when a
// node is bound and live on the device as long as its kernel.
#include "ir/facts.h"
#include "kernels/common/rope_frequencies.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/position/rope.h"

namespace octet::cuda {
namespace {

std::shared_ptr<const double> upload(DeviceContext& context, const std::vector<double>& values) {
  if (!context.has_device()) return nullptr;
  void* data = nullptr;
  const size_t bytes = values.size() * sizeof(double);
  check_cuda(cudaMalloc(&data, bytes), "allocating the frequencies of rope");
  std::shared_ptr<const double> owner(static_cast<const double*>(data),
                                      [](const double* p) { cudaFree(const_cast<double*>(p)); });
  check_cuda(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice), "uploading the frequencies of rope");
  return owner;
}

struct BoundRope {
  RopePlan plan;
  std::shared_ptr<const double> frequencies;  // owner of plan.frequencies
};

// Computes the frequencies and uploads them.
BoundRope rope_of_node(DeviceContext& context, const Node& node) {
  const std::vector<double> values = rope_frequencies(node);
  BoundRope rope{.plan = {}, .frequencies = upload(context, values)};
  rope.plan.tokens = static_cast<int>(node.results[0].shape.rows());
  rope.plan.heads = static_cast<int>(node.attrs.get<int64_t>("heads"));
  rope.plan.dim = static_cast<int>(node.attrs.get<int64_t>("head_dim"));
  rope.plan.pairs = static_cast<int>(values.size());
  rope.plan.interleaved = node.attr<bool>("interleaved");
  rope.plan.sign = node.attr<bool>("inverse") ? -1.0f : 1.0f;
  rope.plan.factor = static_cast<float>(node.attr<double>("attention_factor"));
  rope.plan.frequencies = rope.frequencies.get();
  return rope;
}

BoundKernel bind_rope(DeviceContext& context, const FusionBody& body, const Node& node, const Node* reduce) {
  const TensorType& type = node.results[0];
  if (!is_wide_float(type.dtype)) return {};
  const auto x = static_cast<size_t>(body.input(node, 0)), positions = static_cast<size_t>(body.input(node, 1));
  const int y = body.result(node, 0), amax = body.result(reduce);
  const auto run = [=, sm_count = context.sm_count(), rope = rope_of_node(context, node),
                    dtype = type.dtype](const KernelArgs& args) {
    launch_rope(dtype, rope.plan, args.in[x].data, args.in[positions].as<const int32_t>(), at(args.out, y),
                at<float>(args.out, amax), reinterpret_cast<uint32_t*>(args.workspace.data()), sm_count, args.stream);
  };
  return {run, reduce == nullptr ? 0 : type.shape.rows() * int64_t{sizeof(uint32_t)}};
}

BoundKernel bind(DeviceContext& context, const Graph& graph, const Node& node) {
  return bind_rope(context, {graph, node}, node, nullptr);
}

BoundKernel bind_amax(DeviceContext& context, const Fusion& fusion) {
  const Sinks& sinks = fusion.chain->sinks[0];
  if (sinks.amax == nullptr || sinks.quantize != nullptr || sinks.column_sum != nullptr) return {};
  return bind_rope(context, fusion.body, *fusion.chain->core, sinks.amax);
}

// --- the scatter_rowss of a layer's keys and values as one kernel, with the ropes of queries and keys before them or
// without
// The members: of two scatter_rowss the first is that of the keys, which a rope may make; of two ropes the other is
// that of the queries.
struct Members {
  const Node *rope_q = nullptr, *rope_k = nullptr, *append_k = nullptr, *append_v = nullptr;
  const Node *norm_q = nullptr, *norm_k = nullptr;  // of their heads, between reshapes
  bool known = true;                                // there are no others

  explicit Members(const FusionBody& body) {
    std::vector<const Node*> ropes;
    size_t norms = 0, reshapes = 0;
    for (const Node& node : body.graph().nodes()) {
      if (node.op == Op::kRope) {
        ropes.push_back(&node);
      } else if (is_scatter(node.op)) {
        known &= append_v == nullptr;
        (append_k == nullptr ? append_k : append_v) = &node;
      } else if (node.op == Op::kRmsNorm) {
        ++norms;
      } else if (node.op == Op::kReshape) {
        ++reshapes;
      } else if (node.op != Op::kInput && node.op != Op::kSlice) {
        known = false;
      }
    }
    known &= append_v != nullptr && (ropes.empty() || ropes.size() == 2);
    if (!known || ropes.empty()) return;
    const bool second = body.reads(*append_k, 1, *ropes[1]);
    rope_k = ropes[second ? 1 : 0], rope_q = ropes[second ? 0 : 1];
    known = body.reads(*append_k, 1, *rope_k);
    norm_q = norm_of(body, *rope_q), norm_k = norm_of(body, *rope_k);
    known &= (norm_q != nullptr) == (norm_k != nullptr);
    known &= norms == (norm_q != nullptr ? 2u : 0u) && reshapes == 2 * norms;
  }
  static const Node* norm_of(const FusionBody& body, const Node& rope) {
    const Node& reshape = body.graph().node(rope.inputs[0]);
    if (reshape.op != Op::kReshape) return nullptr;
    const Node& norm = body.graph().node(reshape.inputs[0]);
    return norm.op == Op::kRmsNorm && body.graph().node(norm.inputs[0]).op == Op::kReshape ? &norm : nullptr;
  }
  // Where the rows that a rope turns begin.
  static FusionBody::Columns rows(const FusionBody& body, const Node& rope, const Node* norm) {
    return norm == nullptr ? body.columns(rope, 0) : body.columns(body.graph().node(norm->inputs[0]), 0);
  }
};

// Where an operand of KernelArgs stands, -1: absent.
struct Append {
  FusionBody::Columns rows;
  int cache, slots, scale, result;  // scale: of scatter_codes the scales of all slots, which result 1 becomes
  int scales_result = -1;

  Append(const FusionBody& body, const Node& member)
      : rows(body.columns(member, 1)),
        cache(body.input(member, 0)),
        slots(body.input(member, 2)),
        scale(body.input(member, 3)),
        result(body.result(member, 0)),
        codes(member.op == Op::kScatterCodes) {
    if (codes) scales_result = body.result(member, 1);
  }

  const float* factor(const KernelArgs& args) const {
    return scale < 0 || codes ? nullptr : args.in[static_cast<size_t>(scale)].as<const float>();
  }
  // The cache that is written, null when unused; first a copy of the old one unless it aliases it.
  void* made(const KernelArgs& args) const { return made(args, cache, result); }
  float* scale_inv(const KernelArgs& args) const { return static_cast<float*>(made(args, scale, scales_result)); }

 private:
  static void* made(const KernelArgs& args, int input, int output) {
    if (output < 0) return nullptr;  // there may be no such input either
    const Tensor& to = args.out[static_cast<size_t>(output)];
    copy_tensor(args.in[static_cast<size_t>(input)], to, args.stream);
    return to.data;
  }
  bool codes;
};

// Of a row, what shares a scale: all of it where there is one of all or none.
int group_width(const Node& append) {
  const int64_t groups = append.op == Op::kScatterCodes ? append.results[1].shape.cols() : 1;
  return static_cast<int>(append.results[0].shape.cols() / groups);
}

bool takes_append(const FusionBody& body, const Members& members) {
  if (!members.known) return false;
  const Node *q = members.rope_q, *k = members.rope_k;
  const Node &append_k = *members.append_k, &append_v = *members.append_v;
  const TensorType& cache = append_k.results[0];
  const int head = group_width(append_k);
  const auto is_bf16 = [&](Value rows) { return body.graph().dtype(rows) == DType::kBF16; };
  bool fits = append_v.results == append_k.results && (cache.dtype == DType::kBF16 || is_code(cache.dtype)) &&
              is_bf16(append_k.inputs[1]) && is_bf16(append_v.inputs[1]);
  if (k == nullptr) return fits && rope_scatter_rows_fits(0, head, cache.dtype);
  const int64_t dim = k->attrs.get<int64_t>("head_dim"), rotary = k->attrs.get_or<int64_t>("rotary_dim", dim);
  for (const Node* norm : {members.norm_q, members.norm_k}) {
    if (norm == nullptr) continue;
    const TensorType weight = body.graph().type(norm->inputs[1]);
    fits &= weight.dtype == DType::kF32 && weight.shape.elements() == dim &&
            norm->attr<double>("eps") == members.norm_q->attr<double>("eps") &&
            rope_head_norm_fits(static_cast<int>(rotary / 2), static_cast<int>(dim), k->attr<bool>("interleaved"));
  }
  return fits && is_bf16(q->inputs[0]) && is_bf16(k->inputs[0]) && body.result(*k, 0) < 0 &&
         (cache.dtype != DType::kI8 || head == dim) &&
         rope_scatter_rows_fits(static_cast<int>(rotary / 2), static_cast<int>(dim), cache.dtype);
}

BoundKernel bind_append(DeviceContext& context, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Members members(body);
  if (!takes_append(body, members)) return {};
  const Node *rope_q = members.rope_q, *rope_k = members.rope_k;
  const Append k(body, *members.append_k), v(body, *members.append_v);
  const TensorType& cache = members.append_k->results[0];
  BoundRope rope;
  RopeAppendPlan plan{.kv_heads = 1, .slots = cache.shape.rows(), .cache = cache.dtype};
  if (rope_q != nullptr) {
    rope = rope_of_node(context, *rope_q);
    plan.rope = rope.plan;
    plan.kv_heads = static_cast<int>(rope_k->attrs.get<int64_t>("heads"));
  } else {
    plan.rope.tokens = static_cast<int>(body.graph().shape(members.append_k->inputs[2]).elements());
    plan.rope.dim = group_width(*members.append_k);
    plan.kv_heads = static_cast<int>(cache.shape.cols()) / plan.rope.dim;
  }
  const Node *norm_q = members.norm_q, *norm_k = members.norm_k;
  const FusionBody::Columns k_rows = rope_k != nullptr ? Members::rows(body, *rope_k, norm_k) : k.rows;
  const FusionBody::Columns q_rows = rope_q != nullptr ? Members::rows(body, *rope_q, norm_q) : FusionBody::Columns{};
  const int q_norm = norm_q != nullptr ? body.input(*norm_q, 1) : -1;
  const int k_norm = norm_k != nullptr ? body.input(*norm_k, 1) : -1;
  if (norm_q != nullptr) plan.eps = static_cast<float>(norm_q->attr<double>("eps"));
  plan.q_stride = q_rows.stride, plan.k_stride = k_rows.stride, plan.v_stride = v.rows.stride;
  const int positions = rope_q != nullptr ? body.input(*rope_q, 1) : -1;
  const int turned = rope_q != nullptr ? body.result(*rope_q, 0) : -1;
  return [=, owner = rope.frequencies, sm_count = context.sm_count()](const KernelArgs& args) {
    const RopeAppendOperands operands{.q = q_rows.in(args.in),
                                      .k = k_rows.in(args.in),
                                      .v = v.rows.in(args.in),
                                      .q_out = at(args.out, turned),
                                      .k_cache = k.made(args),
                                      .v_cache = v.made(args),
                                      .positions = static_cast<const int32_t*>(at(args.in, positions)),
                                      .slots = static_cast<const int32_t*>(at(args.in, k.slots)),
                                      .k_scale = k.factor(args),
                                      .v_scale = v.factor(args),
                                      .k_scale_inv = k.scale_inv(args),
                                      .v_scale_inv = v.scale_inv(args),
                                      .q_norm = at<float>(args.in, q_norm),
                                      .k_norm = at<float>(args.in, k_norm)};
    launch_rope_scatter_rows(plan, operands, sm_count, args.stream);
  };
}

constexpr KernelEntry kKernels[] = {{Op::kRope, "rope_rows", bind},
                                    {{Producer::kRope}, "rope_amax", bind_amax},
                                    {{Producer::kScatterRows}, "rope_scatter_rows", bind_append}};

}  // namespace

std::span<const KernelEntry> position_kernels() { return kKernels; }

}  // namespace octet::cuda
