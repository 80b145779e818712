#include "passes/pack.h"

#include <map>

#include "base/error.h"

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

std::vector<Placement> load_plan(const Program& program) {
  // Leaves tell how their state is divided: attr parts "a,b", part_rows [rows of a, rows of b].
  std::map<std::string, const Node*> divided;
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      if (node.attrs.has("parts")) divided.emplace(node.name, &node);
    }
  }
  std::vector<Placement> plan;
  for (const StateEntry& entry : program.states()) {
    if (entry.kind == StateKind::kCompute || entry.kind == StateKind::kKvCache) continue;
    auto leaf = divided.find(entry.name);
    if (leaf == divided.end()) {
      plan.push_back({entry.name, entry.name, 0, entry.type.shape});
      continue;
    }
    const auto& rows = leaf->second->attrs.get<std::vector<int64_t>>("part_rows");
    const std::string& names = leaf->second->attrs.get<std::string>("parts");
    int64_t row = 0;
    size_t begin = 0;
    for (int64_t count : rows) {
      size_t end = std::min(names.find(',', begin), names.size());
      Shape shape = entry.type.shape;
      shape[0] = count;
      plan.push_back({names.substr(begin, end - begin), entry.name, row, shape});
      row += count;
      begin = end + 1;
    }
  }
  return plan;
}

}  // namespace octet
