// From logits to tokens: sampled ids fed back, penalties, biases and masks, the choice of a token, likeliest tokens.
//
// A row is one token to be sampled. Its choice depends on its logits, parameters and seeds only, never on other rows:
// the random number of token v is word v mod 4 of graph_random(seed, position, sequence, 0, v / 4) (base/rng.h).
#include "ir/ops/attention_dims.h"

namespace octet::facts {
namespace {

using namespace ops;

// [R, V] of the logits.
const Shape& require_logits(const Graph& graph, const Node& node, size_t i) {
  require_arithmetic(graph, node, i);
  require_rank(graph, node, i, 2);
  return input_shape(graph, node, i);
}

Types select_token_ids_type(const Graph& graph, const Node& node) {
  require_ints(graph, node, 0, 1, "ids");
  require_ints(graph, node, 1, 2, "sampled");
  require(input_shape(graph, node, 1)[1] == 1, node, "sampled is {} (want [S,1])", input_shape(graph, node, 1));
  const TensorType& ids = input_type(graph, node, 0);
  require_type(graph, node, 2, ids);
  return {ids};
}

Types adjust_logits_type(const Graph& graph, const Node& node) {
  const Shape& logits = require_logits(graph, node, 0);
  require_ints(graph, node, 1, 2, "entries");
  const Shape& entries = input_shape(graph, node, 1);
  require(entries[1] == 2, node, "entries is {} (want [E,2]: row, token)", entries);
  require_type(graph, node, 2, f32({entries[0], 3}));
  require(node.operand("masks").exists() == node.operand("mask_rows").exists(), node,
          "masks and mask_rows come together");
  if (node.operand("masks").exists()) {
    require_ints(graph, node, 3, 2, "masks");
    require(input_shape(graph, node, 3)[1] == ceil_div(logits[1], 32), node, "masks is {} (want a bit for each of {})",
            input_shape(graph, node, 3), logits[1]);
    require_type(graph, node, 4, {DType::kI32, {logits[0]}});
  }
  return {input_type(graph, node, 0)};
}

Types sample_type(const Graph& graph, const Node& node) {
  const Shape& logits = require_logits(graph, node, 0);
  int64_t rows = logits[0];
  require_type(graph, node, 1, f32({rows, 3}));
  require_type(graph, node, 2, {DType::kI32, {rows}});
  require_type(graph, node, 3, {DType::kI64, {rows, 3}});
  if (node.operand("raw_logits").exists()) {
    require(require_logits(graph, node, 4) == logits, node, "raw logits are {}, logits {}", input_shape(graph, node, 4),
            logits);
  }
  return {{DType::kI32, {rows}}, f32({rows})};
}

Types top_logprobs_type(const Graph& graph, const Node& node) {
  const Shape& logits = require_logits(graph, node, 0);
  int64_t k = node.attr<int64_t>("k");
  require(k <= logits[1], node, "k is {} of {} tokens", k, logits[1]);
  return {f32({logits[0], k}), {DType::kI32, {logits[0], k}}};
}

}  // namespace

const OpFacts select_token_ids = {.infer = select_token_ids_type,
                                  .place = place_whole,
                                  .no_gradient = "inference only",
                                  .cost = per_result_element<0>,
                                  .precision = {ResultPrecision::kUnchanged},
                                  .in_place = {0},
                                  .meaning =
                                      "max(sampled[from[t]], 0) where from[t] >= 0, else ids[t]: a sequence that could "
                                      "draw no token (-1) goes on with any until the host has seen it"};
const OpFacts adjust_logits = {
    .infer = adjust_logits_type,
    .place = place_whole,
    .no_gradient = "inference only",
    .cost = per_result_element<2>,
    .in_place = {0},
    .meaning =
        "for every entry (row, token; row -1 = none; at most one entry a token of a row) x = logit + bias; x becomes "
        "x / repetition when positive, else x repetition; then minus penalty. Then, for rows with mask_rows[r] >= 0, "
        "-inf where bit v mod 32 of word v / 32 of that mask is 0"};
const OpFacts sample = {
    .infer = sample_type,
    .place = place_whole,
    .no_gradient = "inference only",
    .cost = per_input_element<8>,
    .precision = {ResultPrecision::kUnchanged, ResultPrecision::kFloat32},
    .meaning =
        "the token with the largest logit / temperature + g, g = -log(-log u), u = (24 random bits + 1/2) / 2^24, "
        "among "
        "those kept: the top_k likeliest (0 = all), of these the fewest whose probability reaches top_p, of these "
        "those with at least min_p of the likeliest's; temperature 0: the largest logit. Ties go to the lowest id; a "
        "row without a finite logit gives -1. logprob: of that token, by softmax of the raw logits (default: logits)"};
const OpFacts top_logprobs = {.infer = top_logprobs_type,
                              .place = place_whole,
                              .no_gradient = "inference only",
                              .cost = per_input_element<4>,
                              .precision = {ResultPrecision::kFloat32, ResultPrecision::kUnchanged},
                              .meaning = "log-softmax of the k likeliest tokens, likeliest first, ties by id"};

}  // namespace octet::facts
