#include "passes/pack.h"

namespace octet {

std::span<const Step> pack_steps() {
  static constexpr Step kSteps[] = {
      {"pad_vocab",
       [](Program& program, const CompileOptions& options) {
         return options.target.vocab_multiple > 1 && pad_vocab(program, options.target.vocab_multiple);
       }},
      {"merge_siblings",
       [](Program& program, const CompileOptions& options) {
         const Target& target = options.target;
         return target.fuses(Producer::kProduct, FusionPart::kSiblings) &&
                merge_siblings(program, target.fuses(Producer::kProduct, FusionPart::kSlices));
       }},
      {"fold_slices", [](Program& program, const CompileOptions& options) {
         bool changed = false;
         for (Graph& graph : program.graphs()) changed |= fold_slices(graph, options.target);
         return changed;
       }}};
  return kSteps;
}

bool pack(Program& program, const CompileOptions& options) {
  const bool changed = run_steps(pack_steps(), program, options);
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kPacked);
  return changed;
}

}  // namespace octet
