// Folders whose config.json ties the head to the embedding while a tensor of the head lies there too: one parameter
// where they hold the same values, two where they do not, wherever the folder is read.
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/log.h"
#include "base/testing/test_error.h"
#include "io/safetensors.h"
#include "system/tiny.h"
#include "train/checkpoint.h"
#include "train/trainer.h"
#include "weights/quantized_folder.h"
#include "weights/weights.h"

namespace octet {
namespace {

enum class Head { kSame, kSameInOtherType, kOther };

struct Tensors {
  std::vector<NamedType> types;
  std::map<std::string, std::vector<std::byte>> bytes;

  void add(const std::string& name, const TensorType& type, std::vector<std::byte> content) {
    types.push_back({name, type});
    bytes[name] = std::move(content);
  }
  void write(const std::string& path) const {
    SafetensorsWriter writer(path, types);
    for (const NamedType& each : writer.tensors()) writer.write(each.name, bytes.at(each.name));
    writer.finish();
  }
};

Tensors tensors_but(const std::string& folder, const std::string& left_out) {
  Tensors tensors;
  const auto source = open_safetensors(folder);
  for (const std::string& name : source->names()) {
    const TensorView view = source->read(name);
    if (name != left_out) tensors.add(name, view.type, {view.bytes.begin(), view.bytes.end()});
  }
  return tensors;
}

// A copy of a tied checkpoint with a tensor of the head.
std::string with_head(const std::string& checkpoint, const std::string& folder, Head head) {
  make_folders(folder);
  const ModelConfig config = read_model_config(checkpoint);
  const std::string name = head_tensor(config);
  Tensors tensors = tensors_but(checkpoint, name);
  std::vector<std::byte>& embedding = tensors.bytes.at(embedding_tensor(config));
  TensorType type{DType::kF32, {config.vocab_size, config.hidden}};
  std::vector<std::byte> content = embedding;
  if (head == Head::kOther) content.back() ^= std::byte{1};
  if (head == Head::kSameInOtherType) {  // values that bf16 holds
    type.dtype = DType::kBF16;
    content.resize(embedding.size() / 2);
    convert(DType::kF32, embedding.data(), DType::kBF16, content.data(), type.shape.elements());
    convert(DType::kBF16, content.data(), DType::kF32, embedding.data(), type.shape.elements());
  }
  tensors.add(name, type, content);
  tensors.write(folder + "/model.safetensors");
  write_file(folder + "/config.json", read_file(checkpoint + "/config.json"));
  return folder;
}

class TiedHead : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kOff);
    RunConfig config = tiny_config(folder_, "fp32");
    config.architecture = GetParam() == std::string("gpt2") ? "" : GetParam();
    config.steps = 1, config.eval_interval = 0, config.validation_data.clear();
    checkpoint_ = train(config).checkpoint;
    const std::string path = checkpoint_ + "/config.json";
    nlohmann::json file = parse_json(read_file(path), path);
    file["tie_word_embeddings"] = true;
    write_file(path, file.dump());
    tensors_but(checkpoint_, head_tensor(read_model_config(checkpoint_))).write(checkpoint_ + "/model.safetensors");
    remove_path(checkpoint_ + "/manifest.json");
  }

  RunConfig from(const std::string& model, const std::string& out) {
    RunConfig config = tiny_config(folder_, "fp32");
    config.model_from = model;
    config.vocab_size = config.hidden = config.layers = config.heads = config.intermediate = config.max_positions = 0;
    config.kv_heads = 0;
    config.steps = 1, config.eval_interval = 0, config.validation_data.clear();
    config.out = folder_.file(out);
    return config;
  }

  TempFolder folder_;
  std::string checkpoint_;
};

TEST_P(TiedHead, IsOneParameterOnlyWhereItIsTheEmbedding) {
  EXPECT_TRUE(read_model_config(checkpoint_).tie_embeddings);
  for (Head head : {Head::kSame, Head::kSameInOtherType}) {
    const std::string same = with_head(checkpoint_, folder_.file("same"), head);
    EXPECT_TRUE(read_model_config(same).tie_embeddings);
    EXPECT_TRUE(open_weights(same)->config().tie_embeddings);
    EXPECT_TRUE(resolve_model(from(same, "unused"), 0).tie_embeddings);
  }

  const std::string other = with_head(checkpoint_, folder_.file("other"), Head::kOther);
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(read_model_config(other).tie_embeddings);
  const std::string warned = testing::internal::GetCapturedStderr();
  EXPECT_NE(warned.find(head_tensor(read_model_config(other))), std::string::npos) << warned;
  EXPECT_NE(warned.find("both are used"), std::string::npos) << warned;
  set_log_level(LogLevel::kOff);
  const auto weights = open_weights(other);
  EXPECT_FALSE(weights->config().tie_embeddings);
  const Shape shape{weights->config().vocab_size, weights->config().hidden};
  EXPECT_NE(weights->read("head.weight", shape), weights->read("embed.weight", shape));
}

TEST_P(TiedHead, OfItsOwnIsTrainedKeptAndQuantized) {
  const std::string other = with_head(checkpoint_, folder_.file("other"), Head::kOther);
  RunConfig config = from(other, "tuned");
  const std::string tuned = train(config).checkpoint;
  const ModelConfig kept = read_model_config(tuned);
  EXPECT_FALSE(kept.tie_embeddings);
  EXPECT_NE(read_file(tuned + "/config.json").find("\"tie_word_embeddings\": false"), std::string::npos);
  EXPECT_NE(open_safetensors(tuned)->find_type(head_tensor(kept)), nullptr);
  config.steps = 2;
  EXPECT_EQ(error_of([&] { train(config); }), "(no error)") << "a run that goes on";

  const std::string quantized = folder_.file("quantized");
  quantize_folder(*open_weights(other), checkpoint_, quantized, {});
  EXPECT_FALSE(read_model_config(quantized).tie_embeddings);
}

INSTANTIATE_TEST_SUITE_P(, TiedHead, testing::Values("gpt2", "gpt_neox", "llama"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace octet
