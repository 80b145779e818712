// Codes as folders keep them: what is written reads back, and what others wrote is written again to the byte.
#include "compress/packed_tensors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "compress/testing/random_weights.h"
#include "weights/packed_folder.h"

namespace octet {
namespace {

// What a parameter is made of, from values that are exactly (code - zero) * scale.
GroupCodes codes_of(const ParamView& view, const CodeRule& rule) {
  GroupCodes codes = empty_codes(rule, view.rows, view.cols);
  const std::vector<float> values = read_floats(view);
  const int64_t groups = codes.groups();
  if (!rule.symmetric) codes.zeros.resize(codes.scales.size());
  for (int64_t n = 0; n < view.rows; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto from = static_cast<size_t>(g * view.rows + n), to = static_cast<size_t>(n * groups + g);
      codes.scales[to] = view.scale_inv[from];
      if (!view.zero.empty()) codes.zeros[to] = view.zero[from];
    }
    for (int64_t k = 0; k < view.cols; ++k) {
      const auto at = static_cast<size_t>(n * view.cols + k);
      const auto group = static_cast<size_t>(n * groups + k / rule.width(view.cols));
      const int zero = codes.zeros.empty() ? 0 : codes.zeros[group];
      codes.codes[at] = static_cast<int8_t>(std::lround(values[at] / codes.scales[group]) + zero);
    }
  }
  return codes;
}

TEST(PackedTensors, WhatOthersWroteIsWrittenTheSame) {
  for (const auto& [name, rule] : {std::pair("ct_w4a16_sym_g64", CodeRule{.group = 64}),
                                   std::pair("ct_w4a16_asym_g64", CodeRule{.group = 64, .symmetric = false}),
                                   std::pair("ct_w8a8_int8", CodeRule{.bits = 8, .group = 0})}) {
    const std::string folder = test_data_path(std::string("serving/packed/") + name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const TensorSource tensors(folder + "/model.safetensors");
    const ModelConfig config = read_model_config(folder);
    const auto scheme = parse_packing(read_file(folder + "/config.json"), folder);
    ASSERT_TRUE(scheme.has_value());
    const PackedTensors packed(tensors, config, *scheme, folder);
    int64_t compared = 0;
    for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
      if (!packed.holds(tensor.name)) continue;
      GroupCodes codes = codes_of(packed.view(tensor, 0, tensor.name), rule);
      const std::string scale = tensor.name.substr(0, tensor.name.rfind('.')) + ".weight_scale";
      codes.rule.scale_type = tensors.find_type(scale)->dtype;
      for (const StoredTensor& stored : packed_tensors(tensor, {codes})) {
        ASSERT_NE(tensors.find_type(stored.type.name), nullptr) << stored.type.name;
        const TensorView theirs = tensors.read(stored.type.name);
        EXPECT_EQ(theirs.type, stored.type.type) << stored.type.name;
        EXPECT_TRUE(std::ranges::equal(theirs.bytes, stored.bytes)) << stored.type.name;
        ++compared;
      }
    }
    EXPECT_GT(compared, 0) << name;
  }
}

// Rows of q, k and v in one tensor, by heads and one after another, stored transposed or not; zero points; groups in an
// order of their own.
TEST(PackedTensors, EveryLayoutReadsBack) {
  for (const char* family : {"gpt2", "gpt_neox", "llama"}) {
    const ModelConfig config = small_model(family);
    const ParamShapes shapes = param_shapes(config);
    for (const CodeRule& rule : {CodeRule{.group = 32}, CodeRule{.group = 0, .symmetric = false},
                                 CodeRule{.bits = 8, .group = 0, .scale_type = DType::kF32}}) {
      Philox rng(4);
      std::map<std::string, GroupCodes> made;  // by parameter
      std::vector<StoredTensor> stored;
      const LinearLayout layout = linear_layout(config);
      for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
        const std::string& first = tensor.params[0];
        if (!first.ends_with(".weight") || !layout.x_of.contains(first.substr(0, first.rfind('.')))) continue;
        std::vector<GroupCodes> parts;
        for (const std::string& param : tensor.params) {
          const Shape& shape = shapes.at(param);
          std::vector<float> values(static_cast<size_t>(shape.elements()));
          for (float& value : values) value = static_cast<float>(rng.normal());
          parts.push_back(round_to_nearest(values, shape[0], shape[1], rule));
          if (rule.group == 32)
            for (int32_t k = 0; k < shape[1]; ++k)
              parts.back().group_of.push_back(k % static_cast<int32_t>(shape[1] / 32));
          made[param] = parts.back();
        }
        for (StoredTensor& part : packed_tensors(tensor, parts)) stored.push_back(std::move(part));
      }
      ASSERT_FALSE(made.empty());
      TempFolder folder;
      std::vector<NamedType> types;
      for (const StoredTensor& part : stored) types.push_back(part.type);
      const std::string path = folder.path() + "/model.safetensors";
      SafetensorsWriter writer(path, types);
      for (const NamedType& type : writer.tensors())
        for (const StoredTensor& part : stored)
          if (part.type.name == type.name) writer.write(type.name, part.bytes);
      writer.finish();
      const TensorSource tensors(path);
      const auto scheme = parse_packing(with_integer_codes("{}", rule, rule.group == 32 ? "group" : "", {}), "here");
      ASSERT_TRUE(scheme.has_value());
      const PackedTensors packed(tensors, config, *scheme, "here");
      for (const CheckpointTensor& tensor : checkpoint_tensors(config))
        for (size_t i = 0; i < tensor.params.size() && packed.holds(tensor.name); ++i)
          EXPECT_EQ(read_floats(packed.view(tensor, i, tensor.params[i])), dequantize(made.at(tensor.params[i])))
              << family << " " << tensor.params[i];
    }
  }
}

}  // namespace
}  // namespace octet
