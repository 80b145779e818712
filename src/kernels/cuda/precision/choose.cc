#include "kernels/cuda/precision/choose.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/integers.h"

namespace octet::cuda {
namespace {

constexpr int64_t kMaxThreads = 1024;  // of a block
// Up to this many rows SMs are idle with a block per row (two blocks per SM of an H200): rows get as many threads as
// they can use, for the shortest time; more rows as few as keep enough bytes in flight.
constexpr int64_t kFewRows = 264;

}  // namespace

PerRowPlan choose_quantize_per_row(int64_t rows, int64_t cols, bool vector) {
  const int64_t groups = ceil_div(cols, kRowGroup);
  PerRowPlan plan{.vector = vector};
  if (vector) {
    if (groups > kMaxThreads && groups <= kMaxThreads * kMaxRowBlocks && rows * kMaxRowBlocks <= kFewRows) {
      plan.held = 1, plan.cluster = kMaxRowBlocks;
    } else if (groups <= 2 * kMaxThreads && rows <= kFewRows) {
      plan.held = groups > kMaxThreads ? 2 : 1;
    }
  }
  plan.grid = rows * plan.cluster;
  const int64_t threads = ceil_div(ceil_div(groups, int64_t{plan.held} * plan.cluster), 32) * 32;
  plan.threads = static_cast<int>(std::min(threads, kMaxThreads));
  return plan;
}

QuantizePlan choose_quantize(const QuantizeDesc& desc) {
  QuantizePlan plan{.across = ceil_div(desc.cols, kQuantizeTile)};
  plan.grid = ceil_div(desc.rows, kQuantizeTile) * plan.across;
  if (desc.grouping == ScaleLayout::kTensor && !desc.transposed) {
    plan.kernel = QuantizeKernel::kStream;
    plan.grid = ceil_div(desc.rows * desc.cols, int64_t{kStreamThreads} * kStreamRuns * kStreamRun);
  }
  if (desc.grouping == ScaleLayout::kRow) {
    plan.kernel = QuantizeKernel::kPerRow;
    plan.per_row = choose_quantize_per_row(desc.rows, desc.cols, desc.row_vector);
  }
  return plan;
}

std::string to_string(const QuantizeDesc& desc, const QuantizePlan& plan) {
  switch (plan.kernel) {
    case QuantizeKernel::kStream: return "stream";
    case QuantizeKernel::kTiles: return desc.transposed ? "tiles, both directions" : "tiles";
    case QuantizeKernel::kPerRow: break;
  }
  if (!desc.plain) return "column amaxes, tiles";
  const PerRowPlan& rows = plan.per_row;
  return fmt::format("{} per row, {} threads{}",
                     rows.cluster > 1 ? fmt::format("cluster of {}", rows.cluster) : "block", rows.threads,
                     desc.transposed ? "; column amaxes, tiles" : "");
}

}  // namespace octet::cuda
