// Targets: their text reads back; wrong keys and numbers are refused with the line.
#include "ir/target.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

TEST(Target, TextReadsBackTheSame) {
  TempFolder folder;
  Target target = h200_target();
  target.fusions = {};
  target.allow(Producer::kNorm, {FusionPart::kQuantize});
  target.allow(Producer::kActivationGrad, {FusionPart::kColumnSum, FusionPart::kAmax});
  target.f32_flops = 1.0 / 3;
  target.timings.push_back({"bf16", 1, 2, 3, 4, 1.0 / 3});
  target.integer_products = {{.x = DType::kI8, .codes = DType::kI8},
                             {.x = DType::kE4M3, .codes = DType::kI4, .order = "tiles", .rows = 64, .cols = 128}};
  write_file(folder.file("t.txt"), "# measured\n\n" + to_text(target));
  Target read = read_target(folder.file("t.txt"));
  EXPECT_EQ(to_text(read), to_text(target));
  EXPECT_EQ(read.timings.back().linears, 4);
  ASSERT_NE(read.find_product(DType::kE4M3, DType::kI4), nullptr);
  EXPECT_EQ(read.find_product(DType::kE4M3, DType::kI4)->order, "tiles");
  EXPECT_EQ(read.find_product(DType::kE4M3, DType::kI4)->cols, 128);
  EXPECT_EQ(read.find_product(DType::kE4M3, DType::kI8), nullptr);
  EXPECT_EQ(read.timings.back().seconds, 1.0 / 3);
  EXPECT_EQ(read.fusions, target.fusions);
  EXPECT_TRUE(read.fuses(Producer::kActivationGrad, FusionPart::kColumnSum));
  EXPECT_FALSE(read.fuses(Producer::kActivationGrad, FusionPart::kQuantize));
  EXPECT_FALSE(read.fuses(Producer::kActivation));
}

// Of a file that has none of them, or some, wherever it names the device.
TEST(Target, TraitsThatAreNotGivenAreThoseOfTheDevice) {
  TempFolder folder;
  const auto read = [&](const std::string& text) {
    write_file(folder.file("t"), text);
    return read_target(folder.file("t")).traits;
  };
  EXPECT_EQ(read("name: x\ndevice: cuda").block_size, kGpuTraits.block_size);
  EXPECT_EQ(read("name: x\ndevice: cpu").block_size, DeviceTraits().block_size);
  for (const char* text : {"device: cuda\nblock_size: 32", "block_size: 32\ndevice: cuda"}) {
    EXPECT_EQ(read(text).block_size, 32);
    EXPECT_EQ(read(text).steps_ahead, 1);
  }
}

TEST(Target, TheH200HasItsFigures) {
  Target target = h200_target();
  EXPECT_EQ(target.memory_bytes, 150754820096);  // 143771 MiB
  EXPECT_TRUE(target.fp8_tn_only);
  EXPECT_NE(target.find_product(DType::kI8, DType::kI8), nullptr);
  EXPECT_EQ(target.find_product(DType::kI8, DType::kI4), nullptr);
  EXPECT_EQ(target.fp8_alignment, 16);
  std::map<std::string, std::vector<double>> seconds;  // by shape and precision
  for (const LinearTiming& t : target.timings)
    seconds[fmt::format("{} of {}x{} at {} {}", t.linears, t.out, t.in, t.tokens, t.precision)].push_back(t.seconds);
  for (const auto& [shape, values] : seconds) EXPECT_EQ(values.size(), 1u) << shape << " stands there twice";
  EXPECT_EQ(seconds.size() % 3, 0u);
  EXPECT_DOUBLE_EQ(seconds.at("3 of 768x768 at 16384 fp8-tensor")[0], 303.5e-6);
  EXPECT_DOUBLE_EQ(seconds.at("1 of 768x768 at 16384 bf16")[0], 112.0e-6);
  EXPECT_DOUBLE_EQ(seconds.at("2 of 2048x768 at 8192 fp8-block")[0], 241.6e-6);
}

TEST(Target, BadLinesAreNamed) {
  TempFolder folder;
  auto message = [&](const std::string& text) -> std::string {
    write_file(folder.file("t"), text);
    try {
      read_target(folder.file("t"));
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(
      message("name: x\nworkspace_byte: 5\n").find("t:2: unknown key 'workspace_byte' (nearest: workspace_bytes)"),
      std::string::npos);
  EXPECT_NE(message("memory_bytes: 1GB").find("'1GB' is not a number in range"), std::string::npos);
  EXPECT_NE(message("fp8_tn_only: yes").find("want true or false"), std::string::npos);
  for (const char* rest : {"3", "3 4", "3 4 5 fprop"})
    EXPECT_NE(message("timing: bf16 1 2 " + std::string(rest)).find("want precision tokens out in linears seconds"),
              std::string::npos);
  EXPECT_NE(message("timing: bf16 1 2 3 7.9e-06 fprop").find("of an older format"), std::string::npos);
  EXPECT_NE(message("timing: bf16 1 0 3 1 4").find("0 (want > 0)"), std::string::npos);
  EXPECT_NE(message("name").find("want \"key: value\""), std::string::npos);
  EXPECT_NE(message("fuse: norn amax").find("t:1: 'norn' is no producer of fusions (nearest: norm)"),
            std::string::npos);
  EXPECT_NE(message("fuse: norm amx").find("'amx' is no part of fusions (nearest: amax)"), std::string::npos);
  EXPECT_NE(message("fuse: norm").find("t:1: 'norm' (want a producer of fusions and its parts)"), std::string::npos);
}

// Targets of published figures: what the program has built in is what stands in targets/, and can be planned with.
TEST(Target, PublishedOnesAreKnownByName) {
  EXPECT_EQ(published_targets(), (std::vector<std::string>{"a100-80g", "h100-80g"}));
  for (const std::string& name : published_targets()) {
    const Target target = published_target(name);
    EXPECT_EQ(target.name, name);
    EXPECT_EQ(to_text(target), to_text(read_target(source_dir() + "/targets/" + name + ".txt")));
    EXPECT_TRUE(target.step.known());
    EXPECT_EQ(target.fusions, h200_target().fusions);
    EXPECT_GT(target.memory_bytes, int64_t{79} << 30);
    EXPECT_LT(target.memory_bytes, h200_target().memory_bytes);
    EXPECT_LT(target.bytes_per_second, h200_target().bytes_per_second);
    EXPECT_GT(target.watts, 0);
  }
  EXPECT_EQ(published_target("a100-80g").fp8_flops, 0);
  try {
    published_target("a100");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("want a100-80g, h100-80g"), std::string::npos);
  }
}

}  // namespace
}  // namespace octet
