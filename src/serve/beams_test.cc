// Beam search behind HTTP.
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

const Json kSearch = {{"prompt", "BCD"},
                      {"use_beam_search", true},
                      {"n", 2},
                      {"best_of", 4},
                      {"max_tokens", 9},
                      {"length_penalty", 0.5},
                      {"early_stopping", "never"},
                      {"temperature", 0.0},
                      {"return_token_ids", true},
                      {"stop_token_ids", {7, 8}}};

// The same of the engine itself.
std::vector<Collected> search(const TinyServer& server) {
  GenerationRequest asked{.prompt_ids = {34, 35, 36}, .max_tokens = 9, .n = 2, .beams = 4, .length_penalty = 0.5};
  asked.early_stopping = EarlyStopping::kNever;
  asked.stop_ids = {7, 8};
  GenerationStream stream = server.engine->submit(asked);
  return collect(stream, 2);
}

TEST(Beams, CompletionsGiveTheBestTexts) {
  const TinyServer server;
  const Answer answer = server.complete(kSearch);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const auto wanted = search(server);
  const Json choices = answer.json()["choices"];
  ASSERT_EQ(choices.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(choices[i]["token_ids"], Json(wanted[i].ids));
    EXPECT_EQ(choices[i]["text"], wanted[i].text);
  }
  const size_t tokens = wanted[0].ids.size() + wanted[1].ids.size();
  EXPECT_EQ(answer.json()["usage"]["completion_tokens"], tokens);
  Json one = kSearch;  // without best_of n is the width
  one.erase("best_of");
  EXPECT_EQ(server.complete(one).status, 200);
}

TEST(Beams, AStreamHasTheTextsAtItsEnd) {
  const TinyServer server;
  Json body = kSearch;
  body["stream"] = true;
  const Answer answer = server.complete(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  for (const Collected& text : search(server))
    EXPECT_NE(answer.body.find("\"text\":" + Json(text.text).dump()), std::string::npos) << answer.body;
  EXPECT_NE(answer.body.find("[DONE]"), std::string::npos);
}

TEST(Beams, ChatsAndGuidedTextsToo) {
  const TinyServer server;
  Json body = kSearch;
  body.erase("prompt"), body.erase("stop_token_ids");
  body["messages"] = {{{"role", "user"}, {"content", "B"}}};
  const Answer chat = server.ask("POST", "/v1/chat/completions", body.dump());
  ASSERT_EQ(chat.status, 200) << chat.body;
  EXPECT_EQ(chat.json()["choices"].size(), 2u);
  Json guided = kSearch;
  guided["n"] = 4;
  guided["structured_outputs"] = {{"regex", "(ab|ba|aab|bba){2,4}"}};
  guided.erase("stop_token_ids");
  const Answer answer = server.complete(guided);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json reply = answer.json();
  for (const Json& choice : reply["choices"])
    EXPECT_EQ(choice["text"].get<std::string>().find_first_not_of("ab"), std::string::npos) << choice.dump();
  server.engine->drain();
  EXPECT_EQ(server.engine->stats().kv_blocks_used, 0);
}

TEST(Beams, WhatHasNoMeaningIsRefusedByItsField) {
  const TinyServer server;
  const std::vector<std::pair<std::string, Json>> cases = {{"temperature", 0.7},
                                                           {"top_p", 0.9},
                                                           {"top_k", 4},
                                                           {"min_p", 0.1},
                                                           {"stop", "x"},
                                                           {"repetition_penalty", 1.2},
                                                           {"n", 5},
                                                           {"use_beam_search", 1},
                                                           {"best_of", 0},
                                                           {"early_stopping", "maybe"},
                                                           {"length_penalty", "a"},
                                                           {"prompt_logprobs", 1},
                                                           {"presence_penalty", 1},
                                                           {"frequency_penalty", 1}};
  for (const auto& [field, value] : cases) {
    Json body = kSearch;
    body[field] = value;
    const Answer answer = server.complete(body);
    EXPECT_EQ(answer.status, 400) << field << " gives " << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], field) << answer.body;
  }
  Json wide = kSearch;
  wide["best_of"] = 11;
  EXPECT_EQ(server.complete(wide).json()["error"]["param"], "use_beam_search");
}

}  // namespace
}  // namespace octet::serve
