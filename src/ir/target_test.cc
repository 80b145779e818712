// Targets: their text reads back; wrong keys and numbers are refused with the line.
#include "ir/target.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/test_data.h"

namespace octet {
namespace {

TEST(Target, TextReadsBackTheSame) {
  TempFolder folder;
  Target target = h200_target();
  target.fusions = {"norm_quantize", "bias_gelu"};
  target.f32_flops = 1.0 / 3;
  target.timings.push_back({"bf16", 1, 2, 3, 1e-6, "wgrad"});
  write_file(folder.file("t.txt"), "# measured\n\n" + to_text(target));
  Target read = read_target(folder.file("t.txt"));
  EXPECT_EQ(to_text(read), to_text(target));
  EXPECT_EQ(read.timings.back().role, "wgrad");
  EXPECT_TRUE(read.has_fusion("bias_gelu"));
  EXPECT_FALSE(read.has_fusion("bias"));
}

TEST(Target, TheH200HasItsFigures) {
  Target target = h200_target();
  EXPECT_EQ(target.memory_bytes, 150754820096);  // 143771 MiB
  EXPECT_TRUE(target.fp8_tn_only);
  EXPECT_FALSE(target.int8_products);
  EXPECT_EQ(target.fp8_alignment, 16);
  std::map<std::string, std::vector<double>> seconds;  // by product and precision
  for (const GemmTiming& t : target.timings)
    seconds[fmt::format("{}x{}x{} {} {}", t.m, t.n, t.k, t.role, t.precision)].push_back(t.seconds);
  for (const auto& [product, values] : seconds) EXPECT_EQ(values.size(), 1u) << product << " stands there twice";
  EXPECT_EQ(seconds.size() % 9, 0u);
  EXPECT_DOUBLE_EQ(seconds.at("8192x3072x768 fprop fp8-tensor")[0], 50.6e-6);
  EXPECT_DOUBLE_EQ(seconds.at("8192x768x3072 dgrad bf16")[0], 55.8e-6);
  EXPECT_DOUBLE_EQ(seconds.at("3072x768x8192 wgrad fp8-block")[0], 92.1e-6);
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
  for (const char* count : {"3", "3 4 fprop 6"})
    EXPECT_NE(message("timing: bf16 1 2 " + std::string(count)).find("want precision m n k seconds [role]"),
              std::string::npos);
  EXPECT_NE(message("timing: bf16 1 2 3 4 forward").find("'forward' (want fprop, dgrad or wgrad)"), std::string::npos);
  EXPECT_NE(message("name").find("want \"key: value\""), std::string::npos);
}

}  // namespace
}  // namespace octet
