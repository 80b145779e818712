// The engine of encoders on the CPU: results against transformers' (float32), packing, cuts, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "infer/encoder_engine.h"
#include "io/safetensors.h"

namespace octet {
namespace {

const char* const kModels = "serving/experts_encoders/";

std::unique_ptr<Engine> open(const std::string& folder, EngineOptions options = {}) {
  options.device = "cpu", options.recipe = "fp32", options.needs_tokenizer = false;
  options.max_sequences = 4, options.max_step_tokens = 128;
  return Engine::open(folder, options);
}

GenerationEvent ask(Engine& engine, GenerationRequest request) {
  GenerationStream stream = engine.submit(std::move(request));
  GenerationEvent event;
  EXPECT_TRUE(stream.next(event));
  return event;
}

// A request that encodes these; `change` sets more of it.
GenerationRequest encoding(const std::vector<int32_t>& ids,
                           const std::function<void(GenerationRequest&)>& change = {}) {
  GenerationRequest request;
  request.prompt_ids = ids, request.encode = true;
  if (change) change(request);
  return request;
}

GenerationEvent encode(Engine& engine, const std::vector<int32_t>& ids) { return ask(engine, encoding(ids)); }

// Real tokens of the goldens' sequences, and the rows expected of them.
struct Golden {
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<float>> rows;

  Golden(const std::string& folder, const std::string& output) {
    const auto expected = open_safetensors(folder + "/expected.safetensors");
    const Shape& shape = expected->find_type("input_ids")->shape;
    const auto ints = [&](const char* name) {
      const TensorView view = expected->read(name);
      std::vector<int32_t> list;
      for (int64_t i = 0; i < view.type.shape.elements(); ++i)
        list.push_back(static_cast<int32_t>(load_element(view.type.dtype, view.bytes.data(), i)));
      return list;
    };
    const bool typed = expected->find_type("token_type_ids") != nullptr;
    const auto ids = ints("input_ids"), mask = ints("attention_mask");
    const auto types = typed ? ints("token_type_ids") : std::vector<int32_t>();
    const std::vector<float> values = floats_of(expected->read(output));
    const int64_t width = std::ssize(values) / shape[0];
    for (int64_t b = 0; b < shape[0]; ++b) {
      GenerationRequest request;
      request.encode = true;
      for (int64_t t = b * shape[1]; t < (b + 1) * shape[1]; ++t) {
        const auto at = static_cast<size_t>(t);
        if (mask[at] == 0) continue;
        request.prompt_ids.push_back(ids[at]);
        if (typed) request.token_types.push_back(types[at]);
      }
      requests.push_back(request);
      rows.emplace_back(values.begin() + b * width, values.begin() + (b + 1) * width);
    }
  }
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, double{std::abs(a[i] - b[i])});
  return most;
}

struct Wanted {
  const char *model, *pooling, *output;
};

void PrintTo(const Wanted& wanted, std::ostream* out) {
  *out << wanted.model << " " << wanted.pooling << " " << wanted.output;
}

class EncoderResults : public testing::TestWithParam<Wanted> {};

TEST_P(EncoderResults, AreThoseOfTransformers) {
  const auto& [model, pooling, output] = GetParam();
  const std::string folder = test_data_path(std::string(kModels) + model);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(model);
  const auto engine = open(folder, {.pooling = pooling});
  const Golden golden(folder, output);
  std::vector<GenerationStream> streams;
  for (GenerationRequest request : golden.requests) {
    request.normalize = std::string(output).ends_with("_normalized");
    streams.push_back(engine->submit(std::move(request)));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    GenerationEvent event;
    ASSERT_TRUE(streams[i].next(event));
    EXPECT_EQ(event.error, "");
    std::vector<float> wanted = golden.rows[i];
    if (engine->encoder()->classifies) wanted[0] = 1 / (1 + std::exp(-wanted[0]));
    EXPECT_LE(largest_difference(event.values, wanted), 2e-4);  // float32 sums in another order
    EXPECT_EQ(streams[i].times().prompt_tokens, std::ssize(golden.requests[i].prompt_ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EncoderResults,
                         testing::Values(Wanted{"bert_model", "cls", "cls_normalized"},
                                         Wanted{"bert_model", "mean", "mean_normalized"},
                                         Wanted{"roberta_model", "mean", "mean_normalized"},
                                         Wanted{"qwen3_embedding", "", "last"},
                                         Wanted{"bert_cross_encoder", "", "logits"}),
                         [](const auto& info) { return std::string(info.param.model) + "_" + info.param.output; });

class BertEngine : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = test_data_path(std::string(kModels) + "bert_model");
    if (folder_.empty()) GTEST_SKIP() << missing_test_data("bert_model");
    engine_ = open(folder_);
  }
  static std::vector<int32_t> ids(int64_t length, int32_t seed) {
    std::vector<int32_t> list;
    for (int32_t i = 0; i < length; ++i) list.push_back((seed * 31 + i * 17) % 320);
    return list;
  }
  std::string folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(BertEngine, ResultsOfAMixedBatchAreThoseOfEachAlone) {
  std::vector<std::vector<int32_t>> inputs;
  for (int32_t i = 0; i < 16; ++i) inputs.push_back(ids(1 + (i * 37) % 120, i));
  std::vector<std::vector<float>> alone;
  for (const auto& input : inputs) alone.push_back(encode(*engine_, input).values);
  std::vector<GenerationStream> streams;
  for (const auto& input : inputs) streams.push_back(engine_->submit(encoding(input)));
  for (size_t i = 0; i < streams.size(); ++i) {
    GenerationEvent event;
    ASSERT_TRUE(streams[i].next(event));
    // Products choose their kernels by the rows of a step: sums of 256 terms in another order.
    EXPECT_LE(largest_difference(event.values, alone[i]), 1e-5) << i;
  }
  engine_->drain();
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.finished, 32);
  EXPECT_EQ(stats.failed + stats.running + stats.waiting, 0);
  EXPECT_GT(stats.prompt_tokens, 40);
}

TEST_F(BertEngine, DimensionsAreCutAndNormalisedAgain) {
  const std::vector<float> whole = encode(*engine_, ids(9, 1)).values;
  const std::vector<float> cut = ask(*engine_, encoding(ids(9, 1), [](auto& r) { r.dimensions = 16; })).values;
  ASSERT_EQ(cut.size(), 16u);
  double square = 0, of_whole = 0;
  for (size_t i = 0; i < 16; ++i) square += double{cut[i]} * cut[i], of_whole += double{whole[i]} * whole[i];
  EXPECT_NEAR(square, 1, 1e-5);
  EXPECT_NEAR(cut[3], whole[3] / std::sqrt(of_whole), 1e-5);
  const std::vector<float> plain = ask(*engine_, encoding(ids(9, 1), [](auto& r) { r.normalize = false; })).values;
  EXPECT_GT(std::abs(plain[3]), 2 * std::abs(whole[3]));
}

TEST_F(BertEngine, RefusesByName) {
  const auto refuses = [&](const GenerationRequest& request, const char* words) {
    const std::string error = ask(*engine_, request).error;
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  using R = GenerationRequest;
  refuses(encoding({1, 2}, [](R& r) { r.encode = false; }), "this model encodes whole texts (embeddings)");
  refuses(encoding({}), "the input is empty");
  refuses(encoding(ids(129, 1)), "129 tokens, the model takes 128");
  refuses(encoding({320}), "token id: 320 (the model has 320)");
  refuses(encoding({1, 2}, [](R& r) { r.token_types = {0, 2}; }), "token type: 2");
  refuses(encoding({1, 2}, [](R& r) { r.token_types = {0}; }), "1 token types for 2 tokens");
  refuses(encoding({1, 2}, [](R& r) { r.dimensions = 65; }), "dimensions: 65 (want 1 to 64");
  EXPECT_EQ(encode(*engine_, ids(128, 1)).error, "");
}

TEST_F(BertEngine, CancelledAndLateRequestsEnd) {
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 30; ++i) streams.push_back(engine_->submit(encoding(ids(128, i))));
  streams.back().cancel();
  GenerationEvent event;
  ASSERT_TRUE(streams.back().next(event));
  EXPECT_TRUE(event.finished == FinishReason::kCancelled || event.finished == FinishReason::kStop);
  const GenerationEvent late = ask(*engine_, encoding(ids(128, 1), [](auto& r) { r.timeout_seconds = 1e-9; }));
  EXPECT_EQ(late.finished, FinishReason::kTimeout);
  EXPECT_EQ(late.error_kind, ErrorKind::kLate);
  streams.clear();
  engine_->drain();
  EXPECT_EQ(engine_->stats().waiting, 0);
}

TEST_F(BertEngine, TheQueueIsBounded) {
  const auto engine = open(folder_, {.max_waiting = 2});
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 200; ++i) streams.push_back(engine->submit(encoding(ids(128, i))));
  int64_t refused = 0;
  for (GenerationStream& stream : streams) {
    GenerationEvent event;
    ASSERT_TRUE(stream.next(event));
    refused += event.error_kind == ErrorKind::kQueueFull;
  }
  EXPECT_GT(refused, 0);
  engine->drain();
  EXPECT_EQ(encode(*engine, ids(128, 1)).error, "") << "room again";
}

TEST(EncoderTask, FollowsTheModelAndTheOptions) {
  const std::string bert = test_data_path(std::string(kModels) + "bert_model");
  const std::string llama = test_data_path("hf_goldens/llama_gqa_rope3");
  if (bert.empty() || llama.empty()) GTEST_SKIP() << missing_test_data("bert_model");
  EXPECT_THROW(open(bert, {.task = "generate"}), Error);
  EXPECT_THROW(open(bert, {.task = "classify"}), Error);
  EXPECT_THROW(open(bert, {.pooling = "max"}), Error);
  const auto decoder = open(llama);
  EXPECT_EQ(decoder->encoder(), nullptr);
  EXPECT_NE(encode(*decoder, {1, 2, 3}).error.find("serve it with task embed"), std::string::npos);
  const auto pretraining = open(test_data_path(std::string(kModels) + "bert_pretraining"));
  EXPECT_FALSE(pretraining->encoder()->classifies);
  EXPECT_EQ(encode(*pretraining, {1, 2, 3}).values.size(), 64u);
  const auto embeds = open(llama, {.task = "embed"});
  ASSERT_NE(embeds->encoder(), nullptr);
  EXPECT_EQ(embeds->encoder()->pooling, "last");
  EXPECT_EQ(std::ssize(encode(*embeds, {1, 2, 3}).values), embeds->encoder()->width);
  for (const char* recipe : {"fp8-current", "int8", "w4i8"})  // no codes of a head that embeddings do not read
    EXPECT_EQ(std::ssize(encode(*open(llama, {.task = "embed", .recipe = recipe}), {1, 2, 3}).values), 64) << recipe;
}

// A folder of sentence-transformers around a golden model.
class SentenceFolder : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model = test_data_path(std::string(kModels) + "bert_model");
    if (model.empty()) GTEST_SKIP() << missing_test_data("bert_model");
    for (const char* file : {"config.json", "model.safetensors"})
      write_file(folder_.file(file), read_file(model + "/" + file));
    make_folders(folder_.file("1_Pooling"));
    write_file(folder_.file("modules.json"),
               R"([{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                   {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
    pooling("mean_tokens");
  }
  void pooling(const std::string& mode, const std::string& more = "") {
    write_file(folder_.file("1_Pooling/config.json"),
               R"({"word_embedding_dimension": 64, "pooling_mode_cls_token": false, "pooling_mode_)" + mode +
                   "\": true" + more + "}");
  }
  TempFolder folder_;
};

TEST_F(SentenceFolder, SaysHowEmbeddingsAreMade) {
  EXPECT_EQ(open(folder_.path())->encoder()->pooling, "mean");
  EXPECT_FALSE(open(folder_.path())->encoder()->normalize);
  write_file(folder_.file("modules.json"),
             R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
                 {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                 {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])");
  write_file(folder_.file("sentence_bert_config.json"), R"({"max_seq_length": 20, "do_lower_case": false})");
  write_file(folder_.file("config_sentence_transformers.json"),
             R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})");
  pooling("lasttoken");
  const auto engine = open(folder_.path());
  EXPECT_EQ(engine->encoder()->pooling, "last");
  EXPECT_TRUE(engine->encoder()->normalize);
  EXPECT_EQ(engine->context(), 20);
  EXPECT_EQ(engine->encoder()->prompts.at("query"), "query: ");
  EXPECT_EQ(engine->encoder()->default_prompt, "query");
}

TEST_F(SentenceFolder, AMeanMayLeaveOutThePrompt) {
  const std::vector<int32_t> ids = {5, 6, 7, 8, 9, 10, 11}, other = {5, 90, 12};
  const auto whole = open(folder_.path());
  pooling("mean_tokens", R"(, "include_prompt": false)");
  const auto engine = open(folder_.path()), last = open(folder_.path(), {.pooling = "last"});
  EXPECT_TRUE(whole->encoder()->include_prompt);
  EXPECT_FALSE(engine->encoder()->include_prompt);
  std::vector<GenerationStream> streams;  // of one step, each with a prompt of its own
  const auto submit = [&](const std::vector<int32_t>& input, int64_t left_out) {
    streams.push_back(engine->submit(encoding(input, [&](GenerationRequest& r) { r.left_out = left_out; })));
  };
  submit(ids, 6), submit(other, 0), submit(other, 2), submit(ids, 100);
  std::vector<std::vector<float>> wanted = {encode(*last, ids).values, encode(*whole, other).values,
                                            encode(*last, other).values, std::vector<float>(64, 0.0f)};
  for (size_t i = 0; i < streams.size(); ++i) {
    GenerationEvent event;
    ASSERT_TRUE(streams[i].next(event));
    EXPECT_LE(largest_difference(event.values, wanted[i]), 1e-5) << i;
  }
}

TEST_F(SentenceFolder, ATokenizersLengthIsTheLongestInputWhereNothingElseSaysIt) {
  write_file(folder_.file("tokenizer_config.json"), R"({"model_max_length": 1000000000000000019884624838656})");
  const int64_t model = open(folder_.path())->context();
  EXPECT_GT(model, 24);
  write_file(folder_.file("tokenizer_config.json"), R"({"model_max_length": 24})");
  EXPECT_EQ(open(folder_.path())->context(), 24);
  write_file(folder_.file("sentence_bert_config.json"), R"({"max_seq_length": null})");
  EXPECT_EQ(open(folder_.path())->context(), 24);
  write_file(folder_.file("sentence_bert_config.json"), R"({"max_seq_length": 30})");
  EXPECT_EQ(open(folder_.path())->context(), 30);
}

// A decoder with "is_causal": false: its first token sees the last one.
TEST(BidirectionalDecoder, IsAnEncoder) {
  const std::string model = test_data_path(std::string(kModels) + "qwen3_embedding");
  if (model.empty()) GTEST_SKIP() << missing_test_data("qwen3_embedding");
  TempFolder folder;
  std::string config = read_file(model + "/config.json");
  write_file(folder.file("model.safetensors"), read_file(model + "/model.safetensors"));
  const auto first_token_moves = [&] {
    write_file(folder.file("config.json"), config);
    const auto engine = open(folder.path(), {.task = "embed", .pooling = "cls"});
    return largest_difference(encode(*engine, {5, 6, 7}).values, encode(*engine, {5, 6, 8}).values) > 1e-3;
  };
  EXPECT_FALSE(first_token_moves());
  config.insert(config.find('{') + 1, R"("is_causal": false, )");
  EXPECT_TRUE(first_token_moves());
  EXPECT_EQ(open(folder.path())->encoder()->pooling, "last");
  try {
    open(folder.path(), {.task = "generate"});
    ADD_FAILURE() << "it generates";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("tokens see their whole sequence"), std::string::npos) << error.message();
  }
}

TEST(RequestErrors, AreTheClientsWhereTheyAreInvalidArgumentsAlone) {
  EXPECT_EQ(kind_of(Error(ErrorCode::kInvalidArgument, "")), ErrorKind::kInvalid);
  EXPECT_EQ(kind_of(RequestError(ErrorKind::kTooLong, "")), ErrorKind::kTooLong);
  for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kUnsupported, ErrorCode::kOutOfMemory})
    EXPECT_EQ(kind_of(Error(code, "")), ErrorKind::kInternal);
}

TEST_F(SentenceFolder, WhatIsNotRunIsRefusedByName) {
  const auto message = [&] {
    try {
      open(folder_.path());
    } catch (const Error& error) {
      return std::string(error.message());
    }
    return std::string();
  };
  pooling("max_tokens");
  EXPECT_NE(message().find("pooling max_tokens is not supported"), std::string::npos) << message();
  pooling("mean_tokens");
  write_file(folder_.file("modules.json"), R"([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}])");
  EXPECT_NE(message().find("module sentence_transformers.models.Dense is not supported"), std::string::npos);
  write_file(folder_.file("modules.json"), R"([{"path": 3, "type": "sentence_transformers.models.Pooling"}])");
  EXPECT_NE(message().find("modules.json: member 'path' is of the wrong type"), std::string::npos) << message();
  write_file(folder_.file("modules.json"), "[]");
  write_file(folder_.file("config_sentence_transformers.json"), R"({"prompts": {}, "default_prompt_name": "query"})");
  EXPECT_NE(message().find("is none of its prompts"), std::string::npos) << message();
}

}  // namespace
}  // namespace octet
