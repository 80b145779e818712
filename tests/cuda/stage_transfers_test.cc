// What stages send each other beside their graphs: on one GPU, where it comes late and a graph that does not wait for
// what it reads, or overwrites what is on its way, computes other bits than the run of one rank; on a GPU each; lost
// stages in the midst of a step.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.h"
#include "cuda/gpu_ranks.h"
#include "exec/logical_states.h"
#include "passes/stage_graphs.h"
#include "train/stage_runner.h"

namespace octet {
namespace {

struct Stages {
  const char* name;
  int32_t count = 1, chunks = 1;
  Mesh mesh() const { return {{count, 1, 1, 1}}; }
};

constexpr int kSteps = 4;  // launched, captured, replayed twice

// One rank's program of a stage, or the whole one, and its steps.
class Rank {
 public:
  Rank(Wire wire, const Stages& stages, const char* family, const char* recipe, bool eager, Communicator& rank,
       cuda::DeviceRanks& ranks)
      : chunks_(stages.chunks) {
    ModelConfig model = tiny::model(family);
    model.layers = 4;
    CompileOptions options{.target = cuda_target(), .recipe = parse_recipe(recipe)};
    options.parallel = {.mesh = stages.mesh(),
                        .chunks = stages.chunks,
                        .stage = rank.coordinate()[Axis::kPipeline],
                        .micro_batches = kMicroBatches};
    CudaOptions cuda = rank_options(wire, ranks);
    cuda.eager = eager;
    executor_ = make_cuda_executor(compile(tiny::training_program(model), options), cuda, &rank);
    if (stages.count > 1) runner_.emplace(*executor_, options.parallel);
    barrier(rank);  // a device makes and frees memory while no other runs
    initialize(*executor_);
  }

  // `before(micro-batch, graph)` each graph.
  void step(int step, const std::function<void(int64_t, const std::string&)>& before = {}) {
    if (!runner_) {
      accumulate(*executor_, {}, step);
    } else {
      runner_->step([&](const std::string& graph, int64_t micro_batch, int32_t slot) {
        if (before) before(micro_batch, graph);
        feed(graph, kMicroBatches * step + static_cast<int>(micro_batch), micro_batch);
        executor_->run(graph, slot);
      });
      runner_->share_gradients();
    }
    apply(*executor_, step);
  }

  double evaluate() {
    if (!runner_) return tiny::loss(*executor_, "eval", 1);
    runner_->evaluate([&](const std::string& graph) {
      feed(graph, 1, 0);
      executor_->run(graph);
    });
    const std::string last = eval_graph(chunks_ - 1);
    const double own =
        runner_->is_last() ? static_cast<double>(output_as<float>(*executor_, last, "loss")[0]) / tiny::kTokens : 0;
    return runner_->from_last(own);
  }

  // Whole tensors that a checkpoint would hold, and gradients, by their names.
  void add_states(std::map<std::string, std::vector<std::byte>>& all) {
    for (const LogicalState& tensor : logical_states(executor_->program())) {
      const bool wanted = is_saved(tensor.role) || tensor.role == StateRole::kGradient;
      if (!wanted || executor_->program().find_state(tensor.state)->slots == 0) continue;
      const std::vector<std::byte> held = tiny::state(*executor_, tensor.state);
      std::vector<std::byte>& whole = all[tensor.name];
      whole.resize(static_cast<size_t>(tensor.type.bytes()));
      for_each_run(tensor.at, tensor.type.dtype, [&](int64_t logical, int64_t state, int64_t count) {
        std::memcpy(whole.data() + logical, held.data() + state, static_cast<size_t>(count));
      });
    }
  }

 private:
  void feed(const std::string& graph, int number, int64_t micro_batch) {
    Batch batch = tiny::batch(number);
    batch.tensors.at("rng").values<int64_t>()[2] = micro_batch;
    for (auto& [name, tensor] : batch.tensors) tensor.optional = true;  // a stage reads what its graphs need
    write_inputs(*executor_, graph, batch);
  }

  int32_t chunks_;
  std::unique_ptr<Executor> executor_;
  std::optional<StageRunner> runner_;
};

struct Trained {
  std::vector<double> losses;  // of an evaluation after each step
  std::map<std::string, std::vector<std::byte>> states;
};

Trained train(Wire wire, const Stages& stages, const char* family, const char* recipe, bool eager = false) {
  Trained trained;
  std::mutex mutex;
  run_gpu_ranks(wire, stages.mesh(), [&](Communicator& communicator, cuda::DeviceRanks& ranks) {
    Rank rank(wire, stages, family, recipe, eager, communicator, ranks);
    for (int step = 0; step < kSteps; ++step) {
      rank.step(step);
      const double loss = rank.evaluate();
      if (communicator.rank() == 0) trained.losses.push_back(loss);
    }
    {
      const std::lock_guard lock(mutex);
      rank.add_states(trained.states);
    }
    barrier(communicator);
  });
  return trained;
}

constexpr Stages kOne = {"one"};
const std::vector<Stages> kStages = {{"two", 2}, {"two_interleaved", 2, 2}, {"four", 4}};

class StageTransfers : public testing::TestWithParam<Wire> {
 protected:
  void SetUp() override {
    if (const std::string why = no_ranks(GetParam(), kStages[0].mesh()); !why.empty()) GTEST_SKIP() << why;
  }
  bool has_devices(const Stages& stages) const {
    return GetParam() == Wire::kHost || stages.count <= cuda::device_count();
  }
};

TEST_P(StageTransfers, OfAnUntiedModelAreTheRunOfOneBitForBit) {
  for (const char* recipe : {"fp32", "bf16", "fp8-delayed", "fp8-current"}) {
    const Trained one = train(Wire::kHost, kOne, "llama", recipe);
    for (const Stages& stages : kStages) {
      if (!has_devices(stages)) continue;
      for (const bool eager : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", stages.name, recipe, eager ? "eager" : "replayed"));
        const Trained cut = train(GetParam(), stages, "llama", recipe, eager);
        EXPECT_EQ(cut.losses, one.losses);
        ASSERT_EQ(cut.states.size(), one.states.size());
        for (const auto& [name, bytes] : one.states) {
          const auto found = cut.states.find(name);
          EXPECT_TRUE(found != cut.states.end() && found->second == bytes) << name;
        }
      }
    }
  }
}

// Of a table that both ends have the gradients of micro-batches are added in another order.
TEST_P(StageTransfers, OfATiedModelDifferByRounding) {
  const Trained one = train(Wire::kHost, kOne, "gpt2", "fp32");
  for (const Stages& stages : kStages) {
    if (!has_devices(stages)) continue;
    const Trained cut = train(GetParam(), stages, "gpt2", "fp32");
    ASSERT_EQ(cut.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(cut.losses[i], one.losses[i], 2e-5 * one.losses[i]) << stages.name << ", step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, StageTransfers, testing::Values(Wire::kHost, Wire::kNccl),
                         [](const auto& info) { return info.param == Wire::kNccl ? "nccl" : "host"; });

// A stage that ends by an error in the midst of a step, the first one, whose graphs are launched, or one that is
// replayed: the other stage, which waits for it on the device, ends in bounded time. Then the devices serve others.
TEST(StageTransfersLost, WithinAStepEndTheOtherStage) {
  const Stages stages{"two", 2};
  if (const std::string why = no_ranks(Wire::kNccl, stages.mesh()); !why.empty()) GTEST_SKIP() << why;
  for (const int run : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const int32_t lost = run % 2;
    const int lost_in = run / 2 % 2 * 2;
    const bool peers = run < 4;
    SCOPED_TRACE(fmt::format("stage {} in step {}, {}", lost, lost_in, peers ? "peers" : "NCCL"));
    std::string other;
    double waited = 0;
    const std::string first = message_of([&] {
      run_gpu_ranks(
          Wire::kNccl, stages.mesh(),
          [&](Communicator& communicator, cuda::DeviceRanks& ranks) {
            Rank rank(Wire::kNccl, stages, "llama", "bf16", false, communicator, ranks);
            for (int step = 0; step < lost_in; ++step) rank.step(step);
            rank.evaluate();  // all that was under way has ended
            barrier(communicator);
            if (communicator.rank() == lost) {
              rank.step(lost_in, [&](int64_t micro_batch, const std::string&) {
                if (micro_batch < 2) return;
                lost_rank = lost;
                fail(ErrorCode::kInternal, "the disk is full");
              });
            }
            const auto begin = std::chrono::steady_clock::now();
            other = message_of([&] {
              std::map<std::string, std::vector<std::byte>> states;
              rank.step(lost_in);
              rank.add_states(states);  // waits for the device
            });
            waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            EXPECT_TRUE(ranks.aborted());
          },
          peers);
    });
    EXPECT_EQ(first, "the disk is full");
    // NCCL may see it before the control plane does.
    EXPECT_TRUE(other.find("is lost") != other.npos || other.find("NCCL") != other.npos) << other;
    EXPECT_LT(waited, 10);
  }
  EXPECT_EQ(train(Wire::kNccl, stages, "llama", "bf16").losses.size(), static_cast<size_t>(kSteps));
}

}  // namespace
}  // namespace octet
