// BERT's kind of families: config.json in both directions, tensors of every head, fields that are refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "ir/text.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

using Json = nlohmann::json;

Json small(const std::string& type, const std::string& class_name) {
  return {{"model_type", type},
          {"architectures", {class_name}},
          {"vocab_size", 40},
          {"hidden_size", 16},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"intermediate_size", 24},
          {"max_position_embeddings", 20},
          {"type_vocab_size", type == "bert" ? 2 : 1},
          {"pad_token_id", type == "bert" ? 0 : 1}};
}

ModelConfig parse(const Json& json) { return parse_hugging_face_config(json.dump(), "config.json"); }

std::string refusal(Json json, const char* key, const Json& value) {
  json[key] = value;
  try {
    parse(json);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

Graph graph_of(const ModelConfig& config) {
  Graph graph;
  Builder builder(graph);
  build_outputs(builder, config, {.tokens = 3, .max_segments = 2, .max_length = 3});
  return graph;
}

const std::pair<const char*, const char*> kTypes[] = {
    {"bert", "Bert"}, {"roberta", "Roberta"}, {"xlm-roberta", "XLMRoberta"}};

TEST(EncoderFamilies, EveryHeadGoesThroughConfigJson) {
  for (const auto& [type, prefix] : kTypes) {
    for (const char* head : {"Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification"}) {
      if (type != std::string("bert") && head == std::string("ForPreTraining")) continue;
      Json json = small(type, std::string(prefix) + head);
      if (head == std::string("ForSequenceClassification")) json["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
      const ModelConfig config = parse(json);
      EXPECT_FALSE(config.causal);
      EXPECT_EQ(config.max_positions, type == std::string("bert") ? 20 : 18);  // the rest is before the first position
      const std::string text = to_hugging_face_config(config, {.pad = config.position_offset - 1}, "float32");
      EXPECT_EQ(Json::parse(text)["architectures"], Json::array({std::string(prefix) + head}));
      EXPECT_EQ(print(graph_of(parse(Json::parse(text)))), print(graph_of(config))) << text;
      // Each parameter stands in one tensor.
      std::multiset<std::string> held;
      for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
        held.insert(tensor.params.begin(), tensor.params.end());
        EXPECT_EQ(canonical_tensor_name(config, tensor.name).ends_with(tensor.name), true);
      }
      std::multiset<std::string> wanted;
      const Graph graph = graph_of(config);
      for (const Node& node : graph.nodes())
        if (node.op == Op::kParam) wanted.insert(node.name);
      EXPECT_EQ(held, wanted) << text;
    }
  }
}

TEST(EncoderFamilies, ClassesComeFromTheLabels) {
  Json json = small("bert", "BertForSequenceClassification");
  EXPECT_EQ(parse(json).labels, 2);
  json["num_labels"] = 5;
  EXPECT_EQ(parse(json).labels, 5);
  json["id2label"] = Json::array();
  EXPECT_THROW(parse(json), Error);
}

TEST(EncoderFamilies, WhatIsNotRunIsRefusedByField) {
  const Json bert = small("bert", "BertModel"), masked = small("bert", "BertForMaskedLM");
  EXPECT_NE(refusal(bert, "is_decoder", true).find("\"is_decoder\": true"), std::string::npos);
  EXPECT_NE(refusal(bert, "add_cross_attention", true).find("add_cross_attention"), std::string::npos);
  EXPECT_NE(refusal(bert, "position_embedding_type", "relative_key").find("relative_key"), std::string::npos);
  EXPECT_NE(refusal(bert, "hidden_act", "mish").find("mish"), std::string::npos);
  EXPECT_NE(refusal(bert, "architectures", {"BertForQuestionAnswering"}).find("BertForQuestionAnswering"),
            std::string::npos);
  EXPECT_NE(refusal(masked, "tie_word_embeddings", false).find("tie_word_embeddings"), std::string::npos);
  EXPECT_NE(refusal(small("roberta", "RobertaModel"), "pad_token_id", 19).find("pad_token_id"), std::string::npos);
  EXPECT_NE(
      refusal(small("roberta", "RobertaModel"), "architectures", {"RobertaForPreTraining"}).find("(supported: Robe"),
      std::string::npos);
  EXPECT_EQ(refusal(bert, "is_decoder", false), "");
}

TEST(EncoderFamilies, TensorsOfOtherHeadsAreNoPartOfTheModel) {
  const ModelConfig bert = parse(small("bert", "BertModel"));
  for (const char* name : {"cls.predictions.bias", "bert.embeddings.position_ids", "classifier.weight"})
    EXPECT_TRUE(is_ignored_tensor(bert, name)) << name;
  for (const char* name : {"bert.encoder.layer.7.output.dense.weight", "embeddings.other.weight"})
    EXPECT_FALSE(is_ignored_tensor(bert, name)) << name;
}

TEST(EncoderFamilies, ADecoderWithoutAHeadHasNoLogits) {
  Json json = small("qwen3", "Qwen3Model");
  json["num_key_value_heads"] = 2, json["head_dim"] = 4;
  const ModelConfig config = parse(json);
  EXPECT_TRUE(config.causal);
  EXPECT_EQ(config.head, Head::kNone);
  EXPECT_TRUE(is_ignored_tensor(config, "lm_head.weight"));
  Graph graph;
  Builder builder(graph);
  EXPECT_THROW(build_logits(builder, config, {.tokens = 2, .max_segments = 1, .max_length = 2}), Error);
  const ModelConfig masked = parse(small("bert", "BertForMaskedLM"));
  EXPECT_THROW(build_loss(builder, masked, {.tokens = 2, .max_segments = 1, .max_length = 2}), Error);
  EXPECT_EQ(Json::parse(to_hugging_face_config(config, {}, "float32"))["architectures"], Json::array({"Qwen3Model"}));
}

}  // namespace
}  // namespace octet
