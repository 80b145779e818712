// Sharded programs against whole ones: the same training steps on the interpreter in float64, every rank a thread.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "dist/communicator.h"
#include "exec/testing/parts.h"
#include "exec/testing/tiny_program.h"
#include "ir/text.h"

namespace octet {
namespace {

struct Way {
  const char* name;
  Mesh mesh;
  bool sequence = false;
  ShardLevel level = ShardLevel::kNone;
};

using Tensors = std::map<std::string, std::vector<double>>;

struct Results {
  Tensors states;  // whole
  std::vector<double> losses;
};

std::vector<double> values_of(Executor& executor, const StateEntry& entry) {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
  executor.read_state(entry.name, bytes);
  std::vector<double> values;
  for (int64_t i = 0; i < entry.type.shape.elements(); ++i)
    values.push_back(load_element(entry.type.dtype, bytes.data(), i));
  return values;
}

bool is_compared(const StateEntry& entry) {
  return entry.role == StateRole::kMaster || entry.role == StateRole::kMoment || entry.role == StateRole::kGradient;
}

constexpr int kSteps = 2;

// Graph runs of one step: each of two micro-batches, then apply.
struct Run {
  std::string graph;
  int batch;
};

class Comparison {
 public:
  explicit Comparison(const std::string& family) : whole_program_(compile(tiny::training_program(family), {}).program) {
    family_ = family;
  }

  Results whole() {
    auto executor = make_interpreter(whole_program_, InterpretMode::kFloat64);
    tiny::initialize(*executor);
    for (const StateEntry& entry : whole_program_.states()) {
      initial_[entry.name].resize(static_cast<size_t>(entry.type.bytes()));
      executor->read_state(entry.name, initial_[entry.name]);
    }
    Results results;
    for (int step = 0; step < kSteps; ++step) {
      for (int i : {0, 1}) {
        const char* graph = i == 0 ? "train" : "accumulate";
        tiny::feed(*executor, graph, 2 * step + i);
        keep_inputs(*executor, graph, 2 * step + i);
        executor->run(graph);
        results.losses.push_back(static_cast<double>(output_as<float>(*executor, graph, "loss")[0]));
      }
      apply(*executor, step);
    }
    for (const StateEntry& entry : whole_program_.states())
      if (is_compared(entry)) results.states[entry.name] = values_of(*executor, entry);
    return results;
  }

  // Joined from all ranks; copies that differ are test failures.
  Results sharded(const Way& way) {
    CompileOptions options;
    options.parallel = {.mesh = way.mesh, .sequence = way.sequence, .level = way.level};
    const Program program = compile(tiny::training_program(family_), options).program;
    Results results;
    results.losses.resize(2 * kSteps);
    std::map<std::string, std::map<int64_t, std::map<int32_t, double>>> pieces;
    std::mutex mutex;
    run_thread_ranks(way.mesh, [&](Communicator& rank) {
      const Coordinate at = rank.coordinate();
      auto executor = make_interpreter(program, InterpretMode::kFloat64, &rank);
      for (const StateEntry& entry : program.states())
        executor->write_state(entry.name, part_of(initial_.at(entry.name), entry.type, entry.layout, way.mesh, at));
      executor->prepare();
      const int data_ranks = way.mesh[Axis::kData];
      for (int step = 0; step < kSteps; ++step) {
        for (int i = at[Axis::kData]; i < 2; i += data_ranks) {
          const char* graph = i < data_ranks ? "train" : "accumulate";
          feed(*executor, program.graph(graph), i == 0 ? "train" : "accumulate", 2 * step + i, way.mesh, at);
          executor->run(graph);
          const std::lock_guard lock(mutex);
          results.losses[static_cast<size_t>(2 * step + i)] =
              static_cast<double>(output_as<float>(*executor, graph, "loss")[0]);
        }
        apply(*executor, step);
      }
      const std::lock_guard lock(mutex);
      for (const StateEntry& entry : program.states())
        if (is_compared(entry)) join(pieces[entry.name], entry, values_of(*executor, entry), way.mesh, at);
    });
    for (const auto& [name, elements] : pieces) {
      for (const auto& [element, addends] : elements) {
        double sum = 0;
        for (const auto& [piece, value] : addends) sum += value;
        results.states[name].push_back(sum);
      }
    }
    return results;
  }

 private:
  static void apply(Executor& executor, int step) {
    input_as<float>(executor, "apply", "lr")[0] = 0.01f;
    input_as<float>(executor, "apply", "step")[0] = static_cast<float>(step + 1);
    executor.run("apply");
  }

  void keep_inputs(Executor& executor, const std::string& graph, int batch) {
    for (const Node& node : whole_program_.graph(graph).nodes()) {
      if (node.op != Op::kInput) continue;
      const auto bytes = executor.input(graph, node.name);
      inputs_[{batch, node.name}].assign(bytes.begin(), bytes.end());
    }
  }

  void feed(Executor& executor, const Graph& graph, const std::string&, int batch, const Mesh& mesh,
            const Coordinate& at) const {
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(NodeId{i});
      if (node.op != Op::kInput) continue;
      const auto part =
          part_of(inputs_.at({batch, node.name}), node.results[0], graph.layout({NodeId{i}, 0}), mesh, at);
      std::copy(part.begin(), part.end(), executor.input(graph.name(), node.name).begin());
    }
  }

  static void join(std::map<int64_t, std::map<int32_t, double>>& elements, const StateEntry& entry,
                   const std::vector<double>& values, const Mesh& mesh, const Coordinate& at) {
    int32_t piece = 0;
    for (Axis axis : entry.layout.pending_axes().list()) piece = piece * mesh[axis] + at[axis];
    for_each_element(entry.type.shape, entry.layout, mesh, at, [&](int64_t to, int64_t from) {
      const auto [found, added] = elements[to].emplace(piece, values[static_cast<size_t>(from)]);
      EXPECT_TRUE(added || found->second == values[static_cast<size_t>(from)])
          << entry.name << ": copies of element " << to << " differ";
    });
  }

  std::string family_;
  Program whole_program_;
  std::map<std::string, std::vector<std::byte>> initial_;
  std::map<std::pair<int, std::string>, std::vector<std::byte>> inputs_;
};

class ShardedTraining : public testing::TestWithParam<std::string> {};

TEST_P(ShardedTraining, IsThatOfOneRank) {
  const Way ways[] = {
      {"tp2", {{1, 1, 1, 2}}},
      {"tp2 sequence", {{1, 1, 1, 2}}, true},
      {"dp2", {{1, 2, 1, 1}}},
      {"dp2 optimizer", {{1, 2, 1, 1}}, false, ShardLevel::kOptimizer},
      {"cp2", {{1, 1, 2, 1}}},
      {"dp2 tp2 sequence optimizer", {{1, 2, 1, 2}}, true, ShardLevel::kOptimizer},
      {"dp2 cp2 tp2 sequence optimizer", {{1, 2, 2, 2}}, true, ShardLevel::kOptimizer},
  };
  Comparison comparison(GetParam());
  const Results whole = comparison.whole();
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const Results sharded = comparison.sharded(way);
    for (size_t i = 0; i < whole.losses.size(); ++i)
      EXPECT_NEAR(sharded.losses[i], whole.losses[i], 1e-5) << "loss of micro-batch " << i << " (printed in float32)";
    ASSERT_EQ(sharded.states.size(), whole.states.size());
    for (const auto& [name, values] : whole.states) {
      const std::vector<double>& got = sharded.states.at(name);
      ASSERT_EQ(got.size(), values.size()) << name;
      double largest = 0, error = 0;
      for (size_t i = 0; i < values.size(); ++i)
        largest = std::max(largest, std::abs(values[i])), error = std::max(error, std::abs(got[i] - values[i]));
      EXPECT_LE(error, 1e-6 * largest) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedTraining, testing::Values("llama", "gpt2"));

}  // namespace
}  // namespace octet
