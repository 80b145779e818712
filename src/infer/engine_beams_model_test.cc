// Beam search with the real runner on the CPU: the fixtures of transformers, and scores that the model gives the
// sequences.
#include "base/testing/test_data.h"
#include "infer/plan_runner.h"
#include "infer/testing/beam_fixtures.h"
#include "infer/testing/engine_test.h"

namespace octet {
namespace {

TEST(EngineBeamsModel, EqualsTransformers) {
  const std::string folder = test_data_path(kBeamFixtures);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(kBeamFixtures);
  expect_beams_of_transformers(folder, {.device = "cpu", .block_size = 4});
}

// A sequence's score is what its prompt and tokens give as one prompt, whose keys and values no fork has touched.
TEST(EngineBeamsModel, ScoresAreThoseOfTheWholeTexts) {
  const ModelConfig model{.architecture = "llama",
                          .vocab_size = 61,
                          .max_positions = 64,
                          .hidden = 32,
                          .layers = 2,
                          .heads = 4,
                          .kv_heads = 2,
                          .intermediate = 64,
                          .init_std = 0.3};
  const ServingOptions serving{.engine = {.max_sequences = 16,
                                          .max_step_tokens = 40,
                                          .block_size = 4,
                                          .kv_cache_bytes = 60 * 2 * 2 * 16 * 4 * 4},  // 60 blocks
                               .target = cpu_target(),
                               .recipe = parse_recipe("fp32")};
  EngineLoop engine({.runner = make_random_runner(model, serving)}, {.max_sequences = 16, .max_step_tokens = 40});
  std::vector<GenerationRequest> requests;
  std::vector<GenerationStream> streams, plain;
  for (uint64_t i = 0; i < 12; ++i) {
    GenerationRequest asked{.prompt_ids = some_ids(5 + static_cast<int64_t>(i), i), .max_tokens = 14};
    asked.n = asked.beams = 1 + static_cast<int64_t>(i % 6);
    asked.length_penalty = 0;
    asked.stop_ids = {7, 21};
    if (i % 3 == 1) asked.sampling.logit_bias = {{9, 3.0f}, {30, -4.0f}, {21, 1.0f}}, asked.min_tokens = 5;
    if (i % 3 == 2)
      asked.mask = [](int64_t, std::span<const int32_t> ids, std::span<uint32_t> allowed) {
        allowed[ids.size() % 2] &= 0x0fff00f0U;
      };
    requests.push_back(asked);
    streams.push_back(engine.submit(asked));
    plain.push_back(engine.submit(some_request(i)));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<GenerationEvent> texts = found(streams[i]);
    ASSERT_EQ(std::ssize(texts), requests[i].n);
    for (const GenerationEvent& text : texts) {
      GenerationRequest whole{.prompt_ids = requests[i].prompt_ids, .max_tokens = 0, .prompt_logprobs = 0};
      whole.prompt_ids.insert(whole.prompt_ids.end(), text.ids.begin(), text.ids.end());
      if (text.stop_id >= 0) whole.prompt_ids.push_back(text.stop_id);
      double score = 0;
      std::vector<TokenLogprob> logprobs;
      GenerationStream stream = engine.submit(whole);
      for (GenerationEvent event; stream.next(event);)
        logprobs.insert(logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
      ASSERT_EQ(logprobs.size() + 1, whole.prompt_ids.size());
      for (size_t t = requests[i].prompt_ids.size() - 1; t < logprobs.size(); ++t) {
        score += logprobs[t].logprob;
        const auto bias = requests[i].sampling.logit_bias.find(logprobs[t].id);
        if (bias != requests[i].sampling.logit_bias.end()) score += bias->second;
      }
      EXPECT_NEAR(text.score, score, 1e-4);  // 15 log-probabilities by GEMMs of other heights
    }
    for (size_t t = 1; t < texts.size(); ++t) EXPECT_GE(texts[t - 1].score, texts[t].score);
  }
}

}  // namespace
}  // namespace octet
