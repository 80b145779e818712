#include "weights/adapter_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "eval/verify.h"
#include "io/safetensors.h"
#include "weights/adapter_modules.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

constexpr const char* kMerged[] = {
    "lora_qo", "lora_patterns_rs", "lora_all_but_one", "lora_embedding",  "lora_saved_norm_head", "lora_new_tokens",
    "dora_vu", "lora_gpt2",        "lora_bloom_fused", "lora_qwen2_bias", "lora_experts"};

constexpr const char* kPrompts[] = {"prompt_tuning", "p_tuning_mlp", "p_tuning_lstm"};

std::string vectors(const std::string& name) { return test_data_path("adapt/adapters/" + name); }

TEST(AdapterFolder, ModelsOfPeftGiveItsLogitsAndItsGreedyTokens) {
  std::vector<std::string> all(std::begin(kMerged), std::end(kMerged));
  all.insert(all.end(), std::begin(kPrompts), std::end(kPrompts));
  for (const std::string& name : all) {
    const std::string folder = vectors(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
    const VerifyReport report = verify_inference(folder, parse_recipe("fp32"), cpu_target());
    EXPECT_LE(report.max_logit_error, 2e-4) << name;  // float32 sums in another order
    EXPECT_EQ(report.greedy_tokens, 16) << name;
    EXPECT_EQ(report.greedy_equal, 16) << name;
  }
}

TEST(AdapterFolder, MergedTensorsAreThoseOfPeft) {
  for (const std::string name : {"lora_patterns_rs", "dora_vu"}) {
    const std::string folder = vectors(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
    const auto merged = open_weights(folder);
    const auto expected = open_safetensors(folder, "merged_changed");
    const ParamShapes shapes = param_shapes(merged->config());
    size_t compared = 0;
    for (const CheckpointTensor& tensor : checkpoint_tensors(merged->config())) {
      if (expected->find_type(tensor.name) == nullptr) continue;
      const std::vector<float> theirs = floats_of(expected->read(tensor.name));
      const std::vector<float> ours = merged->read(tensor.params[0], shapes.at(tensor.params[0]));
      ASSERT_EQ(ours.size(), theirs.size());
      for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 1e-6) << name << " " << tensor.name;
      ++compared;
    }
    EXPECT_EQ(compared, expected->names().size()) << name;
  }
}

TEST(AdapterFolder, EveryRecipeQuantizesMergedWeights) {
  const std::string folder = vectors("lora_qo");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
  for (const char* name : {"bf16", "fp8-current", "int8"}) {
    const Recipe recipe = parse_recipe(name);
    const VerifyReport report = verify_inference(folder, recipe, cpu_target());
    EXPECT_TRUE(report.passed(logit_tolerance(recipe))) << name << " " << report.relative_error;
  }
}

// A base and an adapter, made here.
struct Made {
  TempFolder folder;
  ModelConfig config;
  std::map<std::string, std::vector<float>> base;  // by parameter
  nlohmann::json adapter = {{"peft_type", "LORA"}, {"base_model_name_or_path", "../base"},      {"r", 2},
                            {"lora_alpha", 3},     {"target_modules", {"q_proj", "down_proj"}}, {"bias", "none"}};
  std::map<std::string, std::pair<Shape, std::vector<float>>> tensors;

  explicit Made(const std::string& architecture = "llama", const std::function<void(ModelConfig&)>& change = {}) {
    config = model_family(architecture);
    config.vocab_size = 48, config.max_positions = 32, config.hidden = 16, config.layers = 2, config.heads = 2;
    config.kv_heads = config.kv_heads > 0 ? 1 : 0, config.head_dim = 0, config.intermediate = config.gated ? 24 : 0;
    if (config.experts.count > 0)
      config.experts.count = 3, config.experts.per_token = 2, config.experts.intermediate = 12;
    if (change) change(config);
    const ParamShapes shapes = param_shapes(config);
    uint64_t stream = 0;
    for (const auto& [param, shape] : shapes) base[param] = random(shape, ++stream);
    make_folders(folder.file("base")), make_folders(folder.file("adapter"));
    write_file(folder.file("base/config.json"), to_hugging_face_config(config, {}, "float32"));
    std::vector<NamedType> types;
    const std::vector<CheckpointTensor> list = checkpoint_tensors(config);
    for (const CheckpointTensor& tensor : list)
      types.push_back({tensor.name, {DType::kF32, tensor_shape(tensor, shapes)}});
    SafetensorsFolderWriter writer(folder.file("base"), types);
    for (const NamedType& type : writer.tensors()) {
      const auto& tensor = *std::ranges::find(list, type.name, &CheckpointTensor::name);
      Shape rows = type.type.shape;
      std::vector<float> values;
      if (tensor.parts > 1) {
        const std::vector<float>& all = base[tensor.params[0]];
        values.assign(all.begin() + tensor.part * rows.elements(), all.begin() + (tensor.part + 1) * rows.elements());
      } else {
        values = join_params(tensor, rows.elements(), [&](size_t i) { return base[tensor.params[i]]; });
      }
      writer.write(type.name, stored_bytes(tensor, rows, values, DType::kF32));
    }
    writer.finish();
  }
  static std::vector<float> random(const Shape& shape, uint64_t stream, double size = 0.3) {
    Philox rng(20, stream);
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (float& value : values) value = static_cast<float>((shape.rank() == 1 ? 1 : 0) + size * rng.normal());
    return values;
  }
  // Tensors of LoRA of a module [out, in].
  void add(const std::string& module, int64_t out, int64_t in, int64_t rank = 2) {
    set(module + ".lora_A.weight", {rank, in}), set(module + ".lora_B.weight", {out, rank});
  }
  void set(const std::string& name, const Shape& shape) {
    tensors["base_model.model." + name] = {shape, random(shape, 1000 + tensors.size())};
  }
  void usual() {
    for (const std::string layer : {"model.layers.0.", "model.layers.1."})
      add(layer + "self_attn.q_proj", 16, 16), add(layer + "mlp.down_proj", 16, 24);
  }
  const std::vector<float>& values(const std::string& name) { return tensors.at("base_model.model." + name).second; }
  std::string write() {
    const std::string to = folder.file("adapter");
    write_file(to + "/adapter_config.json", adapter.dump());
    std::vector<NamedType> types;
    for (const auto& [name, tensor] : tensors) types.push_back({name, {DType::kF32, tensor.first}});
    SafetensorsWriter writer(to + "/adapter_model.safetensors", types);
    for (const NamedType& type : writer.tensors())
      writer.write(type.name, std::as_bytes(std::span(tensors.at(type.name).second)));
    writer.finish();
    return to;
  }
  std::string error() {
    return error_of([&] {
      const auto weights = open_weights(write());
      for (const auto& [param, shape] : param_shapes(weights->config())) weights->read(param, shape);
    });
  }
};

// W + scale B A of [out, in], written down.
std::vector<float> sum_of(std::vector<float> w, const std::vector<float>& a, const std::vector<float>& b, int64_t rank,
                          double scale) {
  const int64_t in = std::ssize(a) / rank, out = std::ssize(b) / rank;
  for (int64_t n = 0; n < out; ++n)
    for (int64_t k = 0; k < in; ++k)
      for (int64_t r = 0; r < rank; ++r)
        w[static_cast<size_t>(n * in + k)] +=
            static_cast<float>(scale * b[static_cast<size_t>(n * rank + r)] * a[static_cast<size_t>(r * in + k)]);
  return w;
}

void expect_near(const std::vector<float>& ours, const std::vector<float>& wanted) {
  ASSERT_EQ(ours.size(), wanted.size());
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], wanted[i], 1e-5) << i;  // float32 in another order
}

TEST(AdapterFolder, AddsProductsByRankAndAlphaOfEachModule) {
  Made made;
  made.adapter["rank_pattern"] = {{"layers.1.self_attn.q_proj", 3}};
  made.adapter["alpha_pattern"] = {{"down_proj", 8}};
  made.adapter["use_rslora"] = true;
  made.usual();
  made.add("model.layers.1.self_attn.q_proj", 16, 16, 3);
  const auto weights = open_weights(made.write());
  const std::string q = "model.layers.1.self_attn.q_proj.", down = "model.layers.0.mlp.down_proj.";
  expect_near(weights->read("layers.1.attn.q.weight", {16, 16}),
              sum_of(made.base["layers.1.attn.q.weight"], made.values(q + "lora_A.weight"),
                     made.values(q + "lora_B.weight"), 3, 3 / std::sqrt(3.0)));
  expect_near(weights->read("layers.0.mlp.down.weight", {16, 24}),
              sum_of(made.base["layers.0.mlp.down.weight"], made.values(down + "lora_A.weight"),
                     made.values(down + "lora_B.weight"), 2, 8 / std::sqrt(2.0)));
  EXPECT_EQ(weights->read("layers.0.attn.k.weight", {16, 16}), made.base["layers.0.attn.k.weight"]);
}

TEST(AdapterFolder, ZerosAreTheBaseBitForBit) {
  Made made;
  made.usual();
  for (auto& [name, tensor] : made.tensors)
    if (name.ends_with("lora_B.weight")) std::ranges::fill(tensor.second, 0.0f);
  const auto weights = open_weights(made.write());
  for (const auto& [param, shape] : param_shapes(made.config)) EXPECT_EQ(weights->read(param, shape), made.base[param]);
}

TEST(AdapterFolder, ReadsAModuleForEachExpertAndOneForAll) {
  const auto one_pattern = [](ModelConfig& config) { config.layers = 1; };
  Made each("qwen3_moe", one_pattern), stacked("qwen3_moe", one_pattern);
  each.adapter["target_modules"] = {"gate_proj"}, stacked.adapter.erase("target_modules");
  stacked.adapter["target_parameters"] = {"mlp.experts.gate_up_proj"};
  const std::string experts = "model.layers.0.mlp.experts";
  for (int64_t e : {0, 2}) each.add(fmt::format("{}.{}.gate_proj", experts, e), 12, 16);  // the second has none
  stacked.set(experts + ".lora_A.weight", {6, 16}), stacked.set(experts + ".lora_B.weight", {24, 6});
  const auto of_each = open_weights(each.write()), of_all = open_weights(stacked.write());
  const auto all = [&](Made& made) { return made.base["layers.0.mlp.experts.gate.weight"]; };
  std::vector<float> wanted;
  const auto part = [](const std::vector<float>& values, int64_t i, int64_t count) {
    const int64_t size = std::ssize(values) / count;
    return std::vector<float>(values.begin() + i * size, values.begin() + (i + 1) * size);
  };
  for (int64_t e = 0; e < 3; ++e) {
    std::vector<float> w = part(all(each), e, 3);
    const std::string module = fmt::format("{}.{}.gate_proj.", experts, e);
    if (e != 1) w = sum_of(w, each.values(module + "lora_A.weight"), each.values(module + "lora_B.weight"), 2, 1.5);
    wanted.insert(wanted.end(), w.begin(), w.end());
  }
  expect_near(of_each->read("layers.0.mlp.experts.gate.weight", {36, 16}), wanted);
  wanted.clear();
  const std::vector<float>&a = stacked.values(experts + ".lora_A.weight"),
        &b = stacked.values(experts + ".lora_B.weight");
  for (int64_t e = 0; e < 3; ++e) {
    std::vector<float> own;  // rows of gate alone: [12, rank] of [24, rank, experts]
    for (int64_t row = 0; row < 12; ++row)
      for (int64_t r = 0; r < 2; ++r) own.push_back(b[static_cast<size_t>((row * 2 + r) * 3 + e)]);
    const std::vector<float> w = sum_of(part(all(stacked), e, 3), part(a, e, 3), own, 2, 1.5);
    wanted.insert(wanted.end(), w.begin(), w.end());
  }
  expect_near(of_all->read("layers.0.mlp.experts.gate.weight", {36, 16}), wanted);
}

TEST(AdapterFolder, AHeadIsATargetByItsOwnName) {
  for (const auto& [family, head] :
       {std::pair{"llama", "lm_head"}, {"gpt_neox", "embed_out"}, {"qwen3_moe", "lm_head"}}) {
    SCOPED_TRACE(family);
    Made made(family, [](ModelConfig& config) { config.tie_embeddings = false; });
    made.adapter["target_modules"] = {head};
    const std::string module = std::string(head) + ".";
    made.set(module + "lora_A.weight", {2, 16}), made.set(module + "lora_B.weight", {48, 2});
    expect_near(open_weights(made.write())->read("head.weight", {48, 16}),
                sum_of(made.base["head.weight"], made.values(module + "lora_A.weight"),
                       made.values(module + "lora_B.weight"), 2, 1.5));
  }
}

TEST(AdapterFolder, ATiedHeadKeepsTheBasesTableUnlessItIsAdapted) {
  const auto tied = [](ModelConfig& config) { config.tie_embeddings = true; };
  Made made("llama", tied);
  made.adapter["target_modules"] = {"embed_tokens"};
  made.set("model.embed_tokens.lora_embedding_A", {2, 48}), made.set("model.embed_tokens.lora_embedding_B", {16, 2});
  auto weights = open_weights(made.write());
  EXPECT_FALSE(weights->config().tie_embeddings);
  EXPECT_EQ(weights->read("head.weight", {48, 16}), made.base["embed.weight"]);
  EXPECT_NE(weights->read("embed.weight", {48, 16}), made.base["embed.weight"]);

  Made tokens("llama", tied);
  tokens.adapter["trainable_token_indices"] = {7, 3};
  tokens.usual();
  tokens.set("model.embed_tokens.token_adapter.trainable_tokens_delta", {2, 16});
  weights = open_weights(tokens.write());
  EXPECT_TRUE(weights->config().tie_embeddings);
  std::vector<float> wanted = tokens.base["embed.weight"];
  const std::vector<float>& rows = tokens.values("model.embed_tokens.token_adapter.trainable_tokens_delta");
  std::copy_n(rows.begin(), 16, wanted.begin() + 7 * 16), std::copy_n(rows.begin() + 16, 16, wanted.begin() + 3 * 16);
  EXPECT_EQ(weights->read("embed.weight", {48, 16}), wanted);
}

TEST(AdapterFolder, WhatChangesTheResultAndIsNotRunIsRefusedByName) {
  const std::pair<const char*, nlohmann::json> kCases[] = {{"alora_invocation_tokens", {1, 2}},
                                                           {"layer_replication", {{0, 2}}},
                                                           {"use_qalora", true},
                                                           {"lora_bias", true},
                                                           {"init_lora_weights", "pissa"},
                                                           {"init_lora_weights", "corda"},
                                                           {"arrow_config", {{"top_k", 2}}},
                                                           {"megatron_config", {{"a", 1}}},
                                                           {"use_bdlora", true},
                                                           {"a_field_of_tomorrow", 3},
                                                           {"bias", "some"},
                                                           {"peft_type", "IA3"},
                                                           {"target_modules", "([a-z"},
                                                           {"ensure_weight_tying", "yes"}};
  for (const auto& [key, value] : kCases) {
    Made made;
    made.usual();
    made.adapter[key] = value;
    const std::string error = made.error();
    EXPECT_NE(error.find(key), std::string::npos) << key << ": " << error;
    EXPECT_NE(error.find(value.is_string() ? value.get<std::string>() : value.dump()), std::string::npos) << error;
  }
  Made made;
  made.usual();
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, nlohmann::json>>{{"init_lora_weights", "gaussian"},
                                                                     {"revision", "main"},
                                                                     {"peft_version", "0.21.2"},
                                                                     {"lora_dropout", 0.1},
                                                                     {"a_field_of_tomorrow", nullptr},
                                                                     {"another", false},
                                                                     {"loftq_config", nlohmann::json::object()}})
    made.adapter[key] = value;
  EXPECT_EQ(made.error(), "(no error)");
}

TEST(AdapterFolder, BadFoldersAreRefusedWithWhatIsWrong) {
  const auto refused = [](const std::function<void(Made&)>& spoil, const std::string& words) {
    Made made;
    made.usual();
    spoil(made);
    const std::string error = made.error();
    EXPECT_NE(error.find(words), std::string::npos) << words << " not in: " << error;
  };
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  refused([](Made& m) { m.adapter["r"] = 0; }, "r is 0 (want 1 to");
  refused([](Made& m) { m.adapter["rank_pattern"] = {{"q_proj", -1}}; }, "r is -1");
  refused([](Made& m) { m.adapter["r"] = 3; }, "has shape [2,24], this base and adapter_config.json want [3,24]");
  refused([&](Made& m) { m.add("model.layers.0.self_attn.q_proj", 16, 12); }, "is it an adapter of another base?");
  refused([&](Made& m) { m.tensors[q + "lora_A.weight"].second[3] = NAN; }, "element 3 is nan");
  refused([&](Made& m) { m.tensors.erase(q + "lora_B.weight"); }, "but not its lora_B");
  refused([&](Made& m) { m.tensors.erase(q + "lora_A.weight"), m.tensors.erase(q + "lora_B.weight"); },
          "tensors of model.layers.0.self_attn.q_proj are missing");
  refused([](Made& m) { m.add("model.layers.7.self_attn.q_proj", 16, 16); },
          "is of module model.layers.7.self_attn.q_proj, which the base, a llama model, does not have (nearest: ");
  refused([](Made& m) { m.add("model.layers.0.self_attn.v_proj", 16, 16); }, "do not name");
  refused(
      [](Made& m) {
        m.adapter["target_modules"] = {"q_proj", "down_proj", "qkv_proj"};
      },
      "target_modules names qkv_proj, which no module of the base");
  refused([](Made& m) { m.adapter["modules_to_save"] = {"score"}; }, "modules_to_save names score");
  refused([](Made& m) { m.adapter["modules_to_save"] = {"lm_head"}; }, "tensor lm_head.weight is missing");
  refused([](Made& m) { m.set("model.norm.weight", {16}); }, "do not ask for");
  refused([](Made& m) { m.set("model.score.weight", {16}); }, "matches nothing of the base");
  refused(
      [](Made& m) {
        m.set("model.embed_tokens.base_layer.weight", {50, 16});
      },
      "has 50 rows, the base's vocabulary 48");
  refused([](Made& m) { m.adapter["trainable_token_indices"] = {3}; }, "trainable_tokens_delta of 0 modules");
  refused([](Made& m) { m.adapter["use_dora"] = true; }, "has no magnitude");
  refused([](Made& m) { m.adapter["base_model_name_or_path"] = "org/model"; }, "is not a folder here");
  refused([](Made& m) { m.adapter["base_model_name_or_path"] = "../adapter"; }, "is an adapter too");

  Made made;
  made.usual();
  const std::string file = made.write() + "/adapter_model.safetensors", whole = read_file(file);
  write_file(file, whole.substr(0, whole.size() - 5));
  EXPECT_NE(error_of([&] { open_weights(made.folder.file("adapter")); }).find(file), std::string::npos);
  remove_path(file), write_file(made.folder.file("adapter/adapter_model.bin"), "pickle");
  EXPECT_NE(error_of([&] { open_weights(made.folder.file("adapter")); }).find("is a pickle"), std::string::npos);
}

TEST(AdapterFolder, ABaseInCodesIsMergedFromItsValuesOrRefused) {
  Made made;
  made.usual();
  quantize_folder(*open_weights(made.folder.file("base")), "", made.folder.file("fp8"), {.rest = DType::kF32});
  made.adapter["base_model_name_or_path"] = "../fp8";
  const auto merged = open_weights(made.write()), base = open_weights(made.folder.file("fp8"));
  ASSERT_TRUE(merged->recipe().has_value());
  const std::string q = "model.layers.0.self_attn.q_proj.";
  expect_near(merged->read("layers.0.attn.q.weight", {16, 16}),
              sum_of(base->read("layers.0.attn.q.weight", {16, 16}), made.values(q + "lora_A.weight"),
                     made.values(q + "lora_B.weight"), 2, 1.5));

  const std::string packed = test_data_path("serving/packed/gptq_sym_g64");
  if (packed.empty()) GTEST_SKIP() << missing_test_data("serving/packed/gptq_sym_g64");
  const ModelConfig config = open_weights(packed)->config();
  const Shape shape = param_shapes(config).at("layers.0.attn.q.weight");
  made.tensors.clear();
  made.adapter["base_model_name_or_path"] = packed, made.adapter["target_modules"] = ".*layers.0.self_attn.q_proj";
  made.add("model.layers.0.self_attn.q_proj", shape[0], shape[1]);
  EXPECT_NE(made.error().find("of the base is in i4 codes"), std::string::npos) << made.error();
}

TEST(AdapterFolder, TargetsByExpressionByLayersAndByExclusion) {
  Made made;
  made.adapter["target_modules"] = ".*layers\\.1.*(q_proj|down_proj)";
  made.add("model.layers.1.self_attn.q_proj", 16, 16), made.add("model.layers.1.mlp.down_proj", 16, 24);
  EXPECT_EQ(made.error(), "(no error)");
  made.adapter["target_modules"] = {"q_proj", "down_proj"}, made.adapter["layers_to_transform"] = {1};
  EXPECT_EQ(made.error(), "(no error)");
  made.adapter.erase("layers_to_transform"), made.adapter["exclude_modules"] = ".*layers.0.*";
  EXPECT_EQ(made.error(), "(no error)");
  made.adapter["target_modules"] = "all-linear";
  EXPECT_NE(made.error().find("are missing"), std::string::npos);
}

TEST(AdapterFolder, ExpressionsAreOfWholeNamesAndEnd) {
  const NamePattern own("^(?:.*\\.)?(?:q_proj|k_proj)$", "here");
  EXPECT_TRUE(own.is_whole("layers.0.q_proj"));
  EXPECT_FALSE(own.is_whole("layers.0.q_proj.x"));
  ModuleNames names;
  names.set_expression("(?=x)[a-z](?<!y)", "here");  // Python's, and not ECMAScript's
  EXPECT_TRUE(names.matches("x"));
  EXPECT_FALSE(names.matches("xy"));
  EXPECT_NE(error_of([] { NamePattern("(", "config: rank_pattern"); }).find("config: rank_pattern"), std::string::npos);
  // Exponentially many ways to fail end in a refusal or in "no", not in a hang.
  error_of([&] { names.set_expression("(a|aa|a*)*b", "here"), names.matches(std::string(200, 'a')); });
  Made made;
  made.usual();
  made.adapter["layers_to_transform"] = {0, 1}, made.adapter["layers_pattern"] = "(";
  EXPECT_NE(made.error().find("layers_pattern"), std::string::npos) << made.error();
  made.adapter["layers_pattern"] = "(layers)";
  EXPECT_EQ(made.error(), "(no error)");
  made.adapter["target_modules"] = "(q_proj";
  EXPECT_NE(made.error().find("target_modules"), std::string::npos) << made.error();
}

AdapterReader reader(const Adapter& adapter) {
  return [&adapter](const std::string& name) { return read_floats(*adapter.find(name)); };
}

void expect_same(const Adapter& ours, const Adapter& theirs) {
  ASSERT_EQ(ours.spec.low_rank.size(), theirs.spec.low_rank.size());
  for (size_t i = 0; i < ours.spec.low_rank.size(); ++i) {
    const LowRank &a = ours.spec.low_rank[i], &b = theirs.spec.low_rank[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.params, b.params);
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_NEAR(a.scale, b.scale, 1e-12);
    EXPECT_EQ(a.dora, b.dora);
  }
  EXPECT_EQ(ours.spec.trained, theirs.spec.trained);
  EXPECT_EQ(ours.spec.token_rows, theirs.spec.token_rows);
  EXPECT_EQ(ours.spec.virtual_tokens, theirs.spec.virtual_tokens);
  for (const auto& [name, view] : theirs.tensors) {
    if (name.starts_with("prompt_encoder.")) continue;
    ASSERT_NE(ours.find(name), nullptr) << name;
    EXPECT_EQ(read_floats(*ours.find(name)), read_floats(view)) << name;
  }
}

TEST(AdapterFolder, WhatIsWrittenReadsAsWhatWasRead) {
  std::vector<std::string> all(std::begin(kMerged), std::end(kMerged));
  all.insert(all.end(), std::begin(kPrompts), std::end(kPrompts));
  for (const std::string& name : all) {
    const std::string folder = vectors(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/adapters");
    const ModelConfig base = read_model_config(adapter_base(folder));
    const Adapter adapter = read_adapter(folder, base);
    TempFolder out;
    write_adapter(out.path(), adapter.spec, base, reader(adapter), {.base = "base"});
    expect_same(read_adapter(out.path(), base), adapter);
    if (name.starts_with("p")) continue;  // no encoder, no tables as they were
    const auto ours = open_safetensors(out.path(), "adapter_model"), theirs = open_safetensors(folder, "adapter_model");
    for (const std::string& tensor : theirs->names()) {
      if (tensor.ends_with("embed_tokens.base_layer.weight")) continue;
      ASSERT_NE(ours->find_type(tensor), nullptr) << name << " " << tensor;
      EXPECT_EQ(ours->find_type(tensor)->shape, theirs->find_type(tensor)->shape) << tensor;
      EXPECT_EQ(floats_of(ours->read(tensor)), floats_of(theirs->read(tensor))) << tensor;
    }
  }
}

// As training makes them, a LowRank for each linear, where PEFT has one module of several.
TEST(AdapterFolder, LowRanksOfOneModuleAreWrittenAsOne) {
  for (const std::string family : {"gpt2", "bloom", "qwen3_moe"}) {
    Made made(family);
    const bool experts = family == "qwen3_moe";
    const std::vector<std::string> names =
        experts ? std::vector<std::string>{"layers.1.mlp.experts.gate", "layers.1.mlp.experts.up"}
                : std::vector<std::string>{"layers.0.attn.q", "layers.0.attn.v"};
    const ParamShapes shapes = param_shapes(made.config);
    AdapterSpec spec;
    std::map<std::string, std::vector<float>> values;
    std::map<std::string, std::vector<float>> wanted;
    for (const std::string& name : names) {
      const Shape& shape = shapes.at(name + ".weight");
      const int64_t rank = std::ssize(spec.low_rank) + 2, count = experts ? 3 : 1;
      const double scale = 0.5 + static_cast<double>(rank);
      spec.low_rank.push_back({.name = name, .params = {name + ".weight"}, .rank = rank, .scale = scale});
      values[name + ".lora_a"] = Made::random({count * rank, shape[1]}, 50 + static_cast<uint64_t>(rank));
      values[name + ".lora_b"] = Made::random({shape[0], rank}, 60 + static_cast<uint64_t>(rank));
      std::vector<float>& sum = wanted[name + ".weight"];
      const auto part = [&](const std::vector<float>& all, int64_t i) {
        const int64_t size = std::ssize(all) / count;
        return std::vector<float>(all.begin() + i * size, all.begin() + (i + 1) * size);
      };
      for (int64_t e = 0; e < count; ++e) {
        const auto of_expert = sum_of(part(made.base[name + ".weight"], e), part(values[name + ".lora_a"], e),
                                      part(values[name + ".lora_b"], e), rank, scale);
        sum.insert(sum.end(), of_expert.begin(), of_expert.end());
      }
    }
    write_adapter(made.folder.file("adapter"), spec, made.config,
                  [&](const std::string& name) { return values.at(name); }, {.base = "../base"});
    const auto weights = open_weights(made.folder.file("adapter"));
    for (const auto& [param, sum] : wanted) expect_near(weights->read(param, shapes.at(param)), sum);
    const std::string other = experts ? "layers.1.mlp.experts.down.weight" : "layers.0.attn.k.weight";
    expect_near(weights->read(other, shapes.at(other)), made.base[other]);
  }
}

TEST(AdapterFolder, PromptsAreReadAndNotMerged) {
  Made made;
  made.adapter = {{"peft_type", "PROMPT_TUNING"},
                  {"base_model_name_or_path", "../base"},
                  {"num_virtual_tokens", 3},
                  {"token_dim", 16},
                  {"num_transformer_submodules", 1}};
  made.tensors["prompt_embeddings"] = {{3, 16}, Made::random({3, 16}, 5)};
  const Adapter adapter = read_adapter(made.write(), made.config);
  EXPECT_EQ(adapter.spec.virtual_tokens, 3);
  EXPECT_EQ(read_floats(*adapter.find("prompt.weight")), made.tensors["prompt_embeddings"].second);
  EXPECT_NE(made.error().find("3 virtual tokens"), std::string::npos);
  made.adapter["num_virtual_tokens"] = 4;
  EXPECT_NE(made.error().find("want [4,16]"), std::string::npos);
}

}  // namespace
}  // namespace octet
