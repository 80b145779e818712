// Learning rates: the default's bits, each decay by hand, the rates of three references, refusals.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

std::vector<double> rates(const OptimizerConfig& config, int64_t steps) {
  validate(config);
  std::vector<double> all;
  for (int64_t step = 1; step <= steps; ++step) all.push_back(learning_rate(config, steps, step));
  return all;
}

void expect_near(const std::vector<double>& ours, const std::vector<double>& wanted) {
  ASSERT_EQ(ours.size(), wanted.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], wanted[i], 1e-6 * wanted[i]) << "step " << i;
}

TEST(Schedule, TheDefaultIsACosineBehindAWarmUp) {
  const OptimizerConfig c{.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 3};
  const std::vector<double> all = rates(c, 10);
  EXPECT_EQ(all[0], 1e-3 * 1.0 / 4.0);
  EXPECT_EQ(all[2], 1e-3 * 3.0 / 4.0);
  EXPECT_EQ(all[3], 1e-3);
  EXPECT_EQ(all[5], 1e-4 + 0.5 * (1 + std::cos(std::numbers::pi * (2.0 / 7.0))) * (1e-3 - 1e-4));
  EXPECT_EQ(learning_rate(c, 10, 11), 1e-4);
  EXPECT_EQ(learning_rate(c, 10, 1000), 1e-4);
}

TEST(Schedule, EachDecayByHand) {
  const auto with = [](const char* schedule) {
    return OptimizerConfig{.lr = 1, .min_lr = 0, .warmup_steps = 1, .schedule = schedule};
  };
  expect_near(rates(with("constant"), 4), {0.5, 1, 1, 1});
  expect_near(rates(with("linear"), 5), {0.5, 1, 0.75, 0.5, 0.25});
  OptimizerConfig c = with("polynomial");
  c.decay_power = 2, c.min_lr = 0.2;
  expect_near(rates(c, 5), {0.5, 1, 0.2 + 0.8 * 0.5625, 0.2 + 0.8 * 0.25, 0.2 + 0.8 * 0.0625});
  c = with("steps");
  c.decay_at = {"2", "4"}, c.decay_factor = 0.5;
  expect_near(rates(c, 6), {0.5, 1, 0.5, 0.5, 0.25, 0.25});
  c = with("exponential");
  c.decay_every = 2, c.decay_factor = 0.5, c.min_lr = 0.3;
  expect_near(rates(c, 7), {0.5, 1, 1, 0.5, 0.5, 0.3, 0.3});
  c = with("linear");
  c.decay_from = 3, c.decay_steps = 5;  // held, decayed, at the least
  expect_near(rates(c, 6), {0.5, 1, 1, 1, 0.5, 0});
  c.min_lr = kDefaultMinLr;
  EXPECT_EQ(learning_rate(c, 6, 6), 0);
  c.schedule = "cosine";
  EXPECT_EQ(learning_rate(c, 6, 6), 6e-5);
}

TEST(Schedule, AWarmUpMayStartBeforeStepZeroAndOverlapTheDecay) {
  expect_near(
      rates({.lr = 1, .min_lr = 0, .warmup_steps = 2, .schedule = "linear", .warmup_from = -2, .decay_from = 0}, 4),
      {0.5, 0.75, 0.5, 0.25});
}

TEST(Schedule, RatesOfTheMlperfReferences) {
  const std::string path = test_data_path("mlperf_vectors/ops/schedules.json");
  if (path.empty()) GTEST_SKIP() << missing_test_data("mlperf_vectors/ops/schedules.json");
  const nlohmann::json all = parse_json(read_file(path), path);
  ASSERT_EQ(all.size(), 3u);
  const auto wanted = [&](const char* name) { return all.at(name).at("rates").get<std::vector<double>>(); };
  const nlohmann::json &resnet = all.at("resnet_polynomial"), &bert = all.at("bert_polynomial"),
                       &rnnt = all.at("rnnt_exponential");
  // Steps from 1: the peak at step `warmup_steps`, the end behind the last.
  expect_near(rates({.lr = resnet.at("peak"),
                     .min_lr = resnet.at("end"),
                     .warmup_steps = resnet.at("warmup_steps").get<int64_t>() - 1,
                     .schedule = "polynomial",
                     .decay_power = resnet.at("power")},
                    resnet.at("steps")),
              wanted("resnet_polynomial"));
  const int64_t start = bert.at("start_warmup_step");
  expect_near(rates({.lr = bert.at("peak"),
                     .warmup_steps = start + bert.at("warmup_steps").get<int64_t>(),
                     .schedule = "polynomial",
                     .warmup_from = start,
                     .decay_from = 0,
                     .decay_power = bert.at("power")},
                    bert.at("steps")),
              wanted("bert_polynomial"));
  // Epochs from 1: the first epoch behind the hold is the first decay.
  const int64_t epoch = rnnt.at("steps_per_epoch"), warm = rnnt.at("warmup_epochs"), hold = rnnt.at("hold_epochs");
  expect_near(rates({.lr = rnnt.at("peak"),
                     .min_lr = rnnt.at("min"),
                     .warmup_steps = warm * epoch,
                     .schedule = "exponential",
                     .decay_from = (warm + hold - 1) * epoch,
                     .decay_factor = rnnt.at("gamma"),
                     .decay_every = epoch},
                    static_cast<int64_t>(rnnt.at("rates").size())),
              wanted("rnnt_exponential"));
}

TEST(Schedule, ASettingThatTheScheduleDoesNotReadIsRefused) {
  const auto error = [](const OptimizerConfig& c) { return error_of([&] { validate(c); }); };
  const auto expect_holds = [&](const OptimizerConfig& c, const std::string& part) {
    EXPECT_NE(error(c).find(part), std::string::npos) << error(c);
  };
  expect_holds({.schedule = "cosin"}, "optimizer.schedule is 'cosin' (want cosine, constant, linear, polynomial");
  expect_holds({.schedule = "steps"}, "optimizer.schedule=steps needs optimizer.decay_at");
  expect_holds({.schedule = "steps", .decay_at = {"x"}}, "optimizer.decay_at: 'x' (want steps");
  expect_holds({.decay_at = {"5"}}, "optimizer.decay_at is of optimizer.schedule=steps; the schedule is cosine");
  expect_holds({.decay_every = 5}, "optimizer.decay_every=5 is of optimizer.schedule=exponential");
  expect_holds({.schedule = "linear", .decay_power = 2}, "optimizer.decay_power=2 is of optimizer.schedule=polynomial");
  expect_holds({.schedule = "constant", .decay_from = 5}, "has no beginning of a decay");
  expect_holds({.decay_steps = 5, .schedule = "constant"}, "has no end of a decay");
}

}  // namespace
}  // namespace octet
