// Adapters in one batch: what a request gets among others it gets alone, and from the base with its adapter merged.
#include <gtest/gtest.h>

#include "base/testing/test_error.h"
#include "infer/ranked_runner.h"
#include "infer/testing/adapters.h"
#include "infer/testing/engine_test.h"

namespace octet {
namespace {

ModelConfig tiny_model(const std::string& architecture = "llama") {
  ModelConfig model = model_family(architecture);
  model.vocab_size = 61, model.max_positions = 64, model.hidden = 32, model.layers = 2, model.heads = 4;
  model.intermediate = 64, model.init_std = 0.3;
  if (architecture == "llama") model.kv_heads = 2;
  return model;
}

struct Sizes {
  AdapterTables tables = {};
  std::vector<std::string> targets = {};
  const char* recipe = "fp32";
  int64_t step_tokens = 40;
  int64_t tensor = 1;
};

std::unique_ptr<EngineLoop> engine_of(const MemoryWeights& weights, const Sizes& sizes) {
  ServingOptions serving{
      .engine = {.max_sequences = 8, .max_step_tokens = sizes.step_tokens, .block_size = 4, .kv_cache_bytes = 1 << 20},
      .target = cpu_target(),
      .recipe = parse_recipe(sizes.recipe),
      .adapters = sizes.tables,
      .adapter_targets = sizes.targets};
  serving.engine.tensor = sizes.tensor;
  auto runner = open_runner(weights, serving);
  std::unique_ptr<AdapterStore> store;
  if (!sizes.tables.empty())
    store = std::make_unique<AdapterStore>(runner->limits().adapters,
                                           [&weights](const std::string& param) { return weights.values.at(param); });
  return std::make_unique<EngineLoop>(
      EngineParts{.runner = std::move(runner), .eos_ids = {}, .adapters = std::move(store)},
      EngineOptions{.max_sequences = 8, .max_step_tokens = sizes.step_tokens});
}

GenerationRequest request_of(uint64_t i, const std::string& adapter) {
  GenerationRequest request{
      .sampling = {.temperature = i % 3 == 0 ? 0.0f : 0.8f, .seed = i + 1}, .max_tokens = 12, .adapter = adapter};
  for (uint64_t t = 0; t < 2 + i * 5 % 17; ++t)
    request.prompt_ids.push_back(static_cast<int32_t>(mix64(i % 5 * 100 + t) % 61));
  if (i % 4 == 1) request.sampling.repetition_penalty = 1.3f;
  return request;
}

const std::vector<std::vector<std::string>> kAllLinears = {{"attn.q"},   {"attn.k"}, {"attn.v"},  {"attn.o"},
                                                           {"mlp.gate"}, {"mlp.up"}, {"mlp.down"}};

struct Loaded {
  std::string name;
  TestAdapter adapter;
};
std::vector<Loaded> several(const ModelConfig& model) {
  return {{"q_and_v", random_adapter(model, {{"attn.q"}, {"attn.v"}}, 3, 2, 10)},
          {"all", random_adapter(model, kAllLinears, 12, 0.5, 20)},
          {"fused", random_adapter(model, {{"attn.q", "attn.k", "attn.v"}, {"mlp.down"}}, 8, 1, 30)},
          {"wide", random_adapter(model, {{"mlp.gate"}, {"mlp.up"}}, 16, 1, 40)}};
}

void load_all(EngineLoop& engine, const std::vector<Loaded>& loaded) {
  for (const Loaded& each : loaded)
    if (!each.name.empty()) engine.load_adapter(each.name, each.adapter.spec, each.adapter.views());
}

// Tables of a linear that ranks split are split with it: texts are those of one rank, alone and together.
TEST(EngineAdapters, RanksGiveTheTextsOfOne) {
  for (const char* family : {"llama", "gpt2"}) {
    const ModelConfig model = tiny_model(family);
    const MemoryWeights base(model);
    std::vector<Loaded> loaded = {{"", {}}};
    if (std::string(family) == "llama") {
      loaded = several(model);
      loaded.push_back({"", {}});
    } else {
      loaded.push_back(
          {"all",
           random_adapter(model, {{"attn.q", "attn.k", "attn.v"}, {"attn.o"}, {"mlp.up"}, {"mlp.down"}}, 5, 1, 70)});
    }
    loaded.push_back({"dora", random_adapter(model, {{"attn.v"}, {"attn.o"}, {"mlp.up"}}, 4, 2, 60, true)});
    std::vector<std::vector<int32_t>> wanted;
    for (const int64_t tensor : {1, 2}) {
      const auto engine = engine_of(base, {.tables = {.slots = 2, .ranks = {8, 16}, .dora = true}, .tensor = tensor});
      load_all(*engine, loaded);
      std::vector<GenerationStream> streams;
      for (uint64_t i = 0; i < 14; ++i)
        streams.push_back(engine->submit(request_of(i, loaded[i % loaded.size()].name)));
      for (uint64_t i = 0; i < 14; ++i) {
        const Collected text = collect_one(std::move(streams[i]));
        EXPECT_EQ(text.error, "");
        if (tensor == 1)
          wanted.push_back(text.ids);
        else
          EXPECT_EQ(text.ids, wanted[i]) << family << " request " << i << " of " << loaded[i % loaded.size()].name;
      }
    }
    EXPECT_NE(wanted[0], wanted[loaded.size()]) << "requests differ";
  }
}

// Two slots of each class for more adapters: they take turns on the device.
TEST(EngineAdapters, ARequestAmongOthersGetsWhatItGetsAloneAndFromMergedWeights) {
  const ModelConfig model = tiny_model();
  const MemoryWeights base(model);
  const auto engine = engine_of(base, {.tables = {.slots = 2, .ranks = {8, 16}, .dora = true}});
  std::vector<Loaded> loaded = several(model);
  loaded.push_back({"more", random_adapter(model, {{"attn.o"}}, 1, 4, 50)});
  loaded.push_back({"dora", random_adapter(model, {{"attn.v"}, {"mlp.up"}}, 4, 2, 60, true)});
  loaded.push_back({"", {}});
  load_all(*engine, loaded);
  std::vector<std::vector<int32_t>> alone;
  constexpr uint64_t kRequests = 36;
  const auto name = [&](uint64_t i) { return loaded[i % loaded.size()].name; };
  for (const Loaded& each : loaded) {
    const MemoryWeights own = merged(base, each.adapter);
    const auto by_merged = engine_of(own, {});
    for (uint64_t i = 0; i < kRequests; ++i) {
      if (name(i) != each.name) continue;
      GenerationRequest request = request_of(i, each.name);
      request.cache_salt = std::to_string(i);  // computes its prompt itself
      const Collected text = collect_one(engine->submit(request));
      EXPECT_EQ(text.error, "");
      EXPECT_EQ(text.ids, collect_one(by_merged->submit(request_of(i, ""))).ids)
          << "request " << i << " of " << name(i);
      alone.resize(kRequests);
      alone[i] = text.ids;
    }
  }
  std::vector<GenerationStream> streams;
  for (uint64_t i = 0; i < kRequests; ++i) streams.push_back(engine->submit(request_of(i, name(i))));
  for (uint64_t i = 0; i < kRequests; ++i) {
    const Collected text = collect_one(std::move(streams[i]));
    EXPECT_EQ(text.error, "");
    EXPECT_EQ(text.ids, alone[i]) << "request " << i << " of " << name(i);
    EXPECT_EQ(text.ids.size(), 12u);
  }
  EXPECT_NE(alone[0], alone[5]);
  engine->drain();
  for (const AdapterFacts& facts : engine->adapters()) EXPECT_EQ(facts.waiting + facts.running, 0) << facts.name;
}

std::vector<TokenLogprob> scores_of(Engine& engine, const GenerationRequest& request) {
  std::vector<TokenLogprob> scores;
  GenerationStream stream = engine.submit(request);
  for (GenerationEvent event; stream.next(event);) {
    EXPECT_EQ(event.error, "");
    scores.insert(scores.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  }
  return scores;
}

// Virtual tokens that are rows of the embedding table are those tokens; decodes behind them need no graph of their own.
TEST(EngineAdapters, VirtualTokensStandInFrontOfThePrompt) {
  const ModelConfig model = tiny_model();
  const MemoryWeights base(model);
  const auto engine = engine_of(base, {.tables = {.slots = 1, .ranks = {8}, .virtual_tokens = 7}});
  const std::vector<int32_t> prefix = {5, 17, 3, 60, 0};
  Loaded tuned{"tuned", random_prompt(model, 5, 0)};
  std::vector<float>& rows = tuned.adapter.tensors.at("prompt.weight").values;
  const std::vector<float>& table = base.values.at("embed.weight");
  for (size_t t = 0; t < prefix.size(); ++t)
    std::copy_n(table.begin() + prefix[t] * model.hidden, model.hidden,
                rows.begin() + static_cast<int64_t>(t) * model.hidden);
  const std::vector<Loaded> loaded = {
      tuned, {"other", random_prompt(model, 7, 3)}, {"lora", random_adapter(model, kAllLinears, 8, 1, 70)}};
  load_all(*engine, loaded);
  const auto plain = engine_of(base, {});
  std::vector<GenerationStream> streams;
  for (uint64_t i = 0; i < 24; ++i) {
    GenerationRequest request = request_of(i, i % 2 == 0 ? "tuned" : loaded[i % 3].name);
    request.logprobs = 0;
    streams.push_back(engine->submit(std::move(request)));
  }
  for (uint64_t i = 0; i < 24; ++i) {
    const Collected text = collect_one(std::move(streams[i]));
    EXPECT_EQ(text.error, "");
    if (i % 2 != 0) continue;
    GenerationRequest request = request_of(i, "");
    const auto prompt = request.prompt_ids;
    request.prompt_ids = prefix;
    request.prompt_ids.insert(request.prompt_ids.end(), prompt.begin(), prompt.end());
    if (request.sampling.repetition_penalty != 1) continue;  // it counts the sequence's own tokens
    EXPECT_EQ(text.ids, collect_one(plain->submit(request)).ids) << "request " << i;
  }
  GenerationRequest again = request_of(4, "tuned");
  GenerationStream stream = engine->submit(again);
  collect(stream);
  EXPECT_EQ(stream.times().prompt_tokens, std::ssize(again.prompt_ids));
  EXPECT_LE(stream.times().cached_tokens, std::ssize(again.prompt_ids));
  // Scores of the prompt's own tokens: positions are the request's, whatever stands in front.
  for (const int64_t max_tokens : {0, 2})
    for (const int64_t from : {1, 3}) {
      GenerationRequest asked{.prompt_ids = again.prompt_ids, .max_tokens = max_tokens};
      asked.adapter = "tuned", asked.prompt_logprobs = 1, asked.prompt_logprobs_from = from;
      GenerationRequest behind = asked;
      behind.adapter.clear(), behind.prompt_logprobs_from += std::ssize(prefix);
      behind.prompt_ids.insert(behind.prompt_ids.begin(), prefix.begin(), prefix.end());
      const auto scored = scores_of(*engine, asked), expected = scores_of(*plain, behind);
      ASSERT_EQ(std::ssize(scored), std::ssize(asked.prompt_ids) - from);
      ASSERT_EQ(scored.size(), expected.size());
      for (size_t i = 0; i < scored.size(); ++i) {
        EXPECT_EQ(scored[i].id, expected[i].id);
        EXPECT_NEAR(scored[i].logprob, expected[i].logprob, 1e-5) << i;
      }
    }
}

// Beams, and sequences of one request that part.
TEST(EngineAdapters, BeamsAndSiblingsHaveTheirRequestsAdapter) {
  const ModelConfig model = tiny_model();
  const MemoryWeights base(model);
  const Loaded all{"all", random_adapter(model, kAllLinears, 8, 1, 20)};
  Sizes sizes{.tables = {.slots = 2, .ranks = {8}}};
  const auto engine = engine_of(base, sizes), by_merged = engine_of(merged(base, all.adapter), {});
  load_all(*engine, {all});
  GenerationRequest noise = request_of(3, "");
  noise.max_tokens = 40;
  const GenerationStream busy = engine->submit(noise);
  for (const auto& [n, beams] : {std::pair<int64_t, int64_t>{3, 0}, {2, 4}}) {
    GenerationRequest request = request_of(n == 3 ? 1 : 0, "all");
    request.n = n, request.beams = beams;
    GenerationRequest bare = request;
    bare.adapter.clear();
    GenerationStream own = engine->submit(request), wanted = by_merged->submit(bare);
    const auto texts = collect(own, n), expected = collect(wanted, n);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(texts[i].error, "");
      EXPECT_EQ(texts[i].ids, expected[i].ids) << "text " << i << " of " << beams << " beams";
    }
  }
}

TEST(EngineAdapters, NamesComeAndGoWhileRequestsRun) {
  const ModelConfig model = tiny_model();
  const MemoryWeights base(model);
  const auto engine = engine_of(base, {.tables = {.slots = 1, .ranks = {8}}});
  const Loaded first{"name", random_adapter(model, kAllLinears, 8, 1, 20)},
      second{"name", random_adapter(model, kAllLinears, 8, 1, 90)};
  const auto by_first = engine_of(merged(base, first.adapter), {}),
             by_second = engine_of(merged(base, second.adapter), {});
  load_all(*engine, {first});
  GenerationRequest request = request_of(6, "name"), bare = request;
  request.max_tokens = bare.max_tokens = 40;
  bare.adapter.clear();
  GenerationStream running = engine->submit(request);
  engine->unload_adapter("name");
  const Collected refused = collect_one(engine->submit(request));
  EXPECT_EQ(refused.error, "adapter name: no such adapter is loaded (none is)");
  EXPECT_EQ(refused.kind, ErrorKind::kInvalid);
  load_all(*engine, {second});
  GenerationStream later = engine->submit(request);  // waits for the slot; finds nothing of the old one in the cache
  EXPECT_EQ(collect(running)[0].ids, collect_one(by_first->submit(bare)).ids);
  EXPECT_EQ(collect(later)[0].ids, collect_one(by_second->submit(bare)).ids);
  EXPECT_EQ(later.times().cached_tokens, 0);
  EXPECT_THROW(load_all(*engine, {second}), Error);
  engine->load_adapter("name", first.adapter.spec, first.adapter.views(), /*replace=*/true);
  EXPECT_EQ(collect_one(engine->submit(request)).ids, collect_one(by_first->submit(bare)).ids);
  EXPECT_THROW(engine->unload_adapter("nobody"), Error);
  EXPECT_EQ(engine->adapters().size(), 1u);
  const auto without = engine_of(base, {});
  EXPECT_NE(collect_one(without->submit(request)).error.find("without adapters"), std::string::npos);
  EXPECT_THROW(load_all(*without, {second}), Error);
}

TEST(EngineAdapters, WhatDoesNotFitIsRefusedByName) {
  const ModelConfig model = tiny_model();
  const MemoryWeights base(model);
  const auto engine =
      engine_of(base, {.tables = {.slots = 1, .ranks = {8}, .virtual_tokens = 4}, .targets = {"attn.q", "mlp.up"}});
  const auto refused = [&](const TestAdapter& adapter, const std::string& words) {
    try {
      engine->load_adapter("some", adapter.spec, adapter.views());
      ADD_FAILURE() << "loaded; wanted: " << words;
    } catch (const Error& error) {
      EXPECT_NE(error.message().find(words), std::string::npos) << error.message() << " (want: " << words << ")";
      EXPECT_TRUE(error.message().starts_with("adapter some: ")) << error.message();
    }
  };
  const TestAdapter good = random_adapter(model, {{"attn.q"}}, 4, 1, 20);
  const auto changed = [&](const auto& change) {
    TestAdapter adapter = good;
    change(adapter);
    return adapter;
  };
  refused({}, "changes nothing");
  refused(random_adapter(model, {{"attn.q"}}, 9, 1, 20), "rank 9 exceeds those that this engine has tables for (8)");
  refused(changed([](TestAdapter& a) { a.spec.low_rank[0].rank = 0; }), "rank 0 (want >= 1)");
  refused(random_adapter(model, {{"attn.k"}}, 4, 1, 20), "layers.0.attn.k.weight");
  refused(random_adapter(model, {{"attn.q"}}, 4, 1, 20, true), "DoRA");
  refused(random_prompt(model, 5, 1), "5 virtual tokens exceed those that this engine has room for (4)");
  refused(changed([](TestAdapter& a) { a.spec.trained = {"norm.weight"}; }), "norm.weight");
  refused(changed([](TestAdapter& a) { a.tensors.erase("layers.1.attn.q.lora_b"); }), "lora_b [32, 4] is missing");
  refused(changed([](TestAdapter& a) { a.tensors["layers.7.attn.q.lora_a"] = {1, 1, {0}}; }), "belongs to nothing");
  refused(changed([](TestAdapter& a) {
            TestTensor& b = a.tensors["layers.1.attn.q.lora_b"];
            b.rows = 16, b.cols = 8;
          }),
          "lora_b is [16, 8], and the model wants [32, 4]");
  TestAdapter broken = good;
  broken.tensors["layers.1.attn.q.lora_b"].values[3] = NAN;
  try {
    engine->load_adapter("some", broken.spec, broken.views());
    ADD_FAILURE() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("finite"), std::string::npos) << error.message();
  }
  GenerationRequest late = request_of(1, "some");
  EXPECT_NE(collect_one(engine->submit(late)).error.find("no such adapter"), std::string::npos);
  engine->load_adapter("some", good.spec, good.views());
  EXPECT_EQ(collect_one(engine->submit(late)).error, "");
}

// Adapters of zeros change no bit of the base, and bare requests beside others none of theirs.
TEST(EngineAdapters, ZerosAreTheBase) {
  for (const std::string recipe : {"fp32", "int8", "bf16"}) {
    const ModelConfig model = tiny_model();
    const MemoryWeights base(model);
    const auto engine =
                   engine_of(base, {.tables = {.slots = 1, .ranks = {8, 16}, .dora = true}, .recipe = recipe.c_str()}),
               plain = engine_of(base, {.recipe = recipe.c_str()});
    TestAdapter zero = random_adapter(model, kAllLinears, 8, 1, 20);
    for (auto& [name, tensor] : zero.tensors)
      if (name.ends_with("lora_b")) std::ranges::fill(tensor.values, 0.0f);
    load_all(*engine, {{"zero", zero}, {"full", random_adapter(model, kAllLinears, 16, 1, 50)}});
    std::vector<GenerationStream> streams;
    const auto request = [](uint64_t i, const std::string& adapter) {
      GenerationRequest made = request_of(i, adapter);
      made.logprobs = 0, made.cache_salt = std::to_string(i);
      return made;
    };
    for (uint64_t i = 0; i < 12; ++i)
      streams.push_back(engine->submit(request(i, i % 3 == 0 ? "zero" : i % 3 == 1 ? "" : "full")));
    for (uint64_t i = 0; i < 12; ++i) {
      const Collected text = collect_one(std::move(streams[i]));
      if (i % 3 == 2) continue;
      const Collected wanted = collect_one(plain->submit(request(i, "")));
      EXPECT_EQ(text.error, "");
      if (recipe == "bf16") {  // whose sums depend on the rows of a step
        EXPECT_NEAR(text.logprobs[0].logprob, wanted.logprobs[0].logprob, 0.05) << i;
        continue;
      }
      EXPECT_EQ(text.ids, wanted.ids) << recipe << " " << i;
      for (size_t t = 0; t < text.logprobs.size() && recipe == "fp32"; ++t)
        EXPECT_NEAR(text.logprobs[t].logprob, wanted.logprobs[t].logprob, 1e-5) << recipe << " " << i;
    }
  }
}

// Of experts, each with an A and B of its own, gate and up also in one; beside linears, routers, several ranks and bare
// requests: what a request gets alone, and from experts with the adapter merged.
TEST(EngineAdapters, ExpertsOfEveryTextHaveItsAdapter) {
  for (const char* family : {"qwen3_moe", "mixtral"}) {
    ModelConfig model = tiny_model(family);
    model.experts.count = 4, model.experts.per_token = 2, model.experts.intermediate = 24;
    const MemoryWeights base(model);
    const std::vector<std::string> gate_up = {"mlp.experts.gate", "mlp.experts.up"};
    const std::vector<Loaded> loaded = {
        {"fused", random_adapter(model, {gate_up, {"mlp.experts.down"}}, 3, 2, 10)},
        {"wide", random_adapter(model, {{"mlp.experts.gate"}, {"mlp.experts.up"}, {"attn.q"}}, 12, 0.5, 20)},
        {"", {}},
        {"down", random_adapter(model, {{"mlp.experts.down"}}, 8, 1, 30)},
        {"linears", random_adapter(model, {{"attn.o"}, {"mlp.router"}}, 5, 1, 40)}};
    const auto engine = engine_of(base, {.tables = {.slots = 2, .ranks = {8, 16}},
                                         .targets = {"mlp.experts.gate", "mlp.experts.up", "mlp.experts.down",
                                                     "mlp.router", "attn.q", "attn.o"}});
    load_all(*engine, loaded);
    std::vector<GenerationStream> streams;
    std::vector<std::vector<int32_t>> ids;
    constexpr uint64_t kRequests = 20;
    for (uint64_t i = 0; i < kRequests; ++i)
      streams.push_back(engine->submit(request_of(i, loaded[i % loaded.size()].name)));
    for (uint64_t i = 0; i < kRequests; ++i) {
      const Collected text = collect_one(std::move(streams[i]));
      EXPECT_EQ(text.error, "");
      ids.push_back(text.ids);
    }
    for (size_t each = 0; each < loaded.size(); ++each) {
      const auto by_merged = engine_of(merged(base, loaded[each].adapter), {});
      for (uint64_t i = each; i < kRequests; i += loaded.size()) {
        const auto wanted = collect_one(by_merged->submit(request_of(i, ""))).ids;
        EXPECT_EQ(ids[i], wanted) << family << " request " << i << " of " << loaded[each].name;
        GenerationRequest alone = request_of(i, loaded[each].name);
        alone.cache_salt = std::to_string(i);
        EXPECT_EQ(collect_one(engine->submit(alone)).ids, wanted) << family << " " << i << ", alone";
      }
    }
    EXPECT_NE(ids[0], ids[5]);
    const TestAdapter other = [&] {
      ModelConfig more = model;
      more.experts.count = 5;
      return random_adapter(more, {{"mlp.experts.down"}}, 8, 1, 30);
    }();
    EXPECT_NE(
        error_of([&] { engine->load_adapter("other", other.spec, other.views()); }).find("the model wants [32, 24]"),
        std::string::npos)
        << error_of([&] { engine->load_adapter("other", other.spec, other.views()); });
    const TestAdapter dora = random_adapter(model, {{"mlp.experts.down"}}, 8, 1, 30, true);
    EXPECT_NE(error_of([&] { engine->load_adapter("dora", dora.spec, dora.views()); }), "");
  }
}

// Fused linears of one weight, biases, tied heads, learned positions.
TEST(EngineAdapters, OtherFamilies) {
  for (const char* family : {"gpt2", "qwen3"}) {
    const ModelConfig model = tiny_model(family);
    const MemoryWeights base(model);
    const std::vector<std::vector<std::string>> linears = {{"attn.q", "attn.k", "attn.v"}, {"attn.o"}, {"mlp.down"}};
    const Loaded one{"one", random_adapter(model, linears, 5, 1, 20)},
        dora{"dora", random_adapter(model, linears, 8, 2, 40, true)};
    const auto engine = engine_of(base, {.tables = {.slots = 2, .ranks = {8}, .dora = true}});
    load_all(*engine, {one, dora});
    for (const Loaded& each : {one, dora}) {
      const auto by_merged = engine_of(merged(base, each.adapter), {});
      for (uint64_t i = 0; i < 4; ++i)
        EXPECT_EQ(collect_one(engine->submit(request_of(i, each.name))).ids,
                  collect_one(by_merged->submit(request_of(i, ""))).ids)
            << family << " " << each.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace octet
