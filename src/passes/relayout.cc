#include "passes/relayout.h"

#include "base/error.h"

namespace octet {
namespace {

size_t common_length(const AxisList& a, const AxisList& b) {
  size_t length = 0;
  while (length < std::min(a.size(), b.size()) && a[length] == b[length]) ++length;
  return length;
}

AxisList prefix(const AxisList& axes, size_t length) {
  AxisList list;
  for (size_t i = 0; i < length; ++i) list.push_back(axes[i]);
  return list;
}

// What `longer` has behind all of `shorter`; empty when it does not begin so.
AxisList suffix(const AxisList& longer, const AxisList& shorter) {
  AxisList list;
  if (common_length(longer, shorter) == shorter.size())
    for (size_t i = shorter.size(); i < longer.size(); ++i) list.push_back(longer[i]);
  return list;
}

}  // namespace

Value Relayout::emit(Op op, Value x, Attrs attrs) {
  Node node{.op = op, .inputs = {x}, .attrs = std::move(attrs), .name = graph_.node(x).name};
  node.layer = graph_.node(x).layer, node.phase = phase_;
  return {graph_.add(std::move(node)), 0};
}

Value Relayout::reduce(Value x, Pending kind, const AxisList& over) {
  return emit(Op::kAllReduce, x, {{"reduction", std::string(pending_name(kind))}, {"over", print(over)}});
}

Value Relayout::along(Op op, Value x, int axis, const AxisList& over) {
  return emit(op, x, {{"axis", int64_t{axis}}, {"over", print(over)}});
}

Value Relayout::redistribute(Value x, const Layout& want) {
  if (!x.exists() || layout(x) == want) return x;
  check(
      layout(x).pending_axes(Pending::kNever).empty(), ErrorCode::kInvalidArgument,
      "{}: result {} is {}: its blocks of {} elements along the rows lie on several ranks (want a multiple of {} rows, "
      "tokens or outputs, on every rank)",
      describe(graph_, x.node), x.result, print(graph_.type(x), layout(x)), kScaleBlock, kScaleBlock);
  Value made = x;
  if (layout(x).pending != want.pending) made = known(x, want, false, [&] { return settle_pending(x, want); });
  const bool backward = phase_ != Phase::kForward;
  const Value reduced = made;
  if (layout(reduced) != want) made = known(reduced, want, backward, [&] { return recut(reduced, want); });
  check(layout(made) == want, ErrorCode::kInternal, "shard: {} cannot become {} in {}",
        print(graph_.type(x), layout(x)), print(graph_.type(x), want), describe(graph_, x.node));
  return made;
}

Value Relayout::known(Value x, const Layout& want, bool backward, FunctionRef<Value()> make) {
  const auto key = std::tuple(index(x.node), x.result, backward, print(graph_.type(x), want));
  const auto found = known_.find(key);
  return found != known_.end() ? found->second : known_[key] = make();
}

Value Relayout::settle_pending(Value x, const Layout& want) {
  for (Pending kind : {Pending::kMax, Pending::kLse})
    if (const AxisSet due = layout(x).pending_axes(kind) - want.pending_axes(kind); !due.empty())
      x = reduce(x, kind, due.list());
  const AxisSet due = layout(x).pending_axes(Pending::kSum) - want.pending_axes(Pending::kSum);
  if (due.empty()) return x;
  for (int d = 0; d < graph_.shape(x).rank(); ++d) {
    const AxisList added = suffix(want.cut_axes(d), layout(x).cut_axes(d));
    if (added.empty() || !due.has_all(added)) continue;
    if (const AxisSet rest = due - AxisSet(added); !rest.empty()) x = reduce(x, Pending::kSum, rest.list());
    return along(Op::kReduceScatter, x, d, added);
  }
  return reduce(x, Pending::kSum, due.list());
}

Value Relayout::recut(Value x, const Layout& want) {
  const int rank = graph_.shape(x).rank();
  for (int d = 0; d < rank; ++d) {
    const AxisList have = layout(x).cut_axes(d);
    const AxisList gone = suffix(have, prefix(have, common_length(have, want.cut_axes(d))));
    if (gone.empty()) continue;
    // The axes that leave this dim may be those that another one gets.
    int other = 0;
    while (other < rank && (other == d || suffix(want.cut_axes(other), layout(x).cut_axes(other)) != gone)) ++other;
    x = other < rank
            ? emit(Op::kAllToAll, x, {{"split_axis", int64_t{other}}, {"axis", int64_t{d}}, {"over", print(gone)}})
            : gather(x, d, gone);
  }
  for (int d = 0; d < rank; ++d)
    if (const AxisList added = suffix(want.cut_axes(d), layout(x).cut_axes(d)); !added.empty())
      x = along(Op::kTakePart, x, d, added);
  return x;
}

// Transposed codes with one scale are the transpose of the gathered plain ones, which the forward product reads too.
Value Relayout::gather(Value x, int dim, const AxisList& over) {
  const Node& maker = graph_.node(x);
  check(maker.op != Op::kQuantize || !maker.attr<bool>("own_scales"), ErrorCode::kInternal,
        "shard: parts of {}, each with scales of its own, are gathered", describe(graph_, x.node));
  const bool transposed = maker.op == Op::kQuantize && x.result == 2 && maker.attr<std::string>("scaling") == "tensor";
  if (!transposed) return along(Op::kAllGather, x, dim, over);
  const Value plain{x.node, 0};
  const AxisList cut = layout(plain).cut_axes(1 - dim);
  return emit(Op::kTranspose, redistribute(plain, layout(plain).with(1 - dim, prefix(cut, cut.size() - over.size()))),
              {});
}

}  // namespace octet
