// Table lookup and its gradient, dense and as rows. An id outside the table is an error.
#include <algorithm>
#include <map>

#include "kernels/common/parts.h"
#include "kernels/cpu/embedding/capacity.h"
#include "kernels/cpu/reference.h"

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

// Sums of rows by id, c's first.
void coalesce_rows(const Node& node, RefInputs in, RefResults out) {
  std::map<int64_t, std::vector<double>> sums;
  const auto add = [&](const RefTensor& ids, const RefTensor& rows) {
    for (int64_t t = 0; t < ids.size(); ++t) {
      const int64_t id = integer(&ids, t);
      if (id == -1) continue;
      check(id >= 0, ErrorCode::kInvalidArgument, "coalesce_rows \"{}\": id {} of row {}", node.name, id, t);
      auto& sum = sums.try_emplace(id, static_cast<size_t>(rows.cols())).first->second;
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += rows.row(t)[c];
    }
  };
  if (present(in, 2)) add(*in[2], *in[3]);
  add(*in[0], *in[1]);
  check_capacity(node.name, std::ssize(sums), out[0].size());
  std::ranges::fill(out[0].values, -1);
  int64_t row = 0;
  for (const auto& [id, sum] : sums) {
    out[0][row] = static_cast<double>(id);
    std::ranges::copy(sum, out[1].row(row++));
  }
}

}  // namespace octet::cpu::reference
