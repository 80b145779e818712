#include "kernels/cuda/matmul/gemm_rows.h"

#include <bit>

#include "base/log.h"
#include "kernels/cuda/matmul/tuning.h"

namespace octet::cuda {
namespace {

constexpr int64_t kFewestRows = 64;  // of a piece: below it something else is wrong
constexpr double kWorthAWord = 1e9;  // FLOPs

// Rows of a lie one after the other, and their scales too, if they have any.
bool is_divisible(const GemmSpec& spec) {
  const bool blocks = spec.scaling_a == GemmScaling::k1x128 || spec.scaling_a == GemmScaling::k128x128;
  return !spec.trans_a && !blocks;
}

}  // namespace

bool GemmRows::add(DeviceContext& context, const GemmSpec& spec, int64_t first, int64_t most_rows) {
  if (spec.m <= most_rows) {
    auto gemm = std::make_unique<Gemm>(context, spec);
    if (const auto algorithm = context.gemm_tuning().choose(*gemm)) {
      gemm->use(*algorithm);
      pieces_.push_back({first, std::move(gemm)});
      return true;
    }
    if (spec.m < 2 * kFewestRows) return false;
  }
  if (!is_divisible(spec) || spec.m < 2) return false;
  GemmSpec above = spec, below = spec;
  above.m = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(spec.m - 1)));
  below.m = spec.m - above.m;
  return add(context, above, first, most_rows) && add(context, below, first + above.m, most_rows);
}

std::shared_ptr<GemmRows> GemmRows::make(DeviceContext& context, const GemmSpec& spec, int64_t most_rows) {
  auto rows = std::make_shared<GemmRows>();
  if (rows->add(context, spec, 0, most_rows)) return rows;
  if (2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) * static_cast<double>(spec.k) > kWorthAWord)
    log_warning("cuBLASLt has no kernel for the product {}: a slow one of ours stands in", spec.key());
  return nullptr;
}

void GemmRows::run(const GemmOperands& operands, cudaStream_t stream) const {
  for (const Piece& piece : pieces_) {
    const GemmSpec& spec = piece.gemm->spec();
    GemmOperands part = operands;
    const int64_t results = piece.first * spec.n * dtype_bytes(spec.out);
    part.a = static_cast<const std::byte*>(operands.a) + piece.first * spec.k * dtype_bytes(spec.a);
    if (spec.scaling_a == GemmScaling::kOuter) part.scale_a = operands.scale_a + piece.first;
    if (spec.addend) part.c = static_cast<const std::byte*>(operands.c) + results;
    part.out = static_cast<std::byte*>(operands.out) + results;
    piece.gemm->run(part, stream);
  }
}

}  // namespace octet::cuda
