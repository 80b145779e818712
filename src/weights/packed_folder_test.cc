// Folders with integer weights as others wrote them: each gives what its dequantized weights give, by the interpreter
// and the CPU, and its own recipe runs its own codes. What is broken or not run is refused by name.
#include "weights/packed_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "eval/testing/folder_logits.h"
#include "exec/logical_states.h"
#include "io/safetensors.h"

namespace octet {
namespace {

constexpr const char* kFolders[] = {"awq_gemm",          "ct_w4a16_asym_g64", "ct_w4a16_sym_g64",
                                    "gptq_desc_act_g64", "gptq_sym_g64",      "ct_w8a8_int8"};

std::string golden(const std::string& name) { return test_data_path("serving/packed/" + name); }

TEST(PackedFolder, EqualsItsDequantizedWeights) {
  for (const char* name : kFolders) {
    const std::string folder = golden(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
    const std::vector<float> expected = expected_logits(folder);
    EXPECT_LT(largest_difference(logits(folder, "fp32", cpu_target()), expected), 2e-4) << name;
    EXPECT_LT(largest_difference(interpreted(folder, "fp32"), expected), 2e-4) << name;
  }
}

TEST(PackedFolder, RunsItsOwnCodesUnderEveryRecipe) {
  for (const char* name : kFolders) {
    const std::string folder = golden(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
    const bool w8a8 = std::string(name) == "ct_w8a8_int8";
    EXPECT_EQ(open_weights(folder)->recipe()->name, w8a8 ? "int8" : "w4i8");
    const std::vector<float> expected = expected_logits(folder, w8a8 ? "logits_int8_activations" : "logits");
    EXPECT_LT(distance(logits(folder, "", cpu_target()), expected), 0.05) << name;
    if (w8a8) continue;
    EXPECT_LT(distance(interpreted(folder, "w4i8"), expected), 0.05) << name;
    EXPECT_LT(distance(interpreted(folder, "w4a16"), expected), 0.05) << name;
    EXPECT_LT(distance(interpreted(folder, "w4a8"), expected), 0.15) << name;
  }
}

TEST(PackedFolder, FewRowsAreManyRowsToTheBit) {
  const std::string folder = golden("gptq_desc_act_g64");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
  const Recipe recipe = *open_weights(folder)->recipe();
  EXPECT_TRUE(std::ranges::any_of(recipe.decisions, [](const auto& d) { return d.second.weights.sorted_columns; }));
  EXPECT_EQ(logits(folder, "w4i8", cpu_target(), 64), logits(folder, "w4i8", cpu_target(), 3));
}

// A quantized folder's states, read in rows, are its codes, whatever order they lie in.
TEST(PackedFolder, CodesAreReadInRowsWhateverTheirOrder) {
  const std::string folder = golden("awq_gemm");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
  const auto weights = open_weights(folder);
  IncrementalModel decoder(weights->config(), {.recipe = *weights->recipe(), .target = cpu_target()});
  load_weights(*weights, decoder.executor());
  bool ordered = false;
  for (const QuantizedParam& param : quantized_params(decoder.executor().program())) {
    if (param.codes.type.dtype != DType::kI4) continue;
    ordered |= param.leaf->attrs.has("order");
    const ParamView view = weights->view(param.param, param.codes.type.shape);
    std::vector<std::byte> stored(static_cast<size_t>(param.codes.type.bytes())), read(stored.size());
    read_rows(view, 0, view.rows, DType::kI4, stored.data());
    read_logical(decoder.executor(), param.codes, read);
    EXPECT_EQ(read, stored) << param.param;
  }
  EXPECT_TRUE(ordered);
}

// A copy of a folder with another quantization_config.
class ChangedFolder {
 public:
  ChangedFolder(const std::string& from, const std::function<void(nlohmann::json&)>& change) {
    for (const char* file : {"model.safetensors", "config.json"})
      std::filesystem::copy_file(from + "/" + file, folder_.file(file));
    nlohmann::json json = nlohmann::json::parse(read_file(from + "/config.json", 1 << 20));
    change(json["quantization_config"]);
    write_file(folder_.file("config.json"), json.dump());
  }
  std::string error() const {
    try {
      open_weights(folder_.path());
      return "no error";
    } catch (const Error& error) {
      return error.message();
    }
  }
  TempFolder folder_;
};

TEST(PackedFolder, RefusesByFieldAndValue) {
  const std::string gptq = golden("gptq_sym_g64"), awq = golden("awq_gemm"), ct = golden("ct_w4a16_sym_g64");
  if (gptq.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
  using Json = nlohmann::json;
  struct Row {
    const std::string& folder;
    std::function<void(Json&)> change;
    const char* message;
  };
  const Row rows[] = {
      {gptq, [](Json& c) { c["bits"] = 3; }, "quantization_config.bits is 3 (supported: 4, 8)"},
      {gptq, [](Json& c) { c["group_size"] = 48; },
       "quantization_config.group_size is 48 (supported: -1, 32, 64, 128)"},
      {gptq, [](Json& c) { c["group_size"] = 32; },
       ".scales is f16[2,128], quantization_config and config.json want f32[4"},
      {gptq, [](Json& c) { c["bits"] = 8; },
       ".qweight is i32[16,128], quantization_config and config.json want i32[32"},
      {gptq, [](Json& c) { c["checkpoint_format"] = "marlin"; },
       "checkpoint_format is \"marlin\" (supported: gptq, gptq_v2)"},
      {gptq, [](Json& c) { c["lm_head"] = true; }, "lm_head is true (supported: false)"},
      {gptq, [](Json& c) { c["quant_method"] = "hqq"; }, "quant_method is \"hqq\""},
      {awq, [](Json& c) { c["version"] = "gemv"; }, "version is \"gemv\" (supported: \"gemm\")"},
      {awq, [](Json& c) { c["bits"] = 8; }, "bits is 8 (supported: 4)"},
      {ct, [](Json& c) { c["config_groups"]["group_0"]["weights"]["strategy"] = "tensor_group"; }, "strategy is"},
      {ct, [](Json& c) { c["config_groups"]["group_0"]["weights"]["symmetric"] = false; }, "has no tensor"},
      {ct, [](Json& c) { c["config_groups"]["group_0"]["targets"] = {"re:.*mlp"}; }, "no group of quantization_config"},
      {ct, [](Json& c) { c["config_groups"]["group_0"]["targets"] = 1; }, "targets is 1 (supported: a list of names)"},
      {ct, [](Json& c) { c["format"] = "marlin-24"; }, "format is \"marlin-24\""},
  };
  for (const Row& row : rows)
    EXPECT_NE(ChangedFolder(row.folder, row.change).error().find(row.message), std::string::npos)
        << ChangedFolder(row.folder, row.change).error();
}

// GPTQ's second layout stores zero points as they are: one more than the first.
TEST(PackedFolder, TheLayoutSaysWhatAZeroPointIs) {
  const std::string folder = golden("gptq_sym_g64");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
  const ChangedFolder second(folder, [](nlohmann::json& c) { c["checkpoint_format"] = "gptq_v2"; });
  const auto first = open_weights(folder), other = open_weights(second.folder_.path());
  const ParamView a = first->view("layers.0.attn.q.weight", {128, 128}),
                  b = other->view("layers.0.attn.q.weight", {128, 128});
  EXPECT_TRUE(a.zero.empty());
  ASSERT_FALSE(b.zero.empty());
  EXPECT_EQ(b.zero[0], -1);
}

// One linear [16, 64] as AutoGPTQ and compressed-tensors lay codes of 4 and 8 bits out, written from unsigned codes,
// zero points and the group of each column.
struct Published {
  static constexpr int64_t kN = 16, kK = 64, kGroups = 2;
  int bits = 4;
  bool ordered = false;  // desc_act
  std::map<std::string, std::pair<TensorType, std::vector<std::byte>>> tensors = {};

  int code(int64_t n, int64_t k) const { return static_cast<int>((n * 31 + k * 7 + n * k) % (1 << bits)); }
  int zero(int64_t n, int64_t g) const { return 1 + static_cast<int>((n * 5 + g * 3 + 2) % ((1 << bits) - 1)); }
  float scale(int64_t n, int64_t g) const { return 0.25f + static_cast<float>(n * kGroups + g); }
  int64_t group(int64_t k) const { return ordered ? k % 2 : k / 32; }

  template <typename T>
  void add(const char* name, DType type, const Shape& shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors[std::string("model.layers.0.self_attn.q_proj.") + name] = {{type, shape}, {bytes.begin(), bytes.end()}};
  }
  void add_gptq(int stored_less) {
    const int64_t per = 32 / bits;
    std::vector<uint32_t> codes(static_cast<size_t>(kK / per * kN)), zeros(static_cast<size_t>(kGroups * kN / per));
    std::vector<float> scales;
    std::vector<int32_t> order;
    for (int64_t k = 0; k < kK; ++k) {
      order.push_back(static_cast<int32_t>(group(k)));
      for (int64_t n = 0; n < kN; ++n)
        codes[static_cast<size_t>(k / per * kN + n)] |= static_cast<uint32_t>(code(n, k)) << (k % per * bits);
    }
    for (int64_t g = 0; g < kGroups; ++g)
      for (int64_t n = 0; n < kN; ++n) {
        zeros[static_cast<size_t>((g * kN + n) / per)] |=
            (static_cast<uint32_t>(zero(n, g) - stored_less) & ((1u << bits) - 1)) << (n % per * bits);
        scales.push_back(scale(n, g));
      }
    add("qweight", DType::kI32, {kK / per, kN}, codes);
    add("qzeros", DType::kI32, {kGroups, kN / per}, zeros);
    add("scales", DType::kF32, {kGroups, kN}, scales);
    add("g_idx", DType::kI32, {kK}, order);
  }
  void add_int_quantized() {  // signed bytes, zero points too
    std::vector<int8_t> codes, zeros;
    std::vector<float> scales;
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t k = 0; k < kK; ++k) codes.push_back(static_cast<int8_t>(code(n, k) - 128));
      for (int64_t g = 0; g < kGroups; ++g)
        zeros.push_back(static_cast<int8_t>(zero(n, g) - 128)), scales.push_back(scale(n, g));
    }
    add("weight", DType::kI8, {kN, kK}, codes);
    add("weight_zero_point", DType::kI8, {kN, kGroups}, zeros);
    add("weight_scale", DType::kF32, {kN, kGroups}, scales);
  }
  void expect_read(PackedMethod method, int64_t zero_bias) const {
    TempFolder folder;
    std::vector<NamedType> types;
    for (const auto& [name, tensor] : tensors) types.push_back({name, tensor.first});
    SafetensorsWriter writer(folder.file("model.safetensors"), types);
    for (const NamedType& type : writer.tensors()) writer.write(type.name, tensors.at(type.name).second);
    writer.finish();
    ModelConfig config = model_family("llama");
    config.vocab_size = 32, config.hidden = kK, config.layers = 1, config.heads = 2, config.kv_heads = 2;
    config.head_dim = kN / 2, config.intermediate = 64, config.max_positions = 32;
    const TensorSource source(folder.file("model.safetensors"));
    const PackedTensors packed(source, config,
                               PackedScheme{.method = method,
                                            .format = bits == 4 ? DType::kI4 : DType::kI8,
                                            .layout = ScaleLayout::kRow32,
                                            .zero_bias = zero_bias,
                                            .symmetric = false},
                               "here");
    for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
      if (!packed.holds(tensor.name)) continue;
      const std::vector<float> values = read_floats(packed.view(tensor, 0, tensor.name));
      for (int64_t i = 0; i < kN * kK; ++i) {
        const int64_t n = i / kK, k = i % kK, g = group(k);
        ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<float>(code(n, k) - zero(n, g)) * scale(n, g))
            << n << " " << k;
      }
      return;
    }
    FAIL() << "nothing is in codes";
  }
};

TEST(PackedFolder, PublishedLayoutsOfBothWidths) {
  for (const int bits : {4, 8}) {
    for (const bool ordered : {false, true}) {
      for (const int stored_less : {0, 1}) {  // gptq_v2, gptq
        Published linear{.bits = bits, .ordered = ordered};
        linear.add_gptq(stored_less);
        linear.expect_read(PackedMethod::kGptq, stored_less);
      }
    }
  }
  Published bytes{.bits = 8};
  bytes.add_int_quantized();
  bytes.expect_read(PackedMethod::kCompressed, 0);
}

// The bytes of a tensor in a copy of a folder, changed in place.
std::string error_after(const std::string& folder, const std::string& tensor, size_t at, const std::string& bytes) {
  const ChangedFolder copy(folder, [](nlohmann::json&) {});
  const std::string path = copy.folder_.file("model.safetensors");
  std::string text = read_file(path, 1 << 30);
  size_t begin = 0;
  {
    const TensorSource source(path);
    const TensorView view = source.read(tensor);
    begin = text.find(std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()));
  }
  text.replace(begin + at, bytes.size(), bytes);
  write_file(path, text);
  try {
    const auto weights = open_weights(copy.folder_.path());
    weights->view("layers.0.attn.q.weight", {128, 128});
    return "no error";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(PackedFolder, RefusesBrokenTensorsByName) {
  const std::string folder = golden("gptq_desc_act_g64"), q = "model.layers.0.self_attn.q_proj";
  if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
  EXPECT_NE(error_after(folder, q + ".g_idx", 0, std::string("\x07\0\0\0", 4)).find("has group 7 at 0, there are 2"),
            std::string::npos);
  EXPECT_NE(error_after(folder, q + ".scales", 0, std::string("\0\x7c", 2)).find(".scales contains inf"),
            std::string::npos);
  const ChangedFolder cut(folder, [](nlohmann::json&) {});
  const std::string path = cut.folder_.file("model.safetensors"), text = read_file(path, 1 << 30);
  write_file(path, text.substr(0, text.size() - 64));
  EXPECT_NE(cut.error(), "no error");
}

// A folder without codes, quantized while it is read: groups of 128, or what divides K.
TEST(PackedFolder, PlainFoldersAreQuantizedWhileTheyAreRead) {
  const std::string folder = golden("reference_fp16");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/packed");
  const std::vector<float> expected = expected_logits(folder);
  const std::vector<float> made = logits(folder, "w4i8", cpu_target());
  EXPECT_LT(distance(made, expected), 0.4);
  EXPECT_GT(distance(made, expected), 0.01);
}

}  // namespace
}  // namespace octet
