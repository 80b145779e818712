// A model whose layers alternate between a window and full attention, as Gemma 2 and Qwen2 have it: set by its setting,
// trained, saved, read back, decoded through the paged cache. What the reference kernels compute on doubles is the
// oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/testing/test_error.h"
#include "eval/verify.h"
#include "octet/engine.h"
#include "system/tiny.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "train/trainer.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr int64_t kTokens = 30;
// Of logits around 1: float32 sums of at most 64 products in three layers, in another order than the reference's
// doubles.
constexpr double kTolerance = 2e-5;

RunConfig alternating(const TempFolder& folder) {
  RunConfig config = tiny_config(folder, "fp32");
  config.architecture = "qwen3";
  config.layers = 3, config.kv_heads = 2;
  config.steps = 6;
  config.window = {"5", "0"};
  return config;
}

std::vector<int32_t> some_ids() {
  std::vector<int32_t> ids;
  for (int i = 0; i < kTokens; ++i) ids.push_back((3 + 7 * i + i * i) % 64);
  return ids;
}

// Logits of all tokens in one run without a cache, [kTokens, vocab].
std::vector<float> whole_logits(const WeightSource& weights, const ModelSpec& model, const std::vector<int32_t>& ids,
                                bool interpret) {
  const auto tokens = static_cast<int64_t>(ids.size());
  Graph graph("logits");
  Builder builder(graph);
  builder.output("logits", build_logits(builder, model, {.tokens = tokens, .max_segments = 1, .max_length = tokens}));
  Program program;
  program.add_graph(std::move(graph));
  Plan plan = compile(std::move(program),
                      {.target = interpret ? interpreter_target() : cpu_target(), .recipe = parse_recipe("fp32")});
  auto executor = interpret ? make_interpreter(plan.program) : make_executor(std::move(plan));
  load_weights(weights, *executor);
  std::copy(ids.begin(), ids.end(), input_as<int32_t>(*executor, "logits", "ids").begin());
  auto positions = input_as<int32_t>(*executor, "logits", "positions");
  for (size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<int32_t>(i);
  input_as<int32_t>(*executor, "logits", "segments")[1] = static_cast<int32_t>(tokens);
  executor->run("logits");
  const auto bytes = executor->output("logits", "logits");
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  return logits;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]) / (1 + std::abs(b[i])));
  return largest;
}

class WindowPattern : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  TempFolder folder_;
};

TEST_F(WindowPattern, TrainsOnTheCpuAsOnTheInterpreter) {
  const RunConfig config = alternating(folder_);
  const ModelConfig model = resolve_model(config, 0);
  EXPECT_EQ(model.layer_windows(), (std::vector<int64_t>{5, 0, 5}));
  const auto losses = [&](const ModelSpec& spec, bool interpret) {
    const StepperOptions options{
        .compile = {.target = interpret ? interpreter_target() : cpu_target(), .recipe = parse_recipe("fp32")},
        .interpret = interpret};
    const auto graph = [&](GraphRole role) {
      return loss_graph(role, spec, batch_shape(2, kTokens, false, role == GraphRole::kTrain));
    };
    Program program = training_program(graph(GraphRole::kTrain), graph(GraphRole::kEval), {});
    Stepper stepper(compile(std::move(program), options.compile), options);
    initialize_weights(stepper.executor(), 5);
    std::vector<float> losses;
    for (int step = 1; step <= 3; ++step) {
      BatchPacker packer(2, kTokens, false);
      for (int s = 0; s < 2; ++s) {
        std::vector<int32_t> tokens = some_ids();
        tokens.push_back(s);
        packer.add(tokens, {0});
      }
      const std::vector<Batch> micro = {packer.finish()};
      losses.push_back(static_cast<float>(stepper.step({.micro_batches = micro, .lr = 1e-2, .step = step}).loss));
    }
    return losses;
  };
  const std::vector<float> cpu = losses(model, false);
  EXPECT_LE(largest_difference(cpu, losses(model, true)), kTolerance);
  EXPECT_LT(cpu[2], cpu[0]);
  ModelConfig full = model;
  full.window.clear();
  EXPECT_GT(largest_difference(cpu, losses(full, false)), 10 * kTolerance) << "the windows hide nothing";
  // What no family's config.json says: layers of other widths and activations.
  ModelSpec mixed = model;
  mixed.pattern[1].mixer = {.intermediate = 40, .activation = Activation::kRelu, .gated = false, .bias = true};
  EXPECT_LE(largest_difference(losses(mixed, false), losses(mixed, true)), kTolerance);
}

TEST_F(WindowPattern, ASavedFolderDecodesThroughThePagedCacheAsTheWholeSequenceDoes) {
  const TrainResult trained = train(alternating(folder_));
  const auto weights = open_weights(trained.checkpoint);
  const ModelConfig& model = weights->config();
  EXPECT_EQ(model.architecture, "qwen3");
  EXPECT_EQ(model.layer_windows(), (std::vector<int64_t>{5, 0, 5}));

  const std::vector<int32_t> ids = some_ids();
  const std::vector<float> wanted = whole_logits(*weights, model, ids, true);
  EXPECT_LE(largest_difference(whole_logits(*weights, model, ids, false), wanted), kTolerance);
  ModelConfig full = model;
  full.window.clear();
  EXPECT_GT(largest_difference(whole_logits(*weights, full, ids, true), wanted), 100 * kTolerance);

  IncrementalModel decoder(
      model, {.recipe = parse_recipe("fp32"), .target = cpu_target(), .max_length = kTokens, .prefill_chunk = 7});
  load_weights(*weights, decoder.executor());
  const auto vocab = static_cast<size_t>(model.vocab_size);
  std::span<const float> logits = decoder.append(std::span(ids).first(11));  // chunks of 7 and 4, then one by one
  for (size_t t = 10; t < ids.size(); ++t) {
    if (t > 10) logits = decoder.append({&ids[t], 1});
    EXPECT_LE(largest_difference(logits, std::span(wanted).subspan(t * vocab, vocab)), kTolerance) << "token " << t;
  }

  // The engine, whose blocks behind the window are freed on the way.
  auto engine = Engine::open(trained.checkpoint, {.device = "cpu",
                                                  .recipe = "fp32",
                                                  .needs_tokenizer = false,
                                                  .max_sequences = 2,
                                                  .max_step_tokens = 64,
                                                  .block_size = 4,
                                                  .kv_cache_bytes = 1 << 20});
  std::vector<int32_t> text = {ids.begin(), ids.begin() + 6}, generated;
  auto stream = engine->submit({.prompt_ids = text, .sampling = {.temperature = 0}, .max_tokens = 20});
  for (GenerationEvent event; stream.next(event);)
    generated.insert(generated.end(), event.ids.begin(), event.ids.end());
  ASSERT_EQ(generated.size(), 20u);
  text.insert(text.end(), generated.begin(), generated.end());
  const std::vector<float> all = whole_logits(*weights, model, text, true);
  for (size_t t = 5; t + 1 < text.size(); ++t) {
    const auto row = std::span(all).subspan(t * vocab, vocab);
    const float largest = *std::max_element(row.begin(), row.end());
    EXPECT_GE(row[static_cast<size_t>(text[t + 1])], largest - kTolerance * (1 + largest)) << "token " << t + 1;
  }
}

TEST_F(WindowPattern, IsRefusedWhereACheckpointCannotHoldItOrHasAnother) {
  const auto refusal = [&](const char* family, std::vector<std::string> window) {
    RunConfig config = alternating(folder_);
    config.architecture = family, config.window = std::move(window);
    return error_of([&] { resolve_model(config, 0); });
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal("llama", {"5", "0"}), "model.window: checkpoints of family llama cannot hold 5,0,5, only 0,0,0");
  expect(refusal("mistral", {"5", "0"}), "\"model.window\": 5,0 is not supported (supported: one; qwen2 and qwen3");
  expect(refusal("qwen2", {"5", "6"}), "\"model.window\": 6 is not supported (supported: 0 and 5");
  expect(refusal("qwen2", {"5", "0", "5", "0"}), "model.window: 4 windows are listed for 3 layers");
  expect(refusal("qwen2", {"-5"}), "model.window: -5 (want >= 0");
  expect(refusal("qwen2", {"5x"}), "model.window: '5x' (want whole numbers");
  EXPECT_EQ(refusal("mistral", {"5"}), "(no error)");

  RunConfig config = alternating(folder_);
  config.steps = 2;
  train(config);
  config.steps = 4, config.window = {"5"};
  expect(error_of([&] { train(config); }), "model.window");
}

}  // namespace
}  // namespace octet
