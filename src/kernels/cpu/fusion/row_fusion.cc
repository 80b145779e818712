// Fusions whose body works row by row: any combination of elementwise ops, norms, reductions and quantize, run tile by
// tile with the kernels of the single ops (row_program.h), so that fused and unfused results are equal.
#include "kernels/cpu/row_program.h"

namespace octet::cpu {
namespace {

bool accepts(const Graph& graph, const Node& node) { return RowProgram::of_body(graph, node).has_value(); }

BoundKernel bind(const Graph& graph, const Node& node) {
  return [program = *RowProgram::of_body(graph, node)](const KernelArgs& args) { program.run(args); };
}

}  // namespace

std::span<const KernelEntry> fusion_kernels() {
  static const KernelEntry kernels[] = {{Op::kFusion, "fusion_rows", accepts, bind}};
  return kernels;
}

}  // namespace octet::cpu
