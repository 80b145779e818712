// Several executors of one process, each in its own thread: the bits that each gives alone.
#include "exec/testing/train_together.h"

#include <gtest/gtest.h>

#include "exec/testing/program_conformance.h"

namespace octet {
namespace {

tiny::MakeExecutor cpu_executor(const char* architecture, const char* recipe) {
  return [plan = conformance::compiled_plan({architecture, recipe}, cpu_target())] { return make_cpu_executor(plan); };
}

TEST(TrainTogether, EachExecutorGivesTheBitsItGivesAlone) {
  const std::vector<tiny::Trained> together = tiny::expect_the_bits_of_each_alone(
      {cpu_executor("gpt2", "bf16"), cpu_executor("llama", "fp8-current"), cpu_executor("gpt2", "bf16")});
  EXPECT_NE(together[0].losses, together[2].losses) << "of other weights";
}

TEST(TrainTogether, AnExecutorWorksInAnotherThreadThanMadeIt) {
  const tiny::MakeExecutor make = cpu_executor("llama", "fp8-current");
  std::unique_ptr<Executor> made = make();
  const tiny::Trained moved = tiny::train_together({[&] { return std::move(made); }})[0];
  EXPECT_EQ(moved, tiny::train_alone(make, 0));
}

TEST(TrainTogether, WhatOneThreadThrowsEndsAllAndIsThrownOn) {
  const tiny::MakeExecutor fails = []() -> std::unique_ptr<Executor> { fail(ErrorCode::kInternal, "not made"); };
  EXPECT_THROW(tiny::train_together({cpu_executor("gpt2", "fp32"), fails}), Error);
}

}  // namespace
}  // namespace octet
