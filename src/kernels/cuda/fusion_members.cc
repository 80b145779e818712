// The fallback for fusions without a kernel of their own (columns that are no multiple of eight, scalings that are not
// fused): their members one after the other, each by its own kernel, intermediate values in the workspace.
#include <algorithm>

#include "ir/facts.h"
#include "kernels/cuda/families.h"

namespace octet::cuda {
namespace {

struct Operand {
  enum class From : uint8_t { kAbsent, kInput, kResult, kWorkspace } from = From::kAbsent;
  size_t index = 0;       // of kInput and kResult
  int64_t offset = 0;     // of kWorkspace
  bool in_place = false;  // a result that aliases an input
  const TensorType* type = nullptr;

  Tensor of(const KernelArgs& args) const {
    switch (from) {
      case From::kInput: return {args.in[index].data, type};
      case From::kResult: return {args.out[index].data, type};
      case From::kWorkspace: return {args.workspace.data() + offset, type};
      case From::kAbsent: break;
    }
    return {nullptr, type};
  }
};

struct Step {
  BoundKernel kernel;
  std::vector<Operand> in, out;
};

// Where every value of the body is stored. An unused result of the fusion (null) that a member reads has a place in the
// workspace as well. A result that aliases an input (a cache) has none: no member reads it, and where it is unused the
// input stays unchanged.
struct Layout {
  std::vector<std::vector<Operand>> values;  // by node of the body and result
  int64_t bytes = 0;                         // of the values; scratch of the members follows

  explicit Layout(const Node& fusion) {
    const Graph& body = *fusion.body;
    const auto uses = body.count_uses();
    size_t leaves = 0;
    for (int32_t i = 0; i < body.size(); ++i) {
      const Node& node = body.node(NodeId{i});
      values.emplace_back();
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
        const TensorType* type = &node.results[static_cast<size_t>(r)];
        Operand operand{.type = type};
        if (node.op == Op::kInput) {
          operand.from = Operand::From::kInput, operand.index = leaves++;
        } else if (uses[static_cast<size_t>(i)][static_cast<size_t>(r)] > 0) {
          const auto output = std::find_if(body.outputs().begin(), body.outputs().end(), [&](const NamedValue& named) {
            return named.value == Value{NodeId{i}, r};
          });
          operand.from = Operand::From::kWorkspace;
          if (output != body.outputs().end()) {
            operand.from = Operand::From::kResult;
            operand.index = static_cast<size_t>(output - body.outputs().begin());
            operand.in_place = must_alias(fusion, static_cast<int>(operand.index)) >= 0;
          }
          operand.offset = bytes;
          if (!operand.in_place) bytes += aligned(type->bytes());
        }
        values.back().push_back(operand);
      }
    }
  }
};

BoundKernel bind(DeviceContext& context, const Graph& graph, const Node& node) {
  const std::shared_ptr<const Graph> body = node.body;
  const Layout layout(node);
  int64_t most = 0;  // of the members' scratch
  std::vector<Step> steps;
  for (int32_t i = 0; i < body->size(); ++i) {
    const Node& member = body->node(NodeId{i});
    if (member.op == Op::kInput) continue;
    if (member.op == Op::kFusion) return {};
    Step step{.kernel = find_kernel(context, *body, member).kernel};
    if (!step.kernel) return {};
    most = std::max(most, step.kernel.workspace);
    for (Value v : member.inputs) {
      Operand& operand = step.in.emplace_back();
      if (!v.exists()) continue;
      operand = layout.values[static_cast<size_t>(index(v.node))][static_cast<size_t>(v.result)];
      if (operand.in_place) return {};  // has no place that a member could read
    }
    step.out = layout.values[static_cast<size_t>(i)];
    steps.push_back(std::move(step));
  }
  const auto run = [body, steps, scratch = static_cast<size_t>(layout.bytes)](const KernelArgs& args) {
    const auto place = [&](const Operand& operand) {
      Tensor tensor = operand.of(args);
      if (operand.from == Operand::From::kResult && tensor.data == nullptr && !operand.in_place) {
        tensor.data = args.workspace.data() + operand.offset;
      }
      return tensor;
    };
    std::vector<Tensor> in, out;
    for (const Step& step : steps) {
      in.clear(), out.clear();
      for (const Operand& operand : step.in) in.push_back(place(operand));
      for (const Operand& operand : step.out) out.push_back(place(operand));
      const bool unwanted = std::all_of(out.begin(), out.end(), [](const Tensor& t) { return t.data == nullptr; });
      if (!unwanted) step.kernel({in, out, args.workspace.subspan(scratch), args.stream});
    }
  };
  return {run, layout.bytes + most};
}

constexpr KernelEntry kKernels[] = {{Op::kFusion, "fusion_members", bind}};

}  // namespace

std::span<const KernelEntry> fusion_member_kernels() { return kKernels; }

}  // namespace octet::cuda
