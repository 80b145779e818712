#include "weights/quantize_nf4.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "eval/testing/folder_logits.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

// A small Llama with weights by their names.
class RandomModel : public WeightSource {
 public:
  RandomModel() {
    config_.architecture = "llama", config_.layers = 1, config_.hidden = 64, config_.heads = 2, config_.kv_heads = 1;
    config_.head_dim = 32, config_.intermediate = 96, config_.vocab_size = 40, config_.max_positions = 64;
    config_ = parse_hugging_face_config(to_hugging_face_config(config_, special_, "float32"), "config");
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    std::vector<float>& values = held_[param];
    if (values.empty()) {
      uint64_t state = std::hash<std::string>()(param);
      for (int64_t i = 0; i < shape.elements(); ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values.push_back(static_cast<float>(static_cast<int32_t>(state >> 32)) / 2147483648.0F);
      }
    }
    return view_of(DType::kF32, values.data(), shape[0], shape.elements() / shape[0], param);
  }

 private:
  mutable std::map<std::string, std::vector<float>> held_;
};

std::vector<float> read(const WeightSource& weights, const std::string& param) {
  return weights.read(param, param_shapes(weights.config()).at(param));
}

TEST(QuantizeNf4, CodesAreTheirs) {
  const std::string file = test_data_path("adapt/nf4/blocks.safetensors");
  if (file.empty()) GTEST_SKIP() << missing_test_data("adapt/nf4");
  const TensorSource tensors(file);
  const Nf4Matrix made = quantize_nf4(floats_of(tensors.read("weight")));
  EXPECT_EQ(made.magnitudes, floats_of(tensors.read("absmax")));
  const auto codes = tensors.read("codes").bytes;
  ASSERT_EQ(made.codes.size(), codes.size());
  for (size_t i = 0; i < codes.size(); ++i)
    EXPECT_EQ(made.codes[i], std::to_integer<uint8_t>(codes[i])) << "codes " << 2 * i << " and " << 2 * i + 1;
}

TEST(QuantizeNf4, MagnitudesHaveTheirTable) {
  const std::string folder = test_data_path("adapt/nf4/llama_nf4");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/nf4");
  const TensorSource tensors(folder + "/model.safetensors");
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const std::vector<float> table = floats_of(tensors.read(name + ".nested_quant_map"));
  const NestedMagnitudes made = quantize_magnitudes(std::vector<float>{0.25F, 0.5F, 1.75F});
  ASSERT_EQ(made.table.size(), table.size());
  for (size_t i = 0; i < table.size(); ++i) EXPECT_FLOAT_EQ(made.table[i], table[i]) << i;
}

TEST(QuantizeNf4, WhatIsWrittenIsRead) {
  TempFolder out;
  const RandomModel model;
  quantize_to_nf4(model, "", out.path() + "/nf4", DType::kF32);
  const auto weights = open_weights(out.path() + "/nf4");
  EXPECT_EQ(weights->recipe(), std::nullopt);
  for (const auto& [param, shape] : param_shapes(model.config())) {
    const std::vector<float> before = read(model, param), after = read(*weights, param);
    ASSERT_EQ(before.size(), after.size()) << param;
    const bool linear =
        param.ends_with(".weight") && linear_layout(model.config()).x_of.contains(param.substr(0, param.rfind('.')));
    if (!linear) {
      EXPECT_EQ(before, after) << param;
      continue;
    }
    for (size_t block = 0; block < before.size(); block += 64) {
      float most = 0, error = 0;
      for (size_t i = block; i < std::min(block + 64, before.size()); ++i) {
        most = std::max(most, std::abs(before[i]));
        error = std::max(error, std::abs(before[i] - after[i]));
      }
      // Half the widest gap of codes, -1 to -0.696, and what double quantization rounds: 0.7 % of the magnitudes'
      // range.
      EXPECT_LT(error, 0.152F * most + 0.01F) << param << " from " << block;
      EXPECT_GT(error, 0) << param;
    }
  }
}

TEST(QuantizeNf4, DamagedFoldersAreRefused) {
  TempFolder out;
  const std::string folder = out.path() + "/nf4", config = folder + "/config.json";
  quantize_to_nf4(RandomModel(), "", folder);
  const auto message = [&] {
    try {
      open_weights(folder);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("nothing is refused");
  };
  const std::string text = read_file(config, 1 << 20);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    write_file(config, changed);
    return message();
  };
  EXPECT_NE(with("\"load_in_8bit\": false", "\"load_in_8bit\": true").find("load_in_8bit is true"), std::string::npos);
  EXPECT_NE(with("\"intermediate_size\": 96", "\"intermediate_size\": 128").find("it is of a matrix [96,64]"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
