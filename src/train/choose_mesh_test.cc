#include "train/choose_mesh.h"

#include <gtest/gtest.h>

#include "base/testing/test_error.h"

namespace octet {
namespace {

// Eight micro-batches a step.
RunConfig config_of(int64_t tensor, int64_t data, int64_t context) {
  RunConfig config;
  config.tensor = tensor, config.data_ranks = data, config.context = context;
  config.micro_batch = 2, config.global_batch = 16;
  return config;
}

std::string mesh_of(const RunConfig& config, int64_t count) {
  const Mesh mesh = choose_mesh(config, count, "GPUs").mesh;
  return fmt::format("{} {} {}", mesh[Axis::kTensor], mesh[Axis::kData], mesh[Axis::kContext]);
}

std::string refusal_of(const RunConfig& config, int64_t count) {
  return error_of([&] { choose_mesh(config, count, "GPUs"); });
}

TEST(ChooseMesh, WhatIsLeft) {
  EXPECT_EQ(mesh_of(config_of(2, 2, 1), 4), "2 2 1");
  EXPECT_EQ(choose_mesh(config_of(2, 2, 1), 8, "GPUs").note, "");
  EXPECT_EQ(mesh_of(config_of(0, 2, 1), 8), "4 2 1");
  EXPECT_EQ(mesh_of(config_of(2, 2, 0), 8), "2 2 2");
  EXPECT_EQ(choose_mesh(config_of(0, 2, 1), 8, "GPUs").note,
            "8 GPUs: parallel.tensor=4 x parallel.data=2 x parallel.context=1");
  EXPECT_EQ(mesh_of(config_of(2, 0, 1), 8), "2 4 1");
  EXPECT_EQ(mesh_of(config_of(1, 0, 1), 100), "1 8 1");  // no more than there are micro-batches
}

TEST(ChooseMesh, DataRanksAreTheMostThatDivide) {
  const char* most[] = {"1", "2", "2", "4", "4", "4", "4", "8", "8"};
  for (int64_t count = 1; count <= 9; ++count)
    EXPECT_EQ(mesh_of(config_of(1, 0, 1), count), fmt::format("1 {} 1", most[count - 1])) << count;
  EXPECT_EQ(choose_mesh(config_of(2, 0, 1), 7, "GPUs").note,
            "7 GPUs: parallel.data=2, the largest number that divides the 8 micro-batches of a step; 3 left over");
  RunConfig one = config_of(1, 0, 1);
  one.global_batch = 0;  // one micro-batch, whatever the ranks
  EXPECT_EQ(mesh_of(one, 8), "1 1 1");
}

TEST(ChooseMesh, FewerRanksThanWanted) {
  RunConfig config = config_of(2, 4, 1);
  EXPECT_EQ(refusal_of(config, 7),
            "parallel.tensor=2 x parallel.data=4 x parallel.context=1 are 8 ranks, but there are 7 GPUs: want 8, or "
            "set one of them to 0, which takes what is left");
  config.restarts = 1;
  const MeshChoice choice = choose_mesh(config, 7, "GPUs");
  EXPECT_TRUE(choice.fewer);
  EXPECT_EQ(choice.note,
            "7 GPUs: parallel.data=2, the largest number that divides the 8 micro-batches of a step (the settings want "
            "4); 3 left "
            "over");
  EXPECT_EQ(mesh_of(config, 7), "2 2 1");
  EXPECT_EQ(mesh_of(config, 2), "2 1 1");
  EXPECT_FALSE(choose_mesh(config, 8, "GPUs").fewer);
  EXPECT_EQ(
      refusal_of(config, 1),
      "parallel.tensor=2 x parallel.data=4 x parallel.context=1 needs 2 for every rank of parallel.data, but there "
      "are 1 GPUs: want a multiple of 2");
}

TEST(ChooseMesh, RefusalsNameWhatWouldDo) {
  EXPECT_EQ(refusal_of(config_of(0, 0, 1), 6),
            "parallel.tensor=0 x parallel.data=0 x parallel.context=1: only one of them may be 0, for what is left of "
            "6 GPUs; "
            "set the others to one of 1, 2, 3, 6");
  EXPECT_EQ(refusal_of(config_of(0, 4, 1), 6),
            "parallel.tensor=0 x parallel.data=4 x parallel.context=1: 6 GPUs are not divisible by 4: want a "
            "multiple of 4, or parallel.data x parallel.context among 1, 2, 3, 6");
  const std::string plan = error_of([] { validate(config_of(1, 0, 1)); });
  EXPECT_TRUE(plan.starts_with("parallel.data=0 takes what is left of a launcher's ranks or of the usable GPUs"))
      << plan;
  EXPECT_TRUE(plan.ends_with("set it to a number")) << plan;
}

TEST(ValidateRanks, TokensThatDoNotDivide) {
  RunConfig config = config_of(4, 1, 3);
  config.sequence_length = 1023;
  EXPECT_EQ(error_of([&] { validate(config); }), "(no error)");
  config.sequence = true;
  EXPECT_EQ(
      error_of([&] { validate(config); }),
      "train.micro_batch 2 x data.sequence_length 1023 are 2046 tokens, which 12 ranks (parallel.context, and "
      "parallel.tensor under parallel.sequence) cannot share equally: want a sequence length that is a multiple of "
      "6");
}

}  // namespace
}  // namespace octet
