#include "model/hugging_face.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

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
  ModelConfig config{.architecture = architecture,
                     .vocab_size = 40,
                     .max_positions = 16,
                     .hidden = 16,
                     .layers = 2,
                     .heads = 4,
                     .intermediate = 24};
  config.bias = architecture == "gpt2";
  config.tie_embeddings = config.bias;
  return config;
}

// Each parameter of each variant stands in exactly one tensor of the checkpoint.
TEST(HuggingFaceNames, CoverEveryParameterOnce) {
  for (const char* architecture : {"gpt2", "llama"})
    for (bool tied : {true, false})
      for (bool bias : {true, false}) {
        ModelConfig config = small(architecture);
        config.tie_embeddings = tied;
        config.bias = bias && config.architecture == "gpt2";
        std::multiset<std::string> held;
        for (const CheckpointTensor& tensor : checkpoint_tensors(config))
          held.insert(tensor.params.begin(), tensor.params.end());
        std::set<std::string> wanted = params_of(config);
        EXPECT_EQ(held, std::multiset<std::string>(wanted.begin(), wanted.end())) << architecture << tied << bias;
      }
}

TEST(HuggingFaceConfig, RoundTrips) {
  ModelConfig gpt2 = small("gpt2");
  gpt2.bias = false;
  gpt2.dropout = 0.25;
  ModelConfig llama = small("llama");
  llama.kv_heads = 2;
  llama.rope = {.theta = 5e5,
                .scaling = "llama3",
                .factor = 8,
                .low_freq_factor = 1,
                .high_freq_factor = 4,
                .original_max_positions = 32};
  for (const ModelConfig& config : {gpt2, llama}) {
    std::string text = to_hugging_face_config(config, {.bos = 1, .eos = 2}, "float32");
    ModelConfig back = parse_hugging_face_config(text, "config.json");
    EXPECT_EQ(back.architecture, config.architecture);
    EXPECT_EQ(back.hidden, config.hidden);
    EXPECT_EQ(back.kv_head_count(), config.kv_head_count());
    EXPECT_EQ(back.intermediate_size(), config.intermediate_size());
    EXPECT_EQ(back.bias, config.bias);
    EXPECT_EQ(back.tie_embeddings, config.tie_embeddings);
    EXPECT_EQ(back.dropout, config.dropout);
    EXPECT_EQ(back.rope.scaling, config.rope.scaling);
    EXPECT_EQ(back.rope.theta, config.rope.theta);
    EXPECT_EQ(back.rope.original_max_positions,
              config.architecture == "llama" ? 32 : RopeOptions{}.original_max_positions);
    EXPECT_EQ(parse_special_tokens(text).eos, 2);
  }
}

TEST(HuggingFaceConfig, RefusesWhatItCannotRunAndNamesIt) {
  EXPECT_NE(message_of("{").find("JSON"), std::string::npos);
  EXPECT_NE(message_of(R"({"model_type": "mamba"})").find("mamba"), std::string::npos);
  EXPECT_NE(message_of(R"({"model_type": "gpt2"})").find("vocab_size"), std::string::npos);
  EXPECT_NE(message_of(R"({"model_type": "gpt2", "vocab_size": "many"})").find("many"), std::string::npos);
  std::string gpt2 =
      R"({"model_type": "gpt2", "vocab_size": 8, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": )";
  EXPECT_NE(message_of(gpt2 + "3}").find("does not divide"), std::string::npos);
  EXPECT_NE(message_of(gpt2 + R"(2, "activation_function": "relu"})").find("relu"), std::string::npos);
  EXPECT_EQ(message_of(gpt2 + "2}"), "accepted");
  std::string llama = R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 8, "rope_scaling": {"rope_type": )";
  EXPECT_NE(message_of(llama + R"("yarn"}})").find("yarn"), std::string::npos);
  EXPECT_EQ(message_of(llama + R"("linear", "factor": 2}})"), "accepted");
}

}  // namespace
}  // namespace octet
