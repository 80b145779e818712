#include "model/hugging_face.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "ir/text.h"

namespace octet {
namespace {

std::string message_of(const std::string& json) {
  try {
    parse_hugging_face_config(json, "config.json");
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

std::set<std::string> params_of(const ModelConfig& config) {
  Graph graph;
  Builder builder(graph);
  build_logits(builder, config, {.tokens = 2, .max_segments = 1, .max_length = 2});
  std::set<std::string> names;
  for (const Node& node : graph.nodes())
    if (node.op == Op::kParam) names.insert(node.name);
  return names;
}

ModelConfig small(const std::string& architecture) {
  ModelConfig config = model_family(architecture);
  config.vocab_size = 40, config.max_positions = 16, config.hidden = 16, config.layers = 2, config.heads = 4;
  config.intermediate = architecture == "bloom" ? 0 : architecture == "mpt" ? 32 : 24;
  return config;
}

// Every family as it usually is, and with what its config.json can say otherwise.
std::vector<ModelConfig> variants() {
  std::vector<ModelConfig> list;
  for (const std::string& architecture : architectures()) list.push_back(small(architecture));
  const auto add = [&](const char* architecture, auto change) { change(list.emplace_back(small(architecture))); };
  add("gpt2", [](ModelConfig& c) { c.bias = Biases::all(false), c.dropout = 0.25, c.tie_embeddings = false; });
  add("gpt_bigcode", [](ModelConfig& c) { c.kv_heads = 0; });
  add("gptj", [](ModelConfig& c) { c.rope.rotary_dim = 2; });
  add("gpt_neox", [](ModelConfig& c) { c.residual = Residual::kSequential, c.bias.qkv = c.bias.out = false; });
  add("gpt_neox", [](ModelConfig& c) { c.rope.rotary_dim = 2; });
  add("opt", [](ModelConfig& c) { c.bias.qkv = c.bias.out = c.bias.mlp = false; });
  add("falcon", [](ModelConfig& c) { c.residual = Residual::kParallel, c.kv_heads = 2; });
  add("falcon", [](ModelConfig& c) { c.kv_heads = 2; });
  add("falcon", [](ModelConfig& c) {
    c.residual = Residual::kSequential, c.kv_heads = 4, c.bias = {};
    c.positions = Positions::kAlibi, c.alibi_scale = 0.5;
  });
  add("falcon", [](ModelConfig& c) { c.positions = Positions::kAlibi, c.alibi_scale = 1; });
  add("mpt", [](ModelConfig& c) { c.positions = Positions::kLearned, c.attention_scale = 0.25; });
  add("phi", [](ModelConfig& c) { c.rope.rotary_dim = 2, c.kv_heads = 2; });
  add("llama", [](ModelConfig& c) {
    c.kv_heads = 2, c.tie_embeddings = true, c.bias.qkv = c.bias.out = c.bias.mlp = true;
    c.rope = {.theta = 5e5, .scaling = "llama3", .factor = 8, .original_max_positions = 32};
  });
  add("llama", [](ModelConfig& c) { c.rope.scaling = "linear", c.rope.factor = 4, c.head_dim = 6; });
  for (const char* architecture : {"qwen2", "glm4"})
    add(architecture, [](ModelConfig& c) {
      c.rope.scaling = "yarn", c.rope.factor = 4, c.rope.original_max_positions = 4, c.rope.truncate = false;
      c.rope.low_freq_factor = 2, c.rope.high_freq_factor = 16, c.rope.attention_factor = 1.25;
    });
  add("mistral", [](ModelConfig& c) { c.window = {5}; });
  add("qwen2", [](ModelConfig& c) { c.window = {0, 5}; });
  add("qwen2", [](ModelConfig& c) { c.window = {5}; });
  add("qwen3", [](ModelConfig& c) { c.layers = 3, c.window = {5, 0}; });
  add("qwen3", [](ModelConfig& c) { c.head_dim = 6, c.bias.qkv = c.bias.out = true; });
  add("gemma", [](ModelConfig& c) { c.kv_heads = 1, c.activation = Activation::kRelu; });
  add("glm", [](ModelConfig& c) { c.rope.rotary_dim = 2, c.kv_heads = 2; });
  add("glm", [](ModelConfig& c) { c.rope.rotary_dim = 2, c.head_dim = 98; });  // 2 / 98 x 98 is below 2 in doubles
  add("mixtral", [](ModelConfig& c) { c.window = {5}, c.experts.per_token = 8; });
  add("qwen2_moe", [](ModelConfig& c) { c.dense_layers = {0}, c.experts.renormalize = true, c.bias.qkv = false; });
  add("qwen2_moe", [](ModelConfig& c) { c.window = {0, 5}; });
  add("qwen3_moe", [](ModelConfig& c) { c.window = {5}; });
  add("qwen3_moe", [](ModelConfig& c) { c.layers = 4, c.dense_layers = {0, 2}, c.head_dim = 6; });
  add("qwen3_moe", [](ModelConfig& c) { c.experts.intermediate = 0, c.bias.qkv = c.bias.out = true; });
  add("olmoe", [](ModelConfig& c) { c.kv_heads = 2, c.experts.renormalize = true; });
  for (const char* partial : {"phi", "gpt_neox", "glm", "glm4"})
    add(partial, [](ModelConfig& c) { c.rope.rotary_dim = 0; });
  for (const std::string& architecture : architectures())  // sizes left to their defaults
    add(architecture.c_str(), [](ModelConfig& c) { c.intermediate = 0; });
  return list;
}

// Each parameter of each variant stands in exactly one tensor of the checkpoint, with as many rows as it has.
TEST(HuggingFaceNames, CoverEveryParameterOnce) {
  for (const ModelConfig& config : variants()) {
    std::multiset<std::string> held;
    for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
      if (tensor.part == 0) held.insert(tensor.params.begin(), tensor.params.end());
      EXPECT_TRUE(tensor.part < tensor.parts && (tensor.parts == 1 || tensor.params.size() == 1)) << tensor.name;
      EXPECT_TRUE(tensor.params.size() == 1 || tensor.rows.size() == tensor.params.size()) << tensor.name;
      EXPECT_EQ(canonical_tensor_name(config, tensor.name), tensor.name);
    }
    std::set<std::string> wanted = params_of(config);
    EXPECT_EQ(held, std::multiset<std::string>(wanted.begin(), wanted.end())) << config.architecture;
  }
}

// The graph of a config that went through config.json is the graph of the config itself.
TEST(HuggingFaceConfig, RoundTrips) {
  const auto graph_text = [](const ModelConfig& config) {
    Graph graph;
    Builder builder(graph);
    build_logits(builder, config, {.tokens = 2, .max_segments = 1, .max_length = 2, .training = true});
    return print(graph);
  };
  for (const ModelConfig& config : variants()) {
    std::string text = to_hugging_face_config(config, {.bos = 1, .eos = {2}}, "float32");
    ModelConfig back = parse_hugging_face_config(text, "config.json");
    EXPECT_EQ(back.architecture, config.architecture);
    EXPECT_EQ(back.dropout, config.dropout) << text;
    EXPECT_EQ(back.init_std, config.init_std);
    EXPECT_EQ(back.length_limit(), config.length_limit());
    EXPECT_EQ(graph_text(back), graph_text(config)) << text;
    EXPECT_EQ(parse_special_tokens(text, "config.json").eos, std::vector<int64_t>{2});
  }
}

TEST(HuggingFaceConfig, RefusesMixturesItCannotRunByTheirField) {
  const auto mixture = [](const std::string& type, const std::string& fields) {
    return message_of(R"({"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
      "num_key_value_heads": 1, "intermediate_size": 8, "model_type": ")" +
                      type + "\"" + fields + "}");
  };
  const auto expect = [&](const char* type, const std::string& fields, const char* part) {
    const std::string message = mixture(type, fields);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 5)", "model.experts_per_token: 5 of 4 experts");
  expect("mixtral", R"(, "num_experts_per_tok": 0)", "model.experts_per_token: 0 of 8 experts");
  expect("mixtral", R"(, "num_local_experts": 0)", "num_local_experts");
  expect("mixtral", R"(, "router_jitter_noise": 0.1)", "router_jitter_noise");
  expect("olmoe", R"(, "clip_qkv": 8.0)", "clip_qkv");
  expect("qwen3_moe", R"(, "decoder_sparse_step": 0)", "decoder_sparse_step");
  expect("qwen3_moe", R"(, "mlp_only_layers": [3])", "dense layer 3 of 3");
  expect("qwen3_moe", R"(, "mlp_only_layers": ["a"])", "mlp_only_layers");
  const ModelConfig config = parse_hugging_face_config(
      R"({"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 8,
          "num_key_value_heads": 1, "model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": [3]})",
      "config.json");
  EXPECT_EQ(config.dense_layers, (std::vector<int64_t>{3, 0, 2, 4}));
}

TEST(HuggingFaceConfig, AllEndsOfAListAreKept) {
  const SpecialTokens special = parse_special_tokens(
      R"({"bos_token_id": 1, "eos_token_id": [5, 7, 5, null], "pad_token_id": null})", "config.json");
  EXPECT_EQ(special.eos, (std::vector<int64_t>{5, 7}));
  EXPECT_EQ(special.pad, -1);
  const std::string text = to_hugging_face_config(variants()[0], special, "float32");
  const SpecialTokens back = parse_special_tokens(text, "config.json");
  EXPECT_EQ(back.bos, 1);
  EXPECT_EQ(back.eos, special.eos) << text;
  EXPECT_TRUE(parse_special_tokens("{}", "config.json").eos.empty());
  EXPECT_TRUE(parse_special_tokens(R"({"eos_token_id": -1})", "config.json").eos.empty());
}

TEST(HuggingFaceConfig, RefusesWhatItCannotRunAndNamesIt) {
  EXPECT_NE(message_of("{").find("JSON"), std::string::npos);
  EXPECT_NE(message_of(R"({"model_type": "mamba"})").find("mamba"), std::string::npos);
  EXPECT_NE(message_of(R"({"model_type": "gpt2"})").find("vocab_size"), std::string::npos);
  EXPECT_NE(message_of(R"({"model_type": "gpt2", "vocab_size": "many"})").find("many"), std::string::npos);
  std::string gpt2 =
      R"({"model_type": "gpt2", "vocab_size": 8, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": )";
  EXPECT_NE(message_of(gpt2 + "3}").find("does not divide"), std::string::npos);
  EXPECT_NE(message_of(gpt2 + R"(2, "activation_function": "selu"})").find("selu"), std::string::npos);
  EXPECT_EQ(message_of(gpt2 + "2}"), "accepted");
  std::string llama = R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 8, "rope_scaling": {"rope_type": )";
  EXPECT_NE(message_of(llama + R"("longrope"}})").find("longrope"), std::string::npos);
  EXPECT_NE(message_of(llama + R"("yarn"}})").find("\"factor\" is missing beside rope_type \"yarn\""),
            std::string::npos);
  EXPECT_NE(message_of(llama + R"("yarn", "factor": 2, "beta_fast": 0.5}})").find("rope.high_freq_factor: 0.5"),
            std::string::npos);
  EXPECT_NE(message_of(llama + R"("yarn", "factor": 2, "attention_factor": 0}})").find("rope.attention_factor: 0"),
            std::string::npos);
  EXPECT_NE(message_of(llama + R"("yarn", "factor": 2, "rope_theta": 1}})").find("rope.theta: 1 (yarn wants"),
            std::string::npos);
  EXPECT_EQ(message_of(llama + R"("linear", "factor": 2}})"), "accepted");
  const std::string twice = llama + R"("linear", "factor": 2}, "rope_parameters": {"rope_type": )";
  EXPECT_EQ(message_of(twice + R"("linear", "factor": 2}})"), "accepted");
  EXPECT_NE(
      message_of(twice + R"("default"}})")
          .find(R"(rope_scaling is {"factor":2,"rope_type":"linear"}, rope_parameters {"rope_type":"default"}: )"),
      std::string::npos);
  EXPECT_NE(message_of(twice + R"("linear", "factor": 4}})").find("remove the one that is not meant"),
            std::string::npos);
  EXPECT_NE(message_of(twice + R"("linear", "factor": 2, "rope_theta": 5e5}})").find("remove the one"),
            std::string::npos);
  // What would make angles that are not finite, or of another model: the file is named, and the field.
  EXPECT_NE(message_of(llama + R"("linear", "factor": 0}})").find("config.json: model.rope.factor: 0 (want "),
            std::string::npos);
  for (const char* rest : {R"("linear"}})", R"("llama3", "low_freq_factor": 1}})"})
    EXPECT_NE(message_of(llama + rest).find("config.json: rope_scaling: \"factor\" is missing"), std::string::npos);
  const std::string llama3 = llama + R"("llama3", "factor": 8, )";
  EXPECT_NE(message_of(llama3 + R"("low_freq_factor": 1}})").find("\"high_freq_factor\" is missing"),
            std::string::npos);
  EXPECT_NE(message_of(llama3 + R"("high_freq_factor": 4}})").find("\"low_freq_factor\" is missing"),
            std::string::npos);
  EXPECT_NE(message_of(llama3 + R"("low_freq_factor": 4, "high_freq_factor": 1}})").find("high_freq_factor: 1"),
            std::string::npos);
  EXPECT_NE(message_of(llama3 + R"("low_freq_factor": 1, "high_freq_factor": 4,
                                   "original_max_position_embeddings": -1}})")
                .find("original_max_positions: -1"),
            std::string::npos);
  EXPECT_NE(message_of(llama + R"("default", "rope_theta": 0}})").find("model.rope.theta: 0"), std::string::npos);
  EXPECT_NE(message_of(llama + R"("default"}, "head_dim": -4})").find("model.head_dim: -4"), std::string::npos);
}

ModelConfig parsed(const std::string& architecture, const std::string& rest) {
  return parse_hugging_face_config(fmt::format(R"({{"model_type": "{}", "vocab_size": 8, "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8, {}}})",
                                               architecture, rest),
                                   "config.json");
}

// As in transformers: what pretraining saw is said beside rope_scaling, inside, or is the length the model has.
TEST(HuggingFaceConfig, Llama3sOriginalLengthIsTheFilesOwn) {
  const auto original = [](const char* beside, const char* inside) {
    return parsed("llama", fmt::format(R"("max_position_embeddings": 512, {}"rope_scaling": {{"rope_type": "llama3",
      "factor": 8, {}"low_freq_factor": 1, "high_freq_factor": 4}})",
                                       beside, inside))
        .rope.original_max_positions;
  };
  EXPECT_EQ(original("", ""), 512);
  EXPECT_EQ(original("", R"("original_max_position_embeddings": 128, )"), 128);
  EXPECT_EQ(original(R"("original_max_position_embeddings": 64, )", R"("original_max_position_embeddings": 128, )"),
            64);
}

// The defaults are those of transformers; the model reaches as far as the factor stretches the original length.
TEST(HuggingFaceConfig, YarnAsPublishedFoldersWriteIt) {
  const auto yarn = [](const std::string& rest) {
    return parsed("qwen2", R"("max_position_embeddings": 512, "rope_theta": 1e6, "rope_scaling": {"type": "yarn",
      "factor": 4.0)" + rest + "}");
  };
  const ModelConfig usual = yarn(R"(, "original_max_position_embeddings": 256)");
  EXPECT_EQ(usual.rope.theta, 1e6);
  EXPECT_EQ(usual.rope.low_freq_factor, 1);
  EXPECT_EQ(usual.rope.high_freq_factor, 32);
  EXPECT_TRUE(usual.rope.truncate);
  EXPECT_EQ(usual.rope.original_max_positions, 256);
  EXPECT_EQ(usual.max_positions, 1024);
  EXPECT_NEAR(usual.rope.attention_factor, 1.138629436111989, 1e-15);
  EXPECT_EQ(yarn("").max_positions, 2048);
  EXPECT_EQ(yarn(R"(, "original_max_position_embeddings": 64)").max_positions, 512);
  EXPECT_FALSE(yarn(R"(, "truncate": false)").rope.truncate);
  EXPECT_EQ(yarn(R"(, "attention_factor": 1.5, "mscale": 2.0)").rope.attention_factor, 1.5);
  EXPECT_EQ(yarn(R"(, "mscale": 1.0, "mscale_all_dim": 1.0)").rope.attention_factor, 1);
  EXPECT_NEAR(yarn(R"(, "mscale": 2.0, "mscale_all_dim": 1.0)").rope.attention_factor,
              1.277258872223978 / 1.138629436111989, 1e-15);
  EXPECT_NEAR(yarn(R"(, "mscale": 2.0)").rope.attention_factor, 1.138629436111989, 1e-15);
  const std::string written = to_hugging_face_config(usual, {}, "float32");
  EXPECT_EQ(to_hugging_face_config(parse_hugging_face_config(written, "config.json"), {}, "float32"), written);
}

TEST(HuggingFaceConfig, PartOfAHeadThatRotaryPositionsTurn) {
  const auto turned = [](const std::string& architecture, const std::string& rest) {
    return parsed(architecture, "\"head_dim\": 16, " + rest).rotary_size();
  };
  EXPECT_EQ(turned("phi", R"("partial_rotary_factor": 0.02)"), 0);  // of 16: less than one dimension
  EXPECT_EQ(turned("gpt_neox", R"("rotary_pct": 0.05)"), 0);
  EXPECT_EQ(turned("glm", R"("rope_parameters": {"partial_rotary_factor": 0.0})"), 0);
  EXPECT_EQ(turned("glm", R"("partial_rotary_factor": 1.0)"), 16);
  EXPECT_EQ(turned("phi", R"("partial_rotary_factor": 0.25)"), 4);
  EXPECT_EQ(turned("llama", R"("rope_theta": 5e5)"), 16);
  const std::string gptj = R"({"model_type": "gptj", "vocab_size": 8, "n_positions": 8, "n_embd": 256, "n_layer": 1,
    "n_head": 2, "rotary_dim": )";
  EXPECT_EQ(parse_hugging_face_config(gptj + "32}", "config.json").rotary_size(), 32);
  EXPECT_EQ(parse_hugging_face_config(gptj + "null}", "config.json").rotary_size(), 128);
  EXPECT_NE(message_of(gptj + "0}").find("\"rotary_dim\" is 0"), std::string::npos);
}

// As transformers reads them: layer_types, else the layers from max_window_layers on.
TEST(HuggingFaceConfig, ADecoderMayBeMadeAnEncoder) {
  for (const std::string& family : architectures()) {
    ModelConfig config = small(family);
    EXPECT_EQ(to_hugging_face_config(config, {}, "float32").find("is_causal"), std::string::npos);
    config.causal = false;
    const std::string json = to_hugging_face_config(config, {}, "float32");
    if (config.positions == Positions::kAlibi) {
      EXPECT_NE(message_of(json).find("\"is_causal\": false is not supported"), std::string::npos) << message_of(json);
      continue;
    }
    EXPECT_EQ(message_of(json), "accepted") << family;
    const ModelConfig read = parse_hugging_face_config(json, "config.json");
    EXPECT_FALSE(read.causal) << family;
    EXPECT_FALSE(is_ignored_tensor(read, "model.layers.0.self_attn.q_proj.weight"));
    Graph graph;
    Builder builder(graph);
    EXPECT_THROW(build_loss(builder, read, {.tokens = 2, .max_segments = 1, .max_length = 2}), Error);
  }
  ModelConfig windows = small("qwen2");
  windows.causal = false, windows.window = {8};
  EXPECT_NE(message_of(to_hugging_face_config(windows, {}, "float32")).find("as there are windows"), std::string::npos);
}

TEST(HuggingFaceConfig, WindowsOfLayers) {
  const auto windows = [](const char* architecture, const std::string& rest) {
    return parse_hugging_face_config(fmt::format(R"({{"model_type": "{}", "vocab_size": 8, "hidden_size": 32,
      "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8, {}}})",
                                                 architecture, rest),
                                     "config.json")
        .layer_windows();
  };
  using Windows = std::vector<int64_t>;
  const std::string on = R"("use_sliding_window": true, "sliding_window": 16, )";
  for (const char* architecture : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(architecture, on + R"("max_window_layers": 3)"), (Windows{0, 0, 0, 16}));
    EXPECT_EQ(windows(architecture, on + R"("max_window_layers": 0)"), (Windows{16, 16, 16, 16}));
    EXPECT_EQ(windows(architecture, on + R"("layer_types": null)"), (Windows{0, 0, 0, 0})) << "28 are full";
    EXPECT_EQ(windows(architecture, on + R"("max_window_layers": 0, "layer_types": ["sliding_attention",
                "full_attention", "sliding_attention", "full_attention"])"),
              (Windows{16, 0, 16, 0}));
    EXPECT_EQ(windows(architecture, R"("use_sliding_window": true, "max_window_layers": 2)"),
              (Windows{0, 0, 4096, 4096}));
    EXPECT_EQ(windows(architecture, R"("sliding_window": 16, "max_window_layers": 0)"), (Windows{0, 0, 0, 0}));
    EXPECT_EQ(windows(architecture, R"("use_sliding_window": true, "sliding_window": null, "max_window_layers": 0)"),
              (Windows{0, 0, 0, 0}));
  }
  EXPECT_EQ(windows("mistral", R"("sliding_window": 16)"), (Windows{16, 16, 16, 16}));
  // Every other layer of the first, and all of them, as transformers' classes say.
  EXPECT_EQ(windows("qwen2_moe", on + R"("max_window_layers": 3)"), (Windows{16, 0, 16, 0}));
  EXPECT_EQ(windows("qwen2_moe", on + R"("max_window_layers": 2)"), (Windows{16, 0, 0, 0}));
  EXPECT_EQ(windows("qwen2_moe", on + R"("max_window_layers": 4, "layer_types": ["full_attention", "full_attention",
            "full_attention", "sliding_attention"])"),
            (Windows{0, 0, 0, 16}));
  EXPECT_EQ(windows("qwen2_moe", R"("sliding_window": 16, "max_window_layers": 4)"), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows("qwen3_moe", on + R"("max_window_layers": 3)"), (Windows{16, 16, 16, 16}));
  EXPECT_EQ(windows("qwen3_moe", R"("use_sliding_window": true)"), (Windows{4096, 4096, 4096, 4096}));
  EXPECT_EQ(windows("qwen3_moe", R"("sliding_window": 16)"), (Windows{0, 0, 0, 0}));
  ModelConfig two = small("qwen3"), mistral = small("mistral");
  two.window = {4, 8}, mistral.window = {4, 0};
  EXPECT_THROW(to_hugging_face_config(two, {}, "float32"), Error);
  EXPECT_THROW(to_hugging_face_config(mistral, {}, "float32"), Error);
}

// A model is its pattern: layers may differ in all that a LayerSpec says, and what no op computes is refused by name.
TEST(ModelSpec, LayersMayDiffer) {
  ModelSpec model = small("llama");
  model.layers = 3;
  model.pattern.push_back(model.pattern[0]);
  model.pattern[1].attention.window = 4, model.pattern[1].attention.kv_heads = 2;
  model.pattern[1].mixer = {.intermediate = 20, .activation = Activation::kRelu, .gated = false, .bias = true};
  const auto build = [&] {
    Graph graph;
    Builder builder(graph);
    build_logits(builder, model, {.tokens = 4, .max_segments = 1, .max_length = 4});
    return graph;
  };
  const Graph graph = build();
  std::vector<int64_t> windows;
  for (const Node& node : graph.nodes())
    if (node.op == Op::kAttention) windows.push_back(node.attrs.get<int64_t>("window"));
  EXPECT_EQ(windows, (std::vector<int64_t>{0, 4, 0}));
  EXPECT_TRUE(graph.find_leaf(Op::kParam, "layers.2.mlp.gate.weight").exists());
  EXPECT_FALSE(graph.find_leaf(Op::kParam, "layers.1.mlp.gate.weight").exists());
  EXPECT_EQ(graph.shape(graph.find_leaf(Op::kParam, "layers.1.mlp.up.weight")), (Shape{20, 16}));
  EXPECT_EQ(graph.shape(graph.find_leaf(Op::kParam, "layers.1.attn.k.weight")), (Shape{8, 16}));

  const auto refusal = [&](auto change) -> std::string {
    const ModelSpec kept = model;
    change(model);
    std::string message;
    try {
      build();
    } catch (const Error& error) {
      message = error.message();
    }
    model = kept;
    return message;
  };
  EXPECT_NE(refusal([](ModelSpec& m) { m.pattern[1].attention.cross = true; }).find("layer 1: cross attention"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelSpec& m) { m.layers = 1; }).find("2 layers are listed for 1"), std::string::npos);
  EXPECT_NE(refusal([](ModelSpec& m) { m.pattern.clear(); }).find("0 layers are listed"), std::string::npos);
}

TEST(HuggingFaceConfig, AGemmasGeluIsTheTanhForm) {
  for (const char* rest : {R"("hidden_act": "gelu")", R"("hidden_act": "gelu", "hidden_activation": null)",
                           R"("hidden_act": "gelu_pytorch_tanh")", R"("head_dim": 16)"})
    EXPECT_EQ(parsed("gemma", rest).activation, Activation::kGeluTanh) << rest;
  EXPECT_EQ(parsed("phi", R"("hidden_act": "gelu")").activation, Activation::kGelu);
  ModelConfig exact = small("gemma");
  exact.activation = Activation::kGelu;
  EXPECT_THROW(to_hugging_face_config(exact, {}, "float32"), Error);
}

TEST(HuggingFaceConfig, AnMptsRatioIsWhole) {
  ModelConfig config = small("mpt");
  config.intermediate = 40;
  std::string message;
  try {
    to_hugging_face_config(config, {}, "float32");
  } catch (const Error& error) {
    message = error.message();
  }
  EXPECT_NE(message.find("40 is not supported (supported: 32 or 48"), std::string::npos) << message;
}

// transformers' attention of an MPT follows neither alibi nor alibi_bias_max of its file.
TEST(HuggingFaceConfig, EagerReferenceIsWhatTransformersComputes) {
  ModelConfig mpt = small("mpt");
  EXPECT_FALSE(eager_reference(mpt));
  mpt.alibi = 4;
  EXPECT_EQ(eager_reference(mpt).value().alibi, 8);
  mpt.positions = Positions::kLearned;
  EXPECT_EQ(eager_reference(mpt).value().positions, Positions::kAlibi);
  EXPECT_FALSE(eager_reference(small("llama")));
}

// Numbers no model has: each is refused when the file is read, by its name.
TEST(HuggingFaceConfig, RefusesNumbersOutOfProportion) {
  struct Row {
    const char *architecture, *field, *value, *says;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"mpt", "attn_config", R"({"softmax_scale": 1e30})", "model.attention_scale: 1e+30"},
           {"mpt", "attn_config", R"({"softmax_scale": -1})", "model.attention_scale: -1"},
           {"mpt", "attn_config", R"({"softmax_scale": 0})", "\"softmax_scale\": 0"},
           {"mpt", "attn_config", R"({"alibi_bias_max": 1e30})", "model.alibi: 1e+30"},
           {"mpt", "attn_config", R"({"alibi_bias_max": -8})", "model.alibi: -8"},
           {"mpt", "expansion_ratio", "1e300", "\"expansion_ratio\": 1e+300"},
           {"mpt", "attn_config", R"({"alibi": false, "alibi_bias_max": 1e300})", "model.alibi: 1e+300"},
           {"mpt", "d_model", "-64", "model.hidden: -64"},
           {"bloom", "hidden_size", "4611686018427387904", "model.hidden: 4611686018427387904 (at most"},
           {"mpt", "expansion_ratio", "-4", "\"expansion_ratio\": -4"},
           {"mpt", "layer_norm_epsilon", "1e300", "model.norm_eps: 1e+300"},
           {"mpt", "initializer_range", "-1", "model.init_std: -1"},
           {"gpt2", "layer_norm_epsilon", "0", "model.norm_eps: 0"},
           {"gpt2", "n_inner", "0", "\"n_inner\" is 0"},
           {"gpt2", "n_embd", "4611686018427387904", "model.hidden: 4611686018427387904 (at most"},
           {"gpt2", "n_embd", "18446744073709551615", "\"n_embd\" is 18446744073709551615, of the wrong type"},
           {"gpt2", "n_positions", "4611686018427387904", "model.max_positions: 4611686018427387904 (at most"},
           {"llama", "intermediate_size", "4611686018427387904", "model.intermediate: 4611686018427387904 (at most"},
           {"llama", "head_dim", "4611686018427387904", "model.head_dim: 4611686018427387904 (at most"},
           {"llama", "head_dim", "0", "\"head_dim\" is 0"},
           {"llama", "num_key_value_heads", "0", "\"num_key_value_heads\" is 0"},
           {"llama", "num_attention_heads", "4611686018427387904", "model.heads: 4611686018427387904 (at most"},
           {"llama", "rms_norm_eps", "1e-300", "model.norm_eps: 1e-300"},
           {"llama", "rope_parameters", R"({"rope_theta": 1e300})", "model.rope.theta: 1e+300"},
           {"llama", "rope_parameters", R"({"rope_type": "linear", "factor": 1e300})", "model.rope.factor: 1e+300"},
           {"llama", "rms_norm_eps", "1e999", "model.norm_eps: 1.7976931348623157e+308"},
           {"mistral", "sliding_window", "0", "\"sliding_window\" is 0"},
           {"glm", "partial_rotary_factor", "2", "partial_rotary_factor"}}) {
    std::string text = to_hugging_face_config(small(row.architecture), {}, "float32");
    if (row.field == std::string_view("partial_rotary_factor")) {
      text = R"({"model_type": "glm", "vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8})";
    }
    text.resize(text.rfind('}'));
    text += fmt::format(", \"{}\": {}}}", row.field, row.value);
    const std::string message = message_of(text);
    EXPECT_NE(message.find(row.says), std::string::npos) << row.architecture << " " << row.field << ": " << message;
    EXPECT_TRUE(message.starts_with("config.json: ")) << message;
  }
  EXPECT_THROW(parse_special_tokens(R"({"eos_token_id": 1e999})", "generation_config.json"), Error);
}

// What a family's files may ask for beyond what Octet runs: the message names the field.
TEST(HuggingFaceConfig, NamesTheFieldItRefuses) {
  struct Refused {
    const char *architecture, *field, *value;
  };
  for (const Refused& row :
       std::initializer_list<Refused>{{"gpt2", "scale_attn_by_inverse_layer_idx", "true"},
                                      {"gpt_bigcode", "scale_attn_weights", "false"},
                                      {"gptj", "activation_function", "\"selu\""},
                                      {"gpt_neox", "hidden_act", "\"tanh\""},
                                      {"opt", "do_layer_norm_before", "false"},
                                      {"opt", "word_embed_proj_dim", "8"},
                                      {"bloom", "apply_residual_connection_post_layernorm", "true"},
                                      {"falcon", "rope_parameters", "{\"rope_type\": \"longrope\"}"},
                                      {"mpt", "logit_scale", "0.5"},
                                      {"mpt", "attn_config", "{\"clip_qkv\": 6}"},
                                      {"mpt", "attn_config", "{\"attn_type\": \"x\"}"},
                                      {"phi", "qk_layernorm", "true"},
                                      {"qwen2", "layer_types", R"(["sliding_attention", "full_attention"])"},
                                      {"qwen3", "layer_types", R"(["full_attention"])"},
                                      {"qwen3", "layer_types", R"(["full_attention", "chunked_attention"])"},
                                      {"gemma", "use_bidirectional_attention", "true"},
                                      {"glm", "rope_parameters", "{\"rope_type\": \"dynamic\"}"}}) {
    std::string text = to_hugging_face_config(small(row.architecture), {}, "float32");
    text.resize(text.rfind('}'));
    text += fmt::format(", \"{}\": {}}}", row.field, row.value);  // the later of two equal keys counts
    std::string message = message_of(text);
    std::string field = row.field == std::string_view("rope_parameters") ? "rope_type" : row.field;
    EXPECT_NE(message.find(field), std::string::npos) << row.architecture << " " << row.field << ": " << message;
    EXPECT_NE(message.find("not supported"), std::string::npos) << message;
  }
}

TEST(Families, AreKnownByTheirNames) {
  for (const std::string& architecture : architectures())
    EXPECT_EQ(model_family(architecture).architecture, architecture);
  EXPECT_THROW(model_family("lama"), Error);
}

}  // namespace
}  // namespace octet
