// Launchers of mixtures of experts. Device pointers; the work goes on `stream`; the same bits every run. What is null
// is not made.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ir/target_limits.h"
#include "kernels/cuda/common/operand.h"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {

inline constexpr int kListedExperts = 1024;  // the most that top_k and GroupedRows' lists take

// T tokens, E experts, K of them a token.
struct RouterProblem {
  int64_t tokens = 0;
  int experts = 0, k = 0;
  bool softmax = true, renormalize = false;
};

struct RouterResults {
  float* weights = nullptr;   // [T, K]
  int32_t* chosen = nullptr;  // [T, K]
  float* scores = nullptr;    // [T, E]
  float* lse = nullptr;       // [T]
};
void launch_top_k(const RouterProblem& problem, const float* logits, const RouterResults& to, cudaStream_t stream);

// Tokens of few: their logits x w^T, summed in float32, what launch_top_k makes of them and launch_group_rows of that.
inline constexpr int kRouterTokens = TargetLimits{}.router_tokens, kRouterChoices = TargetLimits{}.router_choices;
struct FewTokens {
  int64_t width = 0;             // a multiple of 8
  const void* x = nullptr;       // bf16 [T, width]
  const float* w = nullptr;      // [E, width]
  bool weights_ready = false;    // nothing earlier on the stream's graph writes them
  float* logits = nullptr;       // [T, E], scratch
  uint32_t* counters = nullptr;  // of the device context
  int32_t* places = nullptr;     // [T, K]
  int32_t* offsets = nullptr;    // [E + 1]
  float* counts = nullptr;       // [E]
};
void launch_router(const RouterProblem& problem, const FewTokens& few, const RouterResults& to, cudaStream_t stream);

struct RouterGradients {
  const float* weights = nullptr;  // [T, K]
  const float* scores = nullptr;   // [T, E]
  const float* lse = nullptr;      // [T]
};
void launch_top_k_grad(const RouterProblem& problem, const float* logits, const int32_t* chosen,
                       const RouterGradients& given, float* dlogits, cudaStream_t stream);

// What rows are sorted by: their expert, or their expert and the part of their token.
struct GroupedChoices {
  const int32_t* experts = nullptr;  // [count], k a token
  int64_t count = 0;
  const int32_t* part = nullptr;  // [tokens], each below parts; null: none
  int parts = 1, k = 1;
};
void launch_group_rows(const GroupedChoices& choices, int groups, int32_t* places, int32_t* offsets, float* counts,
                       cudaStream_t stream);

// Rows of `row_bytes`, and where there are scales [tokens], theirs [tokens k].
struct RowsToDispatch {
  const void* x = nullptr;
  const float* scale_inv = nullptr;
  const int32_t* places = nullptr;
  void* rows = nullptr;
  float* scale_inv_rows = nullptr;
  int64_t tokens = 0, row_bytes = 0;
  int k = 0;
};
void launch_dispatch_rows(const RowsToDispatch& rows, cudaStream_t stream);
void launch_combine_rows(const Operand& rows, const int32_t* places, const float* weights, const Operand& y,
                         int64_t tokens, int k, int64_t width, cudaStream_t stream);
void launch_combine_rows_grad(const Operand& rows, const int32_t* places, const float* weights, const Operand& dy,
                              const Operand& drows, float* dweights, int64_t tokens, int k, int64_t width,
                              cudaStream_t stream);

// Any types, strides and scales (TiledOperand): gemm.m, n and k are those of the whole of a, one expert's columns and
// the contraction; b's outer (b_outer > 0) or contracted index of expert e begins at e * b_outer or e * b_depth.
// by_depth: a and b are dy and x, whose rows are contracted; the result of expert e begins at row e * gemm.m.
struct GroupedGemm {
  TiledGemm gemm;
  const int32_t* offsets = nullptr;  // [experts + 1]
  int experts = 0;
  int64_t b_outer = 0, b_depth = 0;
  bool by_depth = false;
};
void launch_grouped_tiled(const GroupedGemm& grouped, cudaStream_t stream);

// x [R, K] w [E N, K]^T by expert, of bf16, or codes of e4m3 or int8; rows of both are whole 16-byte pieces. Scales:
// one, or one a row, or of e4m3 in blocks: [ceil(K/128), R] and [E N / 128, ceil(K/128)]. Of bf16 also x [R, K] w [E K,
// N] (trans_b false).
struct GroupedProduct {
  int64_t rows = 0, n = 0, k = 0;
  int experts = 0;
  DType dtype = DType::kBF16;
  bool trans_b = true;
  const void* x = nullptr;
  const void* w = nullptr;
  const float* x_scale = nullptr;  // null: none
  const float* w_scale = nullptr;
  bool x_scale_rows = false, w_scale_rows = false, blocks = false;
  const int32_t* offsets = nullptr;
  Operand out;  // f32, bf16 or f16
};
struct GroupedDesc {
  int64_t rows = 0, experts = 0;
  bool blocks = false;
};
struct GroupedPlan {
  int tokens = 256;  // rows of a tile: 64, with more stages in flight, or 256, of scales in blocks 128
};
std::vector<GroupedPlan> candidates(const GroupedDesc& desc, const DeviceFacts& device);
void launch_grouped_wgmma(const GroupedProduct& product, const GroupedPlan& plan, int sm_count, cudaStream_t stream);

// Grouped products of bf16 with few columns N (narrow), or few elements to contract, K of 8, 16, 32 or 64 (wide): those
// of adapters. Rows of x and w are whole pieces of 16 bytes.
inline constexpr int64_t kNarrowColumns = 256;
struct ThinProduct {
  int64_t rows = 0, n = 0, k = 0, x_stride = 0;  // elements of a row of x
  int experts = 0;
  const void* x = nullptr;     // [rows, k]
  const void* w = nullptr;     // [experts n, k]
  const void* base = nullptr;  // wide: [rows, n], to which the product is added after it was rounded; null: none
  const int32_t* offsets = nullptr;
  void* out = nullptr;          // [rows, n]
  bool operands_ready = false;  // nothing earlier on the stream's graph writes w and offsets
};
void launch_grouped_narrow(const ThinProduct& product, int sm_count, cudaStream_t stream);
void launch_grouped_wide(const ThinProduct& product, cudaStream_t stream);

// dw [E M, N] (+)= dy [R, M]^T x [R, N] over the rows of each expert; M and N are multiples of 8.
struct GroupedWgrad {
  int64_t rows = 0, m = 0, n = 0;
  int experts = 0;
  const void* dy = nullptr;  // bf16
  const void* x = nullptr;
  const int32_t* offsets = nullptr;
  float* out = nullptr;
  bool adds = false;
};
struct WgradDesc {
  int64_t m = 0;
};
struct WgradPlan {
  int ctas = 1;  // that share the columns of x of a tile: 1 or 2
};
std::vector<WgradPlan> candidates(const WgradDesc& desc, const DeviceFacts& device);
void launch_grouped_wgrad(const GroupedWgrad& wgrad, const WgradPlan& plan, int sm_count, cudaStream_t stream);

}  // namespace octet::cuda
