// Sizes up to which a device's kernels take what passes would give them. Passes read them from the Target; kernels are
// compiled for these defaults, so that a Target may have less, not more.
#pragma once

#include <cstdint>

namespace octet {

struct TargetLimits {
  // Of a tensor that a norm sums over ranks: from 256 KiB on its few threads push slower than a sum's kernel.
  int64_t rank_sum_bytes = int64_t{128} << 10;
  // An exchange of rows that takes longer than so many latencies of a link goes beside the parts of a product, which
  // are less efficient than the whole.
  double exchange_latencies = 4;
  // Of a fused router, and its tokens times their experts: with more tokens a library multiplies faster.
  int64_t router_tokens = 16, router_choices = 512;
  // The most columns that the grouped product of an addend contracts; powers of two from 8 on.
  int64_t addend_columns = 64;
  // Members of a grouped update: what fits a kernel's arguments.
  int64_t update_params = 32, update_scales = 80, update_maxima = 128;
};

}  // namespace octet
