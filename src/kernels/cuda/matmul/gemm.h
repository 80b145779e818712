// One matrix product through cuBLASLt: row-major operands, any scaling the library has, an addend or a bias.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ir/scale_layout.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul/cublaslt.h"

namespace octet::cuda {

inline constexpr int64_t kGemmWorkspace = int64_t{32} << 20;  // bytes the library may use

// How scale factors belong to the elements of an operand, as the library reads them. kRow: one per row of a or column
// of op(b), f32 [M] or [N]; kRow128: along the contraction, the outer dim contiguous, f32 [ceil(K/128), M]; kTile128:
// f32 [ceil(M/128), ceil(K/128) rounded up to 4].
using GemmScaling = std::optional<ScaleLayout>;

// out [M, N] = op(a) [M, K] op(b) [K, N] + c + bias, accumulated in float32 and rounded once.
struct GemmSpec {
  int64_t m = 0, n = 0, k = 0;
  DType a = DType::kBF16, b = DType::kBF16, out = DType::kBF16;
  bool trans_a = false, trans_b = false;  // a is stored [K, M]; b is stored [N, K]
  bool addend = false;                    // c [M, N] of the result's type; may be the result itself
  std::optional<DType> bias = {};         // [N]
  GemmScaling scaling_a = {}, scaling_b = {};
  bool fast_accumulation = false;  // FP8: sums stay in the tensor cores' short accumulators over all of K
  bool tf32 = false;               // float32 operands are rounded to TF32: tensor cores

  std::string key() const;  // "m8192 n4096 k4096 bf16 bf16 bf16 nt ...", without spaces at the ends
};

// Device pointers of one call; a null scale is 1 under kTensor. Workspace: kGemmWorkspace bytes, 256-byte aligned.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  const void* c = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;
};

class Gemm {
 public:
  Gemm(DeviceContext& context, const GemmSpec& spec);
  ~Gemm();
  Gemm(const Gemm&) = delete;

  const GemmSpec& spec() const { return spec_; }
  // The library's suggestions, best first by its own estimate: `most` that may use the workspace, then as many others
  // that do without. Those are other kernels: with a workspace most clear a counter in it before they begin, which is
  // an operation of its own. None: the library has no kernel for this product.
  std::vector<cublasLtMatmulAlgo_t> candidates(int most) const;
  // Whether the algorithm runs this product within the workspace.
  bool accepts(const cublasLtMatmulAlgo_t& algorithm) const;
  void use(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }

  // Throws kInternal naming the product when the library refuses.
  void run(const GemmOperands& operands, cudaStream_t stream) const;

 private:
  std::vector<cublasLtMatmulAlgo_t> suggestions(int most, int64_t workspace_limit) const;
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const;
  cublasLtMatrixLayout_t layout(DType dtype, int64_t rows, int64_t cols) const;

  const CublasLt& library_;
  GemmSpec spec_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace octet::cuda
