#include "weights/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/crc32c.h"
#include "model/hugging_face.h"

namespace octet {

std::string weights_fingerprint(const WeightSource& weights) {
  constexpr int64_t kBlocks = 4, kValues = 1024;  // of a block, or one row
  const std::string sizes = to_hugging_face_config(weights.config(), {}, "float32");
  const uint32_t of_sizes = crc32c(sizes.data(), std::ssize(sizes));
  uint32_t of_values = 0;
  std::vector<float> values;
  for (const auto& [param, shape] : param_shapes(weights.config())) {
    const ParamView view = weights.view(param, shape);
    const int64_t rows = std::clamp<int64_t>(kValues / view.cols, 1, view.rows);
    values.resize(static_cast<size_t>(rows * view.cols));
    of_values = crc32c(param.data(), std::ssize(param), of_values);
    for (int64_t block = 0; block < kBlocks; ++block) {
      read_rows(view, (view.rows - rows) * block / (kBlocks - 1), rows, DType::kF32, values.data());
      of_values = crc32c(values.data(), std::ssize(values) * 4, of_values);
    }
  }
  return fmt::format("{:08x}{:08x}", of_sizes, of_values);
}

}  // namespace octet
