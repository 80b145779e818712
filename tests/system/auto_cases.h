// Recipe auto end to end on tiny models, on the device of a Target: a healthy model, planted outliers, memory that does
// not hold the new plan, timings, determinism and resume, the report. For tests: system/auto_test.cc,
// cuda/auto_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/json.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "precision/policy.h"
#include "system/tiny.h"
#include "train/report.h"
#include "train/trainer.h"

namespace octet::auto_cases {

struct Logged {
  std::vector<Switch> switches;
  std::map<std::string, char> rungs;  // the last ones, by GEMM: '0' one scale, '1' blocks, '2' bf16
};

inline Logged read_log(const std::string& out) {
  Logged result;
  const std::string log = read_file(out + "/log.jsonl");
  for (size_t begin = 0; begin < log.size(); begin = log.find('\n', begin) + 1) {
    nlohmann::json line = parse_json(log.substr(begin, log.find('\n', begin) - begin), "log");
    if (line.at("kind") == "switch")
      result.switches.push_back({.step = line.at("step"), .gemm = line.at("gemm"), .reason = line.at("reason")});
    if (line.at("kind") != "rungs") continue;
    const std::string text = line.at("text");
    result.rungs.clear();
    for (size_t at = 0; (at = text.find('=', at)) != std::string::npos; ++at) {
      size_t start = text.rfind(' ', at) + 1;  // npos + 1 is 0
      result.rungs[text.substr(start, at - start)] = text[at + 1];
    }
  }
  return result;
}

inline double share(const std::map<std::string, char>& rungs, char rung) {
  double count = 0;
  for (const auto& [gemm, at] : rungs) count += at == rung;
  return count / static_cast<double>(rungs.size());
}

inline RunConfig auto_config(const TempFolder& folder, const std::string& family = "gpt2") {
  RunConfig config = tiny_config(folder, "auto", family);
  config.auto_interval = 4;
  config.deterministic = true;
  return config;
}

inline std::vector<double> losses_from(const RunConfig& config, const Target& target) {
  std::vector<double> losses;
  train(config,
        {.on_step = [&](const RunState&, const StepResult& step) { losses.push_back(step.loss); }, .target = target});
  return losses;
}

// The Hugging Face folder of a llama trained a little, in which some channels that layer 1's MLP reads are 2^17 times
// as large and its weights for them as much smaller: the same function, but no longer one FP8 can hold.
inline std::string planted_model(const TempFolder& folder, const Target& target) {
  RunConfig config = tiny_config(folder, "fp32", "llama");
  config.out = folder.file("teacher");
  config.deterministic = true;
  config.steps = 150;
  config.optimizer.lr = 8e-3;
  config.eval_interval = 0;
  const std::string from = train(config, {.target = target}).checkpoint, to = folder.file("planted");
  make_folders(to);
  write_file(to + "/config.json", read_file(from + "/config.json"));
  TensorSource source(from + "/model.safetensors");
  std::vector<NamedType> types;
  for (const std::string& name : source.names()) types.push_back({name, *source.find_type(name)});
  SafetensorsWriter writer(to + "/model.safetensors", types, source.metadata());
  for (const NamedType& tensor : writer.tensors()) {
    std::span<const std::byte> bytes = source.read(tensor.name).bytes;
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    bool norm = tensor.name == "model.layers.1.post_attention_layernorm.weight";
    bool reader =
        tensor.name == "model.layers.1.mlp.gate_proj.weight" || tensor.name == "model.layers.1.mlp.up_proj.weight";
    const size_t hidden = 32;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % hidden % 8 == 3 && (norm || reader)) values[i] *= norm ? 0x1p17f : 0x1p-17f;
    }
    writer.write(tensor.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
  return to;
}

inline void a_healthy_model_settles_under_one_scale(const Target& target, const char* family) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = auto_config(folder, family);
  config.steps = 60;
  train(config, {.target = target});
  Logged logged = read_log(config.out);
  EXPECT_EQ(logged.rungs.size(), std::string(family) == "gpt2" ? 36u : 42u);
  EXPECT_GE(share(logged.rungs, '0'), 0.9);
  std::string page = read_file(write_report(config.out));
  EXPECT_NE(page.find("layers.1.mlp.down.dy"), std::string::npos);
  EXPECT_EQ(page.find("http://", page.find("http://www.w3.org/2000/svg") + 1), std::string::npos) << "self-contained";
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

inline void planted_outliers_move_the_gemms_they_touch_and_no_others(const Target& target) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = auto_config(folder, "llama");
  config.model_from = planted_model(folder, target);
  config.steps = 12;
  config.eval_interval = 0;
  config.optimizer.lr = config.optimizer.min_lr = 1e-7;  // a step of AdamW in those weights acts 2^17-fold
  auto run = [&](const char* recipe) {
    config.recipe = recipe;
    config.out = folder.file(recipe);
    return losses_from(config, target);
  };
  std::vector<double> high = run("bf16"), current = run("fp8-current"), decided = run("auto");
  Logged logged = read_log(folder.file("auto"));
  std::set<std::string> moved, touched;
  for (const char* linear : {"gate", "up"})
    for (const char* role : {"fprop", "dgrad", "wgrad"})
      touched.insert(std::string("layers.1.mlp.") + linear + "/" + role);
  for (const Switch& s : logged.switches) {
    EXPECT_EQ(s.step, 1) << s.gemm;
    moved.insert(s.gemm);
  }
  EXPECT_EQ(moved, touched);
  // 32 channels are one block of a row: fprop and dgrad cannot use blocks. Columns are blocks of their own in wgrad.
  EXPECT_EQ(logged.rungs.at("layers.1.mlp.up/fprop"), '2');
  EXPECT_EQ(logged.rungs.at("layers.1.mlp.up/dgrad"), '2');
  EXPECT_EQ(logged.rungs.at("layers.1.mlp.gate/wgrad"), '1');
  EXPECT_NE(logged.switches[0].reason.find("under one scale: SNR "), std::string::npos) << logged.switches[0].reason;
  double gap = 0, gap_current = 0;
  for (size_t i = 1; i < high.size(); ++i) {  // the decision follows step 1
    gap = std::max(gap, std::abs(decided[i] - high[i]) / high[i]);
    gap_current = std::max(gap_current, std::abs(current[i] - high[i]) / high[i]);
  }
  testing::Test::RecordProperty("gap_auto", std::to_string(gap));
  testing::Test::RecordProperty("gap_fp8_current", std::to_string(gap_current));
  EXPECT_LT(gap, 0.03);  // the bound of healthy recipes, training_test.cc
  EXPECT_GT(gap_current, 2 * gap) << "nothing was at stake";
}

// Of an adapter's base, which is frozen: its weights are measured as they stand in the folder, and read again in the
// form that a switch gives them. Losses are near those of a base in bf16, and a resumed run's are an uninterrupted
// one's.
inline void an_adapters_base_is_held_as_decided(const Target& target) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = auto_config(folder, "llama");
  config.model_from = planted_model(folder, target);
  config.adapter.method = "lora", config.adapter.rank = 8, config.adapter.alpha = 16;
  config.adapter.targets = {"q_proj", "down_proj"};
  config.steps = 12, config.checkpoint_interval = 6, config.eval_interval = 0;
  auto run = [&](const char* recipe) {
    config.recipe = recipe, config.out = folder.file(recipe);
    return losses_from(config, target);
  };
  const std::vector<double> high = run("bf16"), current = run("fp8-current"), decided = run("auto");
  const Logged logged = read_log(folder.file("auto"));
  std::set<std::string> moved, touched;
  for (const char* linear : {"gate", "up"})
    for (const char* role : {"fprop", "dgrad"}) touched.insert(std::string("layers.1.mlp.") + linear + "/" + role);
  for (const Switch& s : logged.switches) moved.insert(s.gemm);
  EXPECT_EQ(moved, touched);
  EXPECT_EQ(logged.rungs.size(), 25u)
      << "two products of each linear, one where no gradient goes on: q, k and v of layer 0";
  EXPECT_EQ(logged.rungs.at("layers.1.mlp.up/fprop"), '2');
  EXPECT_EQ(logged.rungs.at("layers.1.mlp.up/dgrad"), '2');
  double gap = 0, gap_current = 0;
  for (size_t i = 1; i < high.size(); ++i) {  // the decision follows step 1
    gap = std::max(gap, std::abs(decided[i] - high[i]) / high[i]);
    gap_current = std::max(gap_current, std::abs(current[i] - high[i]) / high[i]);
  }
  EXPECT_LT(gap, 0.03);
  EXPECT_GT(gap_current, 2 * gap) << "nothing was at stake";
  const std::string page = read_file(write_report(folder.file("auto")));
  EXPECT_NE(page.find("layers.1.mlp.up.weight"), std::string::npos);
  struct Stop {};
  config.out = folder.file("parts");
  std::vector<double> parts;
  const auto keep = [&](const RunState& run, const StepResult& r) {
    if (run.step == 9) throw Stop{};
    if (run.step <= 6) parts.push_back(r.loss);
  };
  EXPECT_THROW(train(config, {.on_step = keep, .target = target}), Stop);
  const TrainResult resumed = train(
      config, {.on_step = [&](const RunState&, const StepResult& r) { parts.push_back(r.loss); }, .target = target});
  EXPECT_EQ(parts, decided);
  for (const auto& [file, bytes] : checkpoint_bytes(resumed.checkpoint))
    EXPECT_TRUE(bytes == read_file(folder.file("auto") + "/checkpoints/step_00000012/" + file)) << file;
}

// Switches whose plan the device cannot hold are taken back, and the run goes on with the bits it would have had.
inline void switches_that_do_not_fit_are_taken_back(const Target& target) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = auto_config(folder, "llama");
  config.model_from = planted_model(folder, target);
  config.optimizer.lr = config.optimizer.min_lr = 1e-7;
  config.steps = 6;
  config.eval_interval = 0;
  config.out = folder.file("wide");
  const std::vector<double> wide = losses_from(config, target);
  // Plans after switches need more memory or less than the first one, as the Target's layouts have it: the budget is a
  // byte less than the plan of these switches needs.
  StepperOptions options = stepper_options(config, target);
  for (const auto& [gemm, rung] : read_log(config.out).rungs)
    options.compile.recipe.decisions[gemm] = level_precision(static_cast<PrecisionLevel>(rung - '0'));
  Target narrow_target = target;
  narrow_target.memory_bytes =
      compile_training(LanguageModel(resolve_model(config, config.vocab_size), config), options).total_bytes() - 1;
  config.out = folder.file("narrow");
  const std::vector<double> narrow = losses_from(config, narrow_target);
  EXPECT_NE(wide, narrow) << "nothing was switched where there was memory";
  EXPECT_EQ(share(read_log(config.out).rungs, '0'), 1);
  EXPECT_TRUE(read_log(config.out).switches.empty());
  EXPECT_NE(read_file(config.out + "/log.jsonl").find("undone: the new plan needs"), std::string::npos);
  config.recipe = "fp8-current";
  config.out = folder.file("current");
  EXPECT_EQ(losses_from(config, target), narrow);
}

inline void timings_that_show_no_gain_keep_a_shape_in_bf16(Target target) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = auto_config(folder);
  config.steps = 6;
  const int64_t tokens = 2 * 16;  // mlp.up: 64 rows of 32
  for (auto [out, in, fp8] : {std::tuple<int64_t, int64_t, double>{64, 32, 2e-6}, {32, 32, 1e-7}}) {
    target.timings.push_back({"bf16", tokens, out, in, 1, 1e-6});
    target.timings.push_back({"fp8-tensor", tokens, out, in, 1, fp8});
    target.timings.push_back({"fp8-block", tokens, out, in, 1, fp8});
  }
  losses_from(config, target);
  Logged logged = read_log(config.out);
  EXPECT_EQ(logged.rungs.at("layers.0.mlp.up/fprop"), '2');
  EXPECT_EQ(logged.rungs.at("layers.1.mlp.up/fprop"), '2');
  EXPECT_EQ(logged.rungs.at("layers.0.attn.q/fprop"), '0');
  ASSERT_FALSE(logged.switches.empty());
  EXPECT_NE(logged.switches[0].reason.find("fp8-tensor is slower here"), std::string::npos);
}

// Thresholds in the middle of what E5M2 gradients have, without patience: GEMMs switch in nearly every round.
inline RunConfig restless(const TempFolder& folder) {
  RunConfig config = auto_config(folder);
  config.auto_interval = 2;
  config.policy = {.dwell = 1, .leave_db = 25.5, .return_db = 25.5};
  config.dropout = 0.1;
  return config;
}

inline void the_same_seed_and_a_resume_give_the_same_switches_and_bits(const Target& target) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = restless(folder);
  std::vector<double> whole, parts;
  config.out = folder.file("whole");
  TrainResult straight = train(
      config, {.on_step = [&](const RunState&, const StepResult& r) { whole.push_back(r.loss); }, .target = target});
  config.out = folder.file("parts");
  struct Stop {};
  EXPECT_THROW(train(config, {.on_step =
                                  [&](const RunState& run, const StepResult& r) {
                                    if (run.step == 13) throw Stop{};
                                    if (run.step <= 10) parts.push_back(r.loss);
                                  },
                              .target = target}),
               Stop);
  TrainResult resumed = train(
      config, {.on_step = [&](const RunState&, const StepResult& r) { parts.push_back(r.loss); }, .target = target});
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(straight.run.precision, resumed.run.precision);
  std::set<int64_t> steps;
  for (const Switch& s : read_log(folder.file("whole")).switches) steps.insert(s.step);
  EXPECT_GE(steps.size(), 3u) << "too few rounds with switches to show something";
  EXPECT_GT(*steps.rbegin(), 10) << "none after the resume";
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/scales.safetensors"})
    EXPECT_TRUE(read_file(straight.checkpoint + file) == read_file(resumed.checkpoint + file)) << file;
  // What the run that died had logged after step 10 is not in the report twice.
  std::string page = read_file(write_report(config.out));
  size_t from = page.find("\"loss\":"), steps_drawn = 0;
  for (size_t at = from; (at = page.find("],[", at + 1)) < page.find("]]", from);) ++steps_drawn;
  EXPECT_EQ(steps_drawn + 1, 20u);
}

}  // namespace octet::auto_cases
