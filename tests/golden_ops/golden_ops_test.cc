// The ONNX project's node cases against the interpreter, for supported ops; prints which cases ran and why others did
// not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/testing/test_data.h"
#include "golden_ops/golden_run.h"

namespace octet {
namespace {

TEST(GoldenOps, OnnxNodeCases) {
  const std::string root = test_data_path("golden-ops/onnx-node");
  if (root.empty()) GTEST_SKIP() << missing_test_data("golden-ops/onnx-node");
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.is_directory() && !entry.path().filename().string().ends_with("_expanded_ver18"))
      folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  std::map<std::string, int> used;                          // by ONNX op
  std::map<std::string, std::vector<std::string>> skipped;  // reason -> names
  for (const std::string& folder : folders) {
    SCOPED_TRACE(folder);
    if (!std::filesystem::exists(folder + "/model.onnx")) {
      skipped["the folder has no model"].push_back(std::filesystem::path(folder).filename().string());
      continue;
    }
    OnnxCase c = read_onnx_node(folder);
    if (has_check(c.op)) read_onnx_tensors(folder, c);
    const std::string result = check_case(c);
    if (result.starts_with("skip: ")) {
      skipped[result.substr(6)].push_back(result == "skip: no such op" ? c.op : c.name);
    } else {
      ++used[c.op];
      EXPECT_EQ(result, "");
    }
  }
  int total = 0;
  for (const auto& [op, count] : used) {
    fmt::print("used {:3} {}\n", count, op);
    total += count;
  }
  fmt::print("used {} of {} cases\n", total, folders.size());
  for (auto& [reason, names] : skipped) {
    const size_t count = names.size();
    names.erase(std::unique(names.begin(), names.end()), names.end());
    fmt::print("skipped {:3}: {} ({})\n", count, reason, fmt::join(names, ", "));
  }
  EXPECT_GE(total, 100);
}

// Newer copies of the cases hold casts that overflow to NaN or infinity instead of the largest code.
TEST(GoldenOps, CastsThatDoNotSaturateAreSkippedByName) {
  const auto tensor = [](DType dtype, int64_t onnx_type, std::vector<double> values) {
    return OnnxTensor{.name = "t", .onnx_type = onnx_type, .dtype = dtype, .dims = {2}, .values = std::move(values)};
  };
  OnnxCase c{.name = "cast_no_saturate_FLOAT_to_FLOAT8E4M3FN", .op = "Cast"};
  c.inputs = {tensor(DType::kF32, 1, {1.0, 1000.0})};
  c.outputs = {tensor(DType::kE4M3, 17, {1.0, std::nan("")})};
  EXPECT_NE(check_case(c), "") << "what Octet computes saturates";
  c.numbers["saturate"] = 0;
  for (const char* op : {"Cast", "CastLike"}) {
    c.op = op;
    EXPECT_EQ(check_case(c), "skip: saturate=0 (Octet's codecs saturate)") << op;
  }
  c.numbers["saturate"] = 1;
  c.outputs = {tensor(DType::kE4M3, 17, {1.0, 448.0})};
  EXPECT_EQ(check_case(c), "");
}

}  // namespace
}  // namespace octet
