// Folders that others' code wrote: read, run, and written again to the byte.
#include "compress/packed_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "compress/compress_folder.h"
#include "eval/verify.h"

namespace octet {
namespace {

constexpr const char* kFolders[] = {"serving/packed/ct_w4a16_sym_g64", "serving/packed/ct_w4a16_asym_g64",
                                    "serving/packed/ct_w8a8_int8"};

TEST(PackedTensors, OthersFoldersAreTheirDequantizedWeights) {
  for (const char* name : kFolders) {
    const std::string folder = test_data_path(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto weights = open_packed(folder);
    EXPECT_EQ(weights->recipe().has_value(), std::string(name).ends_with("int8"));
    const TensorSource expected(folder + "/expected.safetensors");
    const TensorView ids = expected.read("input_ids");
    const std::vector<float> logits = floats_of(expected.read("logits"));
    const int64_t length = ids.type.shape[1];
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    ASSERT_EQ(ids.type.dtype, DType::kI32);
    std::memcpy(prompt.data(), ids.bytes.data(), prompt.size() * sizeof(int32_t));
    IncrementalModel model(weights->config(), {.recipe = serving_recipe(*weights, ""), .target = cpu_target()});
    load_weights(*weights, model.executor());
    const auto made = model.append(prompt);
    const auto vocab = static_cast<int64_t>(made.size());
    double largest = 0, difference = 0, size = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const auto want = static_cast<double>(logits[static_cast<size_t>((length - 1) * vocab + i)]);
      const double apart = std::abs(static_cast<double>(made[static_cast<size_t>(i)]) - want);
      largest = std::max(largest, apart), difference += apart * apart, size += want * want;
    }
    // float32 as for any model; recipe int8 rounds what lies between its products to bf16.
    if (weights->recipe()) {
      EXPECT_LT(std::sqrt(difference / size), 0.05) << name;
    } else {
      EXPECT_LT(largest, 2e-4) << name;
    }
  }
}

TEST(PackedTensors, WhatIsReadIsWrittenTheSame) {
  for (const char* name : kFolders) {
    const std::string folder = test_data_path(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const TensorSource tensors(folder + "/model.safetensors");
    int64_t compared = 0;
    for (const CheckpointTensor& tensor : checkpoint_tensors(read_model_config(folder))) {
      if (!has_codes(tensors, tensor.name)) continue;
      GroupCodes codes = read_packed(tensors, tensor, folder);
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

// Rows of q, k and v in one tensor by groups of heads, transposed codes, zero points of rows that are no multiple of 8,
// groups in an order of their own.
TEST(PackedTensors, EveryLayoutReadsBack) {
  for (const CodeRule& rule : {CodeRule{.group = 32}, CodeRule{.group = 0, .symmetric = false},
                               CodeRule{.bits = 8, .group = 0, .scale_type = DType::kF32}}) {
    CheckpointTensor tensor{
        .name = "h.0.qkv.weight", .transposed = rule.bits == 8, .params = {"q", "k"}, .groups = 2, .rows = {3, 2}};
    std::vector<GroupCodes> parts;
    Philox rng(4);
    for (const int64_t rows : {6, 4}) {
      std::vector<float> values(static_cast<size_t>(rows * 64));
      for (float& value : values) value = static_cast<float>(rng.normal());
      parts.push_back(round_to_nearest(values, rows, 64, rule));
      if (rule.group != 32) continue;
      for (int32_t k = 0; k < 64; ++k) parts.back().group_of.push_back(k % 2);
    }
    TempFolder folder;
    std::vector<NamedType> types;
    const std::vector<StoredTensor> stored = packed_tensors(tensor, parts);
    for (const StoredTensor& part : stored) types.push_back(part.type);
    const std::string path = folder.path() + "/model.safetensors";
    SafetensorsWriter writer(path, types);
    for (const NamedType& type : writer.tensors())
      for (const StoredTensor& part : stored)
        if (part.type.name == type.name) writer.write(type.name, part.bytes);
    writer.finish();
    const GroupCodes read = read_packed(TensorSource(path), tensor, "here");
    EXPECT_EQ(read.rows, 10);
    EXPECT_EQ(read.group_of, parts[0].group_of);
    const std::vector<float> values = dequantize(read);
    for (size_t i = 0; i < 2; ++i) {
      const std::vector<float> wanted = dequantize(parts[i]);
      for_each_piece(tensor, std::ssize(values), i, [&](int64_t at, int64_t of_param, int64_t count) {
        for (int64_t k = 0; k < count; ++k)
          ASSERT_EQ(values[static_cast<size_t>(at + k)], wanted[static_cast<size_t>(of_param + k)]);
      });
    }
  }
}

}  // namespace
}  // namespace octet
