#include "serve/token_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace octet::serve {
namespace {

using Ids = std::vector<int32_t>;

struct TokenRules {
  std::vector<uint32_t> allowed = {};  // a bit a token; empty: all
  std::vector<Ids> bad = {};           // sequences whose last token is forbidden behind the others

  void mask(std::span<const int32_t> generated, std::span<uint32_t> bits) const {
    for (size_t i = 0; i < std::min(allowed.size(), bits.size()); ++i) bits[i] &= allowed[i];
    for (const Ids& word : bad)
      if (follows(word, generated)) bits[static_cast<size_t>(word.back()) / 32] &= ~(uint32_t{1} << (word.back() % 32));
    check(std::ranges::any_of(bits, [](uint32_t word) { return word != 0; }), ErrorCode::kInvalidArgument,
          "allowed_token_ids, bad_words and the guide leave no token to continue with");
  }
  bool allows(std::span<const int32_t> generated, int32_t id) const {
    if (!allowed.empty() && (allowed[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) return false;
    return std::ranges::none_of(bad, [&](const Ids& word) { return word.back() == id && follows(word, generated); });
  }

 private:
  // Whether the text ends as the word does before its last token.
  static bool follows(const Ids& word, std::span<const int32_t> generated) {
    const size_t count = word.size() - 1;
    return generated.size() >= count && std::ranges::equal(generated.last(count), std::span(word).first(count));
  }
};

// A word as it stands at a text's begin, and behind a space where that makes other tokens, as many.
void add_word(const std::string& word, const Tokenizer& tokenizer, std::vector<Ids>& bad) {
  const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
  if (bare.empty()) return;
  const Ids first = tokenizer.encode(bare);
  if (first.empty()) return;
  bad.push_back(first);
  try {
    const Ids behind = tokenizer.encode(" " + bare);
    if (behind.size() == first.size() && behind[0] != first[0]) bad.push_back(behind);
  } catch (const Error&) {  // a vocabulary without a space
  }
}

std::shared_ptr<const TokenRules> read_rules(Fields& fields, const ApiModel& model) {
  constexpr size_t kMaxWords = 256, kMaxBytes = 1024;
  auto rules = std::make_shared<TokenRules>();
  const int64_t vocab = model.engine->vocab_size();
  const std::vector<int64_t> allowed = fields.integers("allowed_token_ids", 0, vocab - 1, static_cast<size_t>(vocab));
  if (fields.find("allowed_token_ids") != nullptr) {
    if (allowed.empty()) fields.fail("allowed_token_ids", "want at least one token id");
    rules->allowed.resize(static_cast<size_t>(vocab + 31) / 32);
    for (const int64_t id : allowed) rules->allowed[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  }
  for (const std::string& word : fields.texts("bad_words", kMaxWords)) {
    if (word.size() > kMaxBytes) fields.fail("bad_words", fmt::format("want at most {} bytes each", kMaxBytes));
    add_word(word, *model.tokenizer, rules->bad);
  }
  return rules->allowed.empty() && rules->bad.empty() ? nullptr : rules;
}

}  // namespace

void restrict_tokens(const nlohmann::ordered_json& body, const ApiModel& model,
                     std::vector<GenerationRequest>& prompts) {
  Fields fields(body);
  const std::shared_ptr<const TokenRules> rules = read_rules(fields, model);
  if (!rules) return;
  for (GenerationRequest& prompt : prompts) {
    prompt.mask = [rules, mask = std::move(prompt.mask)](int64_t sample, std::span<const int32_t> generated,
                                                         std::span<uint32_t> bits) {
      if (mask) mask(sample, generated, bits);
      rules->mask(generated, bits);
    };
    if (model.engine->options().draft.empty()) continue;
    prompt.fits = [rules, fits = std::move(prompt.fits)](int64_t sample, std::span<const int32_t> generated,
                                                         std::span<const int32_t> drafts) {
      Ids text(generated.begin(), generated.end());
      int64_t count = 0;
      for (const int64_t most = fits ? fits(sample, generated, drafts) : std::ssize(drafts); count < most; ++count) {
        const int32_t draft = drafts[static_cast<size_t>(count)];
        if (!rules->allows(text, draft)) break;
        text.push_back(draft);
      }
      return count;
    };
  }
}

}  // namespace octet::serve
