// The paged KV cache: a token's row lies in slot block x block_size + offset, found through its sequence's block table.

#include <algorithm>

#include "ir/ops/layouts.h"

namespace octet::facts {

namespace {

using namespace ops;

Types scatter_rows_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  require_rank(graph, node, 1, 2);
  const TensorType &table = input_type(graph, node, 0), &rows = input_type(graph, node, 1);
  const bool scaled = node.operand("scale").exists();
  if (scaled || rows.dtype != table.dtype) {
    require_arithmetic(graph, node, 1);
    require(is_float(table.dtype), node, "rows of {} are rounded or scaled into a table of {} (want a float type)",
            rows.dtype, table.dtype);
  }
  require(table.shape[1] == rows.shape[1], node, "the table holds rows of {}, given {}", table.shape[1], rows.shape[1]);
  require_type(graph, node, 2, {DType::kI32, {rows.shape[0]}});
  require_optional(graph, node, "scale", f32({1}));
  return {table};
}

// Columns of cache and rows (heads) lie on any axes.
Layouts place_scatter_rows(const Graph& graph, const Node& node) {
  const Layout& table = input_layout(graph, node, 0);
  require_layout(table == table.only(1), graph, node, 0, "cut along dim 1 alone, nothing pending");
  require_is(graph, node, 1, table, "as the table");
  require_copies(graph, node, 2);
  require_copies(graph, node, 3);
  return {table};
}

void arrange_scatter(LayoutRequest& request) { request.redistribute(1, request.layout(0)); }

Layouts place_copy_blocks(const Graph& graph, const Node& node) {
  const Layout& cache = input_layout(graph, node, 0);
  require_settled(graph, node, 0);
  require_whole(graph, node, 0, 0);
  require_copies(graph, node, 1);
  return {cache};
}

bool has_row_scales(const Graph& graph, const Node& node) { return input_type(graph, node, 1).dtype == DType::kI8; }

Layouts place_paged_attention(const Graph& graph, const Node& node) {
  for (size_t i = 3; i < 6; ++i) require_copies(graph, node, i);
  for (size_t i = 6; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].exists()) continue;
    if (has_row_scales(graph, node)) {
      require_is(graph, node, i, input_layout(graph, node, i - 5), "as the cache");
    } else {
      require_copies(graph, node, i);
    }
  }
  return {heads_layout(graph, node, 1, 2)};
}

Types paged_attention_type(const Graph& graph, const Node& node) {
  HeadDims dims = head_dims(node);
  require_rank(graph, node, 0, 2);
  require_heads(graph, node, 0, input_shape(graph, node, 0)[0], dims.heads * dims.head_dim);
  int64_t block_size = node.attr<int64_t>("block_size"), width = dims.kv_heads * dims.head_dim;
  for (size_t i = 1; i <= 2; ++i) {
    require_rank(graph, node, i, 2);
    const TensorType& cache = input_type(graph, node, i);
    const bool known = is_float(cache.dtype) || cache.dtype == DType::kI8;
    require(known && cache.shape[1] == width && cache.shape[0] % block_size == 0, node,
            "cache {} is {} (want whole blocks of {} rows of {})", i, cache, block_size, width);
  }
  require_segments(graph, node, 3);
  int64_t sequences = input_shape(graph, node, 3)[0] - 1;
  require_type(graph, node, 4, {DType::kI32, {sequences}});
  require_ints(graph, node, 5, 2, "block_table");
  require(input_shape(graph, node, 5)[0] == sequences, node, "block_table is {} for {} sequences",
          input_shape(graph, node, 5), sequences);
  const bool row_scales = has_row_scales(graph, node);
  const TensorType scales = row_scales ? f32({input_shape(graph, node, 1)[0], dims.kv_heads}) : f32({1});
  for (const char* scale : {"k_scale_inv", "v_scale_inv"}) {
    require(!row_scales || node.operand(scale).exists(), node, "a cache of i8 needs {}", scale);
    require_optional(graph, node, scale, scales);
  }
  return {input_type(graph, node, 0)};
}

Types copy_blocks_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType& cache = input_type(graph, node, 0);
  int64_t block_size = node.attr<int64_t>("block_size");
  require((is_float(cache.dtype) || cache.dtype == DType::kI8) && cache.shape[0] % block_size == 0, node,
          "the cache is {} (want whole blocks of {} rows of i8 or a float type)", cache, block_size);
  require_ints(graph, node, 1, 2, "pairs");
  require(input_shape(graph, node, 1)[1] == 2, node, "pairs is {} (want [P,2]: from, to)", input_shape(graph, node, 1));
  return {cache};
}

Cost copy_blocks_cost(const Graph& graph, const Node& node) {
  const TensorType& cache = input_type(graph, node, 0);
  int64_t rows = input_shape(graph, node, 1)[0] * node.attr<int64_t>("block_size");
  return {0, 2.0 * static_cast<double>(rows * cache.shape[1] * dtype_bytes(cache.dtype))};
}

// Rows as codes, each of G equal groups with a scale of its own: those of a cache's heads.
Types scatter_codes_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  require_matrix(graph, node, 1);
  require_rank(graph, node, 3, 2);
  const TensorType &table = input_type(graph, node, 0), &scales = input_type(graph, node, 3);
  const Shape& rows = input_shape(graph, node, 1);
  require(table.dtype == DType::kI8, node, "the table is {} (want i8)", table);
  require(table.shape[1] == rows[1], node, "the table holds rows of {}, given {}", table.shape[1], rows[1]);
  require_type(graph, node, 2, {DType::kI32, {rows[0]}});
  require(scales.dtype == DType::kF32 && scales.shape[0] == table.shape[0] && rows[1] % scales.shape[1] == 0, node,
          "scales are {} (want f32[{}, G], G a divisor of {})", scales, table.shape[0], rows[1]);
  return {table, scales};
}

// As scatter_rows; no cut divides a group.
Layouts place_scatter_codes(const Graph& graph, const Node& node) {
  const Layout& table = input_layout(graph, node, 0);
  require_layout(table == table.only(1), graph, node, 0, "cut along dim 1 alone, nothing pending");
  require_is(graph, node, 1, table, "as the table");
  require_copies(graph, node, 2);
  require_is(graph, node, 3, table, "as the table");
  return {table, table};
}

// Only the appended rows move.
Cost scatter_rows_cost(const Graph& graph, const Node& node) {
  return {0, 2.0 * static_cast<double>(input_type(graph, node, 1).bytes()) +
                 static_cast<double>(input_type(graph, node, 2).bytes())};
}

// An upper bound: every sequence as long as its block table (or the window) allows.
Cost paged_attention_cost(const Graph& graph, const Node& node) {
  const Shape &q = input_shape(graph, node, 0), &table = input_shape(graph, node, 5);
  double keys = static_cast<double>(table[1]) * static_cast<double>(node.attr<int64_t>("block_size"));
  int64_t window = node.attr<int64_t>("window");
  if (window > 0) keys = std::min(keys, static_cast<double>(window));
  const TensorType& cache = input_type(graph, node, 1);
  double row_bytes = static_cast<double>(cache.shape[1] * dtype_bytes(cache.dtype));
  if (has_row_scales(graph, node)) row_bytes += 4.0 * static_cast<double>(node.attr<int64_t>("kv_heads"));
  double bytes =
      2.0 * static_cast<double>(node.results[0].bytes()) + 2.0 * static_cast<double>(table[0]) * keys * row_bytes;
  return {4.0 * static_cast<double>(q.elements()) * keys, bytes};
}

// From logits to tokens: sampled ids fed back, penalties, biases and masks, the choice of a token, likeliest tokens.
//
// A row is one token to be sampled. Its choice depends on its logits, parameters and seeds only, never on other rows:
// the random number of token v is word v mod 4 of graph_random(seed, position, sequence, 0, v / 4) (base/rng.h).
using namespace ops;

// [R, V] of the logits.
const Shape& require_logits(const Graph& graph, const Node& node, size_t i) {
  require_matrix(graph, node, i);
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

const OpFacts scatter_rows = {
    .infer = scatter_rows_type,
    .layouts = {place_scatter_rows, arrange_scatter},
    .no_gradient = "inference only",
    .cost = scatter_rows_cost,
    .precision = {ResultPrecision::kUnchanged},
    .in_place = {0},
    .must_alias = {0},
    .meaning =
        "the table with rows[t] in slot slots[t]; slot -1 writes nowhere. Rows of any type are copied; float rows may "
        "be "
        "of another float type or have a scale: multiplied by it, then rounded to the table's type"};
const OpFacts scatter_codes = {
    .infer = scatter_codes_type,
    .layouts = {place_scatter_codes, arrange_scatter},
    .no_gradient = "inference only",
    .cost = scatter_rows_cost,
    .precision = {ResultPrecision::kUnchanged},
    .must_alias = {0, 3},
    .meaning =
        "the table with the codes of rows[t] in slot slots[t], the scales with theirs; slot -1 writes nowhere. Each of "
        "a row's G equal groups is quantized by its own amax, as quantize does a row; scales hold scale_inv"};
const OpFacts copy_blocks = {
    .infer = copy_blocks_type,
    .layouts = {place_copy_blocks, arrange_as_given},
    .no_gradient = "inference only",
    .cost = copy_blocks_cost,
    .precision = {ResultPrecision::kUnchanged},
    .in_place = {0},
    .must_alias = {0},
    .meaning =
        "the cache with block pairs[p, 1] a copy of block pairs[p, 0]; a pair with a negative entry copies nothing; no "
        "block is written twice or both read and written"};
const OpFacts paged_attention = {
    .infer = paged_attention_type,
    .layouts = {place_paged_attention, arrange_heads, rows_of<1>},
    .no_gradient = "inference only",
    .cost = paged_attention_cost,
    .meaning =
        "attention of queries segments[s]..segments[s+1] over the kv_lengths[s] tokens of block_table[s]; query i of "
        "n stands at position kv_lengths[s] - n + i; keys and values are multiplied by k_scale_inv and v_scale_inv, "
        "where they are given, of a slot and kv head when the cache is i8; max_query_len (of a sequence): a promise "
        "kernels rely on, 0 = any number"};

const OpFacts select_token_ids = {.infer = select_token_ids_type,
                                  .layouts = {place_whole, arrange_whole, rows_of<1>},
                                  .no_gradient = "inference only",
                                  .cost = per_result_element<0>,
                                  .precision = {ResultPrecision::kUnchanged},
                                  .in_place = {0},
                                  .meaning =
                                      "max(sampled[from[t]], 0) where from[t] >= 0, else ids[t]: a sequence that could "
                                      "draw no token (-1) goes on with any until the host has seen it"};
const OpFacts adjust_logits = {
    .infer = adjust_logits_type,
    .layouts = {place_whole, arrange_whole, rows_of<1>},
    .no_gradient = "inference only",
    .cost = per_result_element<2>,
    .in_place = {0},
    .meaning =
        "for every entry (row, token; row -1 = none; at most one entry a token of a row) x = logit + bias; x becomes "
        "x / repetition when positive, else x repetition; then minus penalty. Then, for rows with mask_rows[r] >= 0, "
        "-inf where bit v mod 32 of word v / 32 of that mask is 0"};
const OpFacts sample = {
    .infer = sample_type,
    .layouts = {place_whole, arrange_whole, rows_of<1>},
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
                              .layouts = {place_whole, arrange_whole, rows_of<1>},
                              .no_gradient = "inference only",
                              .cost = per_input_element<4>,
                              .precision = {ResultPrecision::kFloat32, ResultPrecision::kUnchanged},
                              .meaning = "log-softmax of the k likeliest tokens, likeliest first, ties by id"};

}  // namespace octet::facts
