
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/distance.h"
#include "base/testing/test_data.h"
#include "eval/verify.h"
#include "exec/logical_states.h"
#include "io/safetensors.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

constexpr const char* kModels[] = {"hf_goldens/gpt2", "hf_goldens/llama_gqa_rope3"};
// One tensor for q, k and v: by groups of heads, for every head, or below each other with one head of keys.
constexpr const char* kFused[] = {"hf_goldens/falcon_gqa", "hf_goldens/falcon_mqa", "hf_goldens/gpt_neox",
                                  "hf_goldens/bloom",      "hf_goldens/glm",        "hf_goldens/starcoder_mqa",
                                  "hf_goldens/mixtral_moe"};

std::string golden(const std::string& name) { return test_data_path(name); }

// Any positive value will do where no text is run.
CalibratedAmax some_amax(const ModelConfig& config) {
  CalibratedAmax amax;
  const LinearLayout layout = linear_layout(config);
  for (const auto& [gemm, x] : layout.x_of) amax[x] = 3 + static_cast<float>(x.size());
  for (const std::string& attention : layout.attention) amax[attention + ".k"] = 5, amax[attention + ".v"] = 7;
  return amax;
}

std::vector<float> logits(const WeightSource& weights, const Recipe& recipe, std::span<const int32_t> ids,
                          int64_t chunk = 64) {
  IncrementalModel decoder(weights.config(), {.recipe = recipe,
                                              .target = cpu_target(),
                                              .prefill_chunk = chunk,
                                              .cache_dtype = weights.has_kv_scales() ? DType::kE4M3 : DType::kF32,
                                              .cache_scales = weights.has_kv_scales()});
  load_weights(weights, decoder.executor());
  const auto result = decoder.append(ids);
  return {result.begin(), result.end()};
}

const std::vector<int32_t> kPrompt = {3, 17, 42, 9, 28, 5, 11};

TEST(QuantizeFolder, WhatIsWrittenIsWhatQuantizingWhileLoadingMakes) {
  for (const char* name : kModels) {
    const std::string folder = golden(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto source = open_weights(folder);
    const auto plain = logits(*source, parse_recipe("fp32"), kPrompt);
    for (ScaleLayout weights : {ScaleLayout::kRow, ScaleLayout::kTensor, ScaleLayout::kTile128}) {
      const bool blocks = weights == ScaleLayout::kTile128;
      if (blocks && source->config().architecture == "gpt2") continue;
      TempFolder out;
      quantize_folder(
          *source, folder, out.path(),
          {.scheme = {.weights = weights, .activations = blocks ? ActivationScales::kBlock : ActivationScales::kToken},
           .rest = DType::kF32});
      const auto stored = open_weights(out.path());
      ASSERT_TRUE(stored->recipe().has_value());
      Recipe recipe = parse_recipe(blocks ? "fp8-block" : "fp8-current");
      recipe.per_channel_weights = weights == ScaleLayout::kRow;
      const auto from_folder = logits(*stored, *stored->recipe(), kPrompt);
      // GPT-2 folders stack q, k and v in one tensor, which then has one scale; loading gives each its own.
      const bool stacked = source->config().architecture == "gpt2" && weights == ScaleLayout::kTensor;
      if (!stacked) {
        EXPECT_EQ(from_folder, logits(*source, recipe, kPrompt)) << name << " " << scale_layout_name(weights);
      }
      // A wrong scale or place would make the logits unrelated (1.4); rounding to E4M3, up to 1/16 an operand, through
      // two layers of a random model is measured at 0.17 under one scale a tensor.
      EXPECT_LT(relative_distance(from_folder, plain), 0.25) << name << " " << scale_layout_name(weights);
      EXPECT_EQ(from_folder, logits(*stored, *stored->recipe(), kPrompt, /*chunk=*/3)) << "chunks change no codes";
      EXPECT_LT(relative_distance(logits(*stored, parse_recipe("fp32"), kPrompt), plain), 0.25) << "dequantized";
      EXPECT_LT(relative_distance(logits(*stored, parse_recipe("int8"), kPrompt), plain), 0.25) << "quantized anew";
    }
  }
}

// Every tensor keeps the order of its rows: what others read from the folder is the model.
TEST(QuantizeFolder, FusedLinearsStayWhereTheyWere) {
  for (const char* name : kFused) {
    const std::string folder = golden(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto source = open_weights(folder);
    TempFolder out;
    quantize_folder(*source, folder, out.path(), {.rest = DType::kF32});
    const auto before = open_safetensors(folder), after = open_safetensors(out.path());
    int64_t compared = 0;
    for (const std::string& tensor : after->names()) {
      const TensorView codes = after->read(tensor);
      if (codes.type.dtype != DType::kE4M3) continue;
      const TensorView plain = before->read(tensor);
      const auto* values = reinterpret_cast<const float*>(plain.bytes.data());
      std::vector<float> stored(static_cast<size_t>(codes.type.shape.elements()));
      convert(DType::kE4M3, codes.bytes.data(), DType::kF32, stored.data(), codes.type.shape.elements());
      const auto* scales = reinterpret_cast<const float*>(after->read(tensor + "_scale").bytes.data());
      const int64_t cols = codes.type.shape[1];
      const bool transposed = after->find_type(tensor + "_scale")->shape[0] != codes.type.shape[0];
      for (int64_t i = 0; i < codes.type.shape.elements(); ++i)
        stored[static_cast<size_t>(i)] *= scales[transposed ? i % cols : i / cols];
      EXPECT_LT(relative_distance(stored, {values, values + stored.size()}), 0.05) << name << " " << tensor;
      ++compared;
    }
    EXPECT_GT(compared, 0) << name;
    const auto stored = open_weights(out.path());
    Recipe recipe = parse_recipe("fp8-current");
    recipe.per_channel_weights = true;
    EXPECT_EQ(logits(*stored, *stored->recipe(), kPrompt), logits(*source, recipe, kPrompt)) << name;
  }
}

// One parameter holds what has a scale for each expert: its rows have them.
TEST(QuantizeFolder, ExpertsWithOneScaleEachAreReadByRows) {
  const std::string folder = golden("hf_goldens/mixtral_moe");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/mixtral_moe");
  const auto source = open_weights(folder);
  TempFolder out;
  quantize_folder(*source, folder, out.path(), {.scheme = {.weights = ScaleLayout::kTensor}, .rest = DType::kF32});
  const auto stored = open_weights(out.path());
  EXPECT_TRUE(stored->recipe()->per_channel_weights);
  const Shape experts{4 * 80, 64};
  const std::string up = "layers.1.mlp.experts.up.weight";
  const ParamView view = stored->view(up, experts);
  EXPECT_EQ(view.layout, ScaleLayout::kRow);
  ASSERT_EQ(view.scale_inv.size(), 320u);
  EXPECT_EQ(view.scale_inv[0], view.scale_inv[79]);
  EXPECT_NE(view.scale_inv[79], view.scale_inv[80]);
  EXPECT_LT(relative_distance(stored->read(up, experts), source->read(up, experts)), 0.05);
  const auto plain = logits(*source, parse_recipe("fp32"), kPrompt);
  EXPECT_LT(relative_distance(logits(*stored, *stored->recipe(), kPrompt), plain), 0.25);
  quantize_folder(
      *source, folder, out.path() + "/static",
      {.scheme = {.activations = ActivationScales::kStatic}, .rest = DType::kF32, .amax = some_amax(source->config())});
  EXPECT_LT(
      relative_distance(logits(*open_weights(out.path() + "/static"), parse_recipe("fp8-delayed"), kPrompt), plain), 1);
  EXPECT_THROW(quantize_folder(*source, folder, out.path() + "/blocks",
                               {.scheme = {.weights = ScaleLayout::kTile128, .activations = ActivationScales::kBlock}}),
               Error);
}

// A part that ends inside a block has no scales of its own.
TEST(QuantizeFolder, BlocksThatHoldTwoLinearsAreRefused) {
  for (const char* name : {"hf_goldens/falcon_gqa", "hf_goldens/glm"}) {
    const std::string folder = golden(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    TempFolder out;
    EXPECT_THROW(
        quantize_folder(*open_weights(folder), folder, out.path(),
                        {.scheme = {.weights = ScaleLayout::kTile128, .activations = ActivationScales::kBlock}}),
        Error)
        << name;
  }
  EXPECT_TRUE(has_blocks({.name = "whole", .params = {"gate", "up"}, .rows = {256, 128}}, {384, 64}));
  EXPECT_FALSE(has_blocks({.name = "cut", .params = {"gate", "up"}, .rows = {160, 160}}, {320, 64}));
  EXPECT_FALSE(has_blocks({.name = "expert", .params = {"gate"}, .parts = 4}, {160, 64}));
}

TEST(QuantizeFolder, StaticScalesOfActivationsAndCacheAreRead) {
  for (const char* name : kModels) {
    const std::string folder = golden(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto source = open_weights(folder);
    TempFolder out;
    quantize_folder(
        *source, folder, out.path(),
        {.scheme = {.activations = ActivationScales::kStatic, .kv_cache = true}, .amax = some_amax(source->config())});
    const auto stored = open_weights(out.path());
    EXPECT_TRUE(stored->has_kv_scales());
    EXPECT_EQ(stored->recipe()->scaling, Scaling::kDelayed);
    EXPECT_TRUE(stored->recipe()->per_channel_weights);
    EXPECT_FLOAT_EQ(stored->scale(StateRole::kCacheScale, "layers.0.attn.attention", kKeys).value(), 448.0f / 5);
    EXPECT_FLOAT_EQ(stored->scale(StateRole::kCacheScaleInv, "layers.1.attn.attention", kValues).value(), 7 / 448.0f);
    EXPECT_FLOAT_EQ(stored->scale(StateRole::kScale, "layers.0.attn.q.x").value(), 448.0f / (3 + 15));
    EXPECT_FALSE(stored->scale(StateRole::kScale, "layers.9.attn.q.x").has_value());
    for (float value : logits(*stored, *stored->recipe(), kPrompt)) ASSERT_TRUE(std::isfinite(value));
  }
}

// Such files rotate other pairs than Llama folders do: rows of q and k change places.
TEST(QuantizeFolder, Llama2cFilesBecomeFoldersThatSayTheSame) {
  const std::string file = golden("tiny-models/stories260K/stories260K.bin");
  if (file.empty()) GTEST_SKIP() << missing_test_data("tiny-models/stories260K");
  const auto source = open_weights(file);
  TempFolder out;
  quantize_folder(*source, out.path(), out.path(), {.rest = DType::kF32});
  const auto stored = open_weights(out.path());
  const auto plain = logits(*source, parse_recipe("fp32"), kPrompt);
  EXPECT_LT(relative_distance(logits(*stored, parse_recipe("fp32"), kPrompt), plain), 0.1)
      << "a trained model: rounding only";
}

TEST(QuantizeFolder, EveryEndOfATextGoesAlong) {
  const std::string folder = golden(kModels[1]);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(kModels[1]);
  TempFolder from, out;
  std::filesystem::create_symlink(folder + "/model.safetensors", from.file("model.safetensors"));
  nlohmann::json config = nlohmann::json::parse(read_file(folder + "/config.json"));
  config["eos_token_id"] = {5, 7};
  write_file(from.file("config.json"), config.dump());
  write_file(from.file("generation_config.json"), R"({"eos_token_id": [7, 9]})");
  const auto source = open_weights(from.path());
  quantize_folder(*source, "", out.path(), {.rest = DType::kF32});
  EXPECT_EQ(source->special().eos, (std::vector<int64_t>{5, 7, 9}));
  EXPECT_EQ(open_weights(out.path())->special().eos, source->special().eos);
}

// A weight that is not finite is met when the file is half written: nothing of it stays, nor the folders made for it.
TEST(QuantizeFolder, WhatIsRefusedLeavesNoFolderBehind) {
  const std::string folder = golden(kModels[1]);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(kModels[1]);
  TempFolder bad, out;
  write_file(bad.file("config.json"), read_file(folder + "/config.json"));
  std::string tensors = read_file(folder + "/model.safetensors");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, tensors.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(tensors.substr(8, header_bytes));
  const float infinite = INFINITY;
  std::memcpy(tensors.data() + 8 + header_bytes + header[name]["data_offsets"][0].get<size_t>(), &infinite, 4);
  write_file(bad.file("model.safetensors"), tensors);
  const auto source = open_weights(bad.path());
  for (const char* to : {"new", "one/two/", "there"}) {
    make_folders(out.file("there"));
    write_file(out.file("there/notes.txt"), "mine");
    EXPECT_THROW(quantize_folder(*source, "", out.file(to), {.rest = DType::kF32}), Error) << to;
    EXPECT_EQ(list_folder(out.path()), std::vector<std::string>{"there"}) << to;
    EXPECT_EQ(list_folder(out.file("there")), std::vector<std::string>{"notes.txt"}) << to;
  }
}

TEST(QuantizeFolder, StaticScalesNeedCalibration) {
  const std::string folder = golden(kModels[0]);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(kModels[0]);
  TempFolder out;
  EXPECT_THROW(quantize_folder(*open_weights(folder), folder, out.path(),
                               {.scheme = {.activations = ActivationScales::kStatic}}),
               Error);
}

// --- published layouts, made by hand

struct Variant {
  const char* name;
  const char* config;  // quantization_config
  const char* scale;   // suffix of the weight's scale
  Shape (*shape)(int64_t rows, int64_t cols);
  DType scale_dtype;
  bool head;  // is lm_head in FP8 too
};

const Variant kVariants[] = {
    {"per channel, bf16 scales",
     R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups":
        {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel",
        "symmetric": true, "dynamic": false, "observer": "minmax"}, "input_activations": {"num_bits": 8, "type": "float",
        "strategy": "token", "symmetric": true, "dynamic": true}}}})",
     "_scale",
     [](int64_t rows, int64_t) {
       return Shape{rows, 1};
     },
     DType::kBF16, false},
    {"per tensor", R"({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]})",
     "_scale", [](int64_t, int64_t) { return Shape{1}; }, DType::kF32, false},
    {"blocks",
     R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})",
     "_scale_inv",
     [](int64_t rows, int64_t cols) {
       return Shape{(rows + 127) / 128, (cols + 127) / 128};
     },
     DType::kF32, false},
};

// A copy of a llama folder whose linears hold codes of small whole numbers and scales of 1/64.
void write_variant(const std::string& from, const std::string& to, const Variant& variant) {
  const auto tensors = open_safetensors(from);
  std::vector<NamedType> types;
  for (const std::string& name : tensors->names()) {
    TensorType type = *tensors->find_type(name);
    if (name.find("_proj.weight") != std::string::npos) {
      type.dtype = DType::kE4M3;
      types.push_back({name + variant.scale, {variant.scale_dtype, variant.shape(type.shape[0], type.shape[1])}});
    }
    types.push_back({name, type});
  }
  SafetensorsFolderWriter writer(to, types);
  for (const NamedType& entry : writer.tensors()) {
    std::vector<float> values(static_cast<size_t>(entry.type.shape.elements()), 1.0f / 64);
    if (entry.type.dtype == DType::kE4M3) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 7 % 13) - 6);
    } else if (tensors->find_type(entry.name) != nullptr) {
      const TensorView view = tensors->read(entry.name);
      convert(view.type.dtype, view.bytes.data(), DType::kF32, values.data(), static_cast<int64_t>(values.size()));
    }
    std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
    convert(DType::kF32, values.data(), entry.type.dtype, bytes.data(), static_cast<int64_t>(values.size()));
    writer.write(entry.name, bytes);
  }
  writer.finish();
  auto config = nlohmann::json::parse(read_file(from + "/config.json"));
  config["quantization_config"] = nlohmann::json::parse(variant.config);
  write_file(to + "/config.json", config.dump());
}

TEST(QuantizedFolder, PublishedLayoutsAreReadAsTheyAre) {
  const std::string folder = golden(kModels[1]);
  if (folder.empty()) GTEST_SKIP() << missing_test_data(kModels[1]);
  for (const Variant& variant : kVariants) {
    TempFolder out;
    write_variant(folder, out.path(), variant);
    const auto source = open_weights(out.path());
    const Recipe recipe = source->recipe().value();
    const std::vector<float> values = source->read(
        "layers.0.mlp.up.weight", *[&] {
          static Shape shape;
          Graph graph;
          Builder builder(graph);
          build_logits(builder, source->config(), {.tokens = 1, .max_segments = 1, .max_length = 1});
          shape = graph.shape(graph.find_leaf(Op::kParam, "layers.0.mlp.up.weight"));
          return &shape;
        }());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(static_cast<int>(i * 7 % 13) - 6) / 64) << variant.name;
    for (float value : logits(*source, recipe, kPrompt)) ASSERT_TRUE(std::isfinite(value)) << variant.name;
  }
}

TEST(QuantizedFolder, SchemesThatAreNotRunAreRefusedByName) {
  const auto refusal = [](const std::string& config) -> std::string {
    try {
      parse_quantization(R"({"quantization_config": )" + config + "}", "config.json");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(refusal(R"({"quant_method": "gptq"})").find("quant_method is \"gptq\""), std::string::npos);
  EXPECT_NE(refusal(R"({"quant_method": "hqq"})").find("(supported: awq, bitsandbytes, compressed-tensors, fp8, gptq)"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})").find("format"),
            std::string::npos);
  auto scheme = nlohmann::json::parse(kVariants[0].config);
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    auto copy = scheme;
    copy[nlohmann::json::json_pointer(pointer)] = value;
    return refusal(copy.dump());
  };
  EXPECT_EQ(refusal(scheme.dump()), "");
  EXPECT_NE(with("/config_groups/group_0/weights/num_bits", 4).find("weights.num_bits is 4"), std::string::npos);
  EXPECT_NE(with("/config_groups/group_0/weights/type", "int").find("weights.type"), std::string::npos);
  EXPECT_NE(with("/config_groups/group_0/input_activations", 8).find("input_activations"), std::string::npos);
  EXPECT_NE(with("/config_groups/group_0/targets", "Linear").find("targets"), std::string::npos);
  EXPECT_NE(with("/kv_cache_scheme", {{"num_bits", 4}, {"type", "float"}}).find("kv_cache_scheme"), std::string::npos);
  EXPECT_NE(refusal(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]})")
                .find("weight_block_size"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
