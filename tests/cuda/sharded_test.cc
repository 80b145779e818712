// Sharded training on GPUs against that of one: gradients of a step, then losses of steps. Ranks over NCCL, each with a
// GPU of its own, or over the host, on one.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "cuda/gpu_ranks.h"
#include "exec/logical_states.h"
#include "exec/testing/tiny_program.h"

namespace octet {
namespace {

constexpr Way kOne = {"one"};
const std::vector<Way> kWays = {{"tp2", {{1, 1, 1, 2}}},
                                {"tp2_sequence", {{1, 1, 1, 2}}, true},
                                {"dp2", {{1, 2, 1, 1}}},
                                {"dp2_optimizer", {{1, 2, 1, 1}}, false, ShardLevel::kOptimizer},
                                {"dp2_parameters", {{1, 2, 1, 1}}, false, ShardLevel::kParameters},
                                {"cp2", {{1, 1, 2, 1}}},
                                {"cp2_gradients", {{1, 1, 2, 1}}, false, ShardLevel::kGradients},
                                {"dp2_cp2_tp2_sequence_optimizer", {{1, 2, 2, 2}}, true, ShardLevel::kOptimizer}};

constexpr int kSteps = 3;

// What the ranks hold of logical tensors, whole: pieces that are pending over axes are added, copies are one.
class Gathered {
 public:
  void add(Executor& executor, const Mesh& mesh) {
    const Coordinate at = executor.coordinate();
    for (const LogicalState& tensor : logical_states(executor.program())) {
      if (tensor.role != StateRole::kGradient || tensor.type.shape.elements() == 0) continue;
      const int64_t size = dtype_bytes(tensor.type.dtype);
      std::vector<std::byte> bytes = tiny::state(executor, tensor.state);
      int32_t piece = 0;
      for (Axis axis : executor.program().find_state(tensor.state)->layout.pending_axes().list())
        piece = piece * mesh[axis] + at[axis];
      for_each_run(tensor.at, tensor.type.dtype, [&](int64_t logical, int64_t state, int64_t count) {
        for (int64_t i = 0; i < count / size; ++i)
          pieces_[tensor.name][logical / size + i][piece] =
              load_element(tensor.type.dtype, bytes.data(), state / size + i);
      });
    }
  }
  std::map<std::string, std::vector<double>> values() const {
    std::map<std::string, std::vector<double>> all;
    for (const auto& [name, elements] : pieces_) {
      for (const auto& [element, addends] : elements) {
        double sum = 0;
        for (const auto& [piece, value] : addends) sum += value;
        all[name].push_back(sum);
      }
    }
    return all;
  }

 private:
  std::map<std::string, std::map<int64_t, std::map<int32_t, double>>> pieces_;
};

struct Trained {
  std::map<std::string, std::vector<double>> gradients;  // of the first step
  std::vector<double> losses;                            // of the evaluation after each step, the same on all ranks
};

Trained train(Wire wire, const Way& way, const char* family, const char* recipe) {
  CompileOptions options{.target = cuda_target(), .recipe = parse_recipe(recipe)};
  options.target.link_latency = 0;  // nothing is too small
  options.target.allow(Producer::kProduct, {FusionPart::kRankRows});
  options.target.allow(Producer::kNorm, {FusionPart::kRankSum});
  options.parallel = {.mesh = way.mesh, .sequence = way.sequence, .level = way.level};
  const Plan plan = compile(tiny::training_program(family), options);
  std::mutex mutex;
  Gathered gradients;
  Trained trained;
  run_gpu_ranks(wire, way.mesh, [&](Communicator& rank, cuda::DeviceRanks& ranks) {
    const auto executor = make_cuda_executor(plan, rank_options(wire, ranks));
    barrier(rank);  // a device makes and frees memory while no other runs
    initialize(*executor);
    for (int step = 0; step < kSteps; ++step) {
      accumulate(*executor, way.mesh, step);
      if (step == 0) {
        const std::lock_guard lock(mutex);
        gradients.add(*executor, way.mesh);
      }
      apply(*executor, step);
      const double loss = tiny::loss(*executor, "eval", 1);
      if (rank.rank() == 0) trained.losses.push_back(loss);
    }
  });
  trained.gradients = gradients.values();
  return trained;
}

// |a - b| / |b| over all gradients together: some are noise by themselves (key biases). What b has more is padding.
double distance(const Trained& a, const Trained& b) {
  double error = 0, size = 0;
  EXPECT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, values] : b.gradients) {
    const auto found = a.gradients.find(name);
    if (found == a.gradients.end() || found->second.size() != values.size()) {
      ADD_FAILURE() << name << " is not whole";
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      error += (found->second[i] - values[i]) * (found->second[i] - values[i]);
      size += values[i] * values[i];
    }
  }
  return std::sqrt(error / size);
}

class ShardedOnGpus : public testing::TestWithParam<std::tuple<Wire, std::string>> {
 protected:
  void SetUp() override {
    if (const std::string why = no_ranks(std::get<0>(GetParam()), kWays[0].mesh); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(ShardedOnGpus, TrainAsOne) {
  const auto& [wire, family] = GetParam();
  const Trained exact = train(Wire::kHost, kOne, family.c_str(), "fp32");
  const Trained half = train(Wire::kHost, kOne, family.c_str(), "bf16");
  const double bf16 = std::sqrt(2.0) * distance(half, exact);  // two independent errors of the recipe's size
  for (const Way& way : kWays) {
    if (wire == Wire::kNccl && way.mesh.ranks() > cuda::device_count()) continue;
    for (const bool is_half : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", way.name, is_half ? "bf16" : "fp32"));
      const Trained& one = is_half ? half : exact;
      Trained sharded;
      try {
        sharded = train(wire, way, family.c_str(), is_half ? "bf16" : "fp32");
      } catch (const Error& error) {
        ADD_FAILURE() << error.message();
        continue;
      }
      EXPECT_LE(distance(sharded, one), is_half ? bf16 : 1e-5);
      ASSERT_EQ(sharded.losses.size(), one.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(sharded.losses[i], one.losses[i], (is_half ? 1e-2 : 2e-5) * one.losses[i]) << "after step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedOnGpus,
                         testing::Combine(testing::Values(Wire::kHost, Wire::kNccl), testing::Values("llama", "gpt2")),
                         [](const auto& info) {
                           return (std::get<0>(info.param) == Wire::kNccl ? "nccl_" : "host_") +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace octet
