// Collectives beside kernels on one GPU: the ranks' results come late, so whatever does not wait for them, or takes
// their operands' memory too early, computes other bits than a run whose collectives run in turn.
#include <gtest/gtest.h>

#include "cuda/gpu_ranks.h"

namespace octet {
namespace {

// Others that hold what this rank does. A sum is this rank's part: exact, whatever the order.
class LateGroup final : public cuda::RankGroup {
 public:
  using RankGroup::RankGroup;

  void all_reduce(const void* x, void* y, int64_t count, DType dtype, Stream stream) override {
    be_late(stream);
    copy(y, 0, x, 0, count * dtype_bytes(dtype), stream);
  }
  void reduce_scatter(const void* x, void* y, int64_t count, DType dtype, Stream stream) override {
    be_late(stream);
    copy(y, 0, x, own(), count * dtype_bytes(dtype), stream);
  }
  void all_gather(const void* x, void* y, int64_t bytes, Stream stream) override {
    be_late(stream);
    for (int64_t i = 0; i < size(); ++i) copy(y, i, x, 0, bytes, stream);
  }
  void all_to_all(const void* x, void* y, int64_t bytes, Stream stream) override {
    be_late(stream);
    for (int64_t i = 0; i < size(); ++i) copy(y, i, x, own(), bytes, stream);
  }
  void coalesce(FunctionRef<void()> calls, std::span<std::byte>) override { calls(); }

 private:
  static void copy(void* y, int64_t to, const void* x, int64_t from, int64_t bytes, Stream stream) {
    cuda::check_cuda(
        cudaMemcpyAsync(static_cast<std::byte*>(y) + to * bytes, static_cast<const std::byte*>(x) + from * bytes,
                        static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
        "a late rank");
  }
};

class LateRanks final : public cuda::DeviceRanks {
 public:
  using DeviceRanks::DeviceRanks;
  cuda::RankGroup& group(const AxisList& over) override {
    const std::vector<int32_t> members = mesh().group(rank(), over);
    const int64_t own = std::ranges::find(members, rank()) - members.begin();
    return *groups_.emplace_back(std::make_unique<LateGroup>(std::ssize(members), own));
  }
  void check() override {}
  void abort() override {}
  bool aborted() const override { return false; }
  int64_t bytes() const override { return 0; }

 private:
  std::vector<std::unique_ptr<LateGroup>> groups_;
};

class CudaOverlap : public testing::TestWithParam<std::tuple<Way, const char*>> {
 protected:
  void SetUp() override {
    if (std::string why; !cuda_available(&why)) GTEST_SKIP() << why;
  }
};

// All states after three steps, whose graphs are launched one by one, then captured, then replayed.
std::vector<std::vector<std::byte>> trained(const Way& way, const char* recipe, bool overlap, int64_t& async) {
  CompileOptions options{.target = cuda_target(), .recipe = parse_recipe(recipe)};
  options.target.link_latency = 0;  // nothing is too small
  options.target.allow(Producer::kProduct, {FusionPart::kRankRows});
  options.parallel = {.mesh = way.mesh, .sequence = way.sequence, .overlap = overlap, .level = way.level};
  Plan plan = compile(tiny::training_program("llama"), options);
  for (const Graph& graph : plan.program.graphs()) async += std::ranges::count_if(graph.nodes(), is_async);
  LateRanks ranks(way.mesh, 0);
  const auto executor = make_cuda_executor(std::move(plan), {.deterministic = true, .ranks = &ranks});
  initialize(*executor);
  for (int step = 0; step < 3; ++step) {
    accumulate(*executor, way.mesh, step);
    apply(*executor, step);
  }
  std::vector<std::vector<std::byte>> states;
  for (const StateEntry& entry : executor->program().states()) states.push_back(tiny::state(*executor, entry.name));
  return states;
}

TEST_P(CudaOverlap, ChangesNoBit) {
  const auto& [way, recipe] = GetParam();
  int64_t async = 0, none = 0;
  const auto beside = trained(way, recipe, true, async), in_turn = trained(way, recipe, false, none);
  EXPECT_GT(async, 0);
  EXPECT_EQ(none, 0);
  ASSERT_EQ(beside.size(), in_turn.size());
  for (size_t i = 0; i < beside.size(); ++i) EXPECT_EQ(beside[i], in_turn[i]) << "state " << i;
}

constexpr ShardLevel kGradients = ShardLevel::kGradients, kParameters = ShardLevel::kParameters;
INSTANTIATE_TEST_SUITE_P(Ways, CudaOverlap,
                         testing::Combine(testing::Values(Way{"tp2", {{1, 1, 1, 2}}},
                                                          Way{"tp2_sequence", {{1, 1, 1, 2}}, true},
                                                          Way{"dp2_gradients", {{1, 2, 1, 1}}, false, kGradients},
                                                          Way{"dp2_parameters", {{1, 2, 1, 1}}, false, kParameters},
                                                          Way{"cp2", {{1, 1, 2, 1}}},
                                                          Way{"cp2_gradients", {{1, 1, 2, 1}}, false, kGradients}),
                                          testing::Values("bf16", "fp8-current")),
                         [](const auto& info) {
                           std::string name =
                               fmt::format("{}_{}", std::get<0>(info.param).name, std::get<1>(info.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace octet
