// Rows of the gelu and swiglu fusions. A body is read once, when binding: its leaves and results become indices of the
// node's inputs and results. What the kernels do not take runs member by member.
#include <algorithm>
#include <array>

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/members.h"

namespace octet::cuda {
namespace {

constexpr const char* kKinds[] = {"bias_gelu_quantize", "bias_gelu_amax", "bias_gelu", "gelu_quantize",
                                  "swiglu_quantize",    "swiglu_amax",    "swiglu",    "swiglu_grad",
                                  "gelu_grad_bias"};

std::string_view kind_of(const Node& node) { return node.attrs.get<std::string>("kind"); }
bool is_kind(const Node& node, std::initializer_list<const char*> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&](const char* kind) { return kind_of(node) == kind; });
}

class Body {
 public:
  explicit Body(const Node& fusion) : graph_(*fusion.body) {}

  bool has(const char* member) const { return find(member) != NodeId::kNone; }
  const Node& member(const char* name) const { return graph_.node(find(name)); }
  // The fusion's input that is operand i of a member; -1: made inside.
  int operand(const char* name, size_t i) const { return leaf(member(name).inputs[i]); }
  // The operand of a product that is not result 0 of `inside` and not input `taken`.
  int factor(const char* name, const char* inside, int taken = -1) const {
    const Node& product = member(name);
    const Value made = has(inside) ? Value{find(inside), 0} : Value::none();
    const bool second = product.inputs[0] == made || (taken >= 0 && leaf(product.inputs[0]) == taken);
    return leaf(product.inputs[second ? 1 : 0]);
  }
  // The fusion's result that is this result of a member; -1: nobody outside reads it.
  int result(const char* name, int32_t r = 0) const {
    if (!has(name)) return -1;
    const Value value{find(name), r};
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (graph_.outputs()[i].value == value) return static_cast<int>(i);
    }
    return -1;
  }
  DType dtype(const char* name) const { return member(name).results[0].dtype; }
  const Shape& shape(const char* name) const { return member(name).results[0].shape; }

  // Every tensor of the body but vectors and codes is of this type.
  bool matrices_are(DType dtype) const {
    return std::all_of(graph_.nodes().begin(), graph_.nodes().end(), [&](const Node& node) {
      const TensorType& type = node.results[0];
      return type.shape.rank() < 2 || is_fp8(type.dtype) || type.dtype == dtype;
    });
  }

 private:
  NodeId find(const char* name) const {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (node.op != Op::kInput && node.name == name) return NodeId{i};
    }
    return NodeId::kNone;
  }
  int leaf(Value value) const {
    int leaves = 0;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (graph_.node(NodeId{i}).op != Op::kInput) continue;
      if (value == Value{NodeId{i}, 0}) return leaves;
      ++leaves;
    }
    return -1;
  }
  const Graph& graph_;
};

void* at(std::span<const Tensor> tensors, int i) { return i >= 0 ? tensors[static_cast<size_t>(i)].data : nullptr; }

bool is_f32_or_bf16(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }
bool in_16_bytes(const Shape& shape, DType dtype) { return shape.cols() * dtype_bytes(dtype) % 16 == 0; }
bool tanh_form(const Node& gelu) { return gelu.attrs.get<bool>("approximate"); }

// --- bias_gelu, bias_gelu_amax

bool accepts_bias_gelu(const Graph& graph, const Node& node) {
  if (!is_kind(node, {"bias_gelu", "bias_gelu_amax"})) return false;
  const Body body(node);
  const DType dtype = body.dtype("gelu");
  const int bias = body.operand("bias", 1);
  if (bias < 0 || !is_f32_or_bf16(dtype) || !body.matrices_are(dtype) || !in_16_bytes(body.shape("gelu"), dtype))
    return false;
  const DType bias_type = graph.dtype(node.inputs[static_cast<size_t>(bias)]);
  return bias_type == dtype || (bias_type == DType::kF32 && dtype == DType::kBF16);
}

BoundKernel bind_bias_gelu(DeviceContext&, const Graph& graph, const Node& node) {
  const Body body(node);
  const int x = body.operand("bias", 0), bias = body.operand("bias", 1);
  const int biased = body.result("bias"), y = body.result("gelu"), amax = body.result("amax");
  BiasGelu job{};
  job.tanh_form = tanh_form(body.member("gelu"));
  job.dtype = body.dtype("gelu");
  job.bias_type = graph.dtype(node.inputs[static_cast<size_t>(bias)]);
  job.rows = body.shape("gelu").rows(), job.cols = body.shape("gelu").cols();
  return [=](const KernelArgs& args) mutable {
    job.x = at(args.in, x), job.bias = at(args.in, bias);
    job.biased = at(args.out, biased), job.y = at(args.out, y), job.amax = static_cast<float*>(at(args.out, amax));
    launch_bias_gelu(job, args.stream);
  };
}

// --- swiglu, swiglu_amax

bool accepts_swiglu(const Graph&, const Node& node) {
  if (!is_kind(node, {"swiglu", "swiglu_amax"})) return false;
  const Body body(node);
  const DType dtype = body.dtype("mul");
  return is_f32_or_bf16(dtype) && body.matrices_are(dtype) && body.factor("mul", "silu") >= 0;
}

BoundKernel bind_swiglu(DeviceContext&, const Graph&, const Node& node) {
  const Body body(node);
  const int gate = body.operand("silu", 0), up = body.factor("mul", "silu");
  const int silu = body.result("silu"), y = body.result("mul"), amax = body.result("amax");
  Swiglu job{};
  job.dtype = body.dtype("mul");
  job.rows = body.shape("mul").rows(), job.cols = body.shape("mul").cols();
  return [=](const KernelArgs& args) mutable {
    job.gate = at(args.in, gate), job.up = at(args.in, up);
    job.silu = at(args.out, silu), job.y = at(args.out, y), job.amax = static_cast<float*>(at(args.out, amax));
    launch_swiglu(job, args.stream);
  };
}

// --- swiglu_grad

struct SwigluGradPlaces {
  int gate, up, dy, silu;                // silu -1: made again
  int dsilu, dgate, dup, silu_out;
  explicit SwigluGradPlaces(const Body& body) {
    gate = body.operand("dgate", 0);
    const bool again = body.has("silu");
    // dy is the factor that both products have.
    const int a = body.operand("dsilu", 0), b = body.operand("dsilu", 1);
    const int c = body.operand("dup", 0), d = body.operand("dup", 1);
    dy = a == c || a == d ? a : b;
    up = dy == a ? b : a;
    silu = again ? -1 : (c == dy ? d : c);
    dsilu = body.result("dsilu"), dgate = body.result("dgate"), dup = body.result("dup");
    silu_out = body.result("silu");
  }
};

bool accepts_swiglu_grad(const Graph&, const Node& node) {
  if (!is_kind(node, {"swiglu_grad"})) return false;
  const Body body(node);
  const DType dtype = body.dtype("dgate");
  const SwigluGradPlaces places(body);
  return is_f32_or_bf16(dtype) && body.matrices_are(dtype) && places.gate >= 0 && places.up >= 0 && places.dy >= 0;
}

BoundKernel bind_swiglu_grad(DeviceContext&, const Graph&, const Node& node) {
  const Body body(node);
  const SwigluGradPlaces p(body);
  SwigluGrad job{};
  job.dtype = body.dtype("dgate");
  job.rows = body.shape("dgate").rows(), job.cols = body.shape("dgate").cols();
  return [=](const KernelArgs& args) mutable {
    job.gate = at(args.in, p.gate), job.up = at(args.in, p.up), job.dy = at(args.in, p.dy);
    job.silu = at(args.in, p.silu);
    job.dsilu = at(args.out, p.dsilu), job.dgate = at(args.out, p.dgate), job.dup = at(args.out, p.dup);
    job.silu_out = at(args.out, p.silu_out);
    launch_swiglu_grad(job, args.stream);
  };
}

bool accepts_by_members(const Graph& graph, const Node& node) {
  return std::find(std::begin(kKinds), std::end(kKinds), kind_of(node)) != std::end(kKinds) &&
         accepts_members(graph, node);
}

constexpr KernelRow kRows[] = {
    {Op::kFusion, "bias_gelu", accepts_bias_gelu, bind_bias_gelu},
    {Op::kFusion, "swiglu", accepts_swiglu, bind_swiglu},
    {Op::kFusion, "swiglu_grad", accepts_swiglu_grad, bind_swiglu_grad},
    {Op::kFusion, "activation_members", accepts_by_members, bind_members, members_workspace},
};

}  // namespace

std::span<const KernelRow> activation_rows() { return kRows; }
std::span<const char* const> activation_fusion_kinds() { return kKinds; }

}  // namespace octet::cuda
