// The ladder under synthetic statistics: falling, returning, dwelling, noise, timings, and the state of a resumed run.
#include "precision/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

// Statistics with these SNRs in dB.
TensorStats stats(double tensor, double block, double block_t) {
  TensorStats s{};
  s[kStatAmax] = 1;
  int at = kStatTensor;
  for (double db : {tensor, block, block_t}) {
    s[static_cast<size_t>(at + kNoise)] = static_cast<float>(std::pow(10, -db / 10));
    at += 3;
  }
  return s;
}

const TensorStats kHealthy = stats(31, 31, 31);

std::vector<PolicyGemm> linear(const std::string& name) {
  return {{name, GemmRole::kFprop, 512, 256, 128, {name + ".x", name + ".weight"}},
          {name, GemmRole::kDgrad, 512, 128, 256, {name + ".dy", name + ".weight"}},
          {name, GemmRole::kWgrad, 256, 128, 512, {name + ".dy", name + ".x"}}};
}

StatsTable table(const TensorStats& x, const TensorStats& dy = kHealthy, const TensorStats& weight = kHealthy) {
  return {{"up.x", x}, {"up.dy", dy}, {"up.weight", weight}};
}

TEST(Policy, HealthyTensorsStayUnderOneScale) {
  PrecisionPolicy policy(linear("up"), {}, {});
  for (int step = 1; step < 50; ++step) EXPECT_TRUE(policy.observe(step, table(kHealthy)).empty());
  EXPECT_EQ(policy.level("up/wgrad"), PrecisionLevel::kTensor);
  EXPECT_THROW(policy.level("down/wgrad"), Error);
}

TEST(Policy, FallsAtOnceToTheFirstLevelThatHolds) {
  PrecisionPolicy policy(linear("up"), {}, {});
  // x holds in blocks along rows, not along columns: fprop may use blocks, wgrad may not, dgrad does not read it.
  std::vector<Switch> made = policy.observe(7, table(stats(6, 27, 12)));
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[0].gemm, "up/fprop");
  EXPECT_EQ(made[0].to, PrecisionLevel::kBlock);
  EXPECT_EQ(made[0].step, 7);
  EXPECT_NE(made[0].reason.find("up.x under one scale: SNR 6.0 dB (at least 18)"), std::string::npos) << made[0].reason;
  EXPECT_EQ(made[1].gemm, "up/wgrad");
  EXPECT_EQ(made[1].to, PrecisionLevel::kHigh);
  EXPECT_NE(made[1].reason.find("in 128-blocks: SNR 12.0 dB"), std::string::npos) << made[1].reason;
  EXPECT_EQ(policy.level("up/dgrad"), PrecisionLevel::kTensor);
  EXPECT_EQ(policy.decisions().at("up/fprop"), (GemmPrecision{true, Scaling::kBlock}));
  EXPECT_EQ(policy.decisions().at("up/wgrad"), GemmPrecision{});
}

// A frozen weight is held once: the products that read it fall, and return, together.
TEST(Policy, ReadersOfAFrozenWeightAreOfOneLevel) {
  std::vector<PolicyGemm> gemms = linear("up");
  gemms.pop_back();  // a frozen weight has no gradient
  for (PolicyGemm& gemm : gemms) gemm.held = "up.weight";
  PrecisionPolicy policy(gemms, {.dwell = 2}, {});
  const auto level = [&] {
    EXPECT_EQ(policy.level("up/fprop"), policy.level("up/dgrad"));
    return policy.level("up/fprop");
  };
  std::vector<Switch> made = policy.observe(1, table(stats(6, 27, 12)));  // of x alone, which dgrad does not read
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(level(), PrecisionLevel::kBlock);
  EXPECT_EQ(made[1].reason, "up.weight is held once, for up/fprop in fp8-block too");
  EXPECT_TRUE(policy.observe(2, table(stats(6, 27, 12))).empty());
  EXPECT_EQ(policy.observe(3, table(stats(6, 27, 12), stats(6, 6, 6))).size(), 2u);
  EXPECT_EQ(level(), PrecisionLevel::kHigh);
  const std::string kept = policy.state();
  for (int64_t step = 4; level() == PrecisionLevel::kHigh && step < 40; ++step) policy.observe(step, table(kHealthy));
  EXPECT_EQ(level(), PrecisionLevel::kTensor);
  PrecisionPolicy resumed(gemms, {.dwell = 2}, {});
  EXPECT_TRUE(resumed.restore(kept, "here", 3).empty());
  EXPECT_EQ(resumed.state(), kept);
  gemms[1].unsupported_reason = "of its shape";
  const PrecisionPolicy refused(gemms, {}, {});
  EXPECT_EQ(refused.switches().size(), 2u);
  EXPECT_EQ(refused.level("up/fprop"), PrecisionLevel::kHigh);
}

TEST(Policy, UnderflowAndValuesThatAreNotFiniteCountToo) {
  PrecisionPolicy policy(linear("up"), {}, {});
  TensorStats lost = kHealthy, broken = kHealthy;
  lost[kStatTensor + kUnderflow] = 0.3f;
  EXPECT_EQ(policy.observe(1, table(lost)).size(), 2u);
  EXPECT_EQ(policy.level("up/fprop"), PrecisionLevel::kBlock);
  broken[kStatNotFinite] = 0.01f;
  std::vector<Switch> made = policy.observe(2, table(broken));
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[0].to, PrecisionLevel::kHigh);
  EXPECT_NE(made[0].reason.find("1 % of its values are not finite"), std::string::npos) << made[0].reason;
}

TEST(Policy, ReturnsAfterTheDwellAndLaterAfterEachFall) {
  PrecisionPolicy policy(linear("up"), {.dwell = 3}, {});
  const StatsTable good = table(kHealthy), bad = table(stats(6, 6, 6));
  int64_t step = 0;
  auto rounds_until_return = [&] {
    int64_t rounds = 1;
    while (policy.observe(++step, good).empty()) ++rounds;
    return rounds;
  };
  for (int64_t rounds : {3, 6, 12}) {
    policy.observe(++step, bad);
    EXPECT_EQ(policy.level("up/fprop"), PrecisionLevel::kHigh);
    EXPECT_EQ(rounds_until_return(), rounds);
    EXPECT_EQ(policy.level("up/fprop"), PrecisionLevel::kTensor);
  }
}

TEST(Policy, BetweenTheThresholdsNothingMoves) {
  PrecisionPolicy policy(linear("up"), {}, {});
  for (int step = 1; step < 20; ++step) EXPECT_TRUE(policy.observe(step, table(stats(20, 31, 31))).empty());
  policy.observe(20, table(stats(10, 31, 31)));
  for (int step = 21; step < 60; ++step) EXPECT_TRUE(policy.observe(step, table(stats(20, 31, 31))).empty());
  EXPECT_EQ(policy.level("up/fprop"), PrecisionLevel::kBlock);
}

// SNRs that wander by a standard deviation of 1 dB around any level: few switches in 400 rounds, whatever the level.
TEST(Policy, DoesNotFlapUnderNoise) {
  for (double level = 10; level <= 32; level += 0.5) {
    PrecisionPolicy policy(linear("up"), {}, {});
    Philox random(11, static_cast<uint64_t>(level * 2));
    for (int step = 1; step <= 400; ++step) {
      auto noisy = [&](double db) { return db + random.normal(); };
      policy.observe(step, table(stats(noisy(level), noisy(30), noisy(30))));
    }
    EXPECT_LE(policy.switches().size(), 4u) << "two GEMMs read x at " << level << " dB";
  }
}

// Timings of linears y [512, 256] = x [512, 128] W^T.
Target timed(double high, double tensor, double block, int64_t linears = 1) {
  return {.name = "gpu",
          .timings = {{"bf16", 512, 256, 128, linears, high},
                      {"fp8-tensor", 512, 256, 128, linears, tensor},
                      {"fp8-block", 512, 256, 128, linears, block},
                      {"fp8-tensor", 512, 256, 128, 5, 9e-6}}};  // without bf16 beside it: says nothing
}

TEST(Policy, RefusesWhatTimingsShowToBeSlower) {
  PrecisionPolicy slower(linear("up"), {}, timed(2e-6, 2.05e-6, 3e-6));
  ASSERT_EQ(slower.switches().size(), 3u);
  EXPECT_EQ(slower.switches()[0].reason,
            "fp8-tensor is slower here: 0.00205 ms beside 0.002 ms in bf16 for 1 of 256 x 128 at 512 tokens, measured "
            "nearest to 1 of 256 x 128 at 512 tokens on gpu");
  for (int step = 1; step < 40; ++step) slower.observe(step, table(kHealthy));
  for (const char* role : {"fprop", "dgrad", "wgrad"})
    EXPECT_EQ(slower.level(std::string("up/") + role), PrecisionLevel::kHigh);

  PrecisionPolicy close(linear("up"), {}, timed(2e-6, 2.03e-6, 3e-6));  // 2 % is within what timings differ by
  EXPECT_TRUE(close.switches().empty());
  close.observe(1, table(kHealthy, stats(5, 30, 30)));
  EXPECT_EQ(close.level("up/dgrad"), PrecisionLevel::kHigh) << "dy holds in blocks, which are slower";
  EXPECT_EQ(close.level("up/fprop"), PrecisionLevel::kTensor);
}

// Their x is quantized once: timings of as many linears count, for all products of each.
TEST(Policy, LinearsThatReadOneXAreJudgedTogether) {
  std::vector<PolicyGemm> gemms;
  for (const char* name : {"q", "k", "v", "up"}) {
    for (PolicyGemm gemm : linear(name)) {
      for (std::string& operand : gemm.operands)
        if (operand == "k.x" || operand == "v.x") operand = "q.x";
      gemms.push_back(gemm);
    }
  }
  const std::vector<LinearGroup> groups = linear_groups(gemms);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].linears, (std::vector<std::string>{"q", "k", "v"}));
  EXPECT_EQ(groups[0].tokens, 512);
  EXPECT_EQ(groups[0].out, 3 * 256);
  EXPECT_EQ(groups[0].in, 128);
  EXPECT_EQ(groups[1].linears, std::vector<std::string>{"up"});
  for (bool together_pays : {true, false}) {
    Target target = timed(3e-6, together_pays ? 2e-6 : 4e-6, 9e-6, 3);
    const Target one = timed(1e-6, together_pays ? 2e-6 : 0.5e-6, 9e-6);
    target.timings.insert(target.timings.end(), one.timings.begin(), one.timings.end());
    const PrecisionPolicy policy(gemms, {}, target);
    for (const PolicyGemm& gemm : gemms)
      EXPECT_EQ(policy.level(gemm.key()),
                together_pays == (gemm.gemm != "up") ? PrecisionLevel::kTensor : PrecisionLevel::kHigh)
          << gemm.key();
  }
}

TEST(Policy, AGroupsShapeIsReadFromAnyOfItsProducts) {
  for (const PolicyGemm& gemm : linear("up")) {
    const std::vector<LinearGroup> groups = linear_groups({gemm});
    ASSERT_EQ(groups.size(), 1u);
    EXPECT_EQ(groups[0].tokens, 512) << gemm.key();
    EXPECT_EQ(groups[0].out, 256) << gemm.key();
    EXPECT_EQ(groups[0].in, 128) << gemm.key();
  }
}

// 512 tokens between measured 256 and 1024: the sum of both decides, in whatever order they stand.
TEST(Policy, ShapesEquallyNearDecideTogether) {
  const std::vector<LinearTiming> few = {{"bf16", 256, 256, 128, 1, 1e-6}, {"fp8-tensor", 256, 256, 128, 1, 2e-6}},
                                  many = {{"bf16", 1024, 256, 128, 1, 6e-6}, {"fp8-tensor", 1024, 256, 128, 1, 3e-6}};
  for (bool few_first : {true, false}) {
    Target target{.name = "gpu", .timings = few_first ? few : many};
    const std::vector<LinearTiming>& rest = few_first ? many : few;
    target.timings.insert(target.timings.end(), rest.begin(), rest.end());
    EXPECT_EQ(PrecisionPolicy({linear("up")[0]}, {}, target).level("up/fprop"), PrecisionLevel::kTensor);
    for (LinearTiming& timing : target.timings) {
      if (timing.precision == "fp8-tensor") timing.seconds += 2e-6;
    }
    const PrecisionPolicy slower({linear("up")[0]}, {}, target);
    ASSERT_EQ(slower.level("up/fprop"), PrecisionLevel::kBlock) << "nothing is known of blocks";
    const std::string &reason = slower.switches()[0].reason, sum = "0.009 ms beside 0.007 ms";
    EXPECT_NE(reason.find(sum), std::string::npos) << reason;
  }
}

// The H200's own figures, as train-step measures whole steps: what is small or has few tokens stays in bf16.
TEST(Policy, TheH200sTimingsDecideBySizeAndTokens) {
  const auto levels = [](int64_t tokens, int64_t out, int64_t in, int64_t linears = 1) {
    std::vector<PolicyGemm> gemms;
    for (int64_t i = 0; i < linears; ++i) {  // of one x
      const std::string name = "linear" + std::to_string(i), weight = name + ".weight", dy = name + ".dy";
      gemms.push_back({name, GemmRole::kFprop, tokens, out, in, {"x", weight}});
      gemms.push_back({name, GemmRole::kDgrad, tokens, in, out, {dy, weight}});
      gemms.push_back({name, GemmRole::kWgrad, out, in, tokens, {dy, "x"}});
    }
    const PrecisionPolicy policy(gemms, {}, h200_target());
    std::set<PrecisionLevel> found;
    for (const PolicyGemm& gemm : gemms) found.insert(policy.level(gemm.key()));
    return found;
  };
  const std::set<PrecisionLevel> tensor = {PrecisionLevel::kTensor}, high = {PrecisionLevel::kHigh};
  EXPECT_EQ(levels(16384, 768, 768, 3), tensor);  // GPT-2 124M: q, k and v share what quantizing x takes, o does not
  EXPECT_EQ(levels(16384, 768, 768), high);
  EXPECT_EQ(levels(16384, 3072, 768), tensor);
  EXPECT_EQ(levels(16384, 768, 3072), tensor);
  EXPECT_EQ(levels(2048, 768, 768), high);
  EXPECT_EQ(levels(16384, 1600, 1600, 3), tensor);  // GPT-2 1558M
  EXPECT_EQ(levels(16384, 1600, 1600), tensor);
  EXPECT_EQ(levels(16384, 6400, 1600), tensor);
  EXPECT_EQ(levels(8192, 4096, 4096), tensor);  // GPT3-5B, Llama-2-7B
  EXPECT_EQ(levels(4096, 11008, 4096, 2), tensor);
  EXPECT_EQ(levels(4096, 4096, 11008), tensor);
  EXPECT_EQ(levels(4096, 16384, 16384, 3), tensor);                                  // wider than what was measured
  for (int64_t linears : {1, 3}) EXPECT_EQ(levels(16384, 384, 384, linears), high);  // nanoGPT
  EXPECT_EQ(levels(16384, 1536, 384), high);
  EXPECT_EQ(levels(256, 32, 64), high);
}

TEST(Policy, ImpossibleShapesStayHigh) {
  std::vector<PolicyGemm> gemms = linear("up");
  gemms[0].unsupported_reason = "512x256x129 is not a multiple of 16";
  PrecisionPolicy policy(gemms, {}, {});
  for (int step = 1; step < 40; ++step) policy.observe(step, table(kHealthy));
  EXPECT_EQ(policy.level("up/fprop"), PrecisionLevel::kHigh);
  ASSERT_EQ(policy.switches().size(), 1u);
  EXPECT_EQ(policy.switches()[0].reason, gemms[0].unsupported_reason);
}

TEST(Policy, AResumedOneGoesOnAlike) {
  Philox random(3, 0);
  std::vector<StatsTable> rounds;
  for (int i = 0; i < 200; ++i) {
    auto some = [&] { return stats(20 + 8 * random.normal(), 24 + 5 * random.normal(), 24 + 5 * random.normal()); };
    rounds.push_back(table(some(), some(), some()));
  }
  PrecisionPolicy whole(linear("up"), {.dwell = 2}, {}), first(linear("up"), {.dwell = 2}, {});
  for (int i = 0; i < 200; ++i) whole.observe(i, rounds[static_cast<size_t>(i)]);
  for (int i = 0; i < 101; ++i) first.observe(i, rounds[static_cast<size_t>(i)]);
  PrecisionPolicy second(linear("up"), {.dwell = 2}, {});
  EXPECT_TRUE(second.restore(first.state(), "state", 101).empty());
  for (int i = 101; i < 200; ++i) second.observe(i, rounds[static_cast<size_t>(i)]);
  EXPECT_GT(whole.switches().size(), 10u);
  EXPECT_EQ(whole.switches(), second.switches());
  EXPECT_EQ(whole.state(), second.state());
}

TEST(Policy, RefusesTheStateOfAnotherModel) {
  PrecisionPolicy policy(linear("up"), {}, {});
  EXPECT_THROW(policy.restore(PrecisionPolicy(linear("down"), {}, {}).state(), "run.json", 1), Error);
  EXPECT_THROW(policy.restore("{\"standings\": 3}", "run.json", 1), Error);
  EXPECT_THROW(policy.restore("{", "run.json", 1), Error);
}

TEST(Policy, AResumeOnADeviceWithOtherTimingsObeysThem) {
  PrecisionPolicy before(linear("up"), {}, {});
  Target target{.name = "gpu", .timings = {{"bf16", 512, 256, 128, 1, 1e-6}, {"fp8-tensor", 512, 256, 128, 1, 2e-6}}};
  PrecisionPolicy after(linear("up"), {}, target);
  std::vector<Switch> made = after.restore(before.state(), "state", 40);
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0].step, 40);
  EXPECT_EQ(made[0].to, PrecisionLevel::kBlock) << "nothing is known of blocks";
  EXPECT_EQ(after.level("up/fprop"), PrecisionLevel::kBlock);
}

TEST(Policy, TheMapJoinsEqualLayers) {
  std::vector<PolicyGemm> gemms;
  StatsTable all;
  for (const char* name : {"layers.0.attn.q", "layers.0.mlp.up", "layers.1.attn.q", "layers.1.mlp.up",
                           "layers.2.attn.q", "layers.2.mlp.up"}) {
    for (const PolicyGemm& gemm : linear(name)) gemms.push_back(gemm);
    for (const char* suffix : {".x", ".dy", ".weight"}) all[name + std::string(suffix)] = kHealthy;
  }
  all["layers.2.mlp.up.x"] = stats(5, 30, 3);
  PrecisionPolicy policy(gemms, {}, {});
  policy.observe(1, all);
  EXPECT_EQ(precision_map(policy),
            "layer      attn.q    mlp.up     fprop/dgrad/wgrad: T one scale, B 128-blocks, 16 bf16\n"
            "0-1        T/T/T     T/T/T\n"
            "2          T/T/T     B/T/16\n");
}

}  // namespace
}  // namespace octet
