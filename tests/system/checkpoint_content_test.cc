// What checkpoint.content leaves out, what a run can then not do, and disks that are too small, known before a step.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "system/tiny.h"
#include "train/start_checks.h"
#include "train/trainer.h"
#include "weights/weights.h"

namespace octet {
namespace {

RunConfig with_content(const TempFolder& folder, const std::string& content) {
  RunConfig config = tiny_config(folder, "fp8-delayed", "llama");
  config.out = folder.file("run-" + content);
  config.checkpoint_content = content;
  return config;
}

std::string message_of(const RunConfig& config, const TrainHooks& hooks = {}) {
  try {
    train(config, hooks);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CheckpointContent, WeightsAloneAreThoseOfAWholeCheckpoint) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  const std::string all = train(with_content(folder, "all")).checkpoint;
  const auto whole = open_weights(all);
  for (const char* content : {"weights", "weights-bf16"}) {
    const std::string alone = train(with_content(folder, content)).checkpoint;
    EXPECT_FALSE(path_exists(alone + "/optimizer.safetensors"));
    EXPECT_EQ(read_file(alone + "/scales.safetensors"), read_file(all + "/scales.safetensors"));
    const bool narrow = std::string(content) == "weights-bf16";
    EXPECT_TRUE(
        holds(read_file(alone + "/config.json"), narrow ? "\"dtype\": \"bfloat16\"" : "\"dtype\": \"float32\""));
    if (!narrow) {
      EXPECT_EQ(read_file(alone + "/model.safetensors"), read_file(all + "/model.safetensors"));
      continue;
    }
    const Shape shape{32, 32};
    std::vector<float> wide = whole->read("layers.1.attn.q.weight", shape);
    const ParamView view = open_weights(alone)->view("layers.1.attn.q.weight", shape);
    EXPECT_EQ(view.dtype, DType::kBF16);
    std::vector<uint16_t> rounded(wide.size());
    convert(DType::kF32, wide.data(), DType::kBF16, rounded.data(), std::ssize(wide));
    const auto source = open_weights(alone);
    std::vector<uint16_t> stored(wide.size());
    read_rows(source->view("layers.1.attn.q.weight", shape), 0, 32, DType::kBF16, stored.data());
    EXPECT_EQ(stored, rounded);
  }
}

TEST(CheckpointContent, NoRunGoesOnFromWeightsAlone) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = with_content(folder, "weights");
  const std::string last = train(config).checkpoint;
  const std::string refused = message_of(config);
  EXPECT_TRUE(holds(refused, last + " contains only weights")) << refused;
  EXPECT_TRUE(holds(refused, "model.from=" + last)) << refused;
  config.resume = last;
  EXPECT_TRUE(holds(message_of(config), "contains only weights"));
  config.resume = "never";
  EXPECT_EQ(message_of(config), "");
  RunConfig next = with_content(folder, "all");  // what the message says
  next.model_from = last;
  next.heads = next.hidden = next.layers = next.kv_heads = next.intermediate = next.max_positions = 0;
  EXPECT_EQ(message_of(next), "");
}

TEST(CheckpointContent, TheNewestWholeCheckpointStaysBesideWeightsAlone) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = with_content(folder, "all");
  config.validation_data.clear();
  config.checkpoint_interval = 5;
  const std::string whole = train(config).checkpoint;
  config.checkpoint_content = "weights";
  config.steps = 40;
  train(config);
  EXPECT_TRUE(path_exists(whole + "/optimizer.safetensors"));
  config.steps = 60;
  const std::string refused = message_of(config);
  EXPECT_TRUE(holds(refused, "resume=" + whole)) << refused;
  config.resume = whole, config.checkpoint_content = "all";
  EXPECT_EQ(message_of(config), "");
}

// Weights of which every step comes out non-finite do not push out those from before.
TEST(CheckpointContent, SoundCheckpointsOutliveSkippedSteps) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = with_content(folder, "all");
  config.recipe = "fp32";
  config.validation_data.clear();
  config.checkpoint_interval = 2, config.checkpoint_keep = 1, config.max_skipped_steps = 6;
  const std::string sound = train(config).checkpoint;
  config.steps = 60, config.optimizer.lr = config.optimizer.min_lr = 1e30;
  const std::string message = message_of(config);
  EXPECT_TRUE(holds(message, "steps in a row had non-finite gradients")) << message;
  EXPECT_TRUE(holds(message, "; resume=" + sound + " continues")) << message;
  EXPECT_TRUE(path_exists(sound + "/optimizer.safetensors"));
  EXPECT_EQ(list_checkpoints(config.out).size(), 2u);  // and the weights as they are
}

// Of dozens of files only a few are open at once.
TEST(CheckpointContent, ManyFilesNeedFewDescriptors) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = with_content(folder, "all");
  config.recipe = "fp32", config.validation_data.clear();
  config.hidden = 256, config.layers = 4, config.intermediate = 1024, config.steps = 1;
  config.shard_bytes = 1 << 20;
  int highest = 0;
  for (const std::string& name : list_folder("/proc/self/fd")) highest = std::max(highest, std::stoi(name));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{.rlim_cur = static_cast<rlim_t>(highest) + 17, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::string message = message_of(config);
  config.steps = 2;
  const std::string resumed = message_of(config);
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(message, "");
  EXPECT_EQ(resumed, "");
  EXPECT_GT(list_folder(checkpoint_folder(config.out, 2)).size(), 30u);
}

TEST(CheckpointContent, AFolderKeepsItsTokenizerAndSpecialTokens) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = with_content(folder, "weights-bf16");
  config.steps = 1;
  const std::string first = train(config).checkpoint, text = read_file(first + "/config.json");
  EXPECT_TRUE(holds(text, "\"bos_token_id\": null"));
  write_file(first + "/config.json",
             text.substr(0, text.rfind('}')) + ", \"bos_token_id\": 1, \"eos_token_id\": [2, 5]}");
  write_file(first + "/generation_config.json", "{\"eos_token_id\": [5, 9]}");
  remove_path(first + "/manifest.json");  // changed on purpose
  write_file(first + "/tokenizer.model", "pieces");
  write_file(first + "/notes.txt", "not the tokenizer's");
  config.model_from = first;
  config.out = folder.file("tuned");
  const std::string tuned = train(config).checkpoint;
  EXPECT_EQ(read_file(tuned + "/tokenizer.model"), "pieces");
  EXPECT_FALSE(path_exists(tuned + "/notes.txt"));
  const SpecialTokens special = parse_special_tokens(read_file(tuned + "/config.json"), "config.json");
  EXPECT_EQ(special.bos, 1);
  EXPECT_EQ(special.eos, (std::vector<int64_t>{2, 5, 9}));
}

class SmallDisk : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }

  // What a run with that many bytes free says; empty when it went through.
  std::string run(const RunConfig& config, int64_t free) const {
    int64_t steps = 0;
    std::string message =
        message_of(config, {.on_step = [&](const RunState&, const StepResult&) { ++steps; }, .free_disk = free});
    EXPECT_EQ(steps, message.empty() ? config.steps : 0);
    return message;
  }
  static Program program_of(const RunConfig& config) {
    return compile_training(LanguageModel(resolve_model(config, 0), config),
                            stepper_options(config, target_of(Device::kCpu)))
        .program;
  }
  static int64_t bytes_of(const std::string& folder) {
    int64_t bytes = 0;
    for (const std::string& name : list_folder(folder)) bytes += file_size(folder + "/" + name);
    return bytes;
  }
  TempFolder folder_;
};

TEST_F(SmallDisk, IsRefusedBeforeTheFirstStepWithSettingsThatFit) {
  RunConfig config = with_content(folder_, "all");
  const Program program = program_of(config);
  const DiskUse all = checkpoint_disk_use(config, program, {});
  EXPECT_EQ(all.folders, 2);  // of steps 10 and 20
  const int64_t one = checkpoint_bytes(config, program);
  EXPECT_EQ(all.bytes, 2 * one);
  const std::string message = run(config, all.bytes - 1);
  EXPECT_TRUE(holds(message, fmt::format("take up to {} bytes", all.bytes))) << message;
  EXPECT_TRUE(holds(message, fmt::format("has {} free: 1 bytes are missing", all.bytes - 1))) << message;
  EXPECT_TRUE(holds(message, fmt::format("checkpoint.interval=0 with checkpoint.best=false (one at the end) needs {} "
                                         "bytes",
                                         one)))
      << message;
  EXPECT_TRUE(holds(message, "checkpoint.content=weights-bf16 needs")) << message;
  EXPECT_FALSE(holds(message, "checkpoint.keep=1")) << message;  // as many at once
  EXPECT_TRUE(list_checkpoints(config.out).empty());
  EXPECT_TRUE(holds(run(config, 1000), "free space or set out= to another disk"));
  config.checkpoint_content = "weights-bf16", config.checkpoint_interval = 0, config.checkpoint_best = false;
  EXPECT_EQ(run(config, checkpoint_bytes(config, program)), "");
}

TEST_F(SmallDisk, AdvisesToKeepAsManyAsFit) {
  RunConfig config = with_content(folder_, "all");
  config.validation_data.clear();
  config.steps = 100, config.checkpoint_interval = 10, config.checkpoint_keep = 9;
  const Program program = program_of(config);
  const int64_t one = checkpoint_bytes(config, program);
  EXPECT_EQ(checkpoint_disk_use(config, program, {}).folders, 10);  // nine kept, one being written
  for (int64_t keep : {8, 5, 1}) {
    const std::string message = run(config, (keep + 1) * one);
    EXPECT_TRUE(holds(message, fmt::format("checkpoint.keep={} needs {} bytes", keep, (keep + 1) * one))) << message;
  }
  EXPECT_FALSE(holds(run(config, 2 * one - 1), "checkpoint.keep="));
}

TEST_F(SmallDisk, WhatIsCountedIsWhatIsWritten) {
  for (const char* content : {"all", "weights", "weights-bf16"}) {
    const RunConfig config = with_content(folder_, content);
    const int64_t counted = checkpoint_bytes(config, program_of(config)), written = bytes_of(train(config).checkpoint);
    EXPECT_LE(written, counted) << content;
    EXPECT_GE(written, counted - (1 << 20) - (1 << 16)) << content;  // small files and headers are rounded up
  }
}

TEST_F(SmallDisk, WhatAKilledWriterLeftBehindCountsAsFree) {
  RunConfig config = with_content(folder_, "all");
  const std::string left = checkpoint_folder(config.out, 7) + ".tmp";
  make_folders(left);
  write_file(left + "/model.safetensors", std::string(100'000, 'x'));
  const int64_t wanted = checkpoint_disk_use(config, program_of(config), {}).bytes;
  EXPECT_TRUE(holds(run(config, wanted - 100'001), ": 1 bytes are missing"));
  EXPECT_EQ(run(config, wanted - 100'000), "");
  EXPECT_FALSE(path_exists(left));
}

TEST_F(SmallDisk, EarlierCheckpointsGiveWay) {
  RunConfig config = with_content(folder_, "all");
  train(config);
  config.steps = 60;
  const Program program = program_of(config);
  const int64_t one = checkpoint_bytes(config, program);
  const RunState last = read_run_state(checkpoint_folder(config.out, 20));
  const DiskUse use = checkpoint_disk_use(config, program, last);
  EXPECT_EQ(use.folders, 4);  // two kept, the best, one being written: two are there
  EXPECT_EQ(use.bytes,
            4 * one - bytes_of(checkpoint_folder(config.out, 10)) - bytes_of(checkpoint_folder(config.out, 20)));
  EXPECT_EQ(checkpoint_disk_use(config, program, {.step = 60}).bytes, 0);  // nothing is left to do
  EXPECT_EQ(checkpoint_disk_use(config, program, {.step = 20, .lineage = "other"}).bytes, 4 * one);
  config.validation_data.clear();
  config.checkpoint_keep = 1;
  EXPECT_EQ(checkpoint_disk_use(config, program, {}).folders, 2);
  config.checkpoint_interval = 0;
  EXPECT_EQ(checkpoint_disk_use(config, program, {}).folders, 1);
}

}  // namespace
}  // namespace octet
