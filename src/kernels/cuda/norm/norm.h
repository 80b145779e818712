// Launchers of the norms: layer_norm and rms_norm with what may be fused around them, and their gradients.
//
// One description serves alone and fused, so that fused and unfused rows run the same kernel and agree bit for bit.
// R rows (tokens), C columns (hidden). Pointers that may be null say so: a null result is not written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/norm/choose.h"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

struct PeerPads;  // kernels/cuda/collective/peer.h

struct NormQuantize {
  ScaleLayout scaling = ScaleLayout::kTensor;  // no kTile128
  DType format = DType::kE4M3;
  ScaleFormula formula;
  const float* scale = nullptr;  // [1], kTensor only
  void* codes = nullptr;         // [R, C], may be null
  float* scale_inv = nullptr;    // [1], [R] or [ceil(C/128), R], may be null
  void* codes_t = nullptr;       // [C, R], may be null; not of kRow
  float* scale_inv_t = nullptr;  // [1] or [ceil(R/128), C], may be null; not of kRow
};

// s = x (+ addend, rounded to dtype); y = norm(s) weight (+ bias), rounded; amax and codes of y.
struct NormForward {
  DType dtype = DType::kBF16, weight_dtype = DType::kF32, bias_dtype = DType::kF32;
  bool layer = false;  // layer_norm, else rms_norm: no mean, no bias
  int64_t rows = 0, cols = 0;
  float eps = 0;
  const void *x = nullptr, *addend = nullptr;  // [R, C] dtype; addend may be null
  const void *weight = nullptr, *bias = nullptr;
  void *sum = nullptr, *y = nullptr;       // [R, C] dtype, may be null; may stand where x or addend stands
  float *mean = nullptr, *rstd = nullptr;  // [R], may be null
  float* amax = nullptr;                   // [1], may be null
  NormQuantize quantize;
  float* statistics = nullptr;    // scratch [2, R] when tiles make codes_t or scale_inv_t
  uint32_t* counters = nullptr;   // [kAmaxWords + 1] of DeviceContext::counters: of the amax; of the tile scheduler
  bool next_reads_ahead = false;  // griddep_begin
};
// What runs. Codes of both directions under one scale for the tensor: rows make everything else, then their codes are
// transposed. Transposed codes alone, and blocks, whose scales differ by direction: rows make sum, y and statistics,
// then tiles make everything else of y, codes of both directions from one read.
enum class NormPasses : uint8_t { kRows, kTransposeCodes, kTiles };
NormPasses norm_passes(const NormForward& call);
void launch_norm(const NormForward& call, const NormPlan& plan, cudaStream_t stream);
void launch_norm_tiles(const NormForward& call, cudaStream_t stream);  // the second pass of kTiles

// The same of the sum of the ranks' x, added in order of ranks and rounded: a block per row pushes its x to the others.
// For plans of kBlockPerRow, bf16, without an amax, codes of a scale a row; pads of RankGroup::pads for all of x.
void launch_norm_rank_sum(const NormForward& call, const NormPlan& plan, const PeerPads& pads, cudaStream_t stream);

// dx from dy and the saved statistics; sum = dx (+ addend), rounded once more; amax and column sums of `sum`.
struct NormGradient {
  DType dtype = DType::kBF16, weight_dtype = DType::kF32;
  bool layer = false;
  int64_t rows = 0, cols = 0;
  const void *x = nullptr, *weight = nullptr, *dy = nullptr;  // [R, C], [C], [R, C]
  const float *mean = nullptr, *rstd = nullptr;               // [R]; mean of layer_norm only
  const void* addend = nullptr;                               // [R, C], may be null: then sum, amax, column_sum are too
  void *dx = nullptr, *sum = nullptr;                         // [R, C], may be null; sum may stand where addend stands
  float *dweight = nullptr, *dbias = nullptr;                 // [C], may be null
  float *amax = nullptr, *column_sum = nullptr;               // [1], [C], may be null
  float* partials = nullptr;                                  // scratch, norm_gradient_scratch() bytes
  uint32_t* block_amaxes = nullptr;                           // [blocks], set by the launcher
};
// Bytes for `sums` of dweight, dbias, column_sum, and for the blocks' amaxes.
int64_t norm_gradient_scratch(const NormGradientPlan& plan, int64_t cols, int sums);
void launch_norm_gradient(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream);

}  // namespace octet::cuda
