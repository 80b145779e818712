// Row-major tensors are the library's column-major ones transposed: out^T = op(b)^T op(a)^T, so b is its A and a its B.
#include "kernels/cuda/matmul/gemm.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace octet::cuda {
namespace {

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF16: return CUDA_R_16F;
    case DType::kE4M3: return CUDA_R_8F_E4M3;
    case DType::kE5M2: return CUDA_R_8F_E5M2;
    default: fail(ErrorCode::kInternal, "cuBLASLt has no type {}", dtype_name(dtype));
  }
}

cublasLtMatmulMatrixScale_t scale_mode(GemmScaling scaling) {
  switch (scaling.value_or(ScaleLayout::kTensor)) {
    case ScaleLayout::kRow: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleLayout::kRow128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleLayout::kTile128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

// Stands for pointers the library looks at when it chooses (whether they are there, how they are aligned).
const void* const kSomewhere = reinterpret_cast<const void*>(uintptr_t{256});

}  // namespace

std::string GemmSpec::key() const {
  const auto number = [](GemmScaling scaling) { return scaling ? 1 + static_cast<int>(*scaling) : 0; };
  return fmt::format("m{} n{} k{} {} {} {} {}{} scale{}{} {}{}{}{}", m, n, k, dtype_name(a), dtype_name(b),
                     dtype_name(out), trans_a ? 't' : 'n', trans_b ? 't' : 'n', number(scaling_a), number(scaling_b),
                     addend ? "addend" : "plain", bias ? std::string("+bias_") + dtype_name(*bias) : "",
                     fast_accumulation ? "+fast" : "", tf32 ? "+tf32" : "");
}

template <typename T>
void Gemm::set(cublasLtMatmulDescAttributes_t attribute, T value) const {
  library_.check(library_.set_desc(desc_, attribute, &value, sizeof value), "setting an attribute of a product");
}

cublasLtMatrixLayout_t Gemm::layout(DType dtype, int64_t rows, int64_t cols) const {
  cublasLtMatrixLayout_t result = nullptr;
  library_.check(
      library_.create_layout(&result, data_type(dtype), static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), cols),
      "describing a matrix");
  return result;
}

Gemm::Gemm(DeviceContext& context, const GemmSpec& spec) : library_(context.library<CublasLt>()), spec_(spec) {
  library_.check(
      library_.create_desc(&desc_, spec.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "describing a product");
  set<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA, spec.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB, spec.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (spec.scaling_a) {
    set<int32_t>(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(spec.scaling_b));
    set<int32_t>(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(spec.scaling_a));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kSomewhere);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kSomewhere);
  }
  if (spec.fast_accumulation) set<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1);
  if (spec.bias) {
    set<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(*spec.bias));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, kSomewhere);
  }
  a_ = layout(spec.a, spec.trans_a ? spec.k : spec.m, spec.trans_a ? spec.m : spec.k);
  b_ = layout(spec.b, spec.trans_b ? spec.n : spec.k, spec.trans_b ? spec.k : spec.n);
  out_ = layout(spec.out, spec.m, spec.n);
}

Gemm::~Gemm() {
  for (cublasLtMatrixLayout_t matrix : {a_, b_, out_}) {
    if (matrix != nullptr) library_.destroy_layout(matrix);
  }
  if (desc_ != nullptr) library_.destroy_desc(desc_);
}

std::vector<cublasLtMatmulAlgo_t> Gemm::candidates(int most) const {
  std::vector<cublasLtMatmulAlgo_t> algorithms = suggestions(most, kGemmWorkspace);
  for (const cublasLtMatmulAlgo_t& algorithm : suggestions(most, 0)) {
    const bool known = std::any_of(algorithms.begin(), algorithms.end(), [&](const cublasLtMatmulAlgo_t& other) {
      return std::equal(std::begin(other.data), std::end(other.data), std::begin(algorithm.data));
    });
    if (!known) algorithms.push_back(algorithm);
  }
  return algorithms;
}

std::vector<cublasLtMatmulAlgo_t> Gemm::suggestions(int most, int64_t workspace_limit) const {
  cublasLtMatmulPreference_t preference = nullptr;
  library_.check(library_.create_preference(&preference), "making a preference");
  const auto workspace = static_cast<uint64_t>(workspace_limit);
  library_.check(
      library_.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
      "limiting the workspace");
  // Parts of a K that is split are added in float32, never in the result's type: a bf16 result is rounded once.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  library_.check(
      library_.set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions),
      "asking for float32 sums");
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      library_.get_heuristic(library_.handle(), desc_, b_, a_, out_, out_, preference, most, found.data(), &count);
  library_.destroy_preference(preference);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool Gemm::accepts(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  return library_.check_algorithm(library_.handle(), desc_, b_, a_, out_, out_, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= static_cast<size_t>(kGemmWorkspace);
}

void Gemm::run(const GemmOperands& operands, cudaStream_t stream) const {
  if (spec_.scaling_a) {
    set<const void*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.scale_b);
    set<const void*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.scale_a);
  }
  if (spec_.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  const float alpha = 1, beta = spec_.addend ? 1 : 0;
  const void* c = spec_.addend ? operands.c : operands.out;
  const cublasStatus_t status =
      library_.matmul(library_.handle(), desc_, &alpha, operands.b, b_, operands.a, a_, &beta, c, out_, operands.out,
                      out_, &algorithm_, operands.workspace, static_cast<size_t>(kGemmWorkspace), stream);
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    library_.check(status, ("the product " + spec_.key()).c_str());
}

}  // namespace octet::cuda
