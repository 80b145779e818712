// Calls as bytes: what comes out is what went in, and bytes that are no call are refused.
#include "infer/runner_calls.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet {
namespace {

class Recorder final : public Runner {
 public:
  const RunnerLimits& limits() const override { return limits_; }
  void copy_blocks(std::span<const BlockCopy> copies) override { again = copy_blocks_call(copies); }
  void forward(const StepInput& input) override { again = forward_call(input); }
  void sample(const SampleInput& input) override { again = sample_call(input); }
  SampleOutput wait() override {
    again = wait_call();
    return {};
  }
  int64_t padded_tokens(const StepInput&) const override { return 0; }

  CallBytes again;

 private:
  RunnerLimits limits_;
};

std::vector<CallBytes> some_calls() {
  const std::vector<BlockCopy> copies = {{0, 1, 2}, {1, 3, 4}};
  const StepInput step{.ids = {7, 8, 9},
                       .positions = {0, 1, 5},
                       .from = {-1, -1, 2},
                       .segments = {0, 2, 3},
                       .kv_lengths = {2, 6},
                       .logit_rows = {1, 2},
                       .groups = {{{4, 5, 6}, {1, -1}}, {{7, -1, 8}, {2, 3}}},
                       .decode_only = true,
                       .adapters = {-1, 3},
                       .virtual_rows = {-1, 5, -1}};
  const SampleInput sample{.params = {1, 0.5f, 0},
                           .top_k = {3},
                           .seeds = {int64_t{1} << 40, 1, 2},
                           .store = {0},
                           .entries = {0, 5},
                           .values = {1, 2, 3},
                           .masks = {0xffffffffu},
                           .mask_rows = {0},
                           .top_logprobs = true};
  return {copy_blocks_call(copies), forward_call(step), sample_call(sample), forward_call({}), wait_call()};
}

TEST(RunnerCalls, AreMadeAgainAsTheyWere) {
  for (const CallBytes& call : some_calls()) {
    Recorder recorder;
    make_call(recorder, call);
    EXPECT_EQ(recorder.again, call);
  }
}

TEST(RunnerCalls, ShortAndLongBytesAreRefused) {
  for (const CallBytes& call : some_calls()) {
    Recorder recorder;
    for (size_t length = 0; length < call.size(); ++length)
      EXPECT_THROW(make_call(recorder, std::span(call).first(length)), Error) << length;
    CallBytes longer = call;
    longer.push_back({});
    EXPECT_THROW(make_call(recorder, longer), Error);
    EXPECT_TRUE(recorder.again.empty());
  }
}

}  // namespace
}  // namespace octet
