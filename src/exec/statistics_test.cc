// States that are no parameters, in the text form: a running mean over micro-batches and ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/test_error.h"
#include "exec/testing/stepped_program.h"

namespace octet {
namespace {

using stepped::States, stepped::Steps, stepped::Way;

constexpr int64_t kRows = 6, kWidth = 4;
constexpr double kRate = 0.25, kInitial = 1;

// The means of the rows of x and of each micro-batch's largest element.
const char* const kProgram = R"(program @means
graph @train stage model
  %x = input {rows="batch"} : f32[6,4] @x
  %mean = state {initial=1.0, rate=0.25} : f32[4] @mean
  %largest = state {rate=0.5} : f32[1] @largest
  %near = sub %x, %mean @near
  %w = param {split="column"} : f32[2,4] @w
  %y = matmul %near, %w {gemm="w", role="fprop", trans_b=true} @w
  %loss = reduce %y {reduction="sum", axis="all"} @loss
  %sum = reduce %x {reduction="sum", axis="rows"} @sum
  %rows = constant {value=6.0} : f32[1] @rows
  %max = reduce %x {reduction="amax", axis="all"} @max
  %one = constant {value=1.0} : f32[1] @one
  output @loss %loss
  output @statistic.mean %sum
  output @statistic_count.mean %rows
  output @statistic.largest %max
  output @statistic_count.largest %one
end
graph @apply stage model
  %lr = input : f32[1] @lr phase optimizer
  %w = param : f32[2,4] @w phase optimizer
  %g = state : f32[2,4] @grad.w phase optimizer
  %squares = square_sum %g phase optimizer
  %c = clip_factor %squares phase optimizer
  %new = sgd %w, %g, %lr, %lr, %c.1, %c.2 {momentum=0.0, weight_decay=0.0} phase optimizer
  %mean = state {initial=1.0, rate=0.25} : f32[4] @mean phase optimizer
  %sum = state : f32[4] @sum.statistic.mean phase optimizer
  %rows = state : f32[1] @sum.statistic_count.mean phase optimizer
  %near = blend %mean, %sum, %rows, %c.2 {rate=0.25} phase optimizer
  %largest = state {rate=0.5} : f32[1] @largest phase optimizer
  %maxima = state : f32[1] @sum.statistic.largest phase optimizer
  %count = state : f32[1] @sum.statistic_count.largest phase optimizer
  %up = blend %largest, %maxima, %count, %c.2 {rate=0.5} phase optimizer
  update @w %new
  update @mean %near
  update @largest %up
end
)";

std::vector<float> x_of(int index) {
  std::vector<float> x(kRows * kWidth);
  Philox random(5, static_cast<uint64_t>(index));
  for (float& value : x) value = static_cast<float>(random.normal());
  return x;
}

Steps steps_of(int count, int not_finite = -1) {
  const auto batch = [not_finite](int index) {
    Batch made;
    std::vector<float> x = x_of(index);
    if (index / 4 == not_finite) x[5] = INFINITY;
    std::ranges::copy(x, made.add("x", {DType::kF32, {kRows, kWidth}}).values<float>().begin());
    return made;
  };
  const auto rate = [](Executor& executor, int) { input_as<float>(executor, "apply", "lr")[0] = 0.01F; };
  return {.steps = count, .batch = batch, .inputs_of_apply = rate};
}

// After steps of four micro-batches each, but those that are left out.
std::pair<std::vector<double>, double> expected(int steps, int left_out = -1) {
  std::vector<double> means(kWidth, kInitial);
  double largest = 0;
  for (int step = 0; step < steps; ++step) {
    if (step == left_out) continue;
    std::vector<double> sum(kWidth, 0.0);
    double maxima = 0;
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> x = x_of(4 * step + i);
      double max = 0;
      for (size_t k = 0; k < x.size(); ++k) {
        sum[k % kWidth] += x[k];
        max = std::max(max, std::abs(static_cast<double>(x[k])));
      }
      maxima += max;
    }
    for (size_t c = 0; c < kWidth; ++c) means[c] += kRate * (sum[c] / (4 * kRows) - means[c]);
    largest += 0.5 * (maxima / 4 - largest);
  }
  return {means, largest};
}

void expect_means(const States& states, const std::pair<std::vector<double>, double>& want, double tolerance,
                  const std::string& where) {
  for (size_t c = 0; c < kWidth; ++c) EXPECT_NEAR(states.at("mean")[c], want.first[c], tolerance) << where << " " << c;
  EXPECT_NEAR(states.at("largest")[0], want.second, tolerance) << where;
}

const Way kWays[] = {{"one"},
                     {"dp2", {{1, 2, 1, 1}}},
                     {"dp4 parameters", {{1, 4, 1, 1}}, ShardLevel::kParameters},
                     {"cp2", {{1, 1, 2, 1}}},
                     {"tp2", {{1, 1, 1, 2}}},
                     {"dp2 cp2", {{1, 2, 2, 1}}}};

TEST(Statistics, AreMeansOverMicroBatchesAndRanks) {
  for (Way way : kWays) {
    expect_means(stepped::run(kProgram, way, steps_of(3)), expected(3), 1e-12, way.name);
    way.cpu = true;
    expect_means(stepped::run(kProgram, way, steps_of(3)), expected(3), 1e-6, std::string("cpu ") + way.name);
  }
}

TEST(Statistics, StayWhereAStepIsNotFinite) {
  for (Way way : kWays) {
    for (const bool cpu : {false, true}) {
      way.cpu = cpu;
      const States states = stepped::run(kProgram, way, steps_of(3, 1));
      expect_means(states, expected(3, 1), 1e-6, way.name);
    }
  }
}

// They are states of a kind of their own: copies on all ranks, saved, with their first values.
TEST(Statistics, AreInTheStateTable) {
  const Program program = compile(parse_program(kProgram), {}).program;
  const StateEntry* mean = program.find_state("mean", StateRole::kStatistic);
  ASSERT_NE(mean, nullptr);
  EXPECT_EQ(mean->initial, kInitial);
  EXPECT_TRUE(is_saved(mean->role));
  EXPECT_EQ(find_logical_state(program, "mean", StateRole::kStatistic).name, "mean");
  EXPECT_TRUE(program.graph("train").outputs().size() == 1) << "sums of statistics are no outputs";
  CompileOptions pipeline;
  pipeline.parallel = {.mesh = {{2, 1, 1, 1}}, .micro_batches = 2};
  const std::string error = error_of([&] { compile(parse_program(kProgram), pipeline); });
  EXPECT_NE(error.find("parallel.pipeline=1"), std::string::npos) << error;
}

}  // namespace
}  // namespace octet
