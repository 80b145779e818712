// Tokens, truncation and windows on the engine's fake model, whose log-probabilities are those of a hash of the tokens.
#include "tasks/model_calls.h"

#include "base/testing/test_error.h"
#include "infer/testing/engine_test.h"

namespace octet {
namespace {

// Letters; <s> is 0 and stands in front of texts, </s> is 1.
std::unique_ptr<Tokenizer> letters(bool begin) {
  std::string vocab = R"("<s>": 0, "</s>": 1)";
  for (int i = 0; i < 26; ++i) vocab += fmt::format(R"(, "{}": {})", static_cast<char>('a' + i), 2 + i);
  vocab += R"(, " ": 28)";
  const std::string added =
      R"({"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true})";
  const std::string single = R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens":
      ["<s>"]}}})";
  return parse_tokenizer_json(R"({"version": "1.0", "added_tokens": [)" + added + R"(], "post_processor": )" +
                                  (begin ? single : "null") + R"(, "model": {"type": "BPE", "vocab": {)" + vocab +
                                  R"(}, "merges": []}})",
                              "letters");
}

struct Model {
  explicit Model(bool begin = true, int64_t max_length = 16)
      : tokenizer(letters(begin)), engine(test_engine({.limits = fake_limits()})), max_length(max_length) {}
  ModelCalls calls() {
    return ModelCalls(*engine, *tokenizer, max_length, [this] { ++done; });
  }
  // Of the ids from `from` on.
  Likelihood expected(std::vector<int32_t> ids, size_t from) const {
    Likelihood result{.greedy = true};
    uint64_t hash = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      hash = fake_hash(hash, ids[i]);
      if (i + 1 < from) continue;
      result.sum += fake_logprob(hash, 61, ids[i + 1]);
      result.greedy &= fake_top(fake_logits(hash, 61))[0].id == ids[i + 1];
    }
    return result;
  }
  std::vector<int32_t> ids(const std::string& text) const { return tokenizer->encode(text); }

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<EngineLoop> engine;
  int64_t max_length, done = 0;
};

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(ModelCalls, ScoreContinuations) {
  Model model;
  const std::vector<ScoredText> texts = {{"abc", "de"}, {"abc ", "de"},  {"", "de"},
                                         {"", "<s>de"}, {"<s>abc", "d"}, {"abcdefghijklmnopqrst", "uvw"}};
  const std::vector<Likelihood> scores = model.calls().likelihoods(texts);
  const auto with = [&](const std::string& text) { return joined({0}, model.ids(text)); };
  const std::vector<int32_t> all = with("abcdefghijklmnopqrstuvw");
  const std::vector<int32_t> last(all.end() - 17, all.end());  // one more than the model sees
  const Likelihood want[] = {model.expected(with("abcde"), 4), model.expected(with("abc de"), 4),
                             model.expected(with("de"), 1),    model.expected(with("de"), 1),
                             model.expected(with("abcd"), 4),  model.expected(last, 14)};
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_NEAR(scores[i].sum, want[i].sum, 1e-4) << i;
    EXPECT_EQ(scores[i].greedy, want[i].greedy) << i;
  }
  EXPECT_EQ(model.done, 6);
  // The most likely tokens, one after another.
  const std::vector<int32_t> context = with("abc");
  uint64_t hash = 0;
  for (const int32_t id : context) hash = fake_hash(hash, id);
  for (char c = 'a'; c <= 'z'; ++c) {
    const std::vector<ScoredText> one = {{"abc", std::string(1, c)}};
    EXPECT_EQ(model.calls().likelihoods(one)[0].greedy,
              fake_top(fake_logits(hash, 61))[0].id == model.ids(one[0].continuation)[0]);
  }
}

TEST(ModelCalls, ComputeAContextOnce) {
  Model model;
  std::vector<ScoredText> texts;
  for (char c = 'a'; c < 'f'; ++c) texts.push_back({"abcdefghijk", std::string(1, c)});
  model.calls().likelihoods(texts);
  EXPECT_EQ(model.engine->stats().cached_tokens, 4 * 8);  // blocks of 4 tokens of <s> and 11 letters, less the last
}

// As get_rolling_token_windows with a context of one token, made disjoint.
TEST(ModelCalls, ScoreWholeTextsByWindows) {
  Model model(true, 8);
  const std::string text = "abcdefghijklmnopqrstu";
  const std::vector<int32_t> ids = joined({0}, model.ids(text));  // 22
  const double want = model.expected(joined({0}, {ids.begin(), ids.begin() + 8}), 1).sum +
                      model.expected({ids.begin() + 7, ids.begin() + 16}, 1).sum +
                      model.expected({ids.begin() + 13, ids.end()}, 3).sum;
  const std::vector<std::string> texts = {text, "a", ""};
  const std::vector<double> sums = model.calls().rolling(texts);
  EXPECT_NEAR(sums[0], want, 1e-4);
  EXPECT_NEAR(sums[1], model.expected(joined({0, 0}, model.ids("a")), 1).sum, 1e-4);
  EXPECT_EQ(model.done, 3);
}

TEST(ModelCalls, GenerateUntilAStop) {
  Model model(true, 20);
  TaskGeneration generation{.max_tokens = 12};
  const auto reply = [&](const std::string& context) {
    const std::vector<GeneratedText> texts = {{context, &generation}};
    return model.calls().replies(texts)[0];
  };
  const std::string whole = reply("abcdefghijkl"), cut = reply("fghijkl");
  // Eight tokens of context stay beside twelve: <s> and the first letters go.
  GenerationRequest request{.prompt_ids = model.ids("efghijkl"), .max_tokens = 12};
  request.sampling.temperature = 0;
  const auto alone_ids = alone(request, 0, fake_limits()).ids;
  std::vector<int32_t> kept;
  for (const int32_t id : alone_ids)
    if (id < 29) kept.push_back(id);
  EXPECT_EQ(whole, model.tokenizer->decode(kept, true));
  EXPECT_NE(whole, cut);
  ASSERT_GE(whole.size(), 3u);
  generation.until = {whole.substr(2, 1)};
  EXPECT_EQ(reply("abcdefghijkl"), whole.substr(0, whole.find(whole[2])));
  generation.max_tokens = 20;
  EXPECT_NE(error_of([&] { reply("a"); }).find("max_gen_toks 20 leaves no room in the maximum length 20"),
            std::string::npos);
}

TEST(ModelCalls, RefuseWhatCannotBeScored) {
  Model model;
  const auto error = [&](const ScoredText& text) {
    const std::vector<ScoredText> texts = {text};
    return error_of([&] { model.calls().likelihoods(texts); });
  };
  EXPECT_NE(error({"abc", ""}).find("adds 0 tokens to its context's 4"), std::string::npos);
  EXPECT_NE(error({"a", std::string(17, 'b')}).find("has 17 tokens, more than the maximum length 16"),
            std::string::npos);
  EXPECT_NE(error({"", ""}).find("adds 0 tokens"), std::string::npos);
  model.max_length = 65;
  EXPECT_NE(error_of([&] { model.calls(); }).find("--max-length 65: the model's context is 64"), std::string::npos);
}

}  // namespace
}  // namespace octet
