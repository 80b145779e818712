// Speed of every kernel entry that accepts a large case: time, FLOP/s and bytes/s from the op's cost. Without the
// reference entry.
#include <benchmark/benchmark.h>

#include "ir/facts.h"
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

struct AlignedBytes {
  std::vector<std::byte> storage;
  explicit AlignedBytes(int64_t size) : storage(static_cast<size_t>(size) + 64) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + (64 - address % 64) % 64;
  }
};

void run(benchmark::State& state, const Case& c, DType dtype, const KernelEntry& entry) {
  const BuiltCase built = build_case(c, dtype);
  const Node& node = built.node();
  std::vector<AlignedBytes> buffers;
  buffers.reserve(node.inputs.size() + node.results.size() + 1);
  std::vector<Tensor> in, out;
  for (const RefTensor& input : built.inputs) {
    buffers.emplace_back(input.type.bytes());
    store_tensor(input, buffers.back().data());
    in.push_back({input.values.empty() ? nullptr : buffers.back().data(), &input.type});
  }
  for (const TensorType& type : node.results) {
    buffers.emplace_back(type.bytes());
    out.push_back({buffers.back().data(), &type});
  }
  const std::vector<int>& aliases = op_facts(node.op).must_alias;
  for (size_t r = 0; r < aliases.size(); ++r) out[r].data = in[static_cast<size_t>(aliases[r])].data;
  AlignedBytes workspace(workspace_bytes());
  const BoundKernel kernel = entry.bind(built.graph, node);
  for (auto _ : state) kernel({in, out, {workspace.data(), static_cast<size_t>(workspace_bytes())}});
  const Cost cost = node_cost(built.graph, built.id);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["FLOP/s"] = benchmark::Counter(cost.flops, rate);
  state.counters["B/s"] = benchmark::Counter(cost.bytes, rate);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Case& c : all_cases()) {
    if (!c.large) continue;
    for (DType dtype : c.dtypes) {
      for (const KernelEntry& entry : kernel_entries(c.op)) {
        if (std::string(entry.name) == "reference") continue;
        const std::string name = case_name(c, dtype) + "/" + entry.name;
        benchmark::RegisterBenchmark(name.c_str(), [&c, dtype, &entry](benchmark::State& state) {
          const BuiltCase probe = build_case(c, dtype, false);
          if (!entry.bind(probe.graph, probe.node())) return state.SkipWithError("not accepted");
          run(state, c, dtype, entry);
        })->UseRealTime();
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace octet::cpu
