// Table lookup and its gradient. An id outside the table is an error.
#include "kernels/cpu/reference.h"
#include "kernels/common/parts.h"

namespace octet::cpu::reference {
namespace {

// The row of the table, or of this rank's part; -1: another rank's.
int64_t checked_row(const Node& node, RefInputs in, int64_t token, int64_t rows) {
  const TablePart part(node);
  const int64_t row = integer(in[0], token) - part.first;
  if (part.is_part) return row >= 0 && row < rows ? row : -1;
  check(row >= 0 && row < rows, ErrorCode::kInvalidArgument, "{} \"{}\": id {} is outside the table's {} rows",
        op_name(node.op), node.name, row, rows);
  return row;
}

}  // namespace

void embedding(const Node& node, RefInputs in, RefResults out) {
  for (int64_t t = 0; t < in[0]->size(); ++t) {
    const int64_t row = checked_row(node, in, t, in[1]->rows());
    if (row >= 0) std::copy_n(in[1]->row(row), in[1]->cols(), out[0].row(t));
  }
}

// dtable[ids[t]] += dy[t], on top of c where given.
void embedding_grad(const Node& node, RefInputs in, RefResults out) {
  if (present(in, 2)) out[0].values = in[2]->values;
  for (int64_t t = 0; t < in[0]->size(); ++t) {
    const int64_t row = checked_row(node, in, t, out[0].rows());
    for (int64_t c = 0; row >= 0 && c < out[0].cols(); ++c) out[0].row(row)[c] += in[1]->row(t)[c];
  }
}

}  // namespace octet::cpu::reference
