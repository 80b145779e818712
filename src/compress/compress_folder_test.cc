#include "compress/compress_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/testing/distance.h"
#include "base/testing/test_data.h"
#include "compress/packed_tensors.h"
#include "compress/testing/random_weights.h"
#include "eval/verify.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

constexpr int64_t kLength = 16;

CompressFolderOptions options_of(CompressMethod method, int bits, const ModelConfig& config) {
  return {.rule = {.method = method,
                   .codes = {.bits = bits,
                             .group = bits == 4 ? 32 : 0,
                             .scale_type = bits == 4 ? DType::kBF16 : DType::kF32}},
          .ids = some_ids(16 * kLength, config.vocab_size),
          .length = kLength,
          .rest = DType::kF32,
          .target = cpu_target()};
}

std::vector<float> logits(const WeightSource& weights) {
  IncrementalModel model(weights.config(), {.recipe = parse_recipe("fp32"), .target = cpu_target()});
  load_weights(weights, model.executor());
  const auto made = model.append(some_ids(9, weights.config().vocab_size, 3));
  return {made.begin(), made.end()};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const std::string& name : list_folder(folder)) files[name] = read_file(folder + "/" + name);
  return files;
}

TEST(CompressFolder, EveryFamilyIsNearItself) {
  for (const std::string& name : architectures()) {
    ModelConfig config = small_model(name);
    config.experts.per_token = config.experts.count;  // no rounding sends a token to other experts
    // Norms behind branches scale a small branch and its errors up to the size of the residual stream: twice the error.
    const bool sandwich = config.residual == Residual::kSandwich;
    if (sandwich) config.layers = 1;
    const RandomWeights weights(config);
    const std::vector<float> plain = logits(weights);
    for (const auto& [method, bits] :
         {std::pair(CompressMethod::kGptq, 4), std::pair(CompressMethod::kSmoothQuant, 8)}) {
      TempFolder out;
      const auto report = compress_folder(weights, "", out.path(), options_of(method, bits, weights.config()));
      EXPECT_EQ(report.size(), linear_layout(weights.config()).x_of.size()) << name;
      for (const LinearReport& linear : report) {
        EXPECT_GT(linear.error, 0) << name << " " << linear.gemm;
        EXPECT_LT(linear.error, bits == 4 ? 0.2 : 0.02) << name << " " << linear.gemm;
      }
      // A random model of two layers carries errors of a tenth (4 bits) and a hundredth (8) on; unrelated ones are 1.4
      // apart.
      EXPECT_LT(relative_distance(logits(*open_weights(out.path())), plain),
                (bits == 4 ? 0.5 : 0.05) * (sandwich ? 2 : 1))
          << name << " " << compress_method_name(method);
      EXPECT_FALSE(has_interrupted_run(out.path()));
    }
  }
}

// Each expert by the tokens that reach it; those that none reaches are told, and rounded to nearest. Routers stay.
TEST(CompressFolder, ExpertsAreRoundedEachByItsTokens) {
  ModelConfig config = small_model("qwen3_moe");
  config.dense_layers = {1};
  const RandomWeights weights(config);
  const auto unseen = [&](int64_t tokens) {
    CompressFolderOptions options = options_of(CompressMethod::kGptq, 4, config);
    options.ids.resize(static_cast<size_t>(tokens * kLength));
    options.ids.assign(options.ids.size(), 5);
    TempFolder out;
    std::map<std::string, int64_t> experts;
    for (const LinearReport& linear : compress_folder(weights, "", out.path(), options))
      experts[linear.gemm] = linear.unseen;
    return experts;
  };
  const auto of_one_word = unseen(1);
  EXPECT_EQ(of_one_word.at("layers.0.mlp.experts.gate"), of_one_word.at("layers.0.mlp.experts.down"));
  EXPECT_GT(of_one_word.at("layers.0.mlp.experts.down"), 0);
  EXPECT_LT(of_one_word.at("layers.0.mlp.experts.down"), config.experts.count);
  EXPECT_EQ(of_one_word.at("layers.1.mlp.down"), 0);

  TempFolder out;
  CompressFolderOptions options = options_of(CompressMethod::kGptq, 4, config);
  options.rule.keep = {"layers.1"};
  options.rule.order = ColumnOrder::kActivation;
  std::map<std::string, double> errors, plain;
  for (const LinearReport& linear : compress_folder(weights, "", out.path(), options))
    errors[linear.gemm] = linear.error;
  EXPECT_FALSE(errors.contains("layers.1.mlp.experts.down"));
  const auto json = parse_json(read_file(out.path() + "/config.json"), "config.json");
  const auto ignored = json["quantization_config"]["ignore"].get<std::vector<std::string>>();
  EXPECT_TRUE(std::ranges::count(ignored, "model.layers.0.mlp.gate")) << "a router";
  EXPECT_TRUE(std::ranges::count(ignored, "model.layers.1.mlp.down_proj"));
  EXPECT_FALSE(std::ranges::count(ignored, "model.layers.0.mlp.experts.3.up_proj"));
  const auto packed = open_weights(out.path());
  const std::string router = "layers.0.mlp.router.weight";
  const Shape shape = param_shapes(config).at(router);
  EXPECT_EQ(packed->read(router, shape), weights.read(router, shape));

  options.rule.method = CompressMethod::kRoundToNearest, options.rule.order = ColumnOrder::kAsStored;
  TempFolder rounded;
  for (const LinearReport& linear : compress_folder(weights, "", rounded.path(), options))
    plain[linear.gemm] = linear.error;
  for (const char* gemm : {"layers.0.mlp.experts.gate", "layers.0.mlp.experts.up", "layers.0.mlp.experts.down"})
    EXPECT_LT(errors.at(gemm), 0.95 * plain.at(gemm)) << gemm;
}

TEST(CompressFolder, MethodsChangeOutputsLessThanRounding) {
  const RandomWeights weights(small_model("llama"));
  const auto mean_error = [&](CompressMethod method, int bits) {
    TempFolder out;
    double sum = 0;
    const auto report = compress_folder(weights, "", out.path(), options_of(method, bits, weights.config()));
    for (const LinearReport& linear : report) sum += linear.error / static_cast<double>(report.size());
    return sum;
  };
  const double plain = mean_error(CompressMethod::kRoundToNearest, 4);
  EXPECT_LT(mean_error(CompressMethod::kAwq, 4), 0.95 * plain);
  EXPECT_LT(mean_error(CompressMethod::kGptq, 4), 0.95 * plain);
  EXPECT_LT(mean_error(CompressMethod::kGptq, 8), mean_error(CompressMethod::kRoundToNearest, 8));
}

TEST(CompressFolder, AnInterruptedRunGoesOn) {
  const RandomWeights weights(small_model("llama"));
  for (const CompressMethod method : {CompressMethod::kGptq, CompressMethod::kAwq}) {
    const CompressFolderOptions options = options_of(method, 4, weights.config());
    TempFolder whole, interrupted;
    compress_folder(weights, "", whole.path(), options);
    struct Stop {};
    EXPECT_THROW(compress_folder(weights, "", interrupted.path(), options,
                                 [](int64_t, int64_t, const std::string&) { throw Stop(); }),
                 Stop);
    EXPECT_TRUE(has_interrupted_run(interrupted.path()));
    EXPECT_FALSE(path_exists(interrupted.path() + "/config.json"));
    const std::string first = interrupted.path() + "/model-00001-of-00003.safetensors";
    const auto made = std::filesystem::last_write_time(first);
    CompressFolderOptions other = options;
    other.rule.codes.group = 64;
    EXPECT_NE(
        message_of([&] { compress_folder(weights, "", interrupted.path(), other); }).find("group was 32 and is 64"),
        std::string::npos);
    const auto report = compress_folder(weights, "", interrupted.path(), options);
    EXPECT_EQ(report.size(), 14u);
    EXPECT_EQ(std::filesystem::last_write_time(first), made) << "the first layer was not made again";
    EXPECT_EQ(contents(interrupted.path()), contents(whole.path()));
  }
}

TEST(CompressFolder, LinearsThatReadOneInputAreKeptTogether) {
  const RandomWeights weights(small_model("llama"));
  CompressFolderOptions options = options_of(CompressMethod::kRoundToNearest, 4, weights.config());
  options.rule.keep = {"mlp.down", "layers.1.attn.k"};
  TempFolder out;
  for (const LinearReport& linear : compress_folder(weights, "", out.path(), options))
    EXPECT_EQ(linear.kept, linear.gemm.ends_with("mlp.down") || linear.gemm == "layers.1.attn.q" ||
                               linear.gemm == "layers.1.attn.k" || linear.gemm == "layers.1.attn.v")
        << linear.gemm;
  const auto config = parse_json(read_file(out.path() + "/config.json"), "config.json");
  EXPECT_EQ(config["quantization_config"]["ignore"],
            nlohmann::json({"lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj",
                            "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.v_proj",
                            "model.layers.1.mlp.down_proj"}));
  const auto packed = open_weights(out.path());
  const Shape shape{64, 256};
  EXPECT_EQ(packed->read("layers.0.mlp.down.weight", shape), weights.read("layers.0.mlp.down.weight", shape));
}

TEST(CompressFolder, ABoundKeepsTheWorst) {
  const RandomWeights weights(small_model("llama"));
  CompressFolderOptions options = options_of(CompressMethod::kRoundToNearest, 4, weights.config());
  TempFolder all, bounded;
  double worst = 0;
  for (const LinearReport& linear : compress_folder(weights, "", all.path(), options))
    worst = std::max(worst, linear.error);
  options.rule.bound = 0.999 * worst;
  int64_t kept = 0;
  for (const LinearReport& linear : compress_folder(weights, "", bounded.path(), options)) kept += linear.kept;
  EXPECT_GE(kept, 1);
  EXPECT_LE(kept, 3) << "the worst, with those that read what it reads";
}

TEST(CompressFolder, WhatCannotBeIsRefusedBeforeAnythingRuns) {
  const RandomWeights weights(small_model("llama"));
  const auto message = [&](const std::function<void(CompressRule&)>& change) {
    CompressFolderOptions options = options_of(CompressMethod::kRoundToNearest, 4, weights.config());
    change(options.rule);
    return message_of([&] { check_compress_options(weights, options.rule); });
  };
  EXPECT_EQ(message([](CompressRule&) {}), "");
  EXPECT_NE(message([](CompressRule& rule) { rule.codes.group = 128; }).find("groups of 128 do not divide its 64"),
            std::string::npos);
  EXPECT_NE(message([](CompressRule& rule) { rule.method = CompressMethod::kSmoothQuant; }), "");
  EXPECT_NE(message([](CompressRule& rule) { rule.order = ColumnOrder::kActivation; }).find("--act-order"),
            std::string::npos);
  EXPECT_NE(message([](CompressRule& rule) { rule.keep = {"mlp.dwon"}; }).find("no linear has this name"),
            std::string::npos);
}

TEST(CompressFolder, WeightsThatAreNotFiniteAreNamed) {
  RandomWeights weights(small_model("llama"));
  weights.values("layers.1.mlp.gate.weight")[70] = std::numeric_limits<float>::quiet_NaN();
  TempFolder out;
  const std::string message = message_of([&] {
    compress_folder(weights, "", out.path(), options_of(CompressMethod::kRoundToNearest, 4, weights.config()));
  });
  EXPECT_NE(message.find("layers.1.mlp.gate.weight"), std::string::npos) << message;
}

}  // namespace
}  // namespace octet
