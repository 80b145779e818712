// The interpreter: runs a Program's graphs node by node with the reference kernels. It is the definition of what a
// program computes; it makes no plan and no fast path. State updates are functional: every node of a run reads the
// state as it was before, all updates are visible after it.
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "exec/collectives.h"
#include "exec/executor.h"
#include "ir/localize.h"
#include "kernels/cpu/reference.h"

namespace octet {
namespace {

using cpu::RefTensor;

class Interpreter final : public Executor {
 public:
  Interpreter(Program program, InterpretMode mode, Communicator* ranks)
      : program_(std::move(program)), mode_(mode), ranks_(ranks) {
    collect_state(program_);
    join_mesh(program_, ranks_);
    for (const StateEntry& entry : program_.states()) {
      RefTensor tensor{entry.type,
                       std::vector<double>(static_cast<size_t>(entry.type.shape.elements()), entry.initial)};
      cpu::round_values(tensor, true);
      bytes_ += entry.type.bytes() * entry.slots;
      if (entry.slots > 0) state_.emplace(entry.name, std::vector(static_cast<size_t>(entry.slots), tensor));
    }
    for (const Graph& graph : program_.graphs()) {
      Staged& staged = staged_[graph.name()];
      for (const NodeId input : graph.inputs()) {
        const Node& node = graph.node(input);
        staged.inputs[node.name].resize(static_cast<size_t>(node.results[0].bytes()));
        bytes_ += node.results[0].bytes();
      }
    }
  }

  const Program& program() const override { return program_; }
  Communicator* ranks() const override { return ranks_; }
  const std::vector<double>& values(const std::string& name) { return entry(name).values; }

  std::span<std::byte> input(const std::string& graph, const std::string& name) override {
    auto& inputs = staged(graph).inputs;
    const auto found = inputs.find(name);
    if (found == inputs.end()) {
      std::vector<std::string> names;
      for (const auto& [known, bytes] : inputs) names.push_back(known);
      fail(ErrorCode::kNotFound, "graph {} has no input \"{}\"; it has {}", graph, name, fmt::join(names, ", "));
    }
    return found->second;
  }

  void run(const std::string& name, int32_t slot) override {
    const Graph& graph = program_.graph(name);
    Staged& staged = this->staged(name);
    std::unordered_map<std::string, RefTensor> inputs;
    for (const Node& node : graph.nodes()) {
      if (node.op == Op::kInput) {
        inputs.emplace(node.name, cpu::load_tensor(node.results[0], staged.inputs.at(node.name).data()));
      }
    }
    const auto leaf = [&](const Node& node) -> const RefTensor& {
      return node.op == Op::kInput ? inputs.at(node.name) : entry(node.name, slot);
    };
    const bool round = mode_ == InterpretMode::kFloat32;
    cpu::CollectiveFn collective;
    if (ranks_ != nullptr)
      collective = [&](const Graph& of, const Node& node, cpu::RefInputs in) {
        return run_collective(of, node, in, *ranks_, round);
      };
    cpu::Evaluated result = cpu::evaluate(graph, leaf, round, {}, collective);
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const RefTensor& value = result.outputs[i];
      auto& bytes = staged.outputs[graph.outputs()[i].name];
      bytes.resize(static_cast<size_t>(value.type.bytes()));
      cpu::store_tensor(value, bytes.data());
    }
    for (size_t i = 0; i < graph.updates().size(); ++i)
      entry(graph.updates()[i].name, slot) = std::move(result.updates[i]);
  }

  std::span<const std::byte> output(const std::string& graph, const std::string& name) override {
    program_.graph(graph).output(name);  // throws with the names there are
    const auto& outputs = staged(graph).outputs;
    const auto found = outputs.find(name);
    check(found != outputs.end(), ErrorCode::kInvalidArgument, "output \"{}\": graph {} has not run yet", name, graph);
    return found->second;
  }

  void read_state(const std::string& name, std::span<std::byte> bytes) override {
    const RefTensor& tensor = entry(name);
    check_size(name, tensor, bytes.size());
    cpu::store_tensor(tensor, bytes.data());
  }
  void read_state_part(const std::string& name, int64_t offset, std::span<std::byte> part) override {
    const std::vector<std::byte> whole = whole_state(name, offset, part.size());
    std::copy_n(whole.begin() + offset, part.size(), part.begin());
  }
  void write_state(const std::string& name, std::span<const std::byte> bytes) override {
    RefTensor& tensor = entry(name);
    check_size(name, tensor, bytes.size());
    tensor = cpu::load_tensor(tensor.type, bytes.data());
  }
  void write_state_part(const std::string& name, int64_t offset, std::span<const std::byte> part) override {
    std::vector<std::byte> whole = whole_state(name, offset, part.size());
    std::copy(part.begin(), part.end(), whole.begin() + offset);
    write_state(name, whole);
  }
  void fill_state_part(const std::string& name, int64_t offset, int64_t bytes, int64_t, MakeBytes make) override {
    std::vector<std::byte> part(static_cast<size_t>(bytes));
    make(0, part);
    write_state_part(name, offset, part);
  }

  // What the declared types take; the doubles behind them are this executor's own affair.
  int64_t allocated_bytes() const override { return bytes_; }
  void set_profiling(bool) override {}
  std::vector<NodeTime> profile() const override { return {}; }

 private:
  struct Staged {
    std::map<std::string, std::vector<std::byte>> inputs, outputs;
  };

  Staged& staged(const std::string& graph) {
    program_.graph(graph);  // throws with the names there are
    return staged_.at(graph);
  }
  RefTensor& entry(const std::string& name, int32_t slot = 0) {
    const auto found = state_.find(name);
    check(found != state_.end(), ErrorCode::kNotFound, "program {} has no state \"{}\" (of {} entries)", program_.name,
          name, state_.size());
    return found->second[std::min(static_cast<size_t>(slot), found->second.size() - 1)];
  }
  // Its bytes, which have a part of this size at the offset.
  std::vector<std::byte> whole_state(const std::string& name, int64_t offset, size_t part) {
    std::vector<std::byte> whole(static_cast<size_t>(entry(name).type.bytes()));
    read_state(name, whole);
    check(offset >= 0 && static_cast<size_t>(offset) + part <= whole.size(), ErrorCode::kInternal,
          "state {}: there are no {} bytes at {} of {}", name, part, offset, whole.size());
    return whole;
  }
  static void check_size(const std::string& name, const RefTensor& tensor, size_t bytes) {
    check(static_cast<int64_t>(bytes) == tensor.type.bytes(), ErrorCode::kInvalidArgument,
          "state \"{}\" is {} = {} bytes, given {}", name, to_string(tensor.type), tensor.type.bytes(), bytes);
  }

  Program program_;
  InterpretMode mode_;
  Communicator* ranks_;
  int64_t bytes_ = 0;
  std::unordered_map<std::string, std::vector<RefTensor>> state_;  // by slot
  std::unordered_map<std::string, Staged> staged_;
};

}  // namespace

std::unique_ptr<Executor> make_interpreter(Program program, InterpretMode mode, Communicator* ranks) {
  return std::make_unique<Interpreter>(std::move(program), mode, ranks);
}

const std::vector<double>& interpreted_state(Executor& interpreter, const std::string& name) {
  return dynamic_cast<Interpreter&>(interpreter).values(name);
}

}  // namespace octet
