#include "train/verify_golden.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/executor.h"
#include "io/safetensors.h"

namespace octet {
namespace {

const CompileOptions kExact = {.target = cpu_target(), .recipe = parse_recipe("fp32")};
constexpr const char* kBert = "model_goldens/bert_pretraining.safetensors";

TEST(VerifyGolden, BertPretrainsAsInTransformers) {
  const std::string path = test_data_path(kBert);
  if (path.empty()) GTEST_SKIP() << missing_test_data(kBert);
  const GoldenReport report = verify_golden(path, kExact);
  EXPECT_EQ(report.losses.size(), 6u);
  EXPECT_GT(report.logits, 3 * 97);
  EXPECT_LE(report.max_logit_error, 2e-4);
  EXPECT_LE(report.max_gradient_error, 1e-4) << report.worst_gradient;
  EXPECT_LE(report.max_loss_error, 1e-4);
  EXPECT_LE(report.max_weight_error, 1e-4) << report.worst_weight;
  EXPECT_TRUE(report.passed(golden_tolerance(kExact.recipe)));
}

// A weight that is off by a little fails, as does a file that lacks what it should say.
TEST(VerifyGolden, WrongFilesFail) {
  const std::string path = test_data_path(kBert);
  if (path.empty()) GTEST_SKIP() << missing_test_data(kBert);
  const TensorSource file(path);
  TempFolder folder;
  const auto copy = [&](const TextMap& metadata, float added) {
    std::vector<NamedType> types;
    for (const std::string& name : file.names()) types.push_back({name, *file.find_type(name)});
    SafetensorsWriter writer(folder.file("copy.safetensors"), types, metadata);
    for (const NamedType& tensor : writer.tensors()) {
      const TensorView view = file.read(tensor.name);
      std::vector<std::byte> bytes(view.bytes.begin(), view.bytes.end());
      if (tensor.name == "w.cls.predictions.transform.dense.bias") {
        float value = 0;
        std::memcpy(&value, bytes.data(), sizeof value);
        value += added;
        std::memcpy(bytes.data(), &value, sizeof value);
      }
      writer.write(tensor.name, bytes);
    }
    writer.finish();
    return folder.file("copy.safetensors");
  };
  EXPECT_FALSE(verify_golden(copy(file.metadata(), 0.05F), kExact).passed({}));
  EXPECT_NE(error_of([&] { verify_golden(copy({}, 0), kExact); }).find("has no key `about`"), std::string::npos);
  const TextMap other = {{"about", R"({"model": "tree", "config": {}, "optimizer": {}, "steps": 1})"}};
  EXPECT_NE(error_of([&] { verify_golden(copy(other, 0), kExact); }).find("model \"tree\" (replayed: bert)"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
