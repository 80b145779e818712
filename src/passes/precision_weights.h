// Copies of weights in the types that model graphs compute in: who asked for which form, and the nodes that make them.
//
// Model graphs ask (compute copy, FP8 codes) while they are rewritten; refresh() then writes graph "prepare" and
// extends graph "apply", so that both make the same bits from the same master value. Weights are always scaled by their
// own amax: they change once a step, and the copy is shared by every micro-batch and by evaluation. Inference programs
// have no master: codes are states that the loader fills.
#pragma once

#include <map>
#include <string>

#include "ir/builder.h"
#include "ir/program.h"
#include "passes/quantize_nodes.h"

namespace octet {

// One FP8 operand: stored codes with the reciprocal scales that belong to them.
struct QuantizedValue {
  Value codes, scale_inv;
  ScaleLayout layout = ScaleLayout::kTensor;
};

class WeightCopies {
 public:
  // `keep_masters`: params of rank >= 2 stay float32 and get copies; false retypes them in place (inference).
  WeightCopies(Program& program, const Recipe& recipe, bool keep_masters);

  // What a model graph reads instead of this param, in the compute type.
  Value compute(Builder& builder, const Node& param);
  // The codes of a param [N, K] (transposed: [K, N]), scaled per tensor or per 128x128 block; in inference programs
  // also per row (output channel). Without Recipe::keep_transposes transposed ones are made where they are asked for.
  QuantizedValue codes(Builder& builder, const Node& param, Scaling scaling, bool transposed);

  // Adds the nodes that make the copies: graph "prepare", and "apply" where the program has one.
  void refresh();
  // Inference: params that graphs no longer read leave the state table.
  void drop_unread_params();

 private:
  struct Form {  // of codes
    bool plain = false, transposed = false;
  };
  struct Request {
    Node param;  // the leaf, with the attrs initial values are made from
    bool compute = false;
    Form tensor, block;
  };
  QuantizedValue stored_codes(Builder& builder, const Node& param, Scaling scaling, bool transposed);
  void emit_copies(Builder& builder, const std::string& param, const Request& request, Value master);
  void emit_codes(Builder& builder, const std::string& param, Scaling scaling, const Form& form, Value master);

  Program& program_;
  const Recipe& recipe_;
  bool keep_masters_;
  std::map<std::string, Request> requests_;
};

}  // namespace octet
