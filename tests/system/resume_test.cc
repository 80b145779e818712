// Resume is bit-exact: 20 steps equal 10, a new process' worth of state, and 10 more.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "io/dataset.h"
#include "io/manifest.h"
#include "system/tiny.h"
#include "train/report.h"
#include "train/schedule.h"
#include "train/start_checks.h"
#include "train/trainer.h"

namespace octet {
namespace {

struct Stop {};

class Resume : public testing::TestWithParam<const char*> {};

TEST_P(Resume, EqualsAnUninterruptedRun) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = tiny_config(folder, GetParam());
  config.dropout = 0.1;
  std::vector<double> whole, parts;
  TrainResult straight =
      train(config, {.on_step = [&](const RunState&, const StepResult& r) { whole.push_back(r.loss); }});
  config.out = folder.file("interrupted");
  // Dies in step 13: the checkpoint of step 10 is the last.
  TrainHooks dying{.on_step = [&](const RunState& run, const StepResult& r) {
    if (run.step == 13) throw Stop{};
    if (run.step <= 10) parts.push_back(r.loss);
  }};
  EXPECT_THROW(train(config, dying), Stop);
  TrainResult resumed =
      train(config, {.on_step = [&](const RunState&, const StepResult& r) { parts.push_back(r.loss); }});
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(straight.run.best_metric, resumed.run.best_metric);
  EXPECT_EQ(straight.run.targets, resumed.run.targets);
  auto a = checkpoint_bytes(straight.checkpoint), b = checkpoint_bytes(resumed.checkpoint);
  ASSERT_EQ(a.size(), 3u);
  EXPECT_TRUE(a == b) << "weights, moments or scales differ";
}

// A step of many micro-batches that is left in the middle: the checkpoint is that of the step before, bit for bit.
TEST_P(Resume, AStepLeftInTheMiddleIsMadeAnew) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = tiny_config(folder, GetParam());
  config.global_batch = 8 * config.micro_batch;
  config.steps = 7, config.eval_interval = 0, config.validation_data.clear(), config.checkpoint_interval = 6;
  const TrainResult straight = train(config);
  const auto before = checkpoint_bytes(checkpoint_folder(config.out, 6)), after = checkpoint_bytes(straight.checkpoint);
  ASSERT_EQ(before.size(), 3u);
  config.out = folder.file("interrupted"), config.checkpoint_interval = 0;
  int64_t whole = 0, asked = 0;
  TrainHooks hooks{.on_step = [&](const RunState& run, const StepResult&) { whole = run.step; },
                   .stop = [&] { return whole == 6 && ++asked == 5; }};
  const TrainResult left = train(config, hooks);
  EXPECT_TRUE(left.interrupted);
  EXPECT_EQ(left.run.step, 6);
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(left.checkpoint, checkpoint_folder(config.out, 6));
  EXPECT_TRUE(checkpoint_bytes(left.checkpoint) == before) << "weights, moments or scales differ";
  EXPECT_TRUE(checkpoint_bytes(train(config).checkpoint) == after);
}

TEST(Resume, ARunLeftInItsFirstStepLeavesNoCheckpoint) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  const TrainResult left = train(config, {.stop = [] { return true; }});
  EXPECT_TRUE(left.interrupted);
  EXPECT_EQ(left.checkpoint, "");
  EXPECT_TRUE(list_checkpoints(config.out).empty());
  EXPECT_EQ(train(config).run.step, config.steps);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Resume,
                         testing::Values("fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block", "auto"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// The moments of other optimisers are kept as AdamW's are.
TEST(Resume, KeepsTheMomentsOfEveryOptimiser) {
  set_log_level(LogLevel::kWarning);
  for (const auto& [name, momentum] :
       {std::pair{"sgd", 0.9}, std::pair{"sgd", 0.0}, std::pair{"lamb", 0.0}, std::pair{"lars", 0.9}}) {
    SCOPED_TRACE(fmt::format("{} {}", name, momentum));
    TempFolder folder;
    RunConfig config = tiny_config(folder, "fp8-current");
    config.optimizer.name = name, config.optimizer.momentum = momentum;
    if (config.optimizer.name == "lars") config.optimizer.lr = 4;  // times a trust coefficient of 0.001
    std::vector<double> whole, parts;
    const TrainResult straight =
        train(config, {.on_step = [&](const RunState&, const StepResult& r) { whole.push_back(r.loss); }});
    EXPECT_LT(whole.back(), whole.front());
    config.out = folder.file("interrupted");
    TrainHooks dying{.on_step = [&](const RunState& run, const StepResult& r) {
      if (run.step == 13) throw Stop{};
      if (run.step <= 10) parts.push_back(r.loss);
    }};
    EXPECT_THROW(train(config, dying), Stop);
    const TrainResult resumed =
        train(config, {.on_step = [&](const RunState&, const StepResult& r) { parts.push_back(r.loss); }});
    EXPECT_EQ(whole, parts);
    EXPECT_TRUE(checkpoint_bytes(straight.checkpoint) == checkpoint_bytes(resumed.checkpoint));
  }
}

TEST(Resume, FallsBackOverADamagedCheckpoint) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "bf16");
  config.bias = false;  // a variant whose config.json says so
  TrainResult first = train(config);
  ASSERT_EQ(list_checkpoints(config.out).size(), 2u);
  std::string path = first.checkpoint + "/model.safetensors", bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  write_file(path, bytes);
  auto sound = newest_sound_checkpoint(config.out);
  ASSERT_TRUE(sound.has_value());
  EXPECT_EQ(*sound, checkpoint_folder(config.out, 10));
  TrainResult again = train(config);  // repeats steps 11..20
  EXPECT_EQ(again.last_loss, first.last_loss);
  EXPECT_EQ(again.run.step, 20);
}

// One byte of a file of a checkpoint.
void damage(const std::string& checkpoint, const std::string& file) {
  const std::string path = checkpoint + "/" + file;
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  write_file(path, bytes);
}

// What train() says; "" when it goes through.
std::string refusal(const RunConfig& config, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    train(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  return "";
}

void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
}

TEST(Resume, RefusesWhenNoCheckpointIsSound) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  const std::string last = train(config).checkpoint, first = checkpoint_folder(config.out, 10);
  damage(last, "model.safetensors");
  damage(first, "optimizer.safetensors");
  config.steps = 40, config.checkpoint_keep = 1;
  const std::string message = refusal(config, ErrorCode::kCorrupt);
  expect_holds(message, last + ": 1 of ");
  expect_holds(message, "model.safetensors: content does not match");
  expect_holds(message, "optimizer.safetensors: content does not match");
  expect_holds(message, "model.from=" + first + " and another out=");
  expect_holds(message, "resume=never, which moves them to " + config.out + "/set_aside_N");
  EXPECT_EQ(list_checkpoints(config.out), (std::vector<std::string>{last, first}));
  RunConfig from = config;  // what the message says
  from.model_from = first, from.out = folder.file("other");
  from.heads = from.hidden = from.layers = from.kv_heads = from.intermediate = from.max_positions = 0;
  from.steps = 1;
  EXPECT_EQ(refusal(from), "");
  config.resume = "never";
  EXPECT_EQ(refusal(config), "");
  EXPECT_EQ(list_folder(config.out + "/set_aside_1"), (std::vector<std::string>{"step_00000010", "step_00000020"}));
}

// A damaged checkpoint that is skipped is kept and not counted against the limit of checkpoints.
TEST(Resume, CheckpointsPassedOverAreMovedAside) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  config.validation_data.clear();
  config.checkpoint_interval = 5, config.checkpoint_keep = 4;
  damage(train(config).checkpoint, "model.safetensors");
  damage(checkpoint_folder(config.out, 15), "model.safetensors");
  config.checkpoint_interval = 2, config.checkpoint_keep = 1, config.steps = 12;
  const TrainResult again = train(config);
  EXPECT_EQ(list_checkpoints(config.out), std::vector<std::string>{again.checkpoint});
  EXPECT_EQ(newest_sound_checkpoint(config.out), checkpoint_folder(config.out, 12));
  EXPECT_EQ(list_folder(config.out + "/set_aside_1"), (std::vector<std::string>{"step_00000015", "step_00000020"}));
}

TEST(Resume, CheckpointsOfOtherRunsAreNotPruned) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  config.validation_data.clear();
  RunConfig other = config;
  other.out = folder.file("other"), other.steps = 8, other.checkpoint_interval = 4;
  train(other);
  config.checkpoint_keep = 1;
  config.resume = train(config).checkpoint;
  config.out = other.out, config.steps = 40;  // goes on in a folder that holds another run's steps 4 and 8
  const std::string last = train(config).checkpoint;
  const std::vector<std::string> all = {last, checkpoint_folder(other.out, 8), checkpoint_folder(other.out, 4)};
  EXPECT_EQ(list_checkpoints(other.out), all);
  EXPECT_EQ(read_run_state(last).lineage, read_run_state(config.resume).lineage);
  EXPECT_NE(read_run_state(last).lineage, read_run_state(all[1]).lineage);
  EXPECT_EQ(read_run_state(last).lineage.size(), 16u);
}

TEST(Resume, RefusesOtherData) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  const std::string last = train(config).checkpoint;
  config.steps = 30;
  RunConfig shorter = config;
  shorter.sequence_length = 8;
  expect_holds(refusal(shorter), "resume=never");
  // As many tokens and documents, of which one is another.
  const auto set = TokenDataset::open(config.train_data);
  DatasetWriter writer(folder.file("changed"), TokenType::kU16), wide(folder.file("wide"), TokenType::kI32);
  for (int64_t d = 0; d < set->documents(); ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(set->document_length(d)));
    set->read(set->document_begin(d), ids);
    wide.append(ids);
    wide.end_document();
    if (d == 20) ids[7] = (ids[7] + 1) % 64;
    writer.append(ids);
    writer.end_document();
  }
  writer.commit();
  wide.commit();
  config.train_data = folder.file("changed");
  const std::string message = refusal(config);
  expect_holds(message, last + " was trained on different tokens, though equally many");
  expect_holds(message, read_run_state(last).data_checksum);
  expect_holds(message, "model.from=" + last);
  expect_holds(message, "resume=never");
  config.train_data = folder.file("wide");  // the same ids elsewhere, in another type
  EXPECT_EQ(refusal(config), "");
}

// A record from before there were checksums.
TEST(Resume, WithoutAChecksumOfTheDataGoesOnWithAWarning) {
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  set_log_level(LogLevel::kOff);
  const std::string last = train(config).checkpoint;
  std::string record = read_file(last + "/run.json");
  const size_t at = record.find("  \"data_checksum\"");
  ASSERT_NE(at, std::string::npos);
  record.erase(at, record.find('\n', at) + 1 - at);
  write_file(last + "/run.json", record);
  write_manifest(last, "{\"step\": 20}");
  config.steps = 21;
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  const std::string next = train(config).checkpoint;
  expect_holds(testing::internal::GetCapturedStderr(), "has no checksum of the data it was trained on");
  EXPECT_EQ(read_run_state(next).data_checksum.size(), 8u);
}

TEST(Resume, ChangedSettingsAreLogged) {
  TempFolder folder;
  set_log_level(LogLevel::kOff);
  RunConfig config = tiny_config(folder, "fp8-current");
  train(config);
  config.recipe = "bf16", config.optimizer.lr = 1e-3, config.steps = 25;
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  train(config);
  const std::string changes = "train.steps 20 -> 25, optimizer.lr 0.003 -> 0.001, precision.recipe fp8-current -> bf16";
  expect_holds(testing::internal::GetCapturedStderr(), "settings changed since: " + changes + "\n");
  expect_holds(read_file(config.out + "/log.jsonl"),
               "{\"kind\":\"settings\",\"step\":20,\"text\":\"" + changes + "\"}");
  set_log_level(LogLevel::kOff);
  config.recipe = "fp8-delayed";  // whose histories the checkpoint lacks
  const std::string message = refusal(config);
  expect_holds(message, "precision.recipe bf16 -> fp8-delayed");
  expect_holds(message, "model.from=" + checkpoint_folder(config.out, 25));
}

TEST(Resume, AChangedLearningRateIsSaidWithBothValues) {
  TempFolder folder;
  set_log_level(LogLevel::kOff);
  RunConfig config = tiny_config(folder, "fp32");
  const std::string last = train(config).checkpoint;
  RunState kept = read_run_state(last);
  EXPECT_EQ(changed_rate(kept, last, config), "");
  config.steps = 40;
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(config, {.stop = [] { return true; }}).run.step, 20);
  const std::string said = testing::internal::GetCapturedStderr();
  expect_holds(said, fmt::format("the learning rate of step 21 is {:.4g}, but with the settings of {} it was 6e-05",
                                 learning_rate(config.optimizer, 40, 21), last));
  expect_holds(
      said, "the cosine decay ended at step 20 and ends at 40 with these settings; optimizer.decay_steps=20 keeps it");
  config.optimizer.decay_steps = 20;
  EXPECT_EQ(changed_rate(kept, last, config), "");
  config.optimizer.decay_steps = 0, kept.step = 1;  // the next step is in the warm-up of both
  expect_holds(changed_rate(kept, last, config), "the learning rate of step 4 is ");
}

// Losses of two sets do not compare: the run looks for the best of the new one.
TEST(Resume, TheBestOfAnotherValidationSetIsForgotten) {
  TempFolder folder;
  set_log_level(LogLevel::kOff);
  RunConfig config = tiny_config(folder, "fp32");
  const TrainResult first = train(config);
  ASSERT_GT(first.run.best_step, 0);
  config.steps = 30, config.optimizer.lr = config.optimizer.min_lr = 0;  // no better loss of the same set
  EXPECT_EQ(train(config).run.best_step, first.run.best_step);
  write_tiny_corpus(folder.file("other"), 64, 20);
  config.validation_data = folder.file("other"), config.steps = 40;
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  const TrainResult other = train(config);
  expect_holds(testing::internal::GetCapturedStderr(),
               fmt::format("the best validation loss so far, {:.4f} at step {}, was measured on ",
                           first.run.best_metric, first.run.best_step));
  EXPECT_EQ(other.run.best_step, 40);
  EXPECT_EQ(other.run.best_metric, other.last_metric);
}

// Readers of the logs take back the steps that a run makes anew.
TEST(Resume, LogsSayFromWhichStepOnTheyHold) {
  TempFolder folder;
  set_log_level(LogLevel::kOff);
  RunConfig config = tiny_config(folder, "fp32");
  const auto newest_events = [&] {
    const std::vector<std::string> names = list_folder(config.out + "/events");
    return read_file(config.out + "/events/" + *std::ranges::max_element(names, {}, [&](const std::string& name) {
                       return std::filesystem::last_write_time(config.out + "/events/" + name);
                     }));
  };
  const auto start = [](char step) { return std::string("\x10") + step + std::string("\x3a\x02\x08\x01", 4); };
  EXPECT_THROW(train(config, {.on_step =
                                  [](const RunState& run, const StepResult&) {
                                    if (run.step == 13) throw Stop{};
                                  }}),
               Stop);
  expect_holds(newest_events(), start(0));
  train(config);
  expect_holds(newest_events(), start(11));
  const auto losses = [&] {  // points of the report's training curve
    const std::string page = read_file(write_report(config.out)), head = "const DATA = ";
    const size_t begin = page.find(head) + head.size();
    return parse_json(page.substr(begin, page.find(";\nconst TITLE", begin) - begin), "report").at("loss").size();
  };
  EXPECT_EQ(losses(), 20u);
  config.resume = "never", config.steps = 5;
  train(config);
  expect_holds(newest_events(), start(0));
  EXPECT_EQ(losses(), 5u);
}

TEST(Resume, AnotherOptimisersMomentsAreRefusedByName) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  config.steps = 2, config.eval_interval = 0;
  const std::string checkpoint = train(config).checkpoint;
  for (const char* name : {"sgd", "lamb"}) {
    RunConfig other = config;
    other.optimizer.name = name, other.steps = 4;
    const std::string message = refusal(other);
    expect_holds(message, fmt::format("optimizer.name adamw -> {};", name));
    expect_holds(message, "model.from=" + checkpoint);
  }
  config.optimizer.name = "sgd", config.out = folder.file("sgd");
  train(config);
  config.steps = 3, config.optimizer.momentum = 0;
  expect_holds(refusal(config), "optimizer.momentum 0.9 -> 0;");
  config.optimizer.momentum = 0.8;  // of the same buffer: a changed setting
  EXPECT_EQ(train(config).run.step, 3);
}

TEST(Resume, OtherSizesAreNamedWithBothValues) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  for (const char* family : {"gpt2", "llama"}) {
    RunConfig config = tiny_config(folder, "fp32", family);
    config.out = folder.file(family), config.steps = 1;
    const std::string checkpoint = train(config).checkpoint;
    RunConfig wide = config;
    wide.hidden = 48, wide.layers = 3;
    const std::string message = refusal(wide);
    expect_holds(message, checkpoint + " is of another model");
    expect_holds(message, "model.hidden 32 -> 48, model.layers 2 -> 3, model.head_dim 8 -> 12;");
    expect_holds(message, "resume=never or another out=");
    RunConfig longer = config;
    longer.max_positions = 40, longer.steps = 2;  // rows of a table, or nothing that is stored
    EXPECT_EQ(refusal(longer).find("model.max_positions 32 -> 40") != std::string::npos, config.kv_heads == 0);
  }
  RunConfig config = tiny_config(folder, "fp32");
  config.out = folder.file("gpt2"), config.bias = false;
  expect_holds(refusal(config), "model.bias true -> false");
  config.bias = true, config.model_size = "llama2-7b", config.kv_heads = 4;
  expect_holds(refusal(config), "model.architecture gpt2 -> llama");
}

}  // namespace
}  // namespace octet
