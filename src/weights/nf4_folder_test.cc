#include "weights/nf4_folder.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "eval/verify.h"
#include "io/safetensors.h"

namespace octet {
namespace {

TEST(Nf4Folder, CodesAreReadAsBitsandbytesReadsThem) {
  const std::string path = test_data_path("adapt/nf4/blocks.safetensors");
  if (path.empty()) GTEST_SKIP() << missing_test_data("adapt/nf4");
  const TensorSource tensors(path);
  const std::vector<float> map = floats_of(tensors.read("quant_map")), absmax = floats_of(tensors.read("absmax"));
  const std::vector<float> wanted = floats_of(tensors.read("dequantized"));
  const TensorView codes = tensors.read("codes");
  const FourBitCodes all{
      .codes = reinterpret_cast<const uint8_t*>(codes.bytes.data()), .map = map.data(), .absmax = absmax.data()};
  std::vector<float> ours(wanted.size());
  all.read(0, 100, ours.data()), all.read(100, std::ssize(ours) - 100, ours.data() + 100);  // a cut inside a block
  EXPECT_EQ(ours, wanted);
}

TEST(Nf4Folder, AFolderOfBitsandbytesRunsDequantized) {
  const std::string folder = test_data_path("adapt/nf4/llama_nf4");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/nf4");
  const VerifyReport report = verify_inference(folder, parse_recipe("fp32"), cpu_target());
  EXPECT_LE(report.max_logit_error, 2e-4);  // float32 sums in another order
  EXPECT_EQ(report.greedy_tokens, 16);
  EXPECT_EQ(report.greedy_equal, 16);
}

// By hand: two blocks of 4 codes, their factors in 8 bits.
TEST(Nf4Folder, DoubleQuantizationByHand) {
  const uint8_t codes[] = {0x0f, 0x12, 0xf0, 0x3c}, factors[] = {2, 7};
  std::vector<float> map(16), nested(256);
  for (size_t i = 0; i < 16; ++i) map[i] = 0.5f * static_cast<float>(i) - 2;
  for (size_t i = 0; i < 256; ++i) nested[i] = static_cast<float>(i) / 8;
  const float nested_absmax[] = {4};
  const FourBitCodes all{.codes = codes,
                         .map = map.data(),
                         .nested_codes = factors,
                         .nested_map = nested.data(),
                         .nested_absmax = nested_absmax,
                         .nested_offset = 0.25f,
                         .block = 4};
  std::vector<float> ours(8);
  all.read(0, 8, ours.data());
  const float first = 2.0f / 8 * 4 + 0.25f, second = 7.0f / 8 * 4 + 0.25f;
  const std::vector<float> wanted = {map[0] * first,   map[15] * first, map[1] * first,  map[2] * first,
                                     map[15] * second, map[0] * second, map[3] * second, map[12] * second};
  EXPECT_EQ(ours, wanted);
}

TEST(Nf4Folder, OtherFormsOfBitsandbytesAreRefusedByField) {
  const auto error = [](const std::string& quantization) {
    return error_of([&] { is_four_bit("{\"quantization_config\": " + quantization + "}", "config.json"); });
  };
  EXPECT_NE(error(R"({"quant_method": "bitsandbytes", "load_in_8bit": true})").find("load_in_8bit is true"),
            std::string::npos);
  EXPECT_NE(error(R"({"quant_method": "bitsandbytes"})").find("load_in_4bit is null"), std::string::npos);
  EXPECT_EQ(error(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})"), "(no error)");
  EXPECT_FALSE(is_four_bit(R"({"quantization_config": {"quant_method": "gptq"}})", "config.json"));
}

}  // namespace
}  // namespace octet
