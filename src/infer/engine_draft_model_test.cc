// Speculation on real runners in fp32: by prompt lookup, by a smaller model, by the model itself, with the same
// sequences as without; and what an engine refuses.
#include <filesystem>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/threads.h"
#include "infer/model_drafter.h"
#include "infer/ngram_drafter.h"
#include "infer/plan_runner.h"
#include "infer/testing/engine_test.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

ModelConfig tiny(int64_t layers, int64_t hidden = 32) {
  return {.architecture = "llama",
          .vocab_size = 61,
          .max_positions = 64,
          .hidden = hidden,
          .layers = layers,
          .heads = 4,
          .kv_heads = 2,
          .intermediate = 64,
          .init_std = 0.3};
}

std::unique_ptr<Runner> tiny_runner(const ModelConfig& model, int64_t blocks, const char* recipe, DType cache,
                                    int64_t drafts) {
  ServingOptions serving{.engine = {.max_sequences = 8,
                                    .max_step_tokens = 48,
                                    .block_size = 4,
                                    .draft = drafts > 0 ? "ngram" : "",
                                    .draft_tokens = drafts},
                         .target = cpu_target(),
                         .recipe = parse_recipe(recipe),
                         .cache_dtype = cache};
  serving.engine.kv_cache_bytes = blocks * 2 * model.layers * model.kv_heads * serving.engine.block_size *
                                  cached_head_bytes(model.head_size(), cache);
  return make_random_runner(model, serving);
}

enum class Draft { kNone, kNgram, kSmaller, kItself };

std::unique_ptr<EngineLoop> tiny_engine(Draft draft, const char* recipe, DType cache, int64_t blocks,
                                        int64_t draft_blocks) {
  EngineParts parts{.tokenizer = test_tokenizer(), .eos_ids = {kEos}};
  if (draft == Draft::kNgram) parts.drafter = std::make_unique<NgramDrafter>();
  if (draft == Draft::kSmaller)
    parts.drafter = std::make_unique<ModelDrafter>(tiny_runner(tiny(1, 16), draft_blocks, recipe, cache, 0));
  if (draft == Draft::kItself)
    parts.drafter = std::make_unique<ModelDrafter>(tiny_runner(tiny(2), draft_blocks, recipe, cache, 0));
  parts.runner = tiny_runner(tiny(2), blocks, recipe, cache, draft == Draft::kNone ? 0 : 4);
  return std::make_unique<EngineLoop>(
      std::move(parts),
      EngineOptions{.max_sequences = 8, .max_step_tokens = 48, .draft_tokens = 4, .draft_adaptive = false});
}

// Blocks of the model's cache and of the draft's.
using Case = std::tuple<const char*, DType, int64_t, int64_t>;
class EngineDrafts : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { set_thread_count(1); }  // on models so small more threads only wait for one another
  void TearDown() override { set_thread_count(threads_); }
  const int threads_ = thread_count();
};

TEST_P(EngineDrafts, TextsAreThoseWithoutDrafts) {
  const auto [recipe, cache, blocks, draft_blocks] = GetParam();
  const auto request_of = [](uint64_t i) {
    GenerationRequest request = some_request(i);
    // Sequences that repeat themselves, for lookups.
    if (i % 2 == 0) request.prompt_ids = {3, 4, 5, 6, 3, 4, 5, 6, 3, 4}, request.sampling.temperature = 0;
    if (i % 4 == 0) request.max_tokens = 30;
    if (i % 5 == 2) request.stop = {"C", "GH"};
    if (i % 3 == 2) request.logprobs = 2;
    return request;
  };
  std::vector<std::vector<Collected>> wanted;
  constexpr uint64_t kRequests = 10;
  for (const Draft draft : {Draft::kNone, Draft::kNgram, Draft::kSmaller, Draft::kItself}) {
    auto engine = tiny_engine(draft, recipe, cache, blocks, draft_blocks);
    std::vector<GenerationStream> streams;
    for (uint64_t i = 0; i < kRequests; ++i) streams.push_back(engine->submit(request_of(i)));
    for (uint64_t i = 0; i < kRequests; ++i) {
      const std::vector<Collected> texts = collect(streams[i], request_of(i).n);
      if (draft == Draft::kNone) {
        wanted.push_back(texts);
        continue;
      }
      for (size_t sample = 0; sample < texts.size(); ++sample) {
        const Collected &got = texts[sample], &want = wanted[i][sample];
        const std::string where = fmt::format("draft {}, request {}, text {}", static_cast<int>(draft), i, sample);
        EXPECT_EQ(got.error, "") << where;
        EXPECT_EQ(got.ids, want.ids) << where;
        EXPECT_EQ(got.text, want.text) << where;
        EXPECT_EQ(got.finished, want.finished) << where;
        ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << where;
        for (size_t t = 0; t < got.logprobs.size(); ++t)
          EXPECT_NEAR(got.logprobs[t].logprob, want.logprobs[t].logprob, 1e-5) << where;
      }
    }
    engine->drain();
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.kv_blocks_used, 0);
    EXPECT_FALSE(stats.draft_failed);
    if (draft == Draft::kNone) continue;
    // The smaller model's weights are others than the model's: little of what it drafts is accepted.
    EXPECT_GT(draft == Draft::kSmaller ? stats.drafted_tokens : stats.accepted_tokens, 10) << static_cast<int>(draft);
    // Where nothing but penalties parts the draft from the model nearly all is accepted, also of what is sampled.
    if (draft == Draft::kItself) {
      EXPECT_GT(static_cast<double>(stats.accepted_tokens), 0.8 * static_cast<double>(stats.drafted_tokens));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineDrafts,
                         testing::Values(Case("fp32", DType::kF32, 128, 30), Case("fp32", DType::kF32, 30, 128),
                                         Case("int8", DType::kF32, 60, 60), Case("fp32", DType::kI8, 30, 60)));

std::string refusal(const std::string& model, EngineOptions options) {
  try {
    options.device = "cpu", options.recipe = "fp32", options.kv_cache_bytes = 8 << 20;
    options.max_sequences = 1, options.max_step_tokens = 64;
    Engine::open(model, options);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(EngineDraftOptions, AreChecked) {
  const auto expect = [](const EngineOptions& options, const std::string& words) {
    const std::string message = refusal("gpt2-nano", options);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect({.draft = "ngram", .draft_tokens = 16, .random_weights = true}, "draft_tokens: 16 (want 1 to 15)");
  expect({.draft = "ngram", .draft_memory = 1, .random_weights = true}, "draft_memory: 1");
  expect({.draft = "ngram", .accept_simulated = 2, .random_weights = true}, "accept_simulated: 2");
  expect({.accept_simulated = 0.5, .random_weights = true}, "requires a draft");
  expect({.draft = "ngrams", .random_weights = true}, "ngrams");
}

TEST(EngineDraftOptions, ADraftOfAnotherVocabularyIsRefused) {
  EXPECT_NE(refusal("gpt2-nano", {.draft = "llama3-8b", .random_weights = true})
                .find("its vocabulary differs from the model's"),
            std::string::npos);
  const std::string model = test_data_path("serving/tiny_chat");
  if (model.empty()) GTEST_SKIP() << missing_test_data("serving/tiny_chat");
  EXPECT_EQ(refusal(model, {.draft = model}), "");
  TempFolder other;
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::create_symlink(model + "/" + name, other.file(name));
  EXPECT_EQ(refusal(model, {.draft = other.path()}), "");  // no tokenizer, but the size is right
  make_character_tokenizer({"a", "b", "c"})->save(other.path());
  const std::string message = refusal(model, {.draft = other.path()});
  EXPECT_NE(message.find("its vocabulary differs from the model's (characters-3"), std::string::npos) << message;
}

// A llama2.c file has no tokenizer that could be missing.
TEST(EngineDraftOptions, ADraftInOneFileIsNotAskedForATokenizer) {
  const std::string folder = test_data_path("tiny-models/stories260K"), model = folder + "/stories260K.bin";
  if (folder.empty()) GTEST_SKIP() << missing_test_data("tiny-models/stories260K");
  testing::internal::CaptureStderr();
  EXPECT_EQ(refusal(model, {.tokenizer = folder + "/tok512.bin", .draft = model}), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("warning"), std::string::npos);
}

}  // namespace
}  // namespace octet
