// For tests: a model over the engine on the fake runner. Tokens are the printable characters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "infer/engine_loop.h"
#include "infer/ngram_drafter.h"
#include "infer/testing/fake_runner.h"
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
                     const EngineOptions& engine_options = {}) {
    std::vector<std::string> characters;
    for (char c = ' '; c <= '~'; ++c) characters.emplace_back(1, c);
    fake.limits.vocab = kEnd + 1;
    engine = std::make_unique<EngineLoop>(
        EngineParts{.runner = std::make_unique<FakeRunner>(std::move(fake)),
                    .tokenizer = make_character_tokenizer(characters),
                    .eos_ids = {kEnd},
                    .drafter = engine_options.draft == "ngram" ? std::make_unique<NgramDrafter>() : nullptr},
        engine_options);
    tokenizer = make_character_tokenizer(characters);
    model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = {"tiny"};
    model.chat = std::make_shared<ChatTemplate>(chat_template, "the test's template");
    model.reply_format = "hermes";
    model.trie = make_token_trie(*tokenizer);
  }

  std::unique_ptr<EngineLoop> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  ApiModel model;
};

}  // namespace octet::serve
