// The server of an encoder: /v1/embeddings, /v1/rerank, /v1/score, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "io/testing/word_piece_json.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using nlohmann::json;

std::vector<float> floats(const json& list) { return list.get<std::vector<float>>(); }

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

// The server of a golden model with a tokenizer of 320 tokens.
class EncoderServer : public testing::Test {
 protected:
  void serve(const std::string& golden) {
    const std::string from = test_data_path("serving/experts_encoders/" + golden);
    if (from.empty()) GTEST_SKIP() << missing_test_data(golden);
    for (const char* file : {"config.json", "model.safetensors"})
      write_file(folder_.file(file), read_file(from + "/" + file));
    write_file(folder_.file("tokenizer.json"), word_piece_json());
    write_file(folder_.file("config_sentence_transformers.json"), R"({"prompts": {"query": "query: "}})");
    engine_ = Engine::open(folder_.path(), {.device = "cpu", .recipe = "fp32"});
    tokenizer_ = load_tokenizer(folder_.path());
    model_.engine = engine_.get(), model_.tokenizer = tokenizer_.get(), model_.names = {"tiny"};
    ServerOptions options;
    options.http.port = 0;
    server_ = std::make_unique<Server>(model_, options);
  }
  Answer post(const std::string& path, const json& body) const {
    return serve::ask(server_->port(), "POST", path, body.dump());
  }
  std::vector<float> embed(const json& body) const {
    const Answer answer = post("/v1/embeddings", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return floats(answer.json()["data"][0]["embedding"]);
  }
  void refuses(const std::string& path, const json& body, const std::string& words) const {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_NE(answer.body.find(words), std::string::npos) << answer.body;
  }

  TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ApiModel model_;
  std::unique_ptr<Server> server_;
};

TEST_F(EncoderServer, EmbeddingsOfTextsAndIds) {
  serve("bert_model");
  if (!server_) return;
  const Answer answer = post("/v1/embeddings", {{"model", "tiny"}, {"input", {"the cat", "a dog"}}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["usage"], (json{{"prompt_tokens", 8}, {"total_tokens", 8}}));
  ASSERT_EQ(body["data"].size(), 2u);
  EXPECT_EQ(body["data"][1]["index"], 1);
  EXPECT_EQ(body["data"][1]["object"], "embedding");
  const std::vector<float> cat = floats(body["data"][0]["embedding"]);
  ASSERT_EQ(cat.size(), 64u);
  EXPECT_NEAR(dot(cat, cat), 1, 1e-5);
  // The same as one text, as ids, and in base64.
  for (const json& input : {json("the cat"), json{2, 56, 57, 3}, json{{2, 56, 57, 3}}})
    EXPECT_NEAR(dot(embed({{"input", input}}), cat), 1, 1e-5) << input;
  const json coded = post("/v1/embeddings", {{"input", "the cat"}, {"encoding_format", "base64"}}).json();
  EXPECT_EQ(coded["data"][0]["embedding"].get<std::string>().size(), 344u);  // of 256 bytes
  const std::vector<float> cut = embed({{"input", "the cat"}, {"dimensions", 8}});
  EXPECT_EQ(cut.size(), 8u);
  EXPECT_NEAR(dot(cut, cut), 1, 1e-5);
  EXPECT_GT(dot(cut, cat), 0);
  EXPECT_NEAR(dot(embed({{"input", "cat"}, {"prompt_name", "query"}}), embed({{"input", "query: cat"}})), 1, 1e-5);
  EXPECT_LT(dot(embed({{"input", "cat"}, {"prompt_name", "query"}}), embed({{"input", "cat"}})), 0.99999);
}

TEST_F(EncoderServer, AMeanLeavesOutThePromptWhereTheFolderSaysSo) {
  make_folders(folder_.file("1_Pooling"));
  write_file(folder_.file("1_Pooling/config.json"), R"({"pooling_mode_mean_tokens": true, "include_prompt": false})");
  write_file(folder_.file("modules.json"), R"([{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                                               {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])");
  serve("bert_model");
  if (!server_) return;
  const auto of_ids = [&](int64_t left_out) {  // [CLS] query : cat [SEP]
    GenerationStream stream = engine_->submit({.prompt_ids = {2, 59, 60, 57, 3}, .encode = true, .left_out = left_out});
    GenerationEvent event;
    EXPECT_TRUE(stream.next(event));
    return event.values;
  };
  const std::vector<float> cat = embed({{"input", "cat"}, {"prompt_name", "query"}});
  EXPECT_NEAR(dot(cat, of_ids(3)), 1, 1e-5);
  EXPECT_LT(dot(cat, of_ids(0)), 0.9999);
}

TEST_F(EncoderServer, BadInputsAreRefusedByName) {
  serve("bert_model");
  if (!server_) return;
  const char* path = "/v1/embeddings";
  std::string many;
  for (int i = 0; i < 300; ++i) many += "cat ";
  refuses(path, {{"input", many}}, "the input has at least 131 tokens, the model takes 128");
  EXPECT_EQ(post(path, {{"input", many}, {"truncate_prompt_tokens", -1}}).json()["usage"]["prompt_tokens"], 128);
  EXPECT_EQ(post(path, {{"input", many}, {"truncate_prompt_tokens", 16}}).json()["usage"]["prompt_tokens"], 16);
  refuses(path, {{"input", many}, {"truncate_prompt_tokens", 129}}, "truncate_prompt_tokens");
  refuses(path, {{"input", ""}}, "an empty text cannot be encoded");
  refuses(path, {{"input", json::array()}}, "want a string, token ids");
  refuses(path, {{"input", {"cat", ""}}}, "an empty text cannot be encoded");
  refuses(path, {{"input", json::array({json::array()})}}, "an empty list of ids");
  refuses(path, {{"input", {1, 320}}}, "320");
  refuses(path, {{"input", {1, -1}}}, "-1");
  refuses(path, {{"input", "cat"}, {"dimensions", 65}}, "dimensions");
  refuses(path, {{"input", "cat"}, {"encoding_format", "int8"}}, "encoding_format");
  refuses(path, {{"input", "cat"}, {"prompt_name", "other"}}, "no prompt 'other' (it has: query)");
  refuses("/v1/completions", {{"prompt", "cat"}}, "is an encoder and generates no text");
  refuses("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "cat"}}}}}, "generates no text");
  EXPECT_EQ(post(path, {{"model", "other"}, {"input", "cat"}}).status, 404);
  const std::string metrics = ask(server_->port(), "GET", "/metrics").body;
  EXPECT_NE(metrics.find("octet_prompt_tokens_total 144"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("octet_request_success_total{finished_reason=\"stop\"} 2"), std::string::npos) << metrics;
}

TEST_F(EncoderServer, ScoresAndRanksOfEmbeddings) {
  serve("bert_model");
  if (!server_) return;
  const std::vector<std::string> documents = {"a dog", "the cat", "cat dog"};
  const json scores = post("/v1/score", {{"text_1", "the cat"}, {"text_2", documents}}).json();
  ASSERT_EQ(scores["data"].size(), 3u) << scores;
  const std::vector<float> query = embed({{"input", "the cat"}});
  for (size_t i = 0; i < documents.size(); ++i)
    EXPECT_NEAR(scores["data"][i]["score"].get<double>(), dot(query, embed({{"input", documents[i]}})), 1e-5);
  const json ranks =
      post("/v1/rerank", {{"query", "the cat"}, {"documents", documents}, {"top_n", 2}}).json()["results"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["index"], 1);
  EXPECT_EQ(ranks[0]["document"]["text"], "the cat");
  EXPECT_NEAR(ranks[0]["relevance_score"].get<double>(), 1, 1e-5);
  EXPECT_GE(ranks[0]["relevance_score"], ranks[1]["relevance_score"]);
  refuses("/v1/score", {{"text_1", {"a", "b"}}, {"text_2", {"a", "b", "c"}}}, "2 strings for 3 of text_2");
  refuses("/v1/score", {{"text_1", "a"}}, "text_2");
  refuses("/v1/rerank", {{"query", "a"}, {"documents", json::array()}}, "documents");
  refuses("/v1/rerank", {{"documents", {"a"}}}, "query");
}

TEST_F(EncoderServer, CrossEncoderScoresPairs) {
  serve("bert_cross_encoder");
  if (!server_) return;
  const auto score = [&](const json& body) { return post("/v1/score", body).json()["data"]; };
  const json several = score({{"text_1", "the cat"}, {"text_2", {"a dog", "the cat"}}});
  ASSERT_EQ(several.size(), 2u);
  const double dog = several[0]["score"], cat = several[1]["score"];
  EXPECT_GT(dog, 0);
  EXPECT_LT(dog, 1);
  EXPECT_NE(dog, cat);
  // A pair is one sequence: its order counts, and the document's tokens are of type 1.
  EXPECT_NEAR(score({{"text_1", {"the cat"}}, {"text_2", {"a dog"}}})[0]["score"].get<double>(), dog, 1e-5);
  EXPECT_GT(std::abs(score({{"text_1", "a dog"}, {"text_2", "the cat"}})[0]["score"].get<double>() - dog), 1e-5);
  const Answer ranked = post("/v1/rerank", {{"query", "the cat"},
                                            {"documents", json::array({{{"text", "a dog"}}, "the cat"})},
                                            {"return_documents", false}});
  const json body = ranked.json();
  ASSERT_EQ(body["results"].size(), 2u) << ranked.body;
  EXPECT_EQ(body["results"][0]["index"], dog > cat ? 0 : 1);
  EXPECT_FALSE(body["results"][0].contains("document"));
  EXPECT_EQ(body["usage"]["total_tokens"], 14);
  refuses("/v1/embeddings", {{"input", "cat"}}, "is a classifier and has no embeddings");
}

TEST(GeneratingServer, RefusesEmbeddings) {
  const TinyServer server;
  for (const char* path : {"/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score"}) {
    const Answer answer = server.ask("POST", path, R"({"input": "cat"})");
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("is served for generation"), std::string::npos) << answer.body;
  }
}

}  // namespace
}  // namespace octet::serve
