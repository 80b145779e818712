// Table lookup and its gradient. An id outside the table is an error.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// The row of the table, or of this rank's part; -1: another rank's.
int64_t checked_row(const Node& node, double value, int64_t rows) {
  int64_t row = integer(value);
  if (node.attrs.has("first")) {
    row -= node.attr<int64_t>("first");
    return row >= 0 && row < rows ? row : -1;
  }
  check(row >= 0 && row < rows, ErrorCode::kInvalidArgument, "{} \"{}\": id {} is outside the table's {} rows",
        op_name(node.op), node.name, row, rows);
  return row;
}

}  // namespace

void embedding(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[1]->type.shape.rows(), cols = in[1]->type.shape.cols();
  for (size_t t = 0; t < in[0]->values.size(); ++t) {
    const int64_t row = checked_row(node, in[0]->values[t], rows);
    if (row < 0) continue;
    std::copy_n(in[1]->values.data() + row * cols, cols, out[0].values.data() + static_cast<int64_t>(t) * cols);
  }
}

// dtable[ids[t]] += dy[t], on top of c where given.
void embedding_grad(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = out[0].type.shape.rows(), cols = out[0].type.shape.cols();
  if (present(in, 2)) out[0].values = in[2]->values;
  for (size_t t = 0; t < in[0]->values.size(); ++t) {
    const int64_t row = checked_row(node, in[0]->values[t], rows);
    if (row < 0) continue;
    double* target = out[0].values.data() + row * cols;
    const double* dy = in[1]->values.data() + static_cast<int64_t>(t) * cols;
    for (int64_t c = 0; c < cols; ++c) target[c] += dy[c];
  }
}

}  // namespace octet::cpu::reference
