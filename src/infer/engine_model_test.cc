// The engine with the real runner on the CPU: a request's tokens do not depend on the batch.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "infer/plan_runner.h"
#include "infer/testing/engine_test.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

ModelConfig tiny_llama() {
  return {.architecture = "llama",
          .vocab_size = 61,
          .max_positions = 64,
          .hidden = 32,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .intermediate = 64,
          .init_std = 0.3};
}

std::unique_ptr<EngineLoop> tiny_engine(SchedulingPolicy policy, int64_t blocks, const char* recipe, int64_t entries,
                                        DType cache = DType::kF32) {
  ServingOptions serving{.engine = {.max_sequences = 8, .max_step_tokens = 40, .block_size = 4},
                         .target = cpu_target(),
                         .recipe = parse_recipe(recipe),
                         .cache_dtype = cache,
                         .max_entries = entries};
  ModelConfig model = tiny_llama();
  int64_t block_bytes =
      2 * model.layers * model.kv_heads * serving.engine.block_size * cached_head_bytes(model.head_size(), cache);
  serving.engine.kv_cache_bytes = blocks * block_bytes;
  return std::make_unique<EngineLoop>(
      EngineParts{.runner = make_random_runner(model, serving), .tokenizer = test_tokenizer(), .eos_ids = {kEos}},
      EngineOptions{.max_sequences = 8, .max_step_tokens = 40, .policy = policy});
}

// Policy, blocks of the cache, recipe (those whose bits do not depend on a batch), adjusted logits of a step (0: many),
// type of the cache.
using EngineCase = std::tuple<SchedulingPolicy, int64_t, const char*, int64_t, DType>;
class EngineModel : public testing::TestWithParam<EngineCase> {};

TEST_P(EngineModel, TokensOfARequestAloneAndAmongOthersAreEqual) {
  auto engine = std::apply(tiny_engine, GetParam());
  std::vector<std::vector<Collected>> wanted;
  constexpr uint64_t kRequests = 21;
  for (uint64_t i = 0; i < kRequests; ++i) {
    GenerationRequest request = some_request(i);
    request.cache_salt = std::to_string(i);  // computes its prompt itself
    GenerationStream stream = engine->submit(request);
    wanted.push_back(collect(stream, request.n));
  }
  std::vector<GenerationStream> streams;
  for (uint64_t i = 0; i < kRequests; ++i) streams.push_back(engine->submit(some_request(i)));
  int64_t tokens = 0;
  for (uint64_t i = 0; i < kRequests; ++i) {
    std::vector<Collected> texts = collect(streams[i], some_request(i).n);
    for (size_t sample = 0; sample < texts.size(); ++sample) {
      EXPECT_EQ(texts[sample].error, "");
      EXPECT_EQ(texts[sample].ids, wanted[i][sample].ids) << "request " << i << " text " << sample;
      EXPECT_EQ(texts[sample].text, wanted[i][sample].text);
      EXPECT_EQ(texts[sample].finished, wanted[i][sample].finished);
      tokens += static_cast<int64_t>(texts[sample].ids.size());
    }
  }
  EXPECT_GT(tokens, 100);
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineModel,
                         testing::Values(EngineCase(SchedulingPolicy::kMaxUtilization, 128, "fp32", 0, DType::kF32),
                                         EngineCase(SchedulingPolicy::kMaxUtilization, 27, "fp32", 0, DType::kF32),
                                         EngineCase(SchedulingPolicy::kNeverEvict, 64, "fp32", 0, DType::kF32),
                                         EngineCase(SchedulingPolicy::kMaxUtilization, 128, "fp32", 61, DType::kF32),
                                         EngineCase(SchedulingPolicy::kMaxUtilization, 27, "fp32", 0, DType::kI8),
                                         EngineCase(SchedulingPolicy::kMaxUtilization, 27, "int8", 0, DType::kF32)));

TEST(EngineOpen, RefusesOptionsAndFoldersBeforeAnythingIsAllocated) {
  auto message = [](const std::string& model, const EngineOptions& options) -> std::string {
    try {
      Engine::open(model, options);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  auto expect = [&](const EngineOptions& options, const std::string& words, const std::string& model = "gpt2-nano") {
    std::string got = message(model, options);
    EXPECT_NE(got.find(words), std::string::npos) << got << " (want: " << words << ")";
  };
  expect({.max_sequences = 0, .random_weights = true}, "max_sequences: 0 (want >= 1)");
  expect({.rank_timeout = 0, .random_weights = true}, "rank_timeout: 0");
  expect({.max_step_tokens = 8, .random_weights = true}, "max_step_tokens: 8");
  expect({.context = 1, .random_weights = true}, "context: 1");
  expect({.block_size = -1, .random_weights = true}, "block_size: -1");
  expect({.memory_fraction = 0, .random_weights = true}, "memory_fraction: 0");
  expect({.recipe = "fp9", .random_weights = true}, "fp9");
  expect({.kv_cache = "int3", .random_weights = true}, "kv_cache: \"int3\" (want f32, bf16, e4m3 or int8)");
  expect({.device = "tpu", .random_weights = true}, "tpu");
  expect({.random_weights = true}, "gpt2-nan", "gpt2-nan");
  expect({}, "nowhere", "nowhere");
}

TEST(EngineOpen, NamedModelsRunWithRandomWeights) {
  auto engine = Engine::open("gpt2-nano", {.device = "cpu",
                                           .recipe = "fp32",
                                           .max_sequences = 2,
                                           .max_step_tokens = 64,
                                           .kv_cache_bytes = 4 << 20,
                                           .random_weights = true});
  EXPECT_GT(engine->vocab_size(), 0);
  EXPECT_GT(engine->context(), 0);
  EXPECT_GT(engine->stats().kv_bytes, 0);
  Collected text = collect_one(engine->submit({.prompt_ids = {1, 2, 3}, .max_tokens = 5, .logprobs = 2}));
  EXPECT_EQ(text.ids.size(), 5u) << text.error;
  EXPECT_EQ(text.top.at(0).size(), 2u);
  EXPECT_LE(text.logprobs[0].logprob, text.top[0][0].logprob);

  GenerationRequest whole{.prompt_ids = {1, 2, 3}, .max_tokens = 0, .prompt_logprobs = 2};
  whole.prompt_ids.insert(whole.prompt_ids.end(), text.ids.begin(), text.ids.end());
  GenerationStream stream = engine->submit(whole);
  std::vector<TokenLogprob> scores, best;
  for (GenerationEvent event; stream.next(event);) {
    scores.insert(scores.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    for (const auto& top : event.prompt_top) best.push_back(top.at(0));
  }
  ASSERT_EQ(scores.size(), 7u);
  for (size_t i = 0; i < 5; ++i) {  // GEMMs of other heights sum in another order
    EXPECT_NEAR(scores[2 + i].logprob, text.logprobs[i].logprob, 1e-5);
    EXPECT_NEAR(best[2 + i].logprob, text.top[i][0].logprob, 1e-5);
  }
}

// `planned` gets the memory plan before weights are made and can refuse it.
TEST(EngineOpen, ThePlanIsToldBeforeWeights) {
  EngineOptions options{.device = "cpu",
                        .recipe = "bf16",
                        .max_sequences = 2,
                        .max_step_tokens = 64,
                        .kv_cache_bytes = 4 << 20,
                        .random_weights = true};
  EnginePlan told;
  options.planned = [&](const EnginePlan& plan) {
    told = plan;
    fail(ErrorCode::kInvalidArgument, "no, thanks");
  };
  try {
    Engine::open("gpt2-nano", options);
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "no, thanks");
  }
  const ModelConfig model = named_model("gpt2-nano");
  const int64_t layer = 12 * model.hidden * model.hidden,
                tables = (model.vocab_size + model.max_positions) * model.hidden;
  EXPECT_EQ(told.matrix_elements, model.layers * layer + tables);
  EXPECT_GE(told.weight_bytes, 2 * told.matrix_elements);
  EXPECT_LT(told.weight_bytes, 2.2 * static_cast<double>(told.matrix_elements)) << "vectors besides";
  EXPECT_EQ(told.context, model.max_positions);
  EXPECT_GE(told.kv_tokens, told.context);
  EXPECT_GT(told.activation_bytes, 0);
  EXPECT_EQ(told.device, "cpu");
  EXPECT_EQ(told.recipe, "bf16");
}

// A folder whose config.json or generation_config.json has several end tokens: each of them ends a sequence.
TEST(EngineOpen, EveryEndOfAListEndsAText) {
  const std::string golden = test_data_path("hf_goldens/llama_gqa_rope3");
  if (golden.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/llama_gqa_rope3");
  TempFolder folder;
  std::filesystem::create_symlink(golden + "/model.safetensors", folder.file("model.safetensors"));
  nlohmann::json config = nlohmann::json::parse(read_file(golden + "/config.json"));
  const auto text = [&](const nlohmann::json& ends, const nlohmann::json& generation_ends) {
    config["eos_token_id"] = ends;
    write_file(folder.file("config.json"), config.dump());
    write_file(folder.file("generation_config.json"), nlohmann::json{{"eos_token_id", generation_ends}}.dump());
    auto engine = Engine::open(folder.path(), {.device = "cpu",
                                               .recipe = "fp32",
                                               .needs_tokenizer = false,
                                               .max_sequences = 1,
                                               .max_step_tokens = 64,
                                               .kv_cache_bytes = 4 << 20});
    return collect_one(
        engine->submit({.prompt_ids = {3, 17, 42, 9}, .sampling = {.temperature = 0}, .max_tokens = 12}));
  };
  const std::vector<int32_t> whole = text(nullptr, nullptr).ids;
  ASSERT_EQ(whole.size(), 12u);
  const int32_t end = whole[6];
  const auto at = std::find(whole.begin(), whole.end(), end);
  int32_t other = 1;  // one that is not sampled
  while (std::find(whole.begin(), whole.end(), other) != whole.end()) ++other;
  const nlohmann::json none, one = other, list = {other, end}, far = {end, config["vocab_size"].get<int64_t>() + 7};
  for (const auto& [ends, more] : {std::pair(list, none), std::pair(one, list), std::pair(none, far)}) {
    const Collected ended = text(ends, more);
    EXPECT_EQ(ended.finished, FinishReason::kStop) << ends.dump() << " " << more.dump();
    EXPECT_EQ(ended.ids, std::vector<int32_t>(whole.begin(), at)) << ends.dump() << " " << more.dump();
  }
}

// Vocabularies smaller than the number of top logprobs: letters of DNA, sorted digits.
TEST(EngineOpen, ASmallVocabularyHasLogprobsToo) {
  ModelConfig model = tiny_llama();
  model.vocab_size = 4;
  const ServingOptions serving{.engine = {.max_sequences = 2, .max_step_tokens = 64, .kv_cache_bytes = 1 << 20},
                               .target = cpu_target(),
                               .recipe = parse_recipe("fp32")};
  EngineLoop engine({.runner = make_random_runner(model, serving)}, {.max_sequences = 2, .max_step_tokens = 64});
  GenerationRequest request{.prompt_ids = {1, 2, 3}, .max_tokens = 5, .logprobs = 4};
  for (bool masked : {false, true}) {
    if (masked)
      request.mask = [](int64_t, std::span<const int32_t>, std::span<uint32_t> allowed) { allowed[0] = 0b0110; };
    Collected text = collect_one(engine.submit(request));
    ASSERT_EQ(text.ids.size(), 5u) << text.error;
    ASSERT_EQ(text.top.at(4).size(), 4u);
    float sum = 0;
    for (const TokenLogprob& token : text.top[4]) sum += std::exp(token.logprob);
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  request.logprobs = 5;
  EXPECT_NE(collect_one(engine.submit(request)).error.find("logprobs: 5 (want -1 .. 4)"), std::string::npos);
}

// The step after the failing one is already in flight: the other requests must not fail with it.
TEST(EngineOpen, ATextThatCanDrawNothingFailsAlone) {
  for (const char* recipe : {"fp32", "int8"}) {
    auto engine = tiny_engine(SchedulingPolicy::kMaxUtilization, 64, recipe, 0);
    GenerationRequest sound{.prompt_ids = {3, 4, 5}, .max_tokens = 12};
    const std::vector<int32_t> wanted = collect_one(engine->submit(sound)).ids;
    GenerationRequest barren = sound;
    for (int32_t id = 0; id < 61; ++id) barren.sampling.logit_bias[id] = -INFINITY;
    GenerationRequest later_barren = sound;  // from its third token on
    later_barren.mask = [](int64_t, std::span<const int32_t> ids, std::span<uint32_t> allowed) {
      std::fill(allowed.begin(), allowed.end(), ids.size() < 2 ? ~0u : 0u);
    };
    GenerationStream beside = engine->submit(sound);
    for (const GenerationRequest& request : {barren, later_barren}) {
      const Collected text = collect_one(engine->submit(request));
      EXPECT_EQ(text.finished, FinishReason::kError) << recipe;
      EXPECT_NE(text.error.find("no token can be sampled"), std::string::npos) << text.error;
    }
    EXPECT_EQ(collect(beside)[0].ids, wanted) << recipe;
    EXPECT_EQ(collect_one(engine->submit(sound)).ids, wanted) << recipe;
  }
}

}  // namespace
}  // namespace octet
