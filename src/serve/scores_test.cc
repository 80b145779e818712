// Scores of prompts over HTTP: echo with logprobs as OpenAI gives it, prompt_logprobs as vLLM does.
#include <gtest/gtest.h>

#include <cmath>

#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

const std::vector<int32_t> kIds = {34, 35, 36, 42, 42};  // "BCDJJ"

double want(size_t token) {
  uint64_t hash = 0;
  for (size_t i = 0; i < token; ++i) hash = fake_hash(hash, kIds[i]);
  return fake_logprob(hash, TinyServer::kEnd + 1, kIds[token]);
}

TokenLogprob likeliest(size_t token) {
  uint64_t hash = 0;
  for (size_t i = 0; i < token; ++i) hash = fake_hash(hash, kIds[i]);
  return fake_top(fake_logits(hash, TinyServer::kEnd + 1))[0];
}

// As lm-evaluation-harness asks: a batch of ids, one token more than the prompt or none.
TEST(Scores, EchoWithLogprobsIsThePromptsAndThenTheTexts) {
  const TinyServer tiny;
  for (const int64_t more : {0, 1, 3}) {
    Json body = {{"prompt", {kIds, kIds}}, {"max_tokens", more}, {"logprobs", 1},
                 {"echo", true},           {"temperature", 0},   {"ignore_eos", true}};
    const Json whole = tiny.complete(body).json();
    ASSERT_EQ(whole["choices"].size(), 2u) << whole;
    body["stream"] = true;
    std::vector<Json> joined(2);
    for (const Json& event : events(tiny.complete(body)))
      for (const Json& choice : event["choices"])
        for (const auto& [name, list] : choice["logprobs"].items())
          for (const Json& item : list) joined[choice["index"].get<size_t>()][name].push_back(item);
    for (const Json& choice : whole["choices"]) {
      const Json& logprobs = choice["logprobs"];
      ASSERT_EQ(logprobs["tokens"].size(), kIds.size() + static_cast<size_t>(more));
      EXPECT_TRUE(choice["text"].get<std::string>().starts_with("BCDJJ"));
      EXPECT_EQ(choice["finish_reason"], "length");
      EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
      for (size_t i = 1; i < kIds.size(); ++i) {
        EXPECT_FLOAT_EQ(logprobs["token_logprobs"][i].get<float>(), static_cast<float>(want(i)));
        const Json& top = logprobs["top_logprobs"][i];
        EXPECT_EQ(top[logprobs["tokens"][i].get<std::string>()], logprobs["token_logprobs"][i]);
        EXPECT_LE(top.size(), 2u);
        EXPECT_EQ(logprobs["text_offset"][i], i);
      }
      EXPECT_EQ(joined[choice["index"].get<size_t>()], logprobs);
    }
    EXPECT_EQ(whole["usage"]["completion_tokens"], 2 * more);
  }
}

TEST(Scores, PromptLogprobsAreThoseOfVllm) {
  const TinyServer tiny;
  const Json choice = tiny.complete({{"prompt", kIds}, {"max_tokens", 1}, {"prompt_logprobs", 1}}).json()["choices"][0];
  const Json& scores = choice["prompt_logprobs"];
  ASSERT_EQ(scores.size(), kIds.size()) << choice;
  EXPECT_TRUE(scores[0].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  for (size_t i = 1; i < kIds.size(); ++i) {
    const Json& own = scores[i][std::to_string(kIds[i])];
    EXPECT_FLOAT_EQ(own["logprob"].get<float>(), static_cast<float>(want(i)));
    EXPECT_EQ(own["decoded_token"], std::string(1, static_cast<char>(' ' + kIds[i])));
    const auto [best, logprob] = likeliest(i);
    ASSERT_EQ(scores[i].size(), 2u);
    EXPECT_EQ(scores[i][std::to_string(best)]["rank"], 1);
    EXPECT_FLOAT_EQ(scores[i][std::to_string(best)]["logprob"].get<float>(), logprob);
  }
}

TEST(Scores, BothAtOnceAndAPromptOfOneToken) {
  const TinyServer tiny;
  const Json both =
      tiny.complete({{"prompt", kIds}, {"max_tokens", 0}, {"prompt_logprobs", 0}, {"logprobs", 3}, {"echo", true}})
          .json()["choices"][0];
  EXPECT_EQ(both["prompt_logprobs"][1].size(), 1u);
  const auto [best, logprob] = likeliest(1);
  const std::string token(1, static_cast<char>(' ' + best));
  EXPECT_FLOAT_EQ(both["logprobs"]["top_logprobs"][1][token].get<float>(), logprob);
  const Json one = tiny.complete({{"prompt", "B"}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}}).json();
  EXPECT_EQ(one["choices"][0]["logprobs"]["token_logprobs"], Json({nullptr}));
  EXPECT_EQ(tiny.complete({{"prompt", "BC"}, {"max_tokens", 0}, {"echo", true}}).json()["choices"][0]["text"], "BC");
}

TEST(Scores, WhatIsNotServedIsNamed) {
  const TinyServer tiny({}, {.limits = fake_limits(256, 4, /*context=*/40'000)});
  const auto error = [&](const Json& body) {
    const Answer answer = tiny.complete(body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["message"].get<std::string>();
  };
  EXPECT_NE(error({{"prompt", "B"}, {"max_tokens", 0}}).find("max_tokens is 0"), std::string::npos);
  EXPECT_NE(error({{"prompt", "B"}, {"prompt_logprobs", 21}}).find("prompt_logprobs is 21"), std::string::npos);
  EXPECT_NE(error({{"prompt", "B"}, {"prompt_logprobs", 1}, {"n", 2}}).find("n = 1"), std::string::npos);
  EXPECT_NE(error({{"prompt", "B"}, {"echo", true}, {"logprobs", 1}, {"n", 2}}).find("echo"), std::string::npos);
  EXPECT_NE(error({{"prompt", "B"}, {"prompt_logprobs", 1}, {"stream", true}}).find("not supported in streams"),
            std::string::npos);
  const Json long_prompt = std::vector<int>(30'000, 1);
  const std::string most = error({{"prompt", long_prompt}, {"prompt_logprobs", 20}});
  EXPECT_NE(most.find("want at most 500000"), std::string::npos) << most;
}

}  // namespace
}  // namespace octet::serve
