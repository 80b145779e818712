// The engine on a GPU: its steps overlap with the device, and its output must equal the CPU's.
#include <gtest/gtest.h>

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
    options.device = "cuda";
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
  auto engine = open(2 << 20);
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
    EXPECT_EQ(stream.times().generated_tokens, 300);
  }
  EXPECT_EQ(engine->stats().failed, 0);
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
