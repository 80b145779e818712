// Kernels of the optimisers' updates, alone and in groups, of the sum of squares and the clip factor.
#include <algorithm>
#include <array>
#include <optional>

#include "base/integers.h"
#include "ir/facts.h"
#include "kernels/common/parts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

bool takes_update(const Graph& graph, const Node& node) { return is_f32_or_bf16(graph.dtype(node.inputs[1])); }

UpdateTable step_of(const Node& node) {
  UpdateTable table;
  table.beta1 = node.attrs.get_or<double>("beta1", node.attrs.get_or<double>("momentum", 0));
  table.beta2 = node.attrs.get_or<double>("beta2", 0), table.eps = node.attrs.get_or<double>("eps", 0);
  table.nesterov = node.attrs.get_or<bool>("nesterov", false);
  table.rate_inside = node.attrs.get_or<bool>("rate_inside", false);
  return table;
}

// Where an update's operands are among the node's inputs and results; -1: absent.
struct Member {
  int param, grad, lr = -1, m, v = -1, new_param, new_m, new_v = -1, copy = -1, amax = -1;
  int64_t count;
  double weight_decay;
  bool grad_bf16;
};

Member member_of(const FusionBody& body, const Node& update) {
  const OpFacts& facts = op_facts(update.op);
  const auto moment = static_cast<size_t>(facts.first_moment);
  Member member{.param = body.input(update, 0),
                .grad = body.input(update, 1),
                .m = body.input(update, moment),
                .new_param = body.result(update, 0),
                .new_m = body.result(update, 1),
                .count = update.results[0].shape.elements(),
                .weight_decay = update.attrs.get<double>("weight_decay"),
                .grad_bf16 = body.graph().dtype(update.inputs[1]) == DType::kBF16};
  if (facts.scalars == 4) member.lr = body.input(update, static_cast<size_t>(facts.first_scalar));
  if (facts.moments == 2) member.v = body.input(update, moment + 1), member.new_v = body.result(update, 2);
  return member;
}

BoundKernel bind_members(const FusionBody& body, const Node& first, std::vector<Member> members) {
  std::array<int, 3> scalars;  // step, clip, finite
  const OpFacts& facts = op_facts(first.op);
  for (size_t i = 0; i < 3; ++i)
    scalars[i] = body.input(first, static_cast<size_t>(facts.first_scalar + facts.scalars - 3) + i);
  auto run = [op = first.op, step = step_of(first), members = std::move(members),
              scalars](const KernelArgs& args) mutable {
    const auto in = [&](int i) { return at<const float>(args.in, i); };
    const auto out = [&](int i) { return at<float>(args.out, i); };
    step.count = 0;
    for (const Member& m : members) {
      step.entries[step.count++] = {.param = in(m.param),
                                    .m = in(m.m),
                                    .v = in(m.v),
                                    .grad = in(m.grad),
                                    .new_param = out(m.new_param),
                                    .new_m = out(m.new_m),
                                    .new_v = out(m.new_v),
                                    .copy = out(m.copy),
                                    .amax = out(m.amax),
                                    .lr = in(m.lr),
                                    .count = m.count,
                                    .weight_decay = m.weight_decay,
                                    .grad_bf16 = m.grad_bf16};
    }
    step.step = in(scalars[0]), step.clip = in(scalars[1]), step.finite = in(scalars[2]);
    switch (op) {
      case Op::kSgd: return launch_sgd(step, args.stream);
      case Op::kAdamDirection: return launch_adam_direction(step, args.stream);
      default: return launch_adamw(step, args.stream);
    }
  };
  return run;
}

BoundKernel bind_update(DeviceContext&, const Graph& graph, const Node& node) {
  const FusionBody body(graph, node);
  return takes_update(graph, node) ? bind_members(body, node, {member_of(body, node)}) : BoundKernel();
}

// --- groups (passes/group_updates.h): several parameters, with casts and amaxes of what they become

bool reads_new_param(const Graph& body, const Node& reader) {
  const bool copy = reader.op == Op::kCast && reader.results[0].dtype == DType::kBF16;
  return (copy || is_amax(reader)) && reader.inputs[0].result == 0 &&
         is_optimizer_update(body.node(reader.inputs[0]).op);
}

BoundKernel bind_group(DeviceContext&, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  std::vector<Member> members;
  const Node* first = nullptr;
  for (const Node& update : body.graph().nodes()) {
    if (update.op == Op::kInput || reads_new_param(body.graph(), update)) continue;
    if (first == nullptr) first = &update;
    if (!is_optimizer_update(update.op) || update.op != first->op || !takes_update(body.graph(), update) ||
        std::ssize(members) == kUpdateEntries)
      return {};
    Member& member = members.emplace_back(member_of(body, update));
    for (const Node& reader : body.graph().nodes()) {
      if (reader.op != Op::kCast && reader.op != Op::kReduce) continue;
      if (body.reads(reader, 0, update)) (reader.op == Op::kCast ? member.copy : member.amax) = body.result(reader, 0);
    }
  }
  return first != nullptr ? bind_members(body, *first, std::move(members)) : BoundKernel();
}

// --- norms and trust ratios, alone and in groups

// square_sums of a tensor each, whatever the body has beside their inputs.
BoundKernel bind_norms(const FusionBody& body, const std::vector<const Node*>& norms) {
  struct Norm {
    int x, sum;
    int64_t count;
    bool bf16;
  };
  std::vector<Norm> members;
  int64_t pieces = 0;
  for (const Node* norm : norms) {
    const TensorType& type = body.graph().type(norm->inputs[0]);
    if (!is_f32_or_bf16(type.dtype) || norm->inputs.size() != 1 || std::ssize(members) == kNormInputs) return {};
    const int64_t count = is_counted(*norm, 0) ? type.shape.elements() : 0;
    members.push_back({body.input(*norm, 0), body.result(*norm, 0), count, type.dtype == DType::kBF16});
    pieces += std::max<int64_t>(1, ceil_div(count, kSquarePiece));
  }
  const auto run = [members = std::move(members)](const KernelArgs& args) {
    NormTable table;
    for (const Norm& norm : members) {
      table.inputs[table.count] = {at<const void>(args.in, norm.x), norm.count, table.pieces, norm.bf16};
      table.sums[table.count++] = at<double>(args.out, norm.sum);
      table.pieces += static_cast<int32_t>(std::max<int64_t>(1, ceil_div(norm.count, kSquarePiece)));
    }
    launch_norms(table, reinterpret_cast<double*>(args.workspace.data()), args.stream);
  };
  return {run, pieces * int64_t{sizeof(double)}};
}

BoundKernel bind_ratios(const FusionBody& body, const std::vector<const Node*>& ratios) {
  struct Ratio {
    int params, updates, lr, clip = -1, rate;
    double weight_decay;
  };
  if (std::ssize(ratios) > kUpdateEntries) return {};
  std::vector<Ratio> members;
  for (const Node* ratio : ratios) {
    Ratio& member = members.emplace_back(Ratio{.params = body.input(*ratio, 0),
                                               .updates = body.input(*ratio, 1),
                                               .lr = body.input(*ratio, 2),
                                               .rate = body.result(*ratio, 0),
                                               .weight_decay = ratio->attr<double>("weight_decay")});
    if (ratio->operand("clip").exists()) member.clip = body.input(*ratio, 3);
  }
  return [members = std::move(members), coefficient = ratios[0]->attr<double>("coefficient"),
          eps = ratios[0]->attr<double>("eps")](const KernelArgs& args) {
    RatioTable table;
    table.coefficient = coefficient, table.eps = eps;
    for (const Ratio& m : members)
      table.entries[table.count++] = {.params = at<const double>(args.in, m.params),
                                      .updates = at<const double>(args.in, m.updates),
                                      .lr = at<const float>(args.in, m.lr),
                                      .clip = at<const float>(args.in, m.clip),
                                      .rate = at<float>(args.out, m.rate),
                                      .weight_decay = m.weight_decay};
    launch_trust_ratios(table, args.stream);
  };
}

BoundKernel bind_ratio(DeviceContext&, const Graph& graph, const Node& node) {
  return bind_ratios(FusionBody(graph, node), {&node});
}

// The members of a body that has none but of this op.
std::vector<const Node*> members_of(const FusionBody& body, Op op) {
  std::vector<const Node*> members;
  for (const Node& node : body.graph().nodes()) {
    if (node.op == Op::kInput) continue;
    if (node.op != op) return {};
    members.push_back(&node);
  }
  return members;
}

BoundKernel bind_norm_group(DeviceContext&, const Fusion& fusion) {
  const auto norms = members_of(fusion.body, Op::kSquareSum);
  return norms.empty() ? BoundKernel() : bind_norms(fusion.body, norms);
}

BoundKernel bind_ratio_group(DeviceContext&, const Fusion& fusion) {
  const auto ratios = members_of(fusion.body, Op::kTrustRatio);
  return ratios.empty() ? BoundKernel() : bind_ratios(fusion.body, ratios);
}

BoundKernel bind_squares(DeviceContext&, const Graph& graph, const Node& node) {
  if (!node.attr<bool>("stages") && node.inputs.size() == 1) return bind_norms(FusionBody(graph, node), {&node});
  if (!std::ranges::all_of(node.inputs, [&](Value v) { return is_f32_or_bf16(graph.dtype(v)); })) return {};
  const int64_t launches = (std::ssize(node.inputs) + kSquareInputs - 1) / kSquareInputs;
  std::vector<bool> counted;
  for (size_t i = 0; i < node.inputs.size(); ++i) counted.push_back(is_counted(node, i));
  const auto run = [launches, counted = std::move(counted)](const KernelArgs& args) {
    auto* partials = reinterpret_cast<double*>(args.workspace.data());
    for (int64_t launch = 0; launch < launches; ++launch) {
      const auto begin = static_cast<size_t>(launch * kSquareInputs);
      SquareTable table;
      for (size_t i = begin; i < std::min(begin + kSquareInputs, args.in.size()); ++i) {
        const Tensor& gradient = args.in[i];
        const int64_t count = gradient.elements();
        if (count == 0 || !counted[i]) continue;
        table.inputs[table.count++] = {gradient.data, count, table.pieces, gradient.dtype() == DType::kBF16};
        table.pieces += static_cast<int32_t>(ceil_div(count, kSquarePiece));
      }
      launch_square_partials(table, partials + launch * kSquareBlocks, args.stream);
    }
    launch_square_join(partials, launches, args.out[0].as<double>(), args.stream);
  };
  return {run, launches * kSquareBlocks * int64_t{sizeof(double)}};
}

BoundKernel bind_clip(DeviceContext&, const Graph&, const Node& node) {
  return [max_norm = node.attr<double>("max_norm")](const KernelArgs& args) {
    launch_clip_factor(args.in[0].as<const double>(), max_norm, args.out[0].as<float>(), args.out[1].as<float>(),
                       args.out[2].as<float>(), args.stream);
  };
}

constexpr KernelEntry kKernels[] = {
    {Op::kAdamw, "adamw", bind_update},
    {Op::kSgd, "sgd", bind_update},
    {Op::kAdamDirection, "adam_direction", bind_update},
    {Op::kTrustRatio, "trust_ratio", bind_ratio},
    {{Producer::kUpdate}, "update_group", bind_group},
    {{Producer::kUpdate}, "norm_group", bind_norm_group},
    {{Producer::kUpdate}, "trust_ratio_group", bind_ratio_group},
    {Op::kSquareSum, "square_sum_pieces", bind_squares},
    {Op::kClipFactor, "clip_factor", bind_clip},
};

}  // namespace

std::span<const KernelEntry> optimiser_kernels() { return kKernels; }

}  // namespace octet::cuda
