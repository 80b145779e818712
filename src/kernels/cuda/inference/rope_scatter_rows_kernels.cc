// The scatter_rowss of a layer's keys and values as one kernel, with the ropes of queries and keys before them or
// without.
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/inference/rope_scatter_rows.h"
#include "kernels/cuda/position/rope_of_node.h"

namespace octet::cuda {
namespace {

// The members: of two scatter_rowss the first is that of the keys, which a rope may make; of two ropes the other is
// that of the queries.
struct Members {
  const Node *rope_q = nullptr, *rope_k = nullptr, *append_k = nullptr, *append_v = nullptr;
  bool known = true;  // there are no others

  explicit Members(const FusionBody& body) {
    std::vector<const Node*> ropes;
    for (const Node& node : body.graph().nodes()) {
      if (node.op == Op::kRope) {
        ropes.push_back(&node);
      } else if (node.op == Op::kScatterRows) {
        known &= append_v == nullptr;
        (append_k == nullptr ? append_k : append_v) = &node;
      } else if (node.op != Op::kInput && node.op != Op::kSlice) {
        known = false;
      }
    }
    known &= append_v != nullptr && (ropes.empty() || ropes.size() == 2);
    if (!known || ropes.empty()) return;
    const bool second = body.reads(*append_k, 1, *ropes[1]);
    rope_k = ropes[second ? 1 : 0], rope_q = ropes[second ? 0 : 1];
    known = body.reads(*append_k, 1, *rope_k);
  }
};

// Where an operand of KernelArgs stands, -1: absent.
struct Append {
  FusionBody::Columns rows;
  int cache, slots, scale, result;

  Append(const FusionBody& body, const Node& member)
      : rows(body.columns(member, 1)),
        cache(body.input(member, 0)),
        slots(body.input(member, 2)),
        scale(body.input(member, 3)),
        result(body.result(member, 0)) {}

  const float* factor(const KernelArgs& args) const {
    return scale < 0 ? nullptr : args.in[static_cast<size_t>(scale)].as<const float>();
  }
  // The cache that is written, null when unused; first a copy of the old one unless it aliases it.
  void* made(const KernelArgs& args) const {
    const Tensor from = args.in[static_cast<size_t>(cache)];
    const Tensor to = result < 0 ? Tensor{} : args.out[static_cast<size_t>(result)];
    if (to.data != nullptr && to.data != from.data) {
      check_cuda(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.type->bytes()), cudaMemcpyDeviceToDevice,
                                 args.stream),
                 "copying a cache");
    }
    return to.data;
  }
};

bool accepts(const Graph&, const Node& node) {
  const FusionBody body(node);
  const Members members(body);
  if (!members.known) return false;
  const Node *q = members.rope_q, *k = members.rope_k;
  const Node &append_k = *members.append_k, &append_v = *members.append_v;
  const TensorType& cache = append_k.results[0];
  const auto is_bf16 = [&](Value rows) { return body.graph().dtype(rows) == DType::kBF16; };
  bool fits = append_v.results[0] == cache && (cache.dtype == DType::kBF16 || is_fp8(cache.dtype)) &&
              is_bf16(append_k.inputs[1]) && is_bf16(append_v.inputs[1]);
  if (k == nullptr) return fits && rope_scatter_rows_fits(0, static_cast<int>(cache.shape.cols()));
  const int64_t dim = k->attrs.get<int64_t>("head_dim"), rotary = k->attrs.get_or<int64_t>("rotary_dim", dim);
  return fits && is_bf16(q->inputs[0]) && is_bf16(k->inputs[0]) && body.result(*k, 0) < 0 &&
         rope_scatter_rows_fits(static_cast<int>(rotary / 2), static_cast<int>(dim));
}

BoundKernel bind(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Members members(body);
  const Node *rope_q = members.rope_q, *rope_k = members.rope_k;
  const Append k(body, *members.append_k), v(body, *members.append_v);
  const TensorType& cache = members.append_k->results[0];
  BoundRope rope;
  RopeAppendPlan plan{.kv_heads = 1, .slots = cache.shape.rows(), .cache = cache.dtype};
  if (rope_q != nullptr) {
    rope = rope_of_node(*rope_q);
    plan.rope = rope.plan;
    plan.kv_heads = static_cast<int>(rope_k->attrs.get<int64_t>("heads"));
  } else {
    plan.rope.tokens = static_cast<int>(body.graph().shape(members.append_k->inputs[2]).elements());
    plan.rope.dim = static_cast<int>(cache.shape.cols());
  }
  const FusionBody::Columns k_rows = rope_k != nullptr ? body.columns(*rope_k, 0) : k.rows;
  const FusionBody::Columns q_rows = rope_q != nullptr ? body.columns(*rope_q, 0) : FusionBody::Columns{};
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
                                      .v_scale = v.factor(args)};
    launch_rope_scatter_rows(plan, operands, sm_count, args.stream);
  };
}

constexpr KernelEntry kKernels[] = {{Op::kFusion, "rope_scatter_rows", accepts, bind}};

}  // namespace

std::span<const KernelEntry> rope_scatter_rows_kernels() { return kKernels; }

}  // namespace octet::cuda
