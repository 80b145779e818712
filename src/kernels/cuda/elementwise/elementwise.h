// Launchers of the elementwise kernels. Buffers are contiguous and begin at 16-byte boundaries; results may stand in
// the place of operands of the same size. They return without waiting.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "ir/signature.h"

namespace octet::cuda {

enum class Activation : uint8_t { kGeluTanh, kGeluErf, kSilu, kRelu };
// Which one a node of this op is, or is the gradient of; gelu by its attribute.
constexpr Activation activation_of(Op op, bool approximate) {
  switch (op) {
    case Op::kSilu:
    case Op::kSiluGrad: return Activation::kSilu;
    case Op::kRelu:
    case Op::kReluGrad: return Activation::kRelu;
    default: return approximate ? Activation::kGeluTanh : Activation::kGeluErf;
  }
}
enum class Binary : uint8_t { kAdd, kSub, kMul, kMaximum };
enum class Broadcast : uint8_t { kNone, kRow, kOne };  // of b: full shape, [cols] against every row, [1]

// dtype: f32 or bf16.
void launch_scale(DType dtype, const void* x, void* y, int64_t count, float factor, cudaStream_t stream);
void launch_tanh(DType dtype, const void* x, void* y, int64_t count, cudaStream_t stream);
void launch_activation(Activation fn, DType dtype, const void* x, void* y, int64_t count, cudaStream_t stream);
void launch_activation_grad(Activation fn, DType dtype, const void* x, const void* dy, void* dx, int64_t count,
                            cudaStream_t stream);

// Any two of f32, bf16, f16, e4m3, e5m2.
void launch_cast(DType from, const void* x, DType to, void* y, int64_t count, cudaStream_t stream);

// a and y are of one type, b of its own: f32 or bf16 each.
void launch_binary(Binary op, Broadcast broadcast, DType a_type, const void* a, DType b_type, const void* b, void* y,
                   int64_t count, int64_t cols, cudaStream_t stream);

// y = x factor where the upper 24 bits of the element's random word are >= threshold, else 0. Of a part of a matrix,
// element (row, column) has the word of element first + row * stride + column of the whole.
struct DropoutSite {
  uint32_t key, threshold;
  float factor;
  bool bytes = false;  // instead: the element's byte, of the sixteen of words element / 16 * 4 and on
  bool is_part = false;
  int64_t first = 0, cols = 0, stride = 0;  // of a part
};
void launch_dropout(DropoutSite site, DType dtype, const void* x, const int64_t* rng, void* y, int64_t count,
                    cudaStream_t stream);

// `bytes` of y are the 8 bytes of `pattern` over and over.
void launch_fill(uint64_t pattern, void* y, int64_t bytes, cudaStream_t stream);

}  // namespace octet::cuda
