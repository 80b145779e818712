// A model's graph cut into its layers, and what quantizing one needs of it: which linears read one x, and where the
// inverse of scales of that x can go, so that nothing is left of them at run time. Families are not asked: the graph
// is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace octet {

// What makes x, if channels of x can be divided there.
struct FoldPlace {
  std::vector<std::string> vectors;  // a norm's weight and bias [K]
  bool plus_one = false;             // the weight is kept minus 1
  std::string linear;                // else: the linear whose rows, and bias, become x's channels: "layers.0.mlp.up"
  std::string linear_bias;           // a parameter; empty: none
};

// Linears that read one x [T, K]; or the same linears of all experts, of which each reads its rows of x.
struct LinearInput {
  std::vector<std::string> gemms;  // "layers.0.attn.q": of parameters "<gemm>.weight" [N, K], of experts [E N, K]
  Value x;                         // in the layer's graph
  int64_t width = 0;               // K
  std::optional<FoldPlace> fold = {};
  int64_t experts = 0;            // E; 0: linears of all tokens
  Value offsets = Value::none();  // rows of expert e begin at offsets[e], i32[E + 1]
};

// One layer: input "x" f32[T, H], output "y" of the same type, and those of the model that it reads (positions,
// segments). Parameters have the model's names.
struct LayerGraph {
  Graph graph;
  std::vector<LinearInput> inputs;  // in the order of their first linears
};

class LayerGraphs {
 public:
  // Of one sequence of `length` tokens. Throws kUnsupported for a layer that reads more than the one before it made.
  LayerGraphs(const ModelConfig& config, int64_t length);

  int64_t layers() const { return std::ssize(bounds_) - 1; }
  Graph embedding() const;  // "y" from the model's inputs
  LayerGraph layer(int64_t index) const;

 private:
  Graph whole_;
  std::vector<Value> bounds_;  // what layer i reads; last: what the last one made
};

}  // namespace octet
