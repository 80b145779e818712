// For tests: beam searches of transformers' generate() on a tiny model, found by an engine on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "octet/engine.h"

namespace octet {

inline constexpr const char* kBeamFixtures = "serving/beam/llama";  // of the test data

// The texts of a search, which come best first.
inline std::vector<GenerationEvent> found(GenerationStream& stream) {
  std::vector<GenerationEvent> texts;
  for (GenerationEvent event; stream.next(event);) {
    EXPECT_EQ(event.error, "");
    EXPECT_EQ(event.sample, std::ssize(texts));
    texts.push_back(event);
  }
  return texts;
}

// All searches of the fixtures at once, among sampled texts.
inline void expect_beams_of_transformers(const std::string& folder, EngineOptions options) {
  options.recipe = "fp32";
  options.needs_tokenizer = false;
  options.max_sequences = 24;
  options.max_step_tokens = 64;
  options.kv_cache_bytes = 1 << 20;
  const nlohmann::json cases = nlohmann::json::parse(read_file(folder + "/beams.json"));
  auto engine = Engine::open(folder, options);
  std::vector<GenerationStream> searches, plain;
  for (const nlohmann::json& one : cases) {
    const std::vector<int32_t> prompt = one["prompt"];
    GenerationRequest asked{.prompt_ids = prompt, .ignore_eos = true};
    asked.max_tokens = one["max_new_tokens"];
    asked.n = asked.beams = one["num_beams"];
    asked.length_penalty = one["length_penalty"];
    const nlohmann::json& stopping = one["early_stopping"];
    asked.early_stopping = stopping == "never"    ? EarlyStopping::kNever
                           : stopping.get<bool>() ? EarlyStopping::kYes
                                                  : EarlyStopping::kNo;
    if (!one["eos_token_id"].is_null()) asked.stop_ids = {one["eos_token_id"]};
    searches.push_back(engine->submit(asked));
    plain.push_back(engine->submit({.prompt_ids = prompt, .max_tokens = 11, .ignore_eos = true}));
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    const nlohmann::json& one = cases[c];
    SCOPED_TRACE(one.dump().substr(0, 200));
    const std::vector<GenerationEvent> texts = found(searches[c]);
    ASSERT_EQ(texts.size(), one["sequences"].size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<int32_t> ids = texts[i].ids, wanted = one["sequences"][i];
      if (texts[i].stop_id >= 0) {
        ids.push_back(texts[i].stop_id);
        wanted.resize(std::min(wanted.size(), ids.size()));  // padding behind the end token
      }
      EXPECT_EQ(ids, wanted) << i;
      EXPECT_NEAR(texts[i].score, one["scores"][i].get<double>(), 2e-4) << i;  // the float32 logits of another program
    }
    size_t tokens = 0;
    for (GenerationEvent event; plain[c].next(event);) tokens += event.ids.size();
    EXPECT_EQ(tokens, 11u);
  }
  engine->drain();
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
}

}  // namespace octet
