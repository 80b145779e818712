#include "kernels/cuda/members.h"

#include <algorithm>
#include <memory>

namespace octet::cuda {
namespace {

constexpr int64_t kAlignment = 256;
int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Where one value of the body is: the fusion's input or result of that index, a place in the workspace (used when the
// result is not wanted either), or nowhere.
struct Place {
  int input = -1, result = -1;
  int64_t offset = -1;
};

struct Layout {
  std::vector<std::vector<Place>> places;  // [body node][result]
  int64_t bytes = 0;                       // of the values; the members' own scratch follows
};

Layout lay_out(const Graph& body) {
  Layout layout;
  const auto uses = body.count_uses();
  int leaves = 0;
  for (const Node& node : body.nodes()) layout.places.emplace_back(node.results.size());
  for (size_t i = 0; i < body.outputs().size(); ++i) {
    const Value value = body.outputs()[i].value;
    layout.places[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)].result =
        static_cast<int>(i);
  }
  for (int32_t n = 0; n < body.size(); ++n) {
    const Node& node = body.node(NodeId{n});
    auto& places = layout.places[static_cast<size_t>(n)];
    if (node.op == Op::kInput) {
      places[0].input = leaves++;
      continue;
    }
    for (size_t r = 0; r < places.size(); ++r) {
      const int read_inside = uses[static_cast<size_t>(n)][r] - (places[r].result >= 0 ? 1 : 0);
      if (read_inside <= 0) continue;
      places[r].offset = layout.bytes;
      layout.bytes += align(node.results[r].bytes());
    }
  }
  return layout;
}

struct Member {
  NodeId id;
  BoundKernel kernel;
};

struct Members {
  std::shared_ptr<const Graph> body;
  Layout layout;
  std::vector<Member> list;

  Tensor at(const KernelArgs& args, Value value) const {
    if (!value.exists()) return {};
    const Place& place = layout.places[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
    void* data = place.input >= 0 ? args.in[static_cast<size_t>(place.input)].data : nullptr;
    if (place.result >= 0) data = args.out[static_cast<size_t>(place.result)].data;
    if (data == nullptr && place.offset >= 0) data = args.workspace.data() + place.offset;
    return {data, &body->type(value)};
  }
  void operator()(const KernelArgs& args) const {
    std::vector<Tensor> in, out;
    for (const Member& member : list) {
      const Node& node = body->node(member.id);
      in.clear(), out.clear();
      for (Value input : node.inputs) in.push_back(at(args, input));
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) out.push_back(at(args, {member.id, r}));
      const bool wanted = std::any_of(out.begin(), out.end(), [](const Tensor& t) { return t.data != nullptr; });
      if (!wanted) continue;
      member.kernel({.in = in,
                     .out = out,
                     .workspace = args.workspace.subspan(static_cast<size_t>(layout.bytes)),
                     .stream = args.stream});
    }
  }
};

bool is_member(const Node& node) { return node.op != Op::kInput; }

}  // namespace

bool accepts_members(const Graph&, const Node& node) {
  return std::all_of(node.body->nodes().begin(), node.body->nodes().end(), [&](const Node& member) {
    const auto rows = kernel_rows(member.op);
    return !is_member(member) || std::any_of(rows.begin(), rows.end(), [&](const KernelRow& row) {
      return row.accepts(*node.body, member);
    });
  });
}

BoundKernel bind_members(DeviceContext& context, const Graph&, const Node& node) {
  Members members{node.body, lay_out(*node.body), {}};
  for (int32_t n = 0; n < node.body->size(); ++n) {
    const Node& member = node.body->node(NodeId{n});
    if (!is_member(member)) continue;
    members.list.push_back({NodeId{n}, select_kernel(*node.body, member).bind(context, *node.body, member)});
  }
  return members;
}

int64_t members_workspace(DeviceContext& context, const Graph&, const Node& node) {
  int64_t most = 0;
  for (const Node& member : node.body->nodes()) {
    if (!is_member(member)) continue;
    const KernelRow& row = select_kernel(*node.body, member);
    if (row.workspace != nullptr) most = std::max(most, row.workspace(context, *node.body, member));
  }
  return lay_out(*node.body).bytes + most;
}

}  // namespace octet::cuda
