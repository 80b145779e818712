// GEMMs on doubles: operands are transposed to [M, K] and [K, N] so that the inner loop runs over contiguous memory.
// Rows are independent, so results do not depend on threads.
#include "kernels/cpu/reference.h"
#include "base/threads.h"
#include "kernels/common/code_order.h"
#include "kernels/common/scale_index.h"

namespace octet::cpu::reference {
namespace {

// out [M, N] = a [M, K] b [K, N] (+ c): c is [M, N], [N] or [1].
void product(const Node& node, const RefTensor& a, const RefTensor& b, const RefTensor* c, RefTensor& out) {
  const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  const int64_t m = out.rows(), n = out.cols(), k = trans_a ? a.rows() : a.cols();
  const std::vector<double> a_t = trans_a ? transposed(a.values, a.cols()) : std::vector<double>();
  const std::vector<double> b_t = trans_b ? transposed(b.values, b.cols()) : std::vector<double>();
  const double* left = trans_a ? a_t.data() : a.values.data();   // [M, K]
  const double* right = trans_b ? b_t.data() : b.values.data();  // [K, N]
  const int64_t rows_per_task = std::max<int64_t>(1, 500000 / std::max<int64_t>(1, n * k));
  parallel_for(m, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* row = out.row(i);
      for (int64_t p = 0; p < k; ++p) {
        const double factor = left[i * k + p];
        const double* source = right + p * n;
        for (int64_t j = 0; j < n; ++j) row[j] += factor * source[j];
      }
      for (int64_t j = 0; c != nullptr && j < n; ++j) row[j] += (*c)[(i * n + j) % c->size()];
    }
  });
}

}  // namespace

RefTensor dequantized(const RefTensor& codes, const RefTensor& scale_inv, const RefTensor* zero) {
  const ScaleIndex at(codes.type.shape, scale_inv.type.shape);
  RefTensor result = codes;
  const int64_t cols = codes.cols();
  for (int64_t i = 0; i < codes.size(); ++i) {
    const int64_t group = at(i / cols, i % cols);
    result[i] = (codes[i] - (zero != nullptr ? (*zero)[group] : 0)) * scale_inv[group];
  }
  return result;
}

RefTensor in_rows(const Node& node, const RefTensor& codes) {
  const std::string& name = node.attr<std::string>("order");
  if (name.empty()) return codes;
  std::vector<std::byte> ordered(static_cast<size_t>(codes.type.bytes())), plain(ordered.size());
  store_tensor(codes, ordered.data());
  restore_codes(find_code_order(name), codes.type, ordered, plain);
  return load_tensor(codes.type, plain.data());
}

void matmul(const Node& node, RefInputs in, RefResults out) {
  product(node, *in[0], *in[1], present(in, 2) ? in[2] : nullptr, out[0]);
}

void scaled_matmul(const Node& node, RefInputs in, RefResults out) {
  const RefTensor* zero = present(in, 5) ? in[5] : nullptr;
  product(node, dequantized(*in[0], *in[1]), dequantized(in_rows(node, *in[2]), *in[3], zero),
          present(in, 4) ? in[4] : nullptr, out[0]);
}

// Defined here because it shares the conversion of codes with scaled_matmul.
void dequantize(const Node&, RefInputs in, RefResults out) {
  out[0].values = dequantized(*in[0], *in[1], present(in, 2) ? in[2] : nullptr).values;
}

}  // namespace octet::cpu::reference
