// For tests: a model over the engine on the fake runner. Tokens are the printable characters, or what a tokenizer says.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "infer/engine_loop.h"
#include "infer/ngram_drafter.h"
#include "infer/testing/fake_runner.h"
#include "io/tokenizer_parts.h"
#include "serve/api.h"

namespace octet::serve {

struct TinyModel {
  static constexpr int32_t kEnd = 95;  // behind the characters
  static constexpr const char* kTemplate =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
      "{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
      "{% for t in tools or [] %}T{{ t.function.name }}{{ t.function.parameters | tojson }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% if think %}<think>{% endif %}{% endif %}";

  explicit TinyModel(FakeOptions fake = {.limits = fake_limits(256, 4, 256)}, const char* chat_template = kTemplate,
                     const EngineOptions& engine_options = {},
                     std::unique_ptr<Tokenizer> (*make_tokenizer)() = make_characters) {
    tokenizer = make_tokenizer();
    fake.limits.vocab = std::max<int64_t>(kEnd + 1, tokenizer->vocab_size());
    engine = std::make_unique<EngineLoop>(
        EngineParts{.runner = std::make_unique<FakeRunner>(std::move(fake)),
                    .tokenizer = make_tokenizer(),
                    .eos_ids = {kEnd},
                    .drafter = engine_options.draft == "ngram" ? std::make_unique<NgramDrafter>() : nullptr},
        engine_options);
    model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = {"tiny"};
    model.chat = std::make_shared<ChatTemplate>(chat_template, "the test's template");
    model.reply_format = "hermes";
    model.trie = make_token_trie(*tokenizer);
  }

  static std::unique_ptr<Tokenizer> make_characters() {
    std::vector<std::string> characters;
    for (char c = ' '; c <= '~'; ++c) characters.emplace_back(1, c);
    return make_character_tokenizer(characters);
  }
  // With bytes of a longer character and added tokens behind the end token.
  static constexpr int32_t kUser = 98, kAssistant = 99, kThink = 100, kThinkEnd = 101, kCall = 102;
  static std::unique_ptr<Tokenizer> make_special() {
    BpeVocabulary vocabulary{.tokens = {"\u0120"}, .bos = "<|end|>", .eos = "<|end|>"};
    for (char c = '!'; c <= '~'; ++c) vocabulary.tokens.emplace_back(1, c);
    vocabulary.tokens.insert(vocabulary.tokens.end(), {"", "\u00c3", "\u00a9"});  // the bytes of U+00E9
    vocabulary.tokens.resize(kCall + 1);
    vocabulary.added = {{.id = kEnd, .text = "<|end|>"},
                        {.id = kUser, .text = "<|user|>"},
                        {.id = kAssistant, .text = "<|assistant|>"},
                        {.id = kThink, .text = "<think>", .special = false},
                        {.id = kThinkEnd, .text = "</think>", .special = false},
                        {.id = kCall, .text = "<tool_call>", .special = false}};
    return make_bpe(std::move(vocabulary), "the test's vocabulary");
  }

  std::unique_ptr<EngineLoop> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  ApiModel model;
};

}  // namespace octet::serve
