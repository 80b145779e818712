// One line per op: for every type its cases come in, the rows that run them (the first row that accepts each case).
#include "kernels/cpu/testing/support.h"

#include <map>
#include <string_view>

#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

constexpr DType kColumns[] = {DType::kF32,  DType::kBF16, DType::kF16, DType::kE4M3,
                              DType::kE5M2, DType::kI8,   DType::kI4,  DType::kI32};

void add_once(std::vector<std::string>& names, const std::string& name) {
  for (const std::string& known : names) {
    if (known == name) return;
  }
  names.push_back(name);
}

// The row that runs the node on any processor: AMX rows exist only on some.
const char* common_row(const Graph& graph, const Node& node) {
  for (const KernelEntry& row : kernel_entries(node.op)) {
    if (!std::string_view(row.name).ends_with("_amx") && row.bind(graph, node)) return row.name;
  }
  return "reference";
}

}  // namespace

std::string support_table() {
  std::map<Op, std::map<DType, std::vector<std::string>>> table;
  for (const Case& c : all_cases()) {
    if (c.large) continue;
    for (DType dtype : c.dtypes) {
      const BuiltCase built = build_case(c, dtype, false);
      add_once(table[c.op][dtype], common_row(built.graph, built.node()));
    }
  }
  std::string text =
      "# CPU kernels by op and type\n\n"
      "Made from the case list (`src/kernels/cpu/*/cases.cc`); a test keeps it true. A cell names the kernel rows "
      "that\n"
      "run the op's cases with that type of floating-point inputs; `reference` is the plain definition, empty means "
      "the\n"
      "case list has no such case (any type still runs, by the reference row). On processors with AMX bf16 attention\n"
      "runs by `attention_amx`, its gradient by `attention_grad_amx`, products of 512 rows and more, in f32\n"
      "of 128, by `matmul_amx`.\n\n| op |";
  for (DType dtype : kColumns) text.append(" ").append(dtype_name(dtype)).append(" |");
  text += "\n|---|";
  for (size_t i = 0; i < std::size(kColumns); ++i) text += "---|";
  text += "\n";
  for (const auto& [op, row] : table) {
    text += "| ";
    text += op_name(op);
    text += " |";
    for (DType dtype : kColumns) {
      const auto cell = row.find(dtype);
      if (cell != row.end()) text.append(" ").append(fmt::to_string(fmt::join(cell->second, ", ")));
      text += " |";
    }
    text += "\n";
  }
  return text + "\n";
}

}  // namespace octet::cpu
