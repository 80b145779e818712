// States filled in pieces, by every executor there is.
#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/executor.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

constexpr int64_t kBytes = (int64_t{100} << 20) + 24;  // pieces on their way in all buffers, some of them twice

std::byte expected(int64_t at) { return static_cast<std::byte>((at * 2654435761u) >> 13); }

std::unique_ptr<Executor> executor_of(const std::string& device) {
  Program program;
  program.name = "fill";
  program.add_state({.name = "codes", .type = {DType::kU8, {kBytes}}});
  return make_executor(plan_memory(std::move(program), target_of(resolve_device(device))));
}

class FillState : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam() == "cuda" && !cuda_available(&why)) GTEST_SKIP() << why;
  }
};

TEST_P(FillState, PiecesOfWholeGrainsArriveWhereTheyBelong) {
  auto executor = executor_of(GetParam());
  std::vector<std::byte> read(static_cast<size_t>(kBytes));
  constexpr int64_t kOffset = 7, kGrain = 1000003, kPart = kBytes - 20;
  int64_t next = 0;
  executor->fill_state_part("codes", kOffset, kPart, kGrain, [&](int64_t at, std::span<std::byte> to) {
    EXPECT_EQ(at, next);
    next = at + std::ssize(to);
    EXPECT_TRUE(next == kPart || std::ssize(to) % kGrain == 0);
    for (int64_t i = 0; i < std::ssize(to); ++i) to[static_cast<size_t>(i)] = expected(at + i);
  });
  EXPECT_EQ(next, kPart);
  executor->read_state("codes", read);
  int64_t wrong = 0;
  for (int64_t i = 0; i < kBytes; ++i) {
    const bool inside = i >= kOffset && i < kOffset + kPart;
    wrong += read[static_cast<size_t>(i)] != (inside ? expected(i - kOffset) : std::byte{0});
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(FillState, WhatIsWrittenMayBeOverwrittenAtOnce) {
  auto executor = executor_of(GetParam());
  std::vector<std::byte> from(static_cast<size_t>(kBytes)), read(from.size());
  for (int64_t i = 0; i < kBytes; ++i) from[static_cast<size_t>(i)] = expected(i);
  const std::vector<std::byte> kept = from;
  executor->write_state("codes", from);
  std::fill(from.begin(), from.end(), std::byte{0});
  executor->read_state("codes", read);
  EXPECT_TRUE(read == kept);
}

TEST_P(FillState, PartsOutsideAreRefused) {
  auto executor = executor_of(GetParam());
  bool made = false;
  const auto make = [&](int64_t, std::span<std::byte>) { made = true; };
  EXPECT_THROW(executor->fill_state_part("codes", 1, kBytes, 1, make), Error);
  EXPECT_THROW(executor->fill_state_part("codes", -1, 5, 1, make), Error);
  EXPECT_THROW(executor->fill_state_part("scales", 0, 1, 1, make), Error);
  EXPECT_FALSE(made);
}

INSTANTIATE_TEST_SUITE_P(Devices, FillState, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace octet
