// quantization_config as programs in use write it: schemes for some linears each, older names and places, scales under
// several names, FP8 weights alone, blocks of 128 that several linears share.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "eval/testing/folder_logits.h"
#include "weights/packed_folder.h"

namespace octet {
namespace {

using Json = nlohmann::json;

std::string testdata(const std::string& name) { return source_dir() + "/src/weights/testdata/" + name; }
Json config_of(const std::string& folder) { return Json::parse(read_file(folder + "/config.json")); }

// A folder of these tensors, which may be of several files, beside `config`.
class MadeFolder {
 public:
  explicit MadeFolder(const Json& config) { write_file(folder_.file("config.json"), config.dump()); }
  void add(const TensorSource& from, const std::string& name) {
    const TensorView view = from.read(name);
    add(name, view.type, {view.bytes.begin(), view.bytes.end()});
  }
  void add(const std::string& name, const TensorType& type, std::vector<std::byte> bytes) {
    tensors_[name] = {type, std::move(bytes)};
  }
  void add(const std::string& name, DType dtype, const Shape& shape, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
    convert(DType::kF32, values.data(), dtype, bytes.data(), std::ssize(values));
    add(name, {dtype, shape}, std::move(bytes));
  }
  const std::string& write() {
    std::vector<NamedType> types;
    for (const auto& [name, tensor] : tensors_) types.push_back({name, tensor.first});
    SafetensorsWriter writer(folder_.file("model.safetensors"), types);
    for (const NamedType& type : writer.tensors()) writer.write(type.name, tensors_.at(type.name).second);
    writer.finish();
    return folder_.path();
  }
  TempFolder folder_;

 private:
  std::map<std::string, std::pair<TensorType, std::vector<std::byte>>> tensors_;
};

std::string error_of(const auto& run) {
  try {
    run();
    return "no error";
  } catch (const Error& error) {
    return error.message();
  }
}

// --- integer weights

// Attention in 4 bits by groups of 32, with sorted columns, the MLP in 8 by groups of 64.
class TwoWidths : public MadeFolder {
 public:
  TwoWidths() : MadeFolder(config()) {
    const TensorSource four(testdata("gptq_v2_act_order") + "/model.safetensors");
    const TensorSource eight(testdata("gptq_v2_8bit") + "/model.safetensors");
    for (const TensorSource* from : {&four, &eight})
      for (const std::string& name : from->names())
        if ((name.find(".mlp.") == std::string::npos) == (from == &four)) add(*from, name);
  }
  static Json config() {
    Json json = config_of(testdata("gptq_v2_act_order"));
    json["quantization_config"]["dynamic"] = {{"+:.*\\.mlp\\..*", {{"bits", 8}, {"group_size", 64}}},
                                              {"-:lm_head", Json::object()}};
    return json;
  }
};

TEST(PublishedSchemes, SomeLinearsOfAGptqFolderHaveTheirOwn) {
  TwoWidths made;
  const auto mixed = open_weights(made.write()), four = open_weights(testdata("gptq_v2_act_order")),
             eight = open_weights(testdata("gptq_v2_8bit"));
  const Recipe recipe = *mixed->recipe();
  EXPECT_EQ(recipe.name, "w4i8");
  for (const auto& [gemm, format, layout] : {std::tuple("layers.0.attn.q", DType::kI4, ScaleLayout::kRow32),
                                             {"layers.1.mlp.down", DType::kI8, ScaleLayout::kRow64}}) {
    const GemmPrecision decision = recipe.decide(gemm, GemmRole::kFprop);
    EXPECT_TRUE(decision.codes) << gemm;
    EXPECT_EQ(decision.weights.format, format) << gemm;
    EXPECT_EQ(decision.weights.layout, layout) << gemm;
    const std::string param = std::string(gemm) + ".weight";
    const Shape shape = param_shapes(mixed->config()).at(param);
    EXPECT_EQ(mixed->read(param, shape), (format == DType::kI4 ? four : eight)->read(param, shape)) << param;
  }
  const auto run = [&](const Recipe& how) {
    IncrementalModel decoder(mixed->config(), {.recipe = how, .target = cpu_target(), .cache_dtype = DType::kF32});
    load_weights(*mixed, decoder.executor());
    const auto result = decoder.append(input_ids(testdata("gptq_v2_8bit")));
    return std::vector<float>(result.begin(), result.end());
  };
  EXPECT_LT(distance(run(recipe), run(parse_recipe("fp32"))), 0.1) << "x has codes";
  // Where one of the two has kernels, the other is dequantized.
  const Recipe on_gpu = serving_recipe(*mixed, h200_target(), "");
  EXPECT_EQ(on_gpu.name, "w4a8");
  EXPECT_TRUE(on_gpu.decide("layers.0.attn.q", GemmRole::kFprop).codes);
  EXPECT_FALSE(on_gpu.decide("layers.0.mlp.up", GemmRole::kFprop).codes);
}

TEST(PublishedSchemes, TheFirstPatternOfAGptqFolderCounts) {
  const auto schemes = parse_packing(R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
    "dynamic": {"z.*": {"bits": 8}, "-:y.*": {}, "+:a.*": {"group_size": 32}}}})",
                                     "config.json");
  std::vector<std::string> found;
  for (const auto& [target, scheme] : schemes->rules) found.push_back(target);
  EXPECT_EQ(found, (std::vector<std::string>{"re:z.*", "re:a.*", "Linear"}));
  EXPECT_EQ(schemes->rules[0].second.format, DType::kI8);
  EXPECT_EQ(schemes->rules[1].second.layout, ScaleLayout::kRow32);
}

// A pattern must match from the name's beginning, as Python's re.match does.
TEST(PublishedSchemes, APatternThatDoesNotMatchChangesNothing) {
  TwoWidths made;
  Json json = TwoWidths::config();
  json["quantization_config"]["dynamic"] = {{"mlp", {{"bits", 8}, {"group_size", 64}}}};
  write_file(made.folder_.file("config.json"), json.dump());
  const std::string folder = made.write();
  EXPECT_NE(error_of([&] { open_weights(folder); }).find(".qweight is i32[16,128]"), std::string::npos)
      << error_of([&] { open_weights(folder); });
  json["quantization_config"]["dynamic"] = {{"+:.*mlp.*", {{"bits", 3}}}};
  write_file(folder + "/config.json", json.dump());
  EXPECT_NE(error_of([&] { open_weights(folder); }).find("dynamic.+:.*mlp.*.bits is 3 (supported: 4, 8)"),
            std::string::npos);
}

Json group_of(const std::vector<std::string>& targets, int bits, const Json& inputs = nullptr) {
  return {{"targets", targets},
          {"weights", {{"num_bits", bits}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}}},
          {"input_activations", inputs}};
}

std::string with_groups(const Json& groups, const Json& more = Json::object()) {
  Json config = {{"quant_method", "compressed-tensors"}, {"format", "mixed-precision"}, {"config_groups", groups}};
  config.update(more);
  return Json{{"quantization_config", config}}.dump();
}

TEST(PublishedSchemes, GroupsOfCompressedTensorsGoFromNamesToAll) {
  const auto schemes = parse_packing(
      with_groups({{"a", group_of({"Linear"}, 8)}, {"b", group_of({"re:.*mlp.*", "model.layers.0.mlp.up_proj"}, 4)}}),
      "config.json");
  ASSERT_TRUE(schemes.has_value());
  std::vector<std::pair<std::string, DType>> found;
  for (const auto& [target, scheme] : schemes->rules) found.emplace_back(target, scheme.format);
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, DType>>{
                {"model.layers.0.mlp.up_proj", DType::kI4}, {"re:.*mlp.*", DType::kI4}, {"Linear", DType::kI8}}));
}

TEST(PublishedSchemes, GroupsOfCompressedTensorsAreFoundByTheirTargets) {
  const std::string folder = testdata("ct_qwen2_moe");
  Json json = config_of(folder);
  Json& groups = json["quantization_config"]["config_groups"];
  Json attention = groups["group_0"], mlp = groups["group_0"];
  attention["targets"] = {"re:.*self_attn.*"}, mlp["targets"] = {"re:.*mlp.*"};
  groups = {{"group_0", attention}, {"group_1", mlp}};
  MadeFolder made(json);
  const TensorSource tensors(folder + "/model.safetensors");
  for (const std::string& name : tensors.names()) made.add(tensors, name);
  std::filesystem::copy_file(folder + "/expected.safetensors", made.folder_.file("expected.safetensors"));
  EXPECT_LT(largest_difference(logits(made.write(), "fp32", cpu_target()), expected_logits(folder)), 2e-4);
  groups.erase("group_1");
  write_file(made.folder_.file("config.json"), json.dump());
  const std::string error = error_of([&] { open_weights(made.folder_.path()); });
  EXPECT_NE(error.find("is quantized, but no group of quantization_config names it"), std::string::npos) << error;
}

TEST(PublishedSchemes, ActivationsInInt8AreReadHoweverTheyAreScaled) {
  const auto runs = [](const Json& inputs) {
    return parse_packing(with_groups({{"a", group_of({"Linear"}, 8, inputs)}}), "config.json")->rules[0].second;
  };
  for (const char* strategy : {"token", "tensor"})
    for (const bool dynamic : {false, true})
      for (const bool symmetric : {false, true}) {
        const Json inputs = {
            {"num_bits", 8}, {"type", "int"}, {"strategy", strategy}, {"dynamic", dynamic}, {"symmetric", symmetric}};
        EXPECT_TRUE(runs(inputs).int8_activations) << inputs;
      }
  EXPECT_FALSE(runs(nullptr).int8_activations);
  EXPECT_NE(error_of([&] {
              runs({{"num_bits", 8}, {"type", "int"}, {"strategy", "group"}});
            }).find("strategy is"),
            std::string::npos);
}

// Scales and zero points of x are no stray tensors.
TEST(PublishedSchemes, ScalesOfActivationsInInt8ArePartOfTheFolder) {
  ModelConfig config = model_family("llama");
  config.vocab_size = 32, config.hidden = 16, config.layers = 1, config.heads = 2, config.intermediate = 16;
  MadeFolder made(Json::object());
  const std::string q = "model.layers.0.self_attn.q_proj";
  std::vector<std::byte> codes(256, std::byte{3});
  made.add(q + ".weight", {DType::kI8, {16, 16}}, codes);
  made.add(q + ".weight_scale", DType::kF32, {16, 1}, std::vector<float>(16, 0.5f));
  made.add(q + ".input_scale", DType::kF32, {1}, {0.25f});
  made.add(q + ".input_zero_point", {DType::kI8, {1}}, {std::byte{7}});
  const TensorSource tensors(made.write() + "/model.safetensors");
  const PackedTensors packed(tensors, config,
                             PackedScheme{.method = PackedMethod::kCompressed,
                                          .format = DType::kI8,
                                          .layout = ScaleLayout::kRow,
                                          .int8_activations = true},
                             "here");
  EXPECT_EQ(packed.recipe().name, "int8");
  for (const char* part : {".weight", ".weight_scale", ".input_scale", ".input_zero_point"})
    EXPECT_TRUE(packed.is_part(q + part)) << part;
}

TEST(PublishedSchemes, KeysWithoutMeaningAndOlderNames) {
  const Json dense = {{"format", "dense"}, {"targets", {"model.layers.0"}}}, group = {{"a", group_of({"Linear"}, 4)}};
  EXPECT_TRUE(parse_packing(with_groups(group, {{"sparsity_config", dense}}), "config.json").has_value());
  EXPECT_NE(
      error_of([&] {
        parse_packing(with_groups(group, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}), "config.json");
      }).find("sparsity_config is"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_packing(with_groups(group, {{"transform_config", dense}}), "config.json");
            }).find("transform_config is"),
            std::string::npos);
  Json older = Json::parse(with_groups(group));
  older["compression_config"] = older["quantization_config"];
  older["quantization_config"] = nullptr;
  EXPECT_TRUE(parse_packing(older.dump(), "config.json").has_value());
  older["compression_config"]["config_groups"]["a"]["weights"]["num_bits"] = 3;
  EXPECT_NE(error_of([&] { parse_packing(older.dump(), "config.json"); }).find("compression_config.config_groups.a"),
            std::string::npos);
}

TEST(PublishedSchemes, QuantizationInAFileOfItsOwn) {
  const std::string folder = testdata("gptq_v2_8bit");
  Json json = config_of(folder), own = json["quantization_config"];
  json.erase("quantization_config"), own.erase("quant_method");
  MadeFolder made(json);
  const TensorSource tensors(folder + "/model.safetensors");
  for (const std::string& name : tensors.names()) made.add(tensors, name);
  const std::string copy = made.write();
  EXPECT_NE(error_of([&] { open_weights(copy); }), "no error");
  std::filesystem::copy_file(folder + "/expected.safetensors", copy + "/expected.safetensors");
  const auto works = [&](const char* file) {
    write_file(copy + "/" + file, own.dump());
    const auto weights = open_weights(copy);
    EXPECT_EQ(weights->recipe()->weights.format, DType::kI8);
    EXPECT_LT(largest_difference(logits(copy, "fp32", cpu_target()), expected_logits(folder)), 2e-4) << file;
  };
  works("quantize_config.json");
  own["bits"] = 3;
  write_file(copy + "/quantize_config.json", own.dump());
  EXPECT_NE(error_of([&] { open_weights(copy); }).find("quantize_config.json: quantization_config.bits is 3"),
            std::string::npos);
  std::filesystem::remove(copy + "/quantize_config.json");
  own.erase("bits"), own["w_bit"] = 8, own["q_group_size"] = own["group_size"], own.erase("group_size");
  own["quant_method"] = "gptq";
  works("quant_config.json");
}

// --- FP8

FolderQuantization blocks() { return {.weights = ScaleLayout::kTile128, .activations = ActivationScales::kBlock}; }

ModelConfig wide(const char* architecture) {
  ModelConfig config = model_family(architecture);
  config.vocab_size = 32, config.hidden = 160, config.layers = 1, config.heads = 2, config.kv_heads = 2;
  config.head_dim = 16, config.intermediate = 96, config.experts.intermediate = 96;
  if (config.experts.count > 0) config.experts.count = 2, config.experts.per_token = 1;
  return config;
}

float code_of(int64_t i) { return static_cast<float>(i * 7 % 13 - 6); }
void add_blocks(MadeFolder& folder, const std::string& module, const Shape& shape, float first_scale) {
  std::vector<float> codes, scales;
  for (int64_t i = 0; i < shape.elements(); ++i) codes.push_back(code_of(i));
  const Shape tiles{(shape[0] + 127) / 128, (shape[1] + 127) / 128};
  for (int64_t i = 0; i < tiles.elements(); ++i) scales.push_back(first_scale + static_cast<float>(i));
  folder.add(module + ".weight", DType::kE4M3, shape, codes);
  folder.add(module + ".weight_scale_inv", DType::kF32, tiles, scales);
}

// gate [96, 160] and up [96, 160] in one tensor: rows 96 to 127 of its first blocks are up's.
TEST(PublishedSchemes, BlocksThatTwoLinearsShareAreReadByRows) {
  const ModelConfig config = wide("glm");
  MadeFolder made(Json::object());
  add_blocks(made, "model.layers.0.mlp.gate_up_proj", {192, 160}, 1);
  const TensorSource tensors(made.write() + "/model.safetensors");
  const QuantizedTensors quantized(tensors, config, blocks(), "here");
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    if (tensors.find_type(tensor.name) == nullptr) continue;
    for (size_t i = 0; i < 2; ++i) {
      ParamView view = view_of(tensor, i, tensors.read(tensor.name), "gate_up");
      quantized.add_scales(tensor.params[i], view);
      const std::vector<float> values = read_floats(view);
      for (int64_t at = 0; at < 96 * 160; ++at) {
        const int64_t row = at / 160 + static_cast<int64_t>(i) * 96, k = at % 160;
        const int64_t scale = 1 + row / 128 * 2 + k / 128;
        ASSERT_EQ(values[static_cast<size_t>(at)], code_of(row * 160 + k) * static_cast<float>(scale))
            << i << ": " << row << " " << k;
      }
    }
  }
  EXPECT_FALSE(quantized.recipe().decide("layers.0.mlp.gate", GemmRole::kFprop).codes);
}

TEST(PublishedSchemes, ExpertsThatDoNotFillABlockAreDequantized) {
  const ModelConfig config = wide("qwen3_moe");
  MadeFolder made(Json::object());
  std::vector<std::string> names;
  for (int expert = 0; expert < 2; ++expert) {
    names.push_back(fmt::format("model.layers.0.mlp.experts.{}.gate_proj", expert));
    add_blocks(made, names.back(), {96, 160}, static_cast<float>(1 + 4 * expert));
  }
  const TensorSource tensors(made.write() + "/model.safetensors");
  const QuantizedTensors quantized(tensors, config, blocks(), "here");
  std::vector<ParamView> parts;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config))
    if (tensors.find_type(tensor.name) != nullptr)
      parts.push_back(view_of(tensor, 0, tensors.read(tensor.name), tensor.name));
  ParamView view = stacked(parts);
  quantized.add_scales("layers.0.mlp.experts.gate.weight", view);
  const std::vector<float> values = read_floats(view);
  for (int64_t at = 0; at < 2 * 96 * 160; ++at) {
    const int64_t expert = at / (96 * 160), k = at % 160;
    const int64_t scale = 1 + 4 * expert + k / 128;
    ASSERT_EQ(values[static_cast<size_t>(at)], code_of(at % (96 * 160)) * static_cast<float>(scale)) << at;
  }
  EXPECT_FALSE(quantized.recipe().decide("layers.0.mlp.experts.gate", GemmRole::kFprop).codes);
}

TEST(PublishedSchemes, ScalesOfACacheUnderAllTheirNames) {
  struct Row {
    std::vector<std::string> names;
    std::optional<float> keys, values;
  };
  const Row rows[] = {{{"k_scale", "v_scale"}, 1, 2},
                      {{"k_proj.k_scale", "v_proj.v_scale"}, 1, 2},
                      {{"k_proj.output_scale", "v_proj.output_scale"}, 1, 2},
                      {{"attn.k_scale", "attn.v_scale"}, 1, 2},
                      {{"kv_scale"}, 1, 1},
                      {{"q_proj.output_scale"}, {}, {}}};
  for (const Row& row : rows) {
    MadeFolder made(Json::object());
    for (size_t i = 0; i < row.names.size(); ++i)
      made.add("model.layers.0.self_attn." + row.names[i], DType::kF32, {1}, {static_cast<float>(i + 1)});
    const TensorSource tensors(made.write() + "/model.safetensors");
    const QuantizedTensors quantized(tensors, wide("llama"), {}, "here");
    EXPECT_TRUE(quantized.is_scale("model.layers.0.self_attn." + row.names[0]));
    const auto scale = [&](int32_t side) {
      return quantized.scale(StateRole::kCacheScaleInv, "layers.0.attn.attention", side);
    };
    EXPECT_EQ(scale(kKeys), row.keys) << row.names[0];
    EXPECT_EQ(scale(kValues), row.values) << row.names[0];
  }
}

Json fp8_group(const char* strategy, bool with_inputs) {
  Json group = {{"targets", {"Linear"}},
                {"weights", {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}}},
                {"input_activations", nullptr}};
  if (with_inputs)
    group["input_activations"] = {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}};
  return group;
}

TEST(PublishedSchemes, WeightsAloneInFp8AndEqualGroups) {
  const auto parse = [](const Json& groups, const char* format) {
    return *parse_quantization(with_groups(groups, {{"format", format}}), "config.json");
  };
  EXPECT_EQ(parse({{"a", fp8_group("channel", false)}}, "naive-quantized").activations, ActivationScales::kNone);
  MadeFolder made(Json::object());
  const std::string up = "model.layers.0.mlp.up_proj";
  made.add(up + ".weight", DType::kE4M3, {96, 160}, std::vector<float>(96 * 160, 2));
  made.add(up + ".weight_scale", DType::kBF16, {96, 1}, std::vector<float>(96, 0.5f));
  const TensorSource tensors(made.write() + "/model.safetensors");
  const QuantizedTensors alone(tensors, wide("llama"), {.activations = ActivationScales::kNone}, "here");
  EXPECT_EQ(alone.recipe().name, "bf16");
  const Json two = {{"a", fp8_group("channel", true)}, {"b", fp8_group("channel", true)}};
  EXPECT_EQ(parse(two, "float-quantized").weights, ScaleLayout::kRow);
  const Json differ = {{"a", fp8_group("channel", true)}, {"b", fp8_group("tensor", true)}};
  EXPECT_NE(error_of([&] { parse(differ, "float-quantized"); }).find("config_groups.b is"), std::string::npos);
}

}  // namespace
}  // namespace octet
