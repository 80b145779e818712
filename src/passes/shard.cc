#include <algorithm>

#include "base/error.h"
#include "passes/passes.h"
#include "passes/sharded_graph.h"

namespace octet {

std::vector<int64_t> divisors(int64_t count) {
  std::vector<int64_t> list, large;
  for (int64_t d = 1; d * d <= count; ++d) {
    if (count % d != 0) continue;
    list.push_back(d);
    if (d * d != count) large.push_back(count / d);
  }
  list.insert(list.end(), large.rbegin(), large.rend());
  return list;
}

ShardLevel parse_shard_level(const std::string& name) {
  const std::vector<std::string> names = {"none", "optimizer", "gradients", "parameters"};
  const auto found = std::ranges::find(names, name);
  check(found != names.end(), ErrorCode::kInvalidArgument,
        "parallel.shard is '{}' (want none, optimizer, gradients or parameters)", name);
  return static_cast<ShardLevel>(found - names.begin());
}

bool shard(Program& program, const CompileOptions& options) {
  const Parallel& parallel = options.parallel;
  if (parallel.mesh.ranks() == 1) return false;
  check_heads(program, parallel.mesh);
  const int64_t tp = parallel.mesh[Axis::kTensor];
  if (const int64_t multiple = options.target.vocab_multiple * tp; multiple > 1)
    pad_vocab(program, multiple, /*embeddings=*/tp > 1);
  const StateLayouts states(program, parallel);
  for (StateEntry& entry : program.states()) {
    entry.layout = states.of(program, entry);
    if (is_row_gradient(entry)) entry.type.shape[0] *= parallel.mesh[Axis::kData];  // a list of each data rank
  }
  // Graphs of the first micro-batch write gradients and say how they lie.
  std::vector<size_t> order;
  for (size_t i = 0; i < program.graphs().size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto first = [&](size_t i) { return program.graphs()[i].role() != GraphRole::kTrain; };
    return first(a) < first(b);
  });
  for (size_t i : order) program.graphs()[i] = ShardedGraph(program.graphs()[i], program, states, parallel).run();
  for (StateEntry& entry : program.states())
    for (const Layout::Cut& cut : entry.layout.cuts) entry.type.shape[cut.dim] /= parallel.mesh[cut.axis];
  return true;
}

}  // namespace octet
