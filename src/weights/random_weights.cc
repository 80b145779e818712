#include "weights/random_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"
#include "exec/logical_states.h"

namespace octet {
namespace {

constexpr int64_t kPool = 4'194'301;  // a prime: the rows of a matrix differ

// Int8 codes have steps of one where floats of 0.02 would all be zeros: their scale_inv makes up for it.
constexpr float kInt8Scale = 1000;

// Every element of a norm's weight, a bias or scales.
double vector_value(const Program& program, const LogicalState& tensor) {
  if (tensor.role == StateRole::kScaleInv)
    return find_logical_state(program, tensor.param, StateRole::kCodes).type.dtype == DType::kI8 ? 1 / kInt8Scale : 1;
  const Node* leaf = find_leaf(program, tensor.state);
  return leaf != nullptr && leaf->attrs.get_or<std::string>("init", "") == "ones" ? 1 : 0;
}

}  // namespace

void fill_random_weights(Executor& executor, uint64_t seed) {
  Philox rng(seed, 0);
  std::vector<float> normal(kPool);
  for (float& value : normal) value = static_cast<float>(0.02 * rng.normal());
  std::map<DType, std::vector<std::byte>> pools;
  for (const LogicalState& tensor : logical_states(executor.program())) {
    const bool scales = tensor.role == StateRole::kScaleInv;
    if (tensor.role != StateRole::kMaster && tensor.role != StateRole::kCodes && !scales) continue;
    const DType dtype = tensor.type.dtype;
    const int64_t width = dtype_bytes(dtype);
    if (tensor.type.shape.rank() == 1 || scales) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.type.bytes()));
      const double value = vector_value(executor.program(), tensor);
      for (int64_t i = 0; i < tensor.type.shape.elements(); ++i) store_element(dtype, bytes.data(), i, value);
      write_logical(executor, tensor, bytes);
      continue;
    }
    std::vector<std::byte>& pool = pools[dtype];
    if (pool.empty()) {
      pool.resize(static_cast<size_t>(kPool * width));
      std::vector<float> scaled = normal;
      if (dtype == DType::kI8)
        for (float& value : scaled) value *= kInt8Scale;
      convert(DType::kF32, scaled.data(), dtype, pool.data(), kPool);
    }
    fill_logical(executor, tensor, width, [&](int64_t at, std::span<std::byte> to) {
      for (size_t done = 0; done < to.size();) {
        const size_t from = (static_cast<size_t>(tensor.at.offset * width + at) + done) % pool.size();
        const size_t piece = std::min(to.size() - done, pool.size() - from);
        std::memcpy(to.data() + done, pool.data() + from, piece);
        done += piece;
      }
    });
  }
  executor.prepare();
}

}  // namespace octet
