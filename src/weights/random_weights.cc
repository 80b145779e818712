#include "weights/random_weights.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"

namespace octet {
namespace {

constexpr int64_t kPool = 4'194'301;  // a prime: the rows of a matrix differ

// Int8 codes have steps of one where floats of 0.02 would all be zeros: their scale_inv makes up for it.
constexpr float kInt8Scale = 1000;

bool is_scale_of_int8(const Executor& executor, const StateEntry& entry) {
  constexpr std::string_view kSuffix = ".scale_inv";
  if (!entry.name.ends_with(kSuffix)) return false;
  const std::string param = entry.name.substr(0, entry.name.size() - kSuffix.size());
  const StateEntry* codes = executor.program().find_state(param + ".codes");
  return codes != nullptr && codes->type.dtype == DType::kI8;
}

// Norms, biases and scales.
void write_vector(Executor& executor, const StateEntry& entry) {
  const double one = is_scale_of_int8(executor, entry) ? 1.0 / kInt8Scale : 1.0;
  const bool factor = entry.name.ends_with("weight") || entry.name.ends_with("scale_inv");
  std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
  for (int64_t i = 0; i < entry.type.shape.elements(); ++i)
    store_element(entry.type.dtype, bytes.data(), i, factor ? one : 0);
  executor.write_state(entry.name, bytes);
}

}  // namespace

void fill_random_weights(Executor& executor, uint64_t seed) {
  Philox rng(seed, 0);
  std::vector<float> normal(kPool);
  for (float& value : normal) value = static_cast<float>(0.02 * rng.normal());
  std::map<DType, std::vector<std::byte>> pools;
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.kind != StateKind::kParam && entry.kind != StateKind::kQuantized) continue;
    if (entry.type.shape.rank() == 1) {
      write_vector(executor, entry);
      continue;
    }
    const int64_t count = entry.type.shape.elements(), width = dtype_bytes(entry.type.dtype);
    std::vector<std::byte>& pool = pools[entry.type.dtype];
    if (pool.empty()) {
      pool.resize(static_cast<size_t>(kPool * width));
      std::vector<float> scaled = normal;
      if (entry.type.dtype == DType::kI8)
        for (float& value : scaled) value *= kInt8Scale;
      convert(DType::kF32, scaled.data(), entry.type.dtype, pool.data(), kPool);
    }
    for (int64_t at = 0; at < count; at += kPool) {
      const auto part = static_cast<size_t>(std::min(kPool, count - at) * width);
      executor.write_state_part(entry.name, at * width, std::span<const std::byte>(pool).first(part));
    }
  }
  if (executor.program().find_graph("prepare") != nullptr) executor.run("prepare");
}

}  // namespace octet
