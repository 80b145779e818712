// For tests and benchmarks: graphs with a transformer's look, hand-picked or random, of any depth.
#pragma once

#include <string>
#include <vector>

#include "base/rng.h"
#include "ir/builder.h"

namespace octet::testing {

struct TransformerShape {
  int64_t layers = 2, tokens = 8, hidden = 16, heads = 2, vocab = 32;
  double dropout = 0;
};

// A decoder with a loss output; about 16 nodes a layer.
inline Graph transformer_graph(const TransformerShape& shape) {
  Graph graph(GraphRole::kTrain);
  Builder b(graph);
  Value table = b.param("embed.weight", {shape.vocab, shape.hidden}, {.split = Split::kVocab});
  Value x = b.embedding(b.token_ids(shape.tokens), table);
  for (int64_t i = 0; i < shape.layers; ++i) {
    auto layer = b.layer(static_cast<int>(i));
    Value h = b.layer_norm(x, b.param("norm1.weight", {shape.hidden}, {.init = Init::kOnes}),
                           b.param("norm1.bias", {shape.hidden}, {.init = Init::kZeros}), 1e-5)
                  .y;
    AttentionOptions options{.heads = shape.heads,
                             .kv_heads = shape.heads,
                             .head_dim = shape.hidden / shape.heads,
                             .max_length = shape.tokens,
                             .dropout = shape.dropout};
    Value q = b.linear(h, "q", shape.hidden), k = b.linear(h, "k", shape.hidden), v = b.linear(h, "v", shape.hidden);
    Value mixed = b.attention(q, k, v, b.segments(2), options).out;
    x = b.add(x, b.dropout(b.linear(mixed, "o", shape.hidden, {.bias = true, .split = Split::kRow}), shape.dropout));
    h = b.rms_norm(x, b.param("norm2.weight", {shape.hidden}, {.init = Init::kOnes}), 1e-5).y;
    h = b.mul(b.silu(b.linear(h, "gate", 4 * shape.hidden)), b.linear(h, "up", 4 * shape.hidden));
    x = b.add(x, b.dropout(b.linear(h, "down", shape.hidden, {.split = Split::kRow}), shape.dropout));
  }
  Value logits = b.head(x, table, "head");
  b.output("loss", b.reduce(b.cross_entropy(logits, b.targets(shape.tokens)).per_token, "sum", "all"));
  return graph;
}

// Legal nodes of random ops, inputs, attributes, names, layers and phases over [R, C] floats.
inline Graph random_graph(uint64_t seed, int nodes) {
  Philox random(seed);
  auto below = [&](size_t bound) { return static_cast<size_t>(random.below(bound)); };
  Graph graph("random \"" + std::to_string(seed) + "\"\n");
  Builder b(graph);
  Shape shape{static_cast<int64_t>(1 + below(5)), static_cast<int64_t>(2 * (1 + below(4)))};
  std::vector<Value> same = {b.input("x", {DType::kF32, shape}), b.state("odd name #\\", {DType::kBF16, shape})};
  Value row = b.param("row", {shape[1]}, {.init = Init::kOnes});
  auto pick = [&] { return same[below(same.size())]; };
  for (int i = 0; i < nodes; ++i) {
    b.set_layer(static_cast<int32_t>(below(4)) - 1);
    b.set_phase(i * 2 < nodes ? Phase::kForward : static_cast<Phase>(1 + below(3)));
    auto scope = b.scope(below(3) == 0 ? "odd \x7f scope" : "plain");
    switch (below(12)) {
      case 0: same.push_back(b.add(pick(), below(2) == 0 ? row : pick())); break;
      case 1: same.push_back(b.mul(pick(), pick())); break;
      case 2: same.push_back(b.scale(pick(), random.normal() * 1e10)); break;
      case 3: same.push_back(b.scale(pick(), static_cast<double>(below(3)))); break;
      case 4: same.push_back(b.gelu(pick(), below(2) == 0)); break;
      case 5: same.push_back(b.dropout(pick(), 0.25)); break;
      case 6: same.push_back(b.layer_norm(pick(), row, row, 1e-6).y); break;
      case 7: same.push_back(b.reshape(b.reshape(pick(), {shape.elements()}), shape)); break;
      case 8: same.push_back(b.transpose(b.transpose(pick()))); break;
      case 9: same.push_back(b.cast(pick(), below(2) == 0 ? DType::kF32 : DType::kF16)); break;
      case 10: same.push_back(b.matmul(b.matmul(pick(), pick(), false, true), pick())); break;
      default: same.push_back(b.sub(pick(), b.reduce(pick(), "sum", below(2) == 0 ? "rows" : "all"))); break;
    }
  }
  for (int i = 0; i < 3; ++i) b.output("out" + std::to_string(i), pick());
  return graph;
}

}  // namespace octet::testing
