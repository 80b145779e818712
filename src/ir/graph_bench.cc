// Speed of the mechanisms passes are made of, on a 96-layer decoder.
#include <benchmark/benchmark.h>

#include "ir/rewrite.h"
#include "ir/testing/random_graph.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace octet {
namespace {

const Graph& big_graph() {
  static const Graph graph = testing::transformer_graph(
      {.layers = 96, .tokens = 2048, .hidden = 12288, .heads = 96, .vocab = 50257, .dropout = 0.1});
  return graph;
}

void count_nodes(benchmark::State& state) {
  state.counters["nodes"] = big_graph().size();
  state.SetItemsProcessed(state.iterations() * big_graph().size());
}

void build(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(testing::transformer_graph(
        {.layers = 96, .tokens = 2048, .hidden = 12288, .heads = 96, .vocab = 50257, .dropout = 0.1}));
  }
  count_nodes(state);
}
BENCHMARK(build)->Unit(benchmark::kMillisecond);

void rewrite(benchmark::State& state) {
  for (auto _ : state) {
    Rewriter rewriter(big_graph());
    for (int32_t i = 0; i < big_graph().size(); ++i) rewriter.copy(NodeId{i});
    benchmark::DoNotOptimize(rewriter.finish());
  }
  count_nodes(state);
}
BENCHMARK(rewrite)->Unit(benchmark::kMillisecond);

void merge(benchmark::State& state) {
  for (auto _ : state) {
    Graph graph = big_graph();
    benchmark::DoNotOptimize(merge_common_nodes(graph));
  }
  count_nodes(state);
}
BENCHMARK(merge)->Unit(benchmark::kMillisecond);

void verify_graph(benchmark::State& state) {
  for (auto _ : state) verify(big_graph());
  count_nodes(state);
}
BENCHMARK(verify_graph)->Unit(benchmark::kMillisecond);

void print_graph(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(print(big_graph()));
  count_nodes(state);
}
BENCHMARK(print_graph)->Unit(benchmark::kMillisecond);

void parse(benchmark::State& state) {
  const std::string text = print(big_graph());
  for (auto _ : state) benchmark::DoNotOptimize(parse_graph(text));
  count_nodes(state);
}
BENCHMARK(parse)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octet
