// The engine on a GPU: its steps overlap with the device, and its output must equal the CPU's.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "exec/executor.h"
#include "infer/testing/beam_fixtures.h"
#include "octet/engine.h"

namespace octet {
namespace {

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
    folder_ = test_data_path("tiny-models/stories260K");
    if (folder_.empty()) GTEST_SKIP() << missing_test_data("tiny-models/stories260K");
  }

  std::unique_ptr<Engine> open(int64_t kv_cache_bytes, EngineOptions options = {}) const {
    if (options.device == "auto") options.device = "cuda";
    options.recipe = "fp32";
    options.tokenizer = folder_ + "/tok512.bin";
    options.max_sequences = 32;
    options.max_step_tokens = 128;
    options.kv_cache_bytes = kv_cache_bytes;
    return Engine::open(folder_ + "/stories260K.bin", options);
  }

  std::string folder_;
};

std::string text_of(GenerationStream& stream) {
  std::string text;
  for (GenerationEvent event; stream.next(event);) text += event.text + event.error;
  return text;
}

TEST_F(CudaEngine, TwoRanksWriteThePublishedText) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "two GPUs are wanted and " << cuda_device_count() << " can be used";
  auto engine = open(1 << 24, {.tensor = 2});
  const std::string wanted = read_file(folder_ + "/expected_greedy_n200.txt");
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(engine->submit({.sampling = {.temperature = 0}, .max_tokens = 200}));
  for (GenerationStream& stream : streams) EXPECT_EQ(text_of(stream), wanted);
}

TEST_F(CudaEngine, GreedyTextsAmongOthersAreThePublishedOne) {
  auto engine = open(0);
  const std::string wanted = read_file(folder_ + "/expected_greedy_n200.txt");
  std::vector<GenerationStream> greedy, others;
  for (int i = 0; i < 40; ++i) {
    GenerationRequest request;  // an empty prompt: the begin token
    request.max_tokens = 200;
    request.sampling.temperature = 0;
    greedy.push_back(engine->submit(request));
    request.prompt = "Lily and Tom went to the park. They saw a big tree and a little bird";
    request.sampling.temperature = 1;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.repetition_penalty = i % 2 ? 1.2 : 1;
    request.max_tokens = 5 + 4 * i;
    others.push_back(engine->submit(request));
  }
  for (GenerationStream& stream : greedy) EXPECT_EQ(text_of(stream), wanted);
  for (GenerationStream& stream : others) EXPECT_FALSE(text_of(stream).empty());
  EXPECT_EQ(engine->stats().failed, 0);
}

TEST_F(CudaEngine, AFullCacheFinishesEveryRequest) {
  for (const char* cache : {"f32", "int8"}) {  // a head of 8 values is 32 bytes, or 12
    auto engine = open(cache == std::string("int8") ? 3 << 18 : 2 << 20, {.kv_cache = cache});
    std::vector<GenerationStream> streams;
    for (int i = 0; i < 64; ++i) {
      GenerationRequest request;
      request.prompt = "One day";
      request.max_tokens = 300;
      request.ignore_eos = true;
      request.sampling.seed = static_cast<uint64_t>(i);
      streams.push_back(engine->submit(request));
    }
    for (GenerationStream& stream : streams) {
      text_of(stream);
      EXPECT_EQ(stream.times().generated_tokens, 300) << cache;
    }
    EXPECT_EQ(engine->stats().failed, 0) << cache;
    EXPECT_GT(engine->stats().preemptions, 0) << cache;
  }
}

constexpr int32_t kBegin = 1;

// A greedy text of 200 tokens, and the log-probability of each.
struct Scored {
  std::vector<int32_t> ids = {};
  std::vector<double> logprobs = {};
};

GenerationStream submit_greedy(Engine& engine) {
  GenerationRequest request{.prompt_ids = {kBegin}, .max_tokens = 200, .logprobs = 0, .ignore_eos = true};
  request.sampling.temperature = 0;
  return engine.submit(std::move(request));
}

Scored collect_scored(GenerationStream stream) {
  Scored text;
  for (GenerationEvent event; stream.next(event);) {
    EXPECT_EQ(event.error, "");
    text.ids.insert(text.ids.end(), event.ids.begin(), event.ids.end());
    for (const TokenLogprob& token : event.logprobs) text.logprobs.push_back(static_cast<double>(token.logprob));
  }
  return text;
}

// The same of a text that is given.
std::vector<double> scores_of(Engine& engine, const std::vector<int32_t>& ids) {
  GenerationRequest request{.prompt_ids = {kBegin}, .max_tokens = 0, .prompt_logprobs = 0};
  request.prompt_ids.insert(request.prompt_ids.end(), ids.begin(), ids.end());
  GenerationStream stream = engine.submit(std::move(request));
  std::vector<double> scores;
  for (GenerationEvent event; stream.next(event);) {
    EXPECT_EQ(event.error, "");
    for (const TokenLogprob& token : event.prompt_logprobs) scores.push_back(static_cast<double>(token.logprob));
  }
  return scores;
}

// Root of the mean square of differences.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return a.size() == b.size() && !a.empty() ? std::sqrt(sum / static_cast<double>(a.size())) : INFINITY;
}

// Decoded among other texts and read as a prompt. In float32 the keys and values of both devices have nearly always the
// same codes: they are nearer to one another than codes are to values.
TEST_F(CudaEngine, CachesOfCodesScoreTextsAsOnTheCpu) {
  for (const char* cache : {"e4m3", "int8"}) {
    auto gpu = open(8 << 20, {.kv_cache = cache});
    std::vector<GenerationStream> others;
    for (int i = 0; i < 12; ++i) {
      GenerationRequest request{.prompt = "Lily and Tom went to the park", .max_tokens = 40 + 10 * i};
      request.sampling.seed = static_cast<uint64_t>(i);
      others.push_back(gpu->submit(std::move(request)));
    }
    GenerationStream greedy = submit_greedy(*gpu);
    for (GenerationStream& stream : others) EXPECT_FALSE(text_of(stream).empty());
    const Scored text = collect_scored(std::move(greedy));
    ASSERT_EQ(text.ids.size(), 200u) << cache;
    const std::vector<double> read = scores_of(*gpu, text.ids);
    const std::vector<double> cpu = scores_of(*open(8 << 20, {.device = "cpu", .kv_cache = cache}), text.ids);
    const std::vector<double> exact = scores_of(*open(8 << 20, {.device = "cpu", .kv_cache = "f32"}), text.ids);
    const double noise = distance(cpu, exact);
    EXPECT_GT(noise, 1e-4) << cache;
    EXPECT_LT(distance(text.logprobs, cpu), 0.5 * noise) << cache;
    EXPECT_LT(distance(read, cpu), 0.5 * noise) << cache;
  }
}

// By prompt lookup, and by the model itself as the draft: the published text is the text, other draws do not fail.
TEST_F(CudaEngine, SpeculationChangesNoGreedyText) {
  const std::string wanted = read_file(folder_ + "/expected_greedy_n200.txt");
  for (const std::string& draft : {std::string("ngram"), folder_ + "/stories260K.bin"}) {
    for (const int64_t drafts : {3, 5, 12}) {
      const bool full = drafts == 5;  // a full cache leaves drafts out
      auto engine = open(full ? 2 << 20 : 32 << 20, {.draft = draft, .draft_tokens = drafts, .draft_adaptive = false});
      std::vector<GenerationStream> greedy, others;
      for (int i = 0; i < 6; ++i) {
        GenerationRequest request;
        request.max_tokens = 200;
        request.sampling.temperature = 0;
        greedy.push_back(engine->submit(request));
        request.sampling.temperature = 1;
        request.sampling.seed = static_cast<uint64_t>(i);
        others.push_back(engine->submit(request));
      }
      for (GenerationStream& stream : greedy) EXPECT_EQ(text_of(stream), wanted) << draft << " " << drafts;
      for (GenerationStream& stream : others) EXPECT_FALSE(text_of(stream).empty());
      engine->drain();
      const EngineStats stats = engine->stats();
      EXPECT_EQ(stats.failed, 0);
      EXPECT_FALSE(stats.draft_failed);
      EXPECT_EQ(stats.kv_blocks_used, 0);
      EXPECT_GT(stats.accepted_tokens, draft == "ngram" || full ? 20 : 1000);
    }
  }
}

// Forked blocks are copied on the device, in replayed graphs.
TEST(CudaEngineBeams, EqualsTransformers) {
  std::string why;
  if (!cuda_available(&why)) GTEST_SKIP() << why;
  const std::string folder = test_data_path(kBeamFixtures);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(kBeamFixtures);
  for (const int64_t block_size : {16, 64})
    expect_beams_of_transformers(folder, {.device = "cuda", .block_size = block_size});
}

}  // namespace
}  // namespace octet
