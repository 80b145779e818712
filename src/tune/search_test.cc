#include "tune/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "base/testing/test_error.h"
#include "tune/layout_space.h"
#include "tune/search_report.h"

namespace octet {
namespace {

RunConfig small(int64_t batch) {
  RunConfig config;
  config.model_size = "gpt2-124m", config.layers = 6, config.sequence_length = 1024, config.global_batch = batch;
  return config;
}

SearchOptions on(int64_t devices, std::set<std::string> given = {}) {
  return {.devices = devices, .given = std::move(given), .rows = 4};
}

double fastest_of_all(PaperPlanner& planner, const RunConfig& config, const SearchOptions& options, int64_t limit) {
  Rules rules;
  double best = 0;
  for (const RunLayout& layout : list_layouts(config, options, planner.target(), rules)) {
    try {
      const Prediction plan = planner.predict(with_layout(config, layout));
      if (plan.bytes() <= limit && (best == 0 || plan.seconds() < best)) best = plan.seconds();
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal) << error.message();
    }
  }
  return best;
}

// What the search leaves out without planning it is never faster than what it finds: against every layout planned.
TEST(Search, FindsTheFastestOfAll) {
  Target target = h200_target();
  target.memory_bytes = int64_t{2} << 30;
  PaperPlanner planner(target);
  const RunConfig config = small(8);
  const SearchOptions options = on(2, {"precision.recipe", "precision.transposes", "parallel.chunks"});
  const SearchResult found = search_layouts(planner, config, options);
  ASSERT_FALSE(found.best.empty());
  EXPECT_TRUE(found.best[0].plan.whole);
  EXPECT_LE(found.best[0].plan.bytes(), found.memory_bytes);
  EXPECT_NEAR(found.best[0].plan.seconds(), fastest_of_all(planner, config, options, found.memory_bytes),
              3e-3 * found.best[0].plan.seconds());
  EXPECT_LT(found.planned, found.listed);
  const auto too_large = std::ranges::find(found.rules, "memory", &RuleCount::rule);
  ASSERT_NE(too_large, found.rules.end());
  EXPECT_GT(found.least_missing, 0);
}

TEST(Search, AnswersTheSameEveryTime) {
  const RunConfig config = small(16);
  PaperPlanner one(h200_target()), other(h200_target());
  const SearchOptions options = on(2, {"precision.recipe", "parallel.chunks"});
  const SearchResult a = search_layouts(one, config, options), b = search_layouts(other, config, options);
  ASSERT_EQ(a.best.size(), 4u);
  ASSERT_EQ(b.best.size(), 4u);
  for (size_t i = 0; i < a.best.size(); ++i) {
    EXPECT_EQ(a.best[i].layout, b.best[i].layout);
    EXPECT_EQ(a.best[i].plan.seconds(), b.best[i].plan.seconds());
    if (i > 0) {
      EXPECT_LE(a.best[i - 1].plan.seconds(), a.best[i].plan.seconds());
    }
  }
}

TEST(Search, KeepsWhatIsGiven) {
  RunConfig config = small(64);
  config.tensor = 2, config.recompute = "full", config.micro_batch = 2, config.recipe = "bf16";
  PaperPlanner planner(h200_target());
  const SearchResult found =
      search_layouts(planner, config, on(8, {"parallel.tensor", "recompute", "train.micro_batch", "precision.recipe"}));
  for (const PlannedLayout& row : found.best) {
    EXPECT_EQ(row.layout.tensor, 2);
    EXPECT_EQ(row.layout.micro_batch, 2);
    EXPECT_EQ(row.layout.recompute, "full");
    EXPECT_EQ(row.layout.recipe, "bf16");
    EXPECT_EQ(row.layout.ranks(), 8);
  }
  EXPECT_FALSE(found.full_recompute);
}

TEST(Search, SettingsThatUsersGiveAreFoundAsThey) {
  const auto words = [](const std::vector<std::string>& list) {
    return given_settings({}, [list](RunConfig&, SettingsTable& table) { table.set_words(list); });
  };
  EXPECT_EQ(words({"model.size=gpt2-124m"}), std::set<std::string>{});
  EXPECT_EQ(words({"parallel.tensor=1", "parallel.sequence=true", "recompute=auto"}),
            (std::set<std::string>{"parallel.tensor", "parallel.sequence", "recompute"}));
  EXPECT_EQ(words({"parallel.data=2", "precision.recipe=fp8-current", "train.micro_batch=2"}),
            (std::set<std::string>{"parallel.data", "precision.recipe", "train.micro_batch"}));
}

// Times that are changed change the choice.
TEST(Search, FollowsTheTarget) {
  RunConfig config = small(64);
  config.model_size = "llama2-7b", config.layers = 4, config.sequence_length = 2048, config.global_batch = 8;
  Target slow_codes = h200_target();
  slow_codes.step.fp8 = slow_codes.step.fp8_block = 1e14;
  PaperPlanner of_codes(slow_codes);
  EXPECT_EQ(search_layouts(of_codes, config, on(2, {"train.micro_batch", "parallel.pipeline", "recompute"}))
                .best[0]
                .layout.recipe,
            "bf16");
  PaperPlanner usual(h200_target());
  EXPECT_NE(search_layouts(usual, config, on(2, {"train.micro_batch", "parallel.pipeline", "recompute"}))
                .best[0]
                .layout.recipe,
            "bf16");

  config.micro_batch = 1, config.global_batch = 2;  // of four devices two have no sequence of their own
  Target slow_links = h200_target();
  slow_links.link_bytes_per_second = 1e9;
  PaperPlanner of_links(slow_links);
  const int64_t with_slow =
      search_layouts(of_links, config, on(4, {"precision.recipe", "recompute", "parallel.chunks"}))
          .best[0]
          .layout.tensor;
  const int64_t with_fast =
      search_layouts(usual, config, on(4, {"precision.recipe", "recompute", "parallel.chunks"})).best[0].layout.tensor;
  EXPECT_LT(with_slow, with_fast);
}

TEST(Search, SaysWhatIsMissingWhereNothingFits) {
  Target target = h200_target();
  target.memory_bytes = int64_t{1} << 30;
  PaperPlanner planner(target);
  RunConfig config = small(8);
  config.model_size = "llama2-7b", config.layers = 32;
  const SearchResult found = search_layouts(planner, config, on(4, {"precision.recipe"}));
  EXPECT_TRUE(found.best.empty());
  ASSERT_TRUE(found.smallest);
  EXPECT_EQ(found.least_missing, found.smallest->plan.bytes() - found.memory_bytes);
  const std::string text = to_text(found, target, {});
  EXPECT_NE(text.find(fmt::format("needs {}: {} bytes", found.smallest->plan.bytes(), found.least_missing)),
            std::string::npos)
      << text;
  EXPECT_EQ(parse_json(to_json(found, target, {}), "json").at("least_missing"), found.least_missing);
}

TEST(Search, SaysWhichRuleLeavesNothing) {
  PaperPlanner planner(h200_target());
  EXPECT_NE(error_of([&] {
              search_layouts(planner, small(7), on(16, {"parallel.data", "parallel.pipeline"}));
            }).find("the one that took out the most"),
            std::string::npos);
  EXPECT_NE(error_of([&] { PaperPlanner bare{Target()}; }).find("says no rates"), std::string::npos);
}

TEST(Search, TextAndJsonSayTheSame) {
  PaperPlanner planner(h200_target());
  const RunConfig config = small(16);
  const SearchResult found = search_layouts(planner, config, on(2, {"precision.recipe", "parallel.chunks"}));
  const TokenBudget budget{.units = 1e12, .price = 2};
  const std::string text = to_text(found, planner.target(), budget);
  for (const char* part :
       {"1 beats 2 by", "over the fastest with full recomputation", "1T tokens", "MWh at 700 W", "cost"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  const nlohmann::json json = parse_json(to_json(found, planner.target(), budget), "json");
  EXPECT_EQ(json.at("best").size(), found.best.size());
  EXPECT_EQ(json.at("best")[0].at("memory_bytes"), found.best[0].plan.bytes());
  EXPECT_NEAR(json.at("days").get<double>(), 1e12 / found.best[0].plan.units_per_second() / 86400, 1e-2);
  double time = 0;
  for (const auto& [name, seconds] : json.at("best")[0].at("time").items()) time += seconds.get<double>();
  EXPECT_NEAR(time, found.best[0].plan.seconds(), 1e-5);
}

// The file that is written is the layout, and all else as it was.
TEST(Search, WritesSettingsThatReadBack) {
  RunConfig config = small(64);
  config.steps = 77, config.out = "out/else";
  const RunLayout layout{.tensor = 2,
                         .data = 4,
                         .micro_batch = 2,
                         .sequence = true,
                         .shard = "optimizer",
                         .recompute = "light",
                         .recipe = "fp8-delayed"};
  RunConfig read;
  SettingsTable table = settings_of(read);
  table.load_yaml_text(layout_yaml(config, layout, "# made\n"), "yaml");
  EXPECT_EQ(layout_of(read), layout);
  EXPECT_EQ(read.steps, 77);
  EXPECT_EQ(read.out, "out/else");
  EXPECT_EQ(read.global_batch, 64);
}

}  // namespace
}  // namespace octet
