#include "kernels/cuda/attention/cudnn_kernels.h"

#include <array>
#include <limits>

#include "base/log.h"
#include "ir/localize.h"
#include "kernels/cuda/attention/cudnn.h"
#include "kernels/cuda/context.h"

namespace octet::cuda {
namespace {

constexpr int64_t kLargestOversize = 4;  // rows cuDNN sees over rows there are

// Hands out pieces of the workspace; without one it only counts.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return base_ != nullptr ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// Bytes of each unused result of a node, 0 of the others.
using Unused = std::array<int64_t, 3>;

// Where the mask is cuDNN's, it must make the gradient even if only some of its results are used: the others go to the
// workspace. Elsewhere our own kernels make such a gradient.
Unused unused_results(const CudnnProblem& problem, const Graph& graph, const Node& node) {
  Unused unused{};
  if (problem.dropout == 0 || !problem.backward) return unused;
  const auto uses = graph.count_uses();
  for (size_t i = 0; i < unused.size(); ++i) {
    if (uses[static_cast<size_t>(&node - graph.nodes().data())][i] == 0) unused[i] = node.results[i].bytes();
  }
  return unused;
}

// The workspace of a call: what the layout kernels write, unused results, then cuDNN's own.
struct Scratch {
  RaggedLayout layout;
  int64_t* draw = nullptr;  // dropout's seed and offset
  std::array<std::byte*, 3> results{};
  float* stats = nullptr;  // forward: an unused log-sum-exp; backward: the log-sum-exp by heads
  void* own = nullptr;
  int64_t bytes = 0;

  Scratch(const CudnnProblem& problem, const CudnnPlan& plan, const Unused& unused, std::byte* base) {
    Pieces pieces(base);
    if (problem.ragged) {
      layout.lengths = pieces.take<int32_t>(problem.batch);
      layout.q_starts = pieces.take<int32_t>(problem.batch + 1);
      layout.kv_starts = pieces.take<int32_t>(problem.batch + 1);
      layout.stats_starts = pieces.take<int32_t>(problem.batch + 1);
    }
    if (problem.dropout > 0) draw = pieces.take<int64_t>(2);
    for (size_t i = 0; i < unused.size(); ++i) {
      if (unused[i] > 0) results[i] = pieces.take<std::byte>(unused[i]);
    }
    stats = pieces.take<float>(problem.tokens * problem.heads);
    own = pieces.take<std::byte>(plan.workspace_bytes());
    bytes = pieces.used();
  }
};

// At most.
int64_t longest_segment(const Node& node, int64_t tokens) {
  const int64_t given = node.attr<int64_t>("max_length");
  return given > 0 ? std::min(given, tokens) : tokens;
}

CudnnProblem cudnn_problem(const DeviceContext& context, const Graph& graph, const Node& node) {
  const AttentionProblem p = attention_problem(graph, node);
  CudnnProblem c;
  c.backward = node.op == Op::kAttentionGrad;
  c.batch = p.segments;
  c.tokens = p.tokens;
  const int64_t equal = node.attr<int64_t>("equal_length");
  c.ragged = equal <= 0 || equal * p.segments != p.tokens;
  c.length = c.ragged ? longest_segment(node, p.tokens) : equal;
  c.heads = p.heads, c.kv_heads = p.kv_heads, c.dim = p.dim;
  c.window = p.window < c.length ? p.window : 0;
  c.causal = p.causal;
  c.scale = p.scale;
  c.dropout = static_cast<float>(node.attr<double>("dropout"));
  c.deterministic = c.backward && context.options().deterministic;
  return c;
}

// cuDNN where it is installed; says why it is not.
struct InstalledCudnn final : DeviceLibrary {
  explicit InstalledCudnn(DeviceContext& context) {
    try {
      handle = &context.library<CudnnHandle>();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      log_warning("attention runs on our own kernels, slower than cuDNN: {}", error.what());
    }
  }
  CudnnHandle* handle = nullptr;
};

// The plan, or null where our own kernels must do.
CudnnPlan* find_plan(DeviceContext& context, const CudnnProblem& problem) {
  CudnnHandle* cudnn = context.has_device() ? context.library<InstalledCudnn>().handle : nullptr;
  if (cudnn == nullptr) return nullptr;
  if (problem.dropout > 0) {
    CudnnProblem other = problem;
    other.backward = !problem.backward;
    other.deterministic = other.backward && context.options().deterministic;
    if (cudnn->attention(other) == nullptr) return nullptr;
  }
  return cudnn->attention(problem);
}

void run_cudnn(const CudnnProblem& c, const AttentionProblem& p, CudnnPlan& plan, const Scratch& scratch,
               const KernelArgs& args) {
  const int32_t* segments = args.in[3].as<const int32_t>();
  const auto result = [&](size_t i) { return args.out[i].data != nullptr ? args.out[i].data : scratch.results[i]; };
  CudnnBuffers b{.q = args.in[0].data, .k = args.in[1].data, .v = args.in[2].data, .draw = scratch.draw};
  if (c.backward) {
    b.out = args.in[4].data, b.stats = args.in[5].as<float>(), b.dout = args.in[6].data;
    b.dq = result(0), b.dk = result(1), b.dv = result(2);
  } else {
    b.out = args.out[0].data;
    b.stats = args.out[1].data != nullptr ? args.out[1].as<float>() : scratch.stats;
  }
  if (p.dropout) launch_mask_seed(args.in[c.backward ? 7 : 4].as<const int64_t>(), p.key, scratch.draw, args.stream);
  if (c.ragged) {
    launch_ragged_layout(p, segments, scratch.layout, args.stream);
    b.lengths = scratch.layout.lengths, b.q_starts = scratch.layout.q_starts, b.kv_starts = scratch.layout.kv_starts;
    b.stats_starts = scratch.layout.stats_starts;
  } else if (c.backward) {
    launch_lse_by_head(b.stats, scratch.stats, p.segments, static_cast<int>(c.length), p.heads, args.stream);
    b.stats = scratch.stats;
  }
  plan.run(b, scratch.own, args.stream);
  if (!c.ragged) return;
  const auto clear = [&](void* rows, int width, int bytes) {
    launch_clear_outside(p, segments, rows, width, bytes, args.stream);
  };
  if (c.backward) {
    clear(b.dq, p.heads * p.dim, 2), clear(b.dk, p.kv_heads * p.dim, 2), clear(b.dv, p.kv_heads * p.dim, 2);
  } else {
    clear(b.out, p.heads * p.dim, 2), clear(b.stats, p.heads, 4);
  }
}

bool takes_cudnn(const Graph& graph, const Node& node) {
  if (!runs_with(graph, node, is_bf16)) return false;
  if (!node.attr<bool>("causal") && node.attr<int64_t>("window") > 0) return false;
  const int64_t dim = node.attrs.get<int64_t>("head_dim");
  const Shape& q = graph.shape(node.inputs[0]);
  // cuDNN starts blocks for the longest segment as often as segments are allowed for, there or not.
  const int64_t segments = graph.shape(node.inputs[3]).elements() - 1;
  if (dim <= kLargestMmaDim && segments * longest_segment(node, q.rows()) > kLargestOversize * q.rows()) return false;
  if (node.attr<double>("alibi") > 0) return false;
  // Its masks go by the heads it sees.
  if (node.attr<int64_t>("bits") != 32) return false;
  if (node.attr<double>("dropout") > 0 && (!node.attr<bool>("library_mask") || is_localized(node))) return false;
  return dim % 8 == 0 && dim <= 256 && node.attrs.get<double>("scale") > 0 &&
         q.elements() < std::numeric_limits<int32_t>::max();
}

}  // namespace

BoundKernel bind_cudnn(DeviceContext& context, const Graph& graph, const Node& node) {
  if (!takes_cudnn(graph, node)) return {};
  const CudnnProblem c = cudnn_problem(context, graph, node);
  const BoundKernel own = bind_attention_own(context, graph, node);
  CudnnPlan* plan = find_plan(context, c);
  if (plan == nullptr) return own;
  const AttentionProblem p = attention_problem(graph, node);
  // cuDNN writes all of its results: a node that uses only some of them is left to our own kernels, but for gradients
  // under cuDNN's mask. (Our own log-sum-exp is as good: no mask is in it.)
  const Unused unused = unused_results(c, graph, node);
  const int64_t workspace = std::max(own.workspace, Scratch(c, *plan, unused, nullptr).bytes);
  const auto run = [=](const KernelArgs& args) {
    const Scratch scratch(c, *plan, unused, args.workspace.data());
    const size_t results = c.backward ? 3 : 1;
    for (size_t i = 0; i < results; ++i) {
      if (args.out[i].data == nullptr && scratch.results[i] == nullptr) return own(args);
    }
    run_cudnn(c, p, *plan, scratch, args);
  };
  return {run, workspace};
}

}  // namespace octet::cuda
