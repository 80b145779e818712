#include "exec/cpu/collectives.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "exec/parts.h"

namespace octet::cpu {
namespace {

class Collective {
 public:
  Collective(const Graph& graph, const Node& node, Communicator& ranks)
      : op_(node.op),
        ranks_(ranks),
        group_(ranks.mesh().group(ranks.rank(), parse_axes(node.attr<std::string>("over")))) {
    own_ = static_cast<size_t>(std::ranges::find(group_, ranks.rank()) - group_.begin());
    if (op_ == Op::kAllReduce) reduction_ = node.attr<std::string>("reduction");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorType &x = graph.type(node.inputs[i]), &y = node.results[i];
      const auto n = static_cast<int64_t>(group_.size());
      const auto view = [&](const char* key, const Shape& whole, const Layout& cut) {
        const auto axis = static_cast<int>(node.attr<int64_t>(key));
        return PartView(whole, axis, cut.outer(axis), n);
      };
      const Layout& from = graph.layout(node.inputs[i]);
      const bool all = op_ == Op::kAllReduce, gather = op_ == Op::kAllGather;
      Operand operand{.type = x.dtype,
                      .elements = std::min(x.shape.elements(), y.shape.elements()),
                      .divided = PartView(x.shape, 0, 1, 1),
                      .joined = PartView(y.shape, 0, 1, 1)};
      if (!all && !gather)
        operand.divided = view(op_ == Op::kAllToAll ? "split_axis" : "axis", x.shape, node.layouts[i]);
      if (gather || op_ == Op::kAllToAll) operand.joined = view("axis", y.shape, from);
      if (op_ == Op::kAllToAll) operand.elements /= n;
      operands_.push_back(operand);
    }
  }

  void run(const KernelArgs& args) const {
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Operand& operand = operands_[i];
      if (args.out[i].data == nullptr) continue;
      const auto* x = static_cast<const std::byte*>(args.in[i].data);
      auto* y = static_cast<std::byte*>(args.out[i].data);
      if (op_ == Op::kTakePart) {
        pack(operand, x, static_cast<int64_t>(own_), 0, operand.elements, y);
      } else if (op_ == Op::kAllReduce) {
        all_reduce(operand, x, y, args.workspace);
      } else {
        move_parts(operand, x, y, args.workspace);
      }
    }
  }

 private:
  struct Operand {
    DType type;
    int64_t elements;  // of what one rank sends to another
    PartView divided, joined;
    int64_t bytes(int64_t count) const { return count * dtype_bytes(type); }
  };

  // The workspace: a piece for each rank to send, one of each to receive, two of floats.
  struct Pieces {
    int64_t elements;  // of a piece, at most
    std::byte *send, *receive;
    float *sum, *next;

    Pieces(const Operand& operand, size_t ranks, std::span<std::byte> workspace) {
      const auto n = static_cast<int64_t>(ranks);
      elements = (static_cast<int64_t>(workspace.size()) / (operand.bytes(2 * n) + 2 * 8)) / 64 * 64;
      check(elements > 0, ErrorCode::kInternal, "a workspace of {} bytes is too small for {} ranks", workspace.size(),
            ranks);
      send = workspace.data();
      receive = send + operand.bytes(n * elements);
      sum = reinterpret_cast<float*>(receive + operand.bytes(n * elements));
      next = sum + 2 * elements;
    }
  };

  static void pack(const Operand& operand, const std::byte* x, int64_t part, int64_t begin, int64_t end,
                   std::byte* to) {
    operand.divided.for_each_run(part, begin, end, [&](int64_t from, int64_t at, int64_t count) {
      std::memcpy(to + operand.bytes(at), x + operand.bytes(from), static_cast<size_t>(operand.bytes(count)));
    });
  }

  // counts[i] elements are sent to rank i of the group, `received` come from each.
  void exchange(const Operand& operand, const Pieces& pieces, const std::vector<int64_t>& counts, bool same,
                int64_t received) const {
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (size_t i = 0; i < group_.size(); ++i) {
      const int64_t at = operand.bytes(static_cast<int64_t>(i) * pieces.elements);
      send.emplace_back(pieces.send + (same ? 0 : at), static_cast<size_t>(operand.bytes(counts[i])));
      receive.emplace_back(pieces.receive + at, static_cast<size_t>(operand.bytes(received)));
    }
    ranks_.exchange(group_, send, receive);
  }

  // all_gather, all_to_all, reduce_scatter
  void move_parts(const Operand& operand, const std::byte* x, std::byte* y, std::span<std::byte> workspace) const {
    const Pieces pieces(operand, group_.size(), workspace);
    const bool gather = op_ == Op::kAllGather;
    for (int64_t begin = 0; begin < operand.elements; begin += pieces.elements) {
      const int64_t end = std::min(begin + pieces.elements, operand.elements), count = end - begin;
      for (size_t p = 0; p < (gather ? 1 : group_.size()); ++p)
        pack(operand, x, static_cast<int64_t>(p), begin, end,
             pieces.send + operand.bytes(static_cast<int64_t>(p) * pieces.elements));
      exchange(operand, pieces, std::vector<int64_t>(group_.size(), count), gather, count);
      if (op_ == Op::kReduceScatter) {
        join(operand, pieces, count, y + operand.bytes(begin));
        continue;
      }
      for (size_t p = 0; p < group_.size(); ++p) {
        const auto part = static_cast<int64_t>(p);
        const std::byte* piece = pieces.receive + operand.bytes(part * pieces.elements);
        operand.joined.for_each_run(part, begin, end, [&](int64_t to, int64_t at, int64_t run) {
          std::memcpy(y + operand.bytes(to), piece + operand.bytes(at), static_cast<size_t>(operand.bytes(run)));
        });
      }
    }
  }

  // Each rank joins the pieces of its own, then gives them to all.
  void all_reduce(const Operand& operand, const std::byte* x, std::byte* y, std::span<std::byte> workspace) const {
    const Pieces pieces(operand, group_.size(), workspace);
    const auto n = static_cast<int64_t>(group_.size());
    const int64_t each = std::min(pieces.elements, (operand.elements + n - 1) / n);
    for (int64_t begin = 0; begin < operand.elements; begin += n * each) {
      std::vector<int64_t> counts;
      for (int64_t p = 0; p < n; ++p) {
        const int64_t from = begin + p * each;
        counts.push_back(std::clamp<int64_t>(operand.elements - from, 0, each));
        if (counts.back() > 0)
          std::memcpy(pieces.send + operand.bytes(p * pieces.elements), x + operand.bytes(from),
                      static_cast<size_t>(operand.bytes(counts.back())));
      }
      const int64_t mine = counts[own_];
      exchange(operand, pieces, counts, false, mine);
      join(operand, pieces, mine, pieces.send);
      std::vector<std::span<const std::byte>> send(group_.size(),
                                                   {pieces.send, static_cast<size_t>(operand.bytes(mine))});
      std::vector<std::span<std::byte>> receive;
      for (int64_t p = 0; p < n; ++p)
        receive.emplace_back(y + operand.bytes(std::min(begin + p * each, operand.elements)),
                             static_cast<size_t>(operand.bytes(counts[static_cast<size_t>(p)])));
      ranks_.exchange(group_, send, receive);
    }
  }

  // The received pieces in order of ranks.
  void join(const Operand& operand, const Pieces& pieces, int64_t count, std::byte* to) const {
    const auto piece = [&](size_t p) {
      return pieces.receive + operand.bytes(static_cast<int64_t>(p) * pieces.elements);
    };
    if (operand.type == DType::kF64) return join_as<double>(operand, pieces, count, to);
    if (reduction_ == "lse") return join_lse(operand, pieces, count, to);
    convert(operand.type, piece(0), DType::kF32, pieces.sum, count);
    for (size_t p = 1; p < group_.size(); ++p) {
      convert(operand.type, piece(p), DType::kF32, pieces.next, count);
      add_or_maximise(pieces.sum, pieces.next, count);
    }
    convert(DType::kF32, pieces.sum, operand.type, to, count);
  }

  template <typename T>
  void add_or_maximise(T* sum, const T* next, int64_t count) const {
    if (reduction_ == "max") {
      for (int64_t i = 0; i < count; ++i) sum[i] = std::isnan(sum[i]) || sum[i] > next[i] ? sum[i] : next[i];
    } else {
      for (int64_t i = 0; i < count; ++i) sum[i] += next[i];
    }
  }

  template <typename T>
  void join_as(const Operand& operand, const Pieces& pieces, int64_t count, std::byte* to) const {
    auto* sum = reinterpret_cast<T*>(pieces.receive);
    for (size_t p = 1; p < group_.size(); ++p)
      add_or_maximise(sum, sum + static_cast<int64_t>(p) * pieces.elements, count);
    std::memcpy(to, sum, static_cast<size_t>(operand.bytes(count)));
  }

  void join_lse(const Operand& operand, const Pieces& pieces, int64_t count, std::byte* to) const {
    for (int64_t i = 0; i < count; ++i) {
      const auto part = [&](size_t p) {
        return load_element(operand.type, pieces.receive, static_cast<int64_t>(p) * pieces.elements + i);
      };
      double largest = -INFINITY, sum = 0;
      for (size_t p = 0; p < group_.size(); ++p) largest = std::max(largest, part(p));
      for (size_t p = 0; p < group_.size(); ++p) sum += std::exp(part(p) - largest);
      store_element(operand.type, to, i, largest + std::log(sum));
    }
  }

  Op op_;
  Communicator& ranks_;
  std::vector<int32_t> group_;
  size_t own_ = 0;  // this rank's place in the group
  std::string reduction_ = "sum";
  std::vector<Operand> operands_;
};

}  // namespace

BoundKernel bind_collective(const Graph& graph, const Node& node, Communicator& ranks) {
  return [collective = Collective(graph, node, ranks)](const KernelArgs& args) { collective.run(args); };
}

}  // namespace octet::cpu
