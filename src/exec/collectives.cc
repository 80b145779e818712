#include "exec/collectives.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/parts.h"
#include "ir/localize.h"

namespace octet {
namespace {

using cpu::RefTensor;

std::vector<double> part_of(const RefTensor& whole, const PartView& view, int64_t part) {
  std::vector<double> values(static_cast<size_t>(view.part_elements()));
  view.for_each_run(part, 0, view.part_elements(), [&](int64_t from, int64_t to, int64_t count) {
    std::copy_n(whole.values.begin() + from, count, values.begin() + to);
  });
  return values;
}

void put_part(RefTensor& whole, const PartView& view, int64_t part, const std::vector<double>& values) {
  view.for_each_run(part, 0, view.part_elements(), [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(values.begin() + from, count, whole.values.begin() + to);
  });
}

// What each rank of the group sends to each: result[i] is of ranks[i].
std::vector<std::vector<double>> exchange(Communicator& ranks, const std::vector<int32_t>& group,
                                          const std::vector<std::vector<double>>& mine) {
  std::vector<std::vector<double>> theirs(group.size());
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (size_t i = 0; i < group.size(); ++i) {
    theirs[i].resize(mine[i].size());
    send.push_back(std::as_bytes(std::span(mine[i])));
    receive.push_back(std::as_writable_bytes(std::span(theirs[i])));
  }
  ranks.exchange(group, send, receive);
  return theirs;
}

double join(const std::string& reduction, const std::vector<std::vector<double>>& parts, size_t element, bool round) {
  double joined = parts[0][element];
  if (reduction == "lse") {
    double largest = -INFINITY, sum = 0;
    for (const auto& part : parts) largest = std::max(largest, part[element]);
    for (const auto& part : parts) sum += std::exp(part[element] - largest);
    return largest + std::log(sum);
  }
  for (size_t p = 1; p < parts.size(); ++p) {
    const double next = parts[p][element];
    if (reduction == "max")
      joined = std::isnan(joined) || joined > next ? joined : next;
    else
      joined = round ? static_cast<double>(static_cast<float>(joined) + static_cast<float>(next)) : joined + next;
  }
  return joined;
}

std::vector<double> joined(const std::string& reduction, const std::vector<std::vector<double>>& parts, bool round) {
  std::vector<double> values(parts[0].size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = join(reduction, parts, i, round);
  return values;
}

// Gives the bytes to another rank, and gets those that it gives.
void exchange_pair(Communicator& ranks, int32_t other, std::span<const std::byte> send, std::span<std::byte> receive) {
  const int32_t own = ranks.rank();
  std::vector<std::span<const std::byte>> sends(2);
  std::vector<std::span<std::byte>> receives(2);
  const size_t at = own < other ? 1 : 0;
  sends[at] = send;
  receives[at] = receive;
  ranks.exchange({std::min(own, other), std::max(own, other)}, sends, receives);
}

std::vector<std::byte> buffer_of(const Executor& executor, const std::string& state) {
  const StateEntry* entry = executor.program().find_state(state);
  check(entry != nullptr && executor.ranks() != nullptr, ErrorCode::kNotFound, "no state '{}' of several ranks", state);
  return std::vector<std::byte>(static_cast<size_t>(entry->type.bytes()));
}

}  // namespace

Coordinate Executor::coordinate() const { return ranks() != nullptr ? ranks()->coordinate() : Coordinate(); }

void Executor::send_state(const std::string& name, int32_t to) {
  std::vector<std::byte> bytes = buffer_of(*this, name);
  read_state(name, bytes);
  exchange_pair(*ranks(), to, bytes, {});
}

void Executor::receive_state(const std::string& name, int32_t from) {
  std::vector<std::byte> bytes = buffer_of(*this, name);
  exchange_pair(*ranks(), from, {}, bytes);
  write_state(name, bytes);
}

void join_mesh(Program& program, const Communicator* ranks) {
  const Mesh mesh = ranks != nullptr ? ranks->mesh() : Mesh();
  check(program.mesh() == mesh, ErrorCode::kInvalidArgument, "program {} is one for {} ranks, given are {}",
        program.name, program.mesh().ranks(), mesh.ranks());
  if (ranks != nullptr) localize(program, ranks->coordinate());
}

std::vector<RefTensor> run_collective(const Graph& graph, const Node& node, cpu::RefInputs in, Communicator& ranks,
                                      bool round_f32) {
  const AxisList over = parse_axes(node.attr<std::string>("over"));
  const std::vector<int32_t> group = ranks.mesh().group(ranks.rank(), over);
  const auto n = static_cast<int64_t>(group.size());
  const int64_t own = std::find(group.begin(), group.end(), ranks.rank()) - group.begin();
  const auto axis = [&](const char* key) { return static_cast<int>(node.attr<int64_t>(key)); };
  std::vector<RefTensor> results;
  for (size_t i = 0; i < in.size(); ++i) {
    const RefTensor& x = *in[i];
    const bool round = round_f32 && x.type.dtype != DType::kF64;
    RefTensor& y = results.emplace_back(
        RefTensor{node.results[i], std::vector<double>(static_cast<size_t>(node.results[i].shape.elements()))});
    // Parts of operand and result along a dim that is cut, within what is outside the cut there.
    const auto of = [&](const Shape& whole, int dim, const Layout& cut) {
      return PartView(whole, dim, cut.outer(dim), n);
    };
    const Layout &from = graph.layout(node.inputs[i]), &to = node.layouts.empty() ? Layout() : node.layouts[i];
    const auto parts_of = [&](const PartView& view) {
      std::vector<std::vector<double>> parts;
      for (int64_t p = 0; p < n; ++p) parts.push_back(part_of(x, view, p));
      return parts;
    };
    switch (node.op) {
      case Op::kAllReduce:
        y.values = joined(node.attr<std::string>("reduction"),
                          exchange(ranks, group, std::vector(group.size(), x.values)), round);
        break;
      case Op::kReduceScatter:
        y.values = joined("sum", exchange(ranks, group, parts_of(of(x.type.shape, axis("axis"), to))), round);
        break;
      case Op::kTakePart: y.values = part_of(x, of(x.type.shape, axis("axis"), to), own); break;
      default: {  // all_gather, all_to_all
        const bool all = node.op == Op::kAllGather;
        const auto theirs =
            exchange(ranks, group,
                     all ? std::vector(group.size(), x.values) : parts_of(of(x.type.shape, axis("split_axis"), to)));
        const PartView view = of(y.type.shape, axis("axis"), from);
        for (int64_t p = 0; p < n; ++p) put_part(y, view, p, theirs[static_cast<size_t>(p)]);
      }
    }
    cpu::round_values(y, round_f32);
  }
  return results;
}

}  // namespace octet
