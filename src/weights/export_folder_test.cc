#include "weights/export_folder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/safetensors.h"

namespace octet {
namespace {

// Families by how they store linears: [in, out] and fused, fused by heads, a tensor for each expert, two in one.
constexpr const char* kModels[] = {"hf_goldens/gpt2", "hf_goldens/bloom", "hf_goldens/mixtral_moe", "hf_goldens/glm"};

TEST(ExportFolder, AModelComesBackValueForValue) {
  for (const std::string name : kModels) {
    const std::string folder = test_data_path(name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto source = open_weights(folder);
    TempFolder out;
    int64_t done = 0, total = 0;
    export_folder(*source, folder, out.path(), DType::kF32,
                  [&](int64_t so_far, int64_t of) { done = so_far, total = of; });
    EXPECT_EQ(done, total);
    const auto stored = open_safetensors(folder), written = open_safetensors(out.path());
    for (const std::string& tensor : written->names()) {
      ASSERT_NE(stored->find_type(tensor), nullptr) << name << " " << tensor;
      EXPECT_EQ(floats_of(written->read(tensor)), floats_of(stored->read(tensor))) << name << " " << tensor;
    }
    const auto back = open_weights(out.path());
    EXPECT_EQ(back->special().eos, source->special().eos);
    for (const auto& [param, shape] : param_shapes(source->config()))
      EXPECT_EQ(back->read(param, shape), source->read(param, shape)) << name << " " << param;
  }
}

TEST(ExportFolder, RoundsToTheTypeAndRefusesWhatItCannotHold) {
  const std::string folder = test_data_path("hf_goldens/gpt2");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/gpt2");
  const auto source = open_weights(folder);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    TempFolder out;
    export_folder(*source, "", out.path(), dtype);
    const auto written = open_safetensors(out.path());
    for (const std::string& tensor : written->names()) EXPECT_EQ(written->find_type(tensor)->dtype, dtype);
    const std::string param = "layers.0.attn.v.weight";
    const Shape shape = param_shapes(source->config()).at(param);
    const std::vector<float> ours = open_weights(out.path())->read(param, shape), theirs = source->read(param, shape);
    const float step = dtype == DType::kBF16 ? 1.0f / 256 : 1.0f / 2048;  // half a unit in the last place
    for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], step * std::abs(theirs[i]) + 1e-7f);
  }
  TempFolder out;
  EXPECT_NE(error_of([&] { export_folder(*source, "", out.path(), DType::kE4M3); }).find("want f32, bf16 or f16"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
