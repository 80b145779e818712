// Rows of AdamW, of groups of it, of the sum of squares and the clip factor.
#include <algorithm>
#include <array>

#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

bool accepts_adamw(const Graph& graph, const Node& node) { return is_f32_or_bf16(graph.dtype(node.inputs[1])); }

AdamwTable step_of(const Node& node) {
  AdamwTable table;
  table.beta1 = node.attrs.get<double>("beta1"), table.beta2 = node.attrs.get<double>("beta2");
  table.eps = node.attrs.get<double>("eps");
  return table;
}

BoundKernel bind_adamw(DeviceContext&, const Graph& graph, const Node& node) {
  AdamwTable step = step_of(node);
  step.count = 1;
  step.entries[0].weight_decay = node.attrs.get<double>("weight_decay");
  step.entries[0].grad_bf16 = graph.dtype(node.inputs[1]) == DType::kBF16;
  step.entries[0].count = node.results[0].shape.elements();
  return [step](const KernelArgs& args) mutable {
    const auto in = [&](size_t i) { return args.in[i].as<const float>(); };
    AdamwEntry& e = step.entries[0];
    e.param = in(0), e.grad = args.in[1].data, e.m = in(2), e.v = in(3);
    e.new_param = args.out[0].as<float>(), e.new_m = args.out[1].as<float>(), e.new_v = args.out[2].as<float>();
    step.lr = in(4), step.step = in(5), step.clip = in(6), step.finite = in(7);
    launch_adamw(step, args.stream);
  };
}

// --- groups (passes/group_updates.h): several parameters, with casts and amaxes of what they become

// Where an entry's operands are among the fusion's inputs and results; -1: absent.
struct GroupMember {
  int param, grad, m, v, new_param, new_m, new_v, copy = -1, amax = -1;
  int64_t count;
  double weight_decay;
  bool grad_bf16;
};

bool reads_new_param(const Graph& body, const Node& reader) {
  const bool copy = reader.op == Op::kCast && reader.results[0].dtype == DType::kBF16;
  return (copy || is_amax(reader)) && reader.inputs[0].result == 0 && body.node(reader.inputs[0]).op == Op::kAdamw;
}

bool accepts_group(const Graph&, const Node& node) {
  int updates = 0;
  for (const Node& member : node.body->nodes()) {
    if (member.op == Op::kInput || reads_new_param(*node.body, member)) continue;
    if (member.op != Op::kAdamw || ++updates > kAdamwEntries || !accepts_adamw(*node.body, member)) return false;
  }
  return updates > 0;
}

std::vector<GroupMember> members_of(const FusionBody& body) {
  std::vector<GroupMember> members;
  for (const Node& node : body.graph().nodes()) {
    if (node.op != Op::kAdamw) continue;
    GroupMember member{.param = body.input(node, 0),
                       .grad = body.input(node, 1),
                       .m = body.input(node, 2),
                       .v = body.input(node, 3),
                       .new_param = body.result(node, 0),
                       .new_m = body.result(node, 1),
                       .new_v = body.result(node, 2),
                       .count = node.results[0].shape.elements(),
                       .weight_decay = node.attrs.get<double>("weight_decay"),
                       .grad_bf16 = body.graph().dtype(node.inputs[1]) == DType::kBF16};
    for (const Node& reader : body.graph().nodes()) {
      if (reader.op != Op::kCast && reader.op != Op::kReduce) continue;
      if (body.reads(reader, 0, node)) (reader.op == Op::kCast ? member.copy : member.amax) = body.result(reader, 0);
    }
    members.push_back(member);
  }
  return members;
}

BoundKernel bind_group(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const std::vector<Node>& nodes = body.graph().nodes();
  const Node& first = *std::find_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.op == Op::kAdamw; });
  const std::array<int, 4> scalars = {body.input(first, 4), body.input(first, 5), body.input(first, 6),
                                      body.input(first, 7)};
  return [step = step_of(first), members = members_of(body), scalars](const KernelArgs& args) mutable {
    const auto in = [&](int i) { return args.in[static_cast<size_t>(i)].as<const float>(); };
    const auto out = [&](int i) { return i < 0 ? nullptr : args.out[static_cast<size_t>(i)].as<float>(); };
    step.count = 0;
    for (const GroupMember& m : members) {
      step.entries[step.count++] = {.param = in(m.param),
                                    .m = in(m.m),
                                    .v = in(m.v),
                                    .grad = in(m.grad),
                                    .new_param = out(m.new_param),
                                    .new_m = out(m.new_m),
                                    .new_v = out(m.new_v),
                                    .copy = out(m.copy),
                                    .amax = out(m.amax),
                                    .count = m.count,
                                    .weight_decay = m.weight_decay,
                                    .grad_bf16 = m.grad_bf16};
    }
    step.lr = in(scalars[0]), step.step = in(scalars[1]), step.clip = in(scalars[2]), step.finite = in(scalars[3]);
    launch_adamw(step, args.stream);
  };
}

bool accepts_squares(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return is_f32_or_bf16(graph.dtype(v)); });
}

int64_t square_launches(const Node& node) {
  return (static_cast<int64_t>(node.inputs.size()) + kSquareInputs - 1) / kSquareInputs;
}

int64_t square_workspace(DeviceContext&, const Graph&, const Node& node) {
  return square_launches(node) * kSquareBlocks * static_cast<int64_t>(sizeof(double));
}

BoundKernel bind_squares(DeviceContext&, const Graph&, const Node& node) {
  return [launches = square_launches(node)](const KernelArgs& args) {
    auto* partials = reinterpret_cast<double*>(args.workspace.data());
    for (int64_t launch = 0; launch < launches; ++launch) {
      const auto begin = static_cast<size_t>(launch * kSquareInputs);
      SquareTable table;
      for (const Tensor& gradient : args.in.subspan(begin, std::min<size_t>(kSquareInputs, args.in.size() - begin))) {
        const int64_t count = gradient.elements();
        if (count == 0) continue;
        table.inputs[table.count++] = {gradient.data, count, table.pieces, gradient.dtype() == DType::kBF16};
        table.pieces += static_cast<int32_t>((count + kSquarePiece - 1) / kSquarePiece);
      }
      launch_square_partials(table, partials + launch * kSquareBlocks, args.stream);
    }
    launch_square_join(partials, launches, args.out[0].as<double>(), args.stream);
  };
}

bool accepts_clip(const Graph&, const Node&) { return true; }

BoundKernel bind_clip(DeviceContext&, const Graph&, const Node& node) {
  return [max_norm = node.attrs.get_or<double>("max_norm", 0.0)](const KernelArgs& args) {
    launch_clip_factor(args.in[0].as<const double>(), max_norm, args.out[0].as<float>(), args.out[1].as<float>(),
                       args.out[2].as<float>(), args.stream);
  };
}

constexpr KernelEntry kKernels[] = {
    {Op::kAdamw, "adamw", accepts_adamw, bind_adamw},
    {Op::kFusion, "adamw_group", accepts_group, bind_group},
    {Op::kSquareSum, "square_sum_pieces", accepts_squares, bind_squares, square_workspace},
    {Op::kClipFactor, "clip_factor", accepts_clip, bind_clip},
};

}  // namespace

std::span<const KernelEntry> optimiser_kernels() { return kKernels; }

}  // namespace octet::cuda
