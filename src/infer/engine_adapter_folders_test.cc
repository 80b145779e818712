// Adapters of PEFT's folders through Engine::open: the vectors, and folders that the options contradict.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "infer/testing/engine_test.h"
#include "io/safetensors.h"

namespace octet {
namespace {

EngineOptions small_options() {
  return {.device = "cpu",
          .recipe = "fp32",
          .needs_tokenizer = false,
          .max_sequences = 8,
          .max_step_tokens = 64,
          .kv_cache_bytes = 4 << 20};
}

// Requests over five adapters and the bare model, all at once, in slots that are fewer than they.
TEST(EngineAdapterFolders, AMixedBatchGivesWhatEachRequestGetsAlone) {
  const std::string folder = test_data_path("adapt/adapters");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
  std::vector<nlohmann::json> lines;
  EngineOptions options = small_options();
  std::istringstream text(read_file(folder + "/mixed_batch.jsonl"));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
    const nlohmann::json& name = lines.back().at("adapter");
    if (name.is_string()) options.adapters[name] = folder + "/" + name.get<std::string>();
  }
  ASSERT_EQ(lines.size(), 14u);
  options.max_adapters = 1;
  const auto engine = Engine::open(folder + "/base_llama", options);
  for (int round = 0; round < 2; ++round) {  // the second finds prefixes in the cache
    std::vector<GenerationStream> streams;
    for (const nlohmann::json& line : lines) {
      GenerationRequest request;
      request.prompt_ids = line.at("prompt_ids").get<std::vector<int32_t>>();
      request.max_tokens = line.at("max_tokens"), request.sampling.temperature = line.at("temperature");
      request.ignore_eos = line.at("ignore_eos");
      if (line.at("adapter").is_string()) request.adapter = line.at("adapter");
      streams.push_back(engine->submit(std::move(request)));
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      const Collected got = collect_one(std::move(streams[i]));
      EXPECT_EQ(got.error, "");
      EXPECT_EQ(got.ids, lines[i].at("expected_ids").get<std::vector<int32_t>>()) << "line " << i + 1;
    }
  }
}

// Every adapter of a base alone, by the greedy ids of its expected.safetensors, would repeat octet verify; here: those
// that change what a batch shares are refused, and the rest can be loaded.
TEST(EngineAdapterFolders, WhatABatchSharesIsRefused) {
  const std::string folder = test_data_path("adapt/adapters");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
  EngineOptions options = small_options();
  options.max_adapters = 1;
  const auto engine = Engine::open(folder + "/base_llama", options);
  for (const char* name : {"lora_qo", "lora_all_but_one", "lora_patterns_rs"}) {
    engine->load_adapter(name, folder + "/" + name);
    engine->unload_adapter(name);
  }
  for (const char* name : {"lora_saved_norm_head", "lora_new_tokens", "lora_embedding"})
    EXPECT_NE(error_of([&] { engine->load_adapter(name, folder + "/" + name); }).find("merge"), std::string::npos)
        << error_of([&] { engine->load_adapter(name, folder + "/" + name); });
  EXPECT_NE(error_of([&] { engine->load_adapter("none", folder + "/base_llama"); }), "");
  EXPECT_NE(error_of([&] {
              Engine::open(folder + "/base_gpt2", [&] {
                EngineOptions other = small_options();
                other.adapters["of_llama"] = folder + "/lora_qo";
                return other;
              }());
            }),
            "");
}

// Experts in one module with target_parameters, beside the bare model: the ids of PEFT.
TEST(EngineAdapterFolders, ExpertsGiveTheTokensOfPeft) {
  const std::string folder = test_data_path("adapt/adapters");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
  EngineOptions options = small_options();
  options.adapters["experts"] = folder + "/lora_experts";
  const auto engine = Engine::open(folder + "/base_qwen3_moe", options);
  const std::unique_ptr<TensorSource> file = open_safetensors(folder + "/lora_experts/expected.safetensors");
  const TensorView greedy = file->read("greedy_ids");
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < greedy.type.shape.elements(); ++i)
    ids.push_back(static_cast<int32_t>(load_element(greedy.type.dtype, greedy.bytes.data(), i)));
  constexpr ptrdiff_t kPrompt = 11;
  ASSERT_GT(std::ssize(ids), kPrompt);
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request;
    request.prompt_ids.assign(ids.begin(), ids.begin() + kPrompt - i / 2);
    request.max_tokens = std::ssize(ids) - kPrompt, request.sampling.temperature = 0, request.ignore_eos = true;
    request.adapter = i % 2 == 0 ? "experts" : "";
    streams.push_back(engine->submit(std::move(request)));
  }
  EXPECT_EQ(collect_one(std::move(streams[0])).ids, (std::vector<int32_t>(ids.begin() + kPrompt, ids.end())));
  EXPECT_NE(collect_one(std::move(streams[1])).ids, (std::vector<int32_t>(ids.begin() + kPrompt, ids.end())));
}

TEST(EngineAdapterFolders, OptionsWithoutAdaptersAreRefused) {
  EngineOptions options = small_options();
  options.random_weights = true, options.max_adapter_rank = 8;
  EXPECT_NE(error_of([&] { Engine::open("gpt2-nano", options); }).find("without adapters"), std::string::npos);
  options.max_adapters = 2, options.adapter_targets = "attn.q,attn.x";
  EXPECT_NE(error_of([&] { Engine::open("gpt2-nano", options); }).find("no linear of the model is called attn.x"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
