// Speculation behind HTTP: texts are those of a server without, guided ones too; its fields and its metrics.
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

TinyServer server_with(const std::string& draft, const std::string& prefix = "octet_") {
  return TinyServer({.metric_prefix = prefix}, {.limits = with_drafts(fake_limits(256, 4, 256))},
                    {.draft = draft, .draft_adaptive = false});
}

std::string text_of(const TinyServer& server, const Json& body) {
  const Answer answer = server.complete(body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.json()["choices"][0]["text"].get<std::string>();
}

double metric(const TinyServer& server, const std::string& name) {
  const std::string text = server.ask("GET", "/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

TEST(Speculation, GuidedTextsAreTheSame) {
  const TinyServer plain = server_with(""), drafting = server_with("ngram");
  const Json guides = {{{"regex", "(ab){25}c"}},
                       {{"regex", "(ab|ac)*d"}},
                       {{"choice", {"xyxyxyxyxyxyz", "xyxyxyxyxyxyxy"}}},
                       {{"json", {{"type", "array"}, {"items", {{"enum", {1, 10, 100}}}}, {"maxItems", 30}}}}};
  for (const Json& guide : guides) {
    for (const double temperature : {0.0, 1.0}) {
      const Json body = {{"prompt", "abab"},
                         {"max_tokens", 60},
                         {"seed", 4},
                         {"temperature", temperature},
                         {"structured_outputs", guide}};
      EXPECT_EQ(text_of(drafting, body), text_of(plain, body)) << guide.dump();
    }
  }
  drafting.engine->drain();
  EXPECT_GT(metric(drafting, "octet_spec_decode_num_accepted_tokens_total"), 50);
  EXPECT_EQ(drafting.engine->stats().kv_blocks_used, 0);
}

TEST(Speculation, IsCountedUnderTheNamesOfVllm) {
  const TinyServer server = server_with("ngram", "vllm:");
  text_of(server, {{"prompt", "abab"}, {"max_tokens", 60}, {"structured_outputs", {{"regex", "(ab){25}"}}}});
  server.engine->drain();
  const EngineStats stats = server.engine->stats();
  EXPECT_GT(stats.accepted_at[2], 0);  // a block of four tokens has room for three drafts
  EXPECT_EQ(metric(server, "vllm:spec_decode_num_drafts_total"), static_cast<double>(stats.drafts));
  EXPECT_EQ(metric(server, "vllm:spec_decode_num_draft_tokens_total"), static_cast<double>(stats.drafted_tokens));
  EXPECT_EQ(metric(server, "vllm:spec_decode_num_accepted_tokens_total"), static_cast<double>(stats.accepted_tokens));
  EXPECT_EQ(metric(server, "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"2\"}"),
            static_cast<double>(stats.accepted_at[2]));
  EXPECT_EQ(metric(server, "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"5\"}"), -1);
  EXPECT_EQ(metric(server_with(""), "octet_spec_decode_num_drafts_total"), -1);
}

TEST(Speculation, ARequestTurnsItOffOrLower) {
  const TinyServer server = server_with("ngram");
  Json body = {{"prompt", "abab"}, {"max_tokens", 60}, {"structured_outputs", {{"regex", "(ab){25}"}}}};
  const auto drafts = [&](const char* field, const Json& value) {
    Json changed = body;
    changed[field] = value;
    text_of(server, changed);
    server.engine->drain();
    const EngineStats stats = server.engine->stats();
    return std::pair(stats.drafts, stats.drafted_tokens);
  };
  EXPECT_EQ(drafts("speculation", false).first, 0);
  EXPECT_EQ(drafts("draft_tokens", 0).first, 0);
  const auto [times, tokens] = drafts("draft_tokens", 1);
  EXPECT_GT(times, 10);
  EXPECT_EQ(times, tokens);
  body["draft_tokens"] = 16;
  EXPECT_EQ(server.complete(body).status, 400);
}

}  // namespace
}  // namespace octet::serve
