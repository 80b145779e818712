// The facts of ops: result types, refusals that print values and the node, costs. One table row per case; a graph is
// built from text, so that a row is what a person would write.
#include "ir/facts.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "ir/testing/random_graph.h"
#include "ir/text.h"

namespace octet {
namespace {

// Leaves every case may read.
constexpr const char* kLeaves = R"(graph @g stage fused
  %x = input : f32[4,8] @x
  %h = input : bf16[4,8] @h
  %w = input : f32[16,8] @w
  %t = input : bf16[8,4] @t
  %c = input : f32[8] @c
  %r = input : f32[4] @r
  %one = input : f32[1] @one
  %squares = input : f64[1] @squares
  %rng = input : i64[3] @rng
  %ids = input : i32[4] @ids
  %seg = input : i32[3] @seg
  %lens = input : i32[2] @lens
  %blocks = input : i32[2,5] @blocks
  %pairs = input : i32[3,2] @pairs
  %sampled = input : i32[3,1] @sampled
  %penalties = input : f32[3,3] @penalties
  %params = input : f32[4,3] @params
  %seeds = input : i64[4,3] @seeds
  %cache = state : e4m3[12,8] @cache
  %slots8 = state : i8[12,8] @slots8
  %slots8s = state : f32[12,2] @slots8s
  %big = input : f32[200,300] @big
  %a = input : e4m3[200,300] @a
  %b = input : e5m2[64,300] @b
  %as = input : f32[3,200] @as
  %bs = input : f32[1,3] @bs
  %lse = input : f32[4,2] @lse
  %q = input : i4[16,96] @q
  %qs = input : f32[3,16] @qs
  %qz = input : i8[3,16] @qz
  %n4 = input : i4[6,256] @n4
  %n4m = input : i8[6,4] @n4m
  %n4s = input : f32[6,2] @n4s
  %n4o = input : f32[6] @n4o
  %x96 = input : bf16[4,96] @x96
  %k96 = input : i32[96] @k96
  %chosen = input : i32[4,2] @chosen
  %rows = input : f32[8,8] @rows
)";

struct Case {
  const char* line;   // defines %y
  const char* types;  // of its results, or the message after "op: "
};

std::string outcome(const std::string& line) {
  try {
    Graph graph = parse_graph(std::string(kLeaves) + line + "\noutput @y %y end");
    std::string text;
    for (const TensorType& type : graph.node(graph.output("y")).results) {
      text += (text.empty() ? "" : " ") + to_string(type);
    }
    return text;
  } catch (const Error& error) {
    const std::string& message = error.message();
    return message.substr(message.find(": ") + 2);
  }
}

const std::vector<Case>& cases() {
  static const std::vector<Case> table = {
      {"%y = cast %h {to=\"e5m2\"}", "e5m2[4,8]"},
      {"%y = cast %h {to=\"f17\"}",
       "cast: attribute to is \"f17\" (want f64 | f32 | bf16 | f16 | e4m3 | e5m2 | i64 | i32 | u8 | i8 | i4) in node "},
      {"%y = scale %h {value=2.0}", "bf16[4,8]"},
      {"%y = scale %h {value=2} @n", "scale: attribute value is 2, an int (want float) in node n"},
      {"%y = gelu %h {approximate=true}", "bf16[4,8]"},
      {"%y = gelu_grad %h, %x {approximate=true}", "bf16[4,8]"},
      {"%y = silu %h", "bf16[4,8]"},
      {"%y = silu %a", "silu: input 0 is e4m3 (want f32, bf16, f16 or f64; cast or dequantize it) in node "},
      {"%y = tanh %h", "bf16[4,8]"},
      {"%y = tanh %a", "tanh: input 0 is e4m3 (want f32, bf16, f16 or f64; cast or dequantize it) in node "},
      {"%y = silu_grad %h, %h", "bf16[4,8]"},
      {"%y = silu_grad %x, %c", "silu_grad: x and dy differ: [4,8] vs [8] in node "},
      {"%y = relu %x", "f32[4,8]"},
      {"%y = relu_grad %x, %x", "f32[4,8]"},
      {"%y = add %h, %c", "bf16[4,8]"},
      {"%y = sub %x, %one", "f32[4,8]"},
      {"%y = mul %x, %x", "f32[4,8]"},
      {"%y = mul %x, %r @n",
       "mul: shapes do not fit: [4,8] and [4] (the second may be the same, [8] or [1]) in node n"},
      {"%y = maximum %one, %one", "f32[1]"},
      {"%y = dropout %x, %rng {p=0.5, key=1}", "f32[4,8]"},
      {"%y = dropout %x, %rng {p=1.0, key=1}", "dropout: attribute p is 1.0 (want float >= 0 < 1) in node "},
      {"%y = dropout %x, %rng {p=0.5, key=1, bits=8}", "f32[4,8]"},
      {"%y = dropout %x, %rng {p=0.5, key=1, bits=16}", "dropout: bits is 16 (want 8 or 32) in node "},
      {"%y = dropout %x, %rng {p=0.001, key=1, bits=8}",
       "dropout: dropout of 0.001 with 8 bits is 0 / 256: nothing or all would be dropped (want 1/512 <= p < 511/512, "
       "or "
       "32 bits) in node "},
      {"%y = dropout %x, %rng {p=0.999, key=1, bits=8}", "dropout: dropout of 0.999 with 8 bits is 256 / 256: "},
      {"%y = dropout %x, %ids {p=0.5, key=1}", "dropout: input 1 is i32[4] (want i64[3]) in node "},
      {"%y = constant {value=0.5} : f16[3]", "f16[3]"},
      {"%y = matmul %x, %w {trans_b=true}", "f32[4,16]"},
      {"%y = matmul %h, %h {trans_a=true, to=\"f32\"}", "f32[8,8]"},
      {"%y = matmul %h, %t, %c", "matmul: c is f32[8] (want [4,4] or a bias [4]) in node "},
      {"%y = matmul %h, %t, %r", "bf16[4,4]"},
      {"%y = matmul %x, %w @n", "matmul: inner dims differ: 8 vs 16, of [4,8] and [16,8] in node n"},
      {"%y = matmul %c, %w", "matmul: input 0 has shape [8] (want rank 2) in node "},
      {"%y = scaled_matmul %a, %as, %b, %bs {trans_b=true, scaling_a=\"1x128\", scaling_b=\"128x128\"}", "f32[200,64]"},
      {"%y = scaled_matmul %a, %one, %b, %one {trans_b=true, to=\"bf16\"}", "bf16[200,64]"},
      {"%y = scaled_matmul %a, %as, %a, %one {trans_a=true, scaling_a=\"1x128\"}",
       "scaled_matmul: scaling_a is 1x128: the groups of input 0 do not run along the contraction; use its transposed "
       "codes in node "},
      {"%y = top_k %x {k=2}", "f32[4,2] i32[4,2] f32[4,8] f32[4]"},
      {"%y = top_k %x {k=9}", "top_k: k is 9 of 8 experts in node "},
      {"%y = top_k %h {k=2}", "top_k: logits are bf16[4,8] (want f32) in node "},
      {"%y = top_k_grad %x, %chosen, %lse, _, %r {k=2}", "f32[4,8]"},
      {"%y = top_k_grad %x, %ids, %lse {k=2}", "top_k_grad: input 1 is i32[4] (want i32[4,2]) in node "},
      {"%y = group_rows %chosen {groups=6}", "i32[4,2] i32[7] f32[6]"},
      {"%y = group_rows %ids {groups=6}", "group_rows: experts is i32[4] (want i32 of rank 2) in node "},
      {"%y = dispatch_rows %h, %chosen", "bf16[8,8]"},
      {"%y = dispatch_rows %h, %chosen, %lse", "dispatch_rows: input 2 is"},
      {"%y = dispatch_rows %t, %chosen", "dispatch_rows: x is [8,4] for places [4,2] in node "},
      {"%y = combine_rows %rows, %chosen, %lse", "f32[4,8]"},
      {"%y = combine_rows %x, %chosen", "combine_rows: rows are [4,8] for places [4,2] in node "},
      {"%y = combine_rows_grad %rows, %chosen, %lse, %x", "f32[8,8] f32[4,2]"},
      {"%y = grouped_matmul %h, %w, %seg {trans_b=true}", "bf16[4,8]"},
      {"%y = grouped_matmul %x, %w, %seg {to=\"bf16\"}", "bf16[4,8]"},
      {"%y = grouped_matmul %x, %w, %lens @n",
       "grouped_matmul: inner dims differ: 8 vs 16, of [4,8] and 1 experts of [16,8] in node n"},
      {"%y = grouped_matmul %x, %w, %ids {trans_b=true}",
       "grouped_matmul: w is [16,8]: its rows do not divide into 3 experts in node "},
      {"%y = grouped_matmul_wgrad %h, %x, %seg", "f32[16,8]"},
      {"%y = grouped_matmul_wgrad %h, %x, %seg, %x",
       "grouped_matmul_wgrad: input 3 is f32[4,8] (want f32[16,8]) in node "},
      {"%y = scaled_grouped_matmul %a, %one, %b, %one, %seg {trans_b=true, to=\"bf16\"}", "bf16[200,32]"},
      {"%y = scaled_grouped_matmul %a, %one, %b, %bs, %seg {trans_b=true, scaling_b=\"128x128\"}",
       "scaled_grouped_matmul: the blocks of 128 rows of w [64,300] would lie in two of 2 experts in node "},
      {"%y = scaled_grouped_matmul %a, %one, %a, %one, %lens",
       "scaled_grouped_matmul: inner dims differ: 300 vs 200, of [200,300] and 1 experts of [200,300] in node "},
      {"%y = layer_norm %h, %c, %c {eps=1e-05}", "bf16[4,8] f32[4] f32[4]"},
      {"%y = layer_norm %h, %r, %c {eps=1e-05}", "layer_norm: weight is [4], x has 8 channels in node "},
      {"%y = layer_norm_grad %h, %c, %r, %r, %h", "bf16[4,8] f32[8] f32[8]"},
      {"%y = rms_norm %x, %c {eps=1e-05}", "f32[4,8] f32[4]"},
      {"%y = rms_norm %x, %c", "rms_norm: attribute eps is missing (want float >= 0) in node "},
      {"%y = rms_norm_grad %x, %c, %r, %x", "f32[4,8] f32[8]"},
      {"%y = rms_norm_grad %h, %c, %r, %x", "rms_norm_grad: x and dy differ: bf16[4,8] vs f32[4,8] in node "},
      {"%y = layer_norm_grad %x, %c, %r, %r, %h", "layer_norm_grad: x and dy differ: f32[4,8] vs bf16[4,8] in node "},
      {"%y = attention %h, %h, %h, %seg {heads=2, kv_heads=2, head_dim=4, scale=0.5}", "bf16[4,8] f32[4,2]"},
      {"%y = attention %h, %h, %h, %seg {heads=4, kv_heads=2, head_dim=2, scale=0.5}",
       "attention: input 1 is [4,8] (want [4,4]: tokens, heads x head_dim) in node "},
      {"%y = attention %h, %h, %h, %seg {heads=2, kv_heads=2, head_dim=4, scale=0.5, dropout=0.1}",
       "attention: dropout 0.1 needs the rng input in node "},
      {"%y = attention %h, %h, %h, %seg {heads=2, kv_heads=2, head_dim=4, scale=0.5, windw=128} @n",
       "attention: no attribute is named windw (nearest: window); there are: heads, kv_heads, head_dim, scale, window, "
       "alibi, alibi_scale, first_head, all_heads, causal, max_length, equal_length, dropout, bits, key, library_mask "
       "in node n"},
      {"%y = attention %h, %h, %h, %seg {heads=0, kv_heads=2, head_dim=4, scale=0.5}",
       "attention: attribute heads is 0 (want int32 > 0) in node "},
      {"%y = silu %h {eps=1e-05} @n", "silu: no attribute is named eps; there are: none in node n"},
      {"%y = attention_grad %h, %x, %h, %seg, %h, %lse, %h {heads=2, kv_heads=2, head_dim=4, scale=0.5}",
       "bf16[4,8] f32[4,8] bf16[4,8]"},
      {"%y = rope %h, %ids {heads=2, head_dim=4, theta=10000.0}", "bf16[4,8]"},
      {"%y = rope %h, %ids {heads=2, head_dim=4, theta=10000.0, rotary_dim=0}",
       "rope: attribute rotary_dim is 0 (want int > 0) in node "},
      {"%y = rope %h, %ids {heads=2, head_dim=4, theta=10000.0, rotary_dim=3}",
       "rope: rotary_dim is 3 (want an even number up to head_dim 4) in node "},
      {"%y = embedding %ids, %w", "f32[4,8]"},
      {"%y = embedding_grad %ids, %h {rows=50}", "f32[50,8]"},
      {"%y = coalesce_rows %ids, %h {capacity=3}", "i32[3] f32[3,8]"},
      {"%y = coalesce_rows %ids, %h, %ids, %x {capacity=4}", "i32[4] f32[4,8]"},
      {"%y = coalesce_rows %ids, %h, %ids, %x {capacity=3}", "coalesce_rows: input 2 is i32[4] (want i32[3]) in node "},
      {"%y = coalesce_rows %ids, %h, %ids {capacity=4}", "coalesce_rows: c_ids are given and c_rows absent in node "},
      {"%y = cross_entropy %h, %ids", "f32[4] f32[4]"},
      {"%y = cross_entropy %h, %ids, %r", "f32[4] f32[4]"},
      {"%y = cross_entropy %h, %ids, %c", "cross_entropy: input 2 is f32[8] (want f32[4]) in node "},
      {"%y = cross_entropy_grad %h, %ids, %r, %r", "bf16[4,8]"},
      {"%y = reshape %h {shape=[2,16]}", "bf16[2,16]"},
      {"%y = reshape %h {shape=[2,15]}", "reshape: [4,8] has 32 elements, [2,15] has 30 in node "},
      {"%y = slice %h {axis=1, begin=2, end=5}", "bf16[4,3]"},
      {"%y = slice %h {axis=1, begin=5, end=9}", "slice: [5, 9) of axis 1 of [4,8] in node "},
      {"%y = concat %h, %h, %h {axis=0}", "bf16[12,8]"},
      {"%y = concat %h, %x {axis=0}", "concat: input 1 is f32[4,8], input 0 bf16[4,8]: they may differ in axis 0 only"},
      {"%y = transpose %h", "bf16[8,4]"},
      {"%y = reduce %h {reduction=\"amax\", axis=\"all\"}", "f32[1]"},
      {"%y = reduce %h {reduction=\"sum\", axis=\"rows\"}", "f32[8]"},
      {"%y = reduce %h {reduction=\"mean\", axis=\"rows\"}",
       "reduce: attribute reduction is \"mean\" (want sum | max | amax) in node "},
      {"%y = select_rows %h, %lens", "bf16[2,8]"},
      {"%y = segment_mean %h, %lens", "f32[1,8]"},
      {"%y = segment_mean %h, %one", "segment_mean: segments are f32[1] (want i32[S+1]) in node "},
      {"%y = compute_scale %one {format=\"e4m3\", margin=1, pow2=true}", "f32[1] f32[1]"},
      {"%y = compute_scale %one {format=\"bf16\"}",
       "compute_scale: attribute format is \"bf16\" (want e4m3 | e5m2 | i8) in node "},
      {"%y = quantize %big, %one {format=\"e4m3\"}", "e4m3[200,300] f32[1] e4m3[300,200] f32[1] f32[1]"},
      {"%y = quantize %big {format=\"e4m3\", scaling=\"row\"}", "e4m3[200,300] f32[200] e4m3[300,200] f32[300] f32[1]"},
      {"%y = quantize %big {format=\"e4m3\", scaling=\"1x128\"}",
       "e4m3[200,300] f32[3,200] e4m3[300,200] f32[2,300] f32[1]"},
      {"%y = quantize %big {format=\"e5m2\", scaling=\"128x128\"}",
       "e5m2[200,300] f32[2,3] e5m2[300,200] f32[3,2] f32[1]"},
      {"%y = quantize %big {format=\"e4m3\"}",
       "quantize: scaling per tensor takes a scale input, the others none in node "},
      {"%y = dequantize %a, %as {scaling=\"1x128\", to=\"bf16\"}", "bf16[200,300]"},
      {"%y = dequantize %b, %as {scaling=\"1x128\"}", "dequantize: input 1 is f32[3,200] (want f32[3,64]) in node "},
      {"%y = quantize %big {format=\"i4\", scaling=\"1x64\"}", "i4[200,300] f32[5,200] i4[300,200] f32[4,300] f32[1]"},
      {"%y = quantize %lse {format=\"i4\", scaling=\"row\"}", "i4[4,2] f32[4] i4[2,4] f32[2] f32[1]"},
      {"%y = dequantize %q, %qs {scaling=\"1x32\"}", "f32[16,96]"},
      {"%y = dequantize %q, %qs, %qz {scaling=\"1x32\"}", "f32[16,96]"},
      {"%y = dequantize %q, %qs {scaling=\"1x64\"}", "dequantize: input 1 is f32[3,16] (want f32[2,16]) in node "},
      {"%y = dequantize %q, %qs, %qs {scaling=\"1x32\"}", "dequantize: input 2 is f32[3,16] (want i8[3,16]) in node "},
      {"%y = dequantize %a, %as, %qz {scaling=\"1x128\"}", "dequantize: codes of e4m3 have no zero points in node "},
      {"%y = dequantize_nf4 %n4, %n4m, %n4s, %n4o {group=2, to=\"bf16\"}", "bf16[6,256]"},
      {"%y = dequantize_nf4 %n4, %n4m, %n4s, %n4o {group=3}",
       "dequantize_nf4: group is 3 (want a power of two) in node "},
      {"%y = dequantize_nf4 %n4, %n4m, %n4o, %n4o {group=2}",
       "dequantize_nf4: input 2 is f32[6] (want f32[6,2]) in node "},
      {"%y = dequantize_nf4 %a, %n4m, %n4s, %n4o {group=2}",
       "dequantize_nf4: codes are e4m3[200,300] (want i4, a multiple of 8 of them) in node "},
      {"%y = scaled_matmul %x96, %one, %q, %qs, _, %qz {trans_b=true, scaling_b=\"1x32\"}", "f32[4,16]"},
      {"%y = scaled_matmul %x96, %qs, %q, %qs {trans_b=true, scaling_a=\"row\", scaling_b=\"1x32\"}",
       "scaled_matmul: values of bf16 have one scale, not those of row in node "},
      {"%y = scaled_matmul %x96, %one, %q, %qs, _, %one {trans_b=true, scaling_b=\"1x32\"}",
       "scaled_matmul: input 5 is f32[1] (want i8[3,16]) in node "},
      {"%y = take_columns %x96, %k96", "bf16[4,96]"},
      {"%y = take_columns %x, %k96", "take_columns: input 1 is i32[96] (want i32[8]) in node "},
      {"%y = update_scales %c, %one {format=\"e4m3\", algo=\"max\"}", "f32[8] f32[1] f32[1]"},
      {"%y = update_scales %c, %one {format=\"e4m3\", algo=\"mean\"}",
       "update_scales: attribute algo is \"mean\" (want max | most_recent) in node "},
      {"%y = tensor_stats %big {blocks=\"1x128\", format=\"e5m2\"}", "f32[13]"},
      {"%y = tensor_stats %big {blocks=\"2x2\", format=\"e5m2\"}",
       "tensor_stats: attribute blocks is \"2x2\" (want 1x128 | 128x128) in node "},
      {"%y = square_sum %x, %c, %one", "f64[1]"},
      {"%y = clip_factor %squares {max_norm=1.0}", "f32[1] f32[1] f32[1]"},
      {"%y = clip_factor %one {max_norm=1.0}", "clip_factor: input 0 is f32[1] (want f64[1]) in node "},
      {"%y = clip_factor %squares {max_norm=-1.0}",
       "clip_factor: attribute max_norm is -1.0 (want float >= 0) in node "},
      {"%y = adamw %x, %h, %x, %x, %one, %one, %one, %one {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1}",
       "f32[4,8] f32[4,8] f32[4,8]"},
      {"%y = adamw %h, %h, %x, %x, %one, %one, %one, %one {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1}",
       "adamw: input 0 is bf16[4,8] (want f32[4,8]) in node "},
      {"%y = sgd %x, %h, %one, %one, %one, %one, %x {momentum=0.9, nesterov=true, weight_decay=0.1}",
       "f32[4,8] f32[4,8]"},
      {"%y = sgd %x, %h, %one, %one, %one, %one {momentum=0.0, nesterov=false, weight_decay=0.1}", "f32[4,8] f32[4,8]"},
      {"%y = sgd %x, %h, %one, %one, %one, %one {momentum=0.9, nesterov=false, weight_decay=0.1}",
       "sgd: momentum is 0.9 and the momentum buffer is absent in node "},
      {"%y = adam_direction %x, %h, %x, %x, %one, %one, %one {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1}",
       "f32[4,8] f32[4,8] f32[4,8]"},
      {"%y = adam_direction %x, %c, %x, %x, %one, %one, %one {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1}",
       "adam_direction: the gradient is [8], the parameter [4,8] in node "},
      {"%y = trust_ratio %squares, %squares, %one", "f32[1]"},
      {"%y = trust_ratio %squares, %squares, %one, %one {coefficient=0.001, eps=0.1}", "f32[1]"},
      {"%y = trust_ratio %squares, %one, %one", "trust_ratio: input 1 is f32[1] (want f64[1]) in node "},
      {"%y = blend %x, %x, %one, %one {rate=0.1}", "f32[4,8]"},
      {"%y = blend %x, %x, _, %one {rate=0.1}", "f32[4,8]"},
      {"%y = blend %x, %h {rate=0.1}", "blend: input 1 is bf16[4,8] (want f32[4,8]) in node "},
      {"%y = row_lse %h", "f32[4]"},
      {"%y = scatter_rows %cache, %h, %ids", "e4m3[12,8]"},
      {"%y = scatter_rows %cache, %t, %ids", "scatter_rows: the table holds rows of 8, given 4 in node "},
      {"%y = scatter_rows %cache, %h, %ids, %one", "e4m3[12,8]"},
      {"%y = scatter_rows %pairs, %x, %ids",
       "scatter_rows: rows of f32 are rounded or scaled into a table of i32 (want a float type) in node "},
      {"%y = scatter_rows %pairs, %pairs, %ids, %one", "scatter_rows: input 1 is i32"},
      {"%y = scatter_codes %slots8, %h, %ids, %slots8s", "i8[12,8] f32[12,2]"},
      {"%y = scatter_codes %cache, %h, %ids, %slots8s", "scatter_codes: the table is e4m3[12,8] (want i8) in node "},
      {"%y = scatter_codes %slots8, %h, %ids, %x",
       "scatter_codes: scales are f32[4,8] (want f32[12, G], G a divisor of 8) in node "},
      {"%y = copy_blocks %cache, %pairs {block_size=3}", "e4m3[12,8]"},
      {"%y = copy_blocks %cache, %blocks {block_size=3}",
       "copy_blocks: pairs is [2,5] (want [P,2]: from, to) in node "},
      {"%y = select_token_ids %ids, %sampled, %ids", "i32[4]"},
      {"%y = select_token_ids %ids, %pairs, %ids", "select_token_ids: sampled is [3,2] (want [S,1]) in node "},
      {"%y = adjust_logits %h, %pairs, %penalties", "bf16[4,8]"},
      {"%y = adjust_logits %h, %pairs, %penalties, %sampled, %ids", "bf16[4,8]"},
      {"%y = adjust_logits %h, %pairs, %penalties, %pairs, %ids",
       "adjust_logits: masks is [3,2] (want a bit for each of 8) in node "},
      {"%y = sample %h, %params, %ids, %seeds", "i32[4] f32[4]"},
      {"%y = sample %h, %params, %ids, %params", "sample: input 3 is f32[4,3] (want i64[4,3]) in node "},
      {"%y = top_logprobs %h {k=3}", "f32[4,3] i32[4,3]"},
      {"%y = top_logprobs %h {k=9}", "top_logprobs: k is 9 of 8 tokens in node "},
      {"%y = paged_attention %h, %cache, %cache, %seg, %lens, %blocks {heads=2, kv_heads=2, head_dim=4, scale=0.5, "
       "block_size=3}",
       "bf16[4,8]"},
      {"%y = paged_attention %h, %cache, %cache, %seg, %lens, %blocks {heads=2, kv_heads=2, head_dim=4, scale=0.5, "
       "block_size=5}",
       "paged_attention: cache 1 is e4m3[12,8] (want whole blocks of 5 rows of 8) in node "},
      {"%y = paged_attention %h, %slots8, %slots8, %seg, %lens, %blocks, %slots8s, %slots8s {heads=2, kv_heads=2, "
       "head_dim=4, scale=0.5, block_size=3}",
       "bf16[4,8]"},
      {"%y = paged_attention %h, %slots8, %slots8, %seg, %lens, %blocks {heads=2, kv_heads=2, head_dim=4, scale=0.5, "
       "block_size=3}",
       "paged_attention: a cache of i8 needs k_scale_inv in node "},
      {"%y = fusion %x body graph @b %0 = input : f32[4,8] @x %1 = reduce %0 {reduction=\"sum\", axis=\"all\"} "
       "output @a %0 output @b %1 end",
       "f32[4,8] f32[1]"},
      {"%y = fusion %h body graph @b %0 = input : f32[4,8] @x output @a %0 end",
       "fusion: input 0 is bf16[4,8], the body's x is f32[4,8] in node "},
  };
  return table;
}

TEST(Facts, ShapeRules) {
  for (const Case& c : cases()) {
    std::string got = outcome(c.line), want = c.types;
    bool is_message = want.find(": ") != std::string::npos;
    if (is_message) got = got.substr(0, want.size());
    EXPECT_EQ(got, want) << c.line;
  }
}

TEST(Facts, EveryOpHasAShapeCase) {
  std::set<std::string> seen = {"input", "param", "state",  // typed by hand
                                                            // on a mesh: layout_test.cc
                                "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "take_part"};
  for (const Case& c : cases()) {
    std::string line = c.line;
    size_t begin = line.find("= ") + 2;
    bool good = std::string(c.types).find(": ") == std::string::npos;
    if (good) seen.insert(line.substr(begin, line.find(' ', begin) - begin));
  }
  for (const OpInfo& info : all_ops()) EXPECT_TRUE(seen.contains(info.name)) << "no good case for " << info.name;
}

TEST(Facts, AliasesNameInputsThatFit) {
  for (const OpInfo& info : all_ops()) {
    const OpFacts& facts = op_facts(info.op);
    EXPECT_LE(static_cast<int>(facts.must_alias.size()), std::max(info.results, 1)) << info.name;
    for (int input : facts.must_alias) EXPECT_LT(input, info.max_inputs) << info.name;
    for (auto [result, input] : facts.in_place_others) {
      EXPECT_LT(result, info.results) << info.name;
      EXPECT_LT(input, info.max_inputs) << info.name;
    }
    EXPECT_LE(static_cast<int>(facts.precision.size()), std::max(info.results, 1)) << info.name;
  }
}

// Passes that fold sums into an op, or follow a gradient through it, know its addends by this fact alone.
TEST(Facts, AddendsAreTheOperandsNamedC) {
  for (const OpInfo& info : all_ops()) {
    std::vector<int> named = info.op == Op::kAdd ? std::vector<int>{0, 1} : std::vector<int>{};
    for (size_t i = 0; i < info.operands.size(); ++i)
      if (info.operands[i] == "c") named.push_back(static_cast<int>(i));
    EXPECT_EQ(op_facts(info.op).addends, named) << info.name;
  }
}

// Which (result, input) pairs of a fusion of this body may share a buffer, as "r<i" words.
std::string takeovers(const std::string& body) {
  Graph graph = parse_graph("graph @g stage fused %x = input : f32[4,4] @x %z = input : f32[4,4] @z " +
                            std::string("%w = input : f32[4] @w %y = fusion %x, %z, %w body graph @b ") +
                            "%0 = input : f32[4,4] @x %1 = input : f32[4,4] @z %2 = input : f32[4] @w " + body +
                            " end output @y %y end");
  const Node& node = graph.node(graph.output("y"));
  std::string text;
  for (int r = 0; r < static_cast<int>(node.results.size()); ++r) {
    for (int i = 0; i < 3; ++i) {
      if (may_take_over(node, r, i)) text += fmt::format("{}{}<{}", text.empty() ? "" : " ", r, i);
    }
  }
  return text;
}

TEST(Facts, FusionsTakeOverWhatNoLaterMemberReads) {
  EXPECT_EQ(takeovers("%3 = add %0, %1 %4 = add %3, %2 output @a %4"), "0<0 0<1");
  // a norm reads all of a row before it writes it
  EXPECT_EQ(takeovers("%3 = add %0, %1 %4 = rms_norm %3, %2 {eps=1e-05} output @a %3 output @b %4"), "0<0 0<1 1<0 1<1");
  // z is read by a later member than the first result's
  EXPECT_EQ(takeovers("%3 = silu %0 %4 = mul %3, %1 %5 = add %4, %2 output @a %3 output @b %5"), "0<0 1<0 1<1");
  // the statistics and the weight have a shape in common, but not rows
  EXPECT_EQ(takeovers("%3 = rms_norm %0, %2 {eps=1e-05} %4 = mul %3, %1 output @a %3.1 output @b %4"), "1<0 1<1");
  // sums over rows and products read other rows too
  EXPECT_EQ(takeovers("%3 = mul %0, %1 %4 = reduce %3 {reduction=\"sum\", axis=\"rows\"} output @a %4"), "");
  EXPECT_EQ(takeovers("%3 = add %0, %2 %4 = matmul %3, %1 output @a %4"), "");
  EXPECT_EQ(takeovers("%3 = matmul %0, %1 %4 = silu %3 output @a %4"), "");
}

TEST(Facts, ProductsTakeOverAddendsOfFloat32) {
  for (const auto& [type, place] : {std::pair("f32", true), {"bf16", false}, {"f16", false}}) {
    const Graph graph = parse_graph(
        fmt::format("graph @g stage fused %a = input : {0}[4,4] @a %b = input : {0}[4,4] @b %c = input : {0}[4,4] @c "
                    "%y = matmul %a, %b, %c output @y %y end",
                    type));
    EXPECT_EQ(may_take_over(graph.node(graph.output("y")), 0, 2), place) << type;
  }
}

// An update stands over its own parameter and moments, and over nothing else of the same shape.
TEST(Facts, UpdatesInFusionsTakeOverTheirOwnInputs) {
  std::string leaves, read;
  for (const char* name : {"p", "g", "m", "v", "q"}) {
    leaves += fmt::format(" %{} = input : f32[4,4] @{}", name, name);
    read += fmt::format("%{}, ", name);
  }
  leaves += " %s = input : f32[1] @s";
  const auto pairs = [&](const std::string& update, int results, const std::string& other = "silu %q") {
    std::string outputs;
    for (int r = 0; r < results; ++r) outputs += fmt::format(" output @o{} %6.{}", r, r);
    Graph graph = parse_graph("graph @g stage fused" + leaves + " %y = fusion " + read + "%s body graph @b" + leaves +
                              " %6 = " + update + " %7 = " + other + outputs + " output @q %7 end output @y %y end");
    const Node& node = graph.node(graph.output("y"));
    std::string text;
    for (int r = 0; r < results; ++r) {
      for (int i = 0; i < 6; ++i) text += may_take_over(node, r, i) ? fmt::format("{}<{} ", r, i) : "";
    }
    return text;
  };
  const std::string adam = "%p, %g, %m, %v, %s, %s, %s, %s {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.0}";
  EXPECT_EQ(pairs("adamw " + adam, 3), "0<0 1<2 2<3 ");
  EXPECT_EQ(pairs("adam_direction %p, %g, %m, %v, %s, %s, %s {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.0}", 3),
            "0<0 1<2 2<3 ");
  const std::string scalars = "%s, %s, %s, %s", attrs = " {nesterov=false, weight_decay=0.0, momentum=";
  EXPECT_EQ(pairs("sgd %p, %g, " + scalars + ", %m" + attrs + "0.9}", 2, "add %q, %v"), "0<0 1<2 ");
  EXPECT_EQ(pairs("sgd %p, %g, " + scalars + attrs + "0.0}", 1, "concat %m, %v, %q {axis=0}"), "0<0 ");
}

// A fusion over a cache, its slots and rows: which input each result must share storage with, and which are
// overwritten.
std::string aliases(const std::string& body) {
  Graph graph = parse_graph(
      "graph @g stage fused %s = input : i32[2] @s %c = state : bf16[4,8] @c %d = state : bf16[4,8] @d %x = input : "
      "bf16[2,8] @x %y = fusion %s, %c, %d, %x body graph @b %s = input : i32[2] @s %c = input : "
      "bf16[4,8] "
      "@c %d = input : bf16[4,8] @d %x = input : bf16[2,8] @x " +
      body + " end output @y %y end");
  const Node& node = graph.node(graph.output("y"));
  std::string text;
  for (int r = 0; r < static_cast<int>(node.results.size()); ++r) text += fmt::format("{} ", must_alias(node, r));
  text += "over";
  for (int input : overwritten_inputs(node)) text += fmt::format(" {}", input);
  return text;
}

TEST(Facts, FusionsMustAliasWhatTheirMembersMust) {
  EXPECT_EQ(aliases("%1 = silu %x output @a %1"), "-1 over");
  EXPECT_EQ(aliases("%1 = scatter_rows %c, %x, %s output @a %1"), "1 over 1");
  EXPECT_EQ(
      aliases("%1 = silu %x %2 = scatter_rows %d, %1, %s %3 = scatter_rows %c, %x, %s output @a %1 output @b %3 output "
              "@c %2"),
      "-1 1 2 over 2 1");
  // through views and one member after the other
  EXPECT_EQ(
      aliases("%1 = scatter_rows %c, %x, %s %2 = scatter_rows %1, %x, %s %3 = reshape %2 {shape=[2,16]} output @a %3"),
      "1 over 1");
  EXPECT_EQ(
      aliases("%1 = reshape %c {shape=[8,4]} %2 = reshape %1 {shape=[4,8]} %3 = scatter_rows %2, %x, %s output @a "
              "%3"),
      "1 over 1");
  // a view alone may be a copy; what a member makes is no input
  EXPECT_EQ(aliases("%1 = reshape %c {shape=[8,4]} output @a %1"), "-1 over");
  EXPECT_EQ(aliases("%1 = silu %c %2 = scatter_rows %1, %x, %s output @a %2"), "-1 over");
  // overwritten, not given out: the verifier refuses it
  EXPECT_EQ(aliases("%1 = scatter_rows %c, %x, %s %2 = silu %1 output @a %2"), "-1 over 1");
}

TEST(Facts, FusionsMoveOnlyTheRowsTheyWriteInPlace) {
  Graph graph = parse_graph(
      "graph @g stage fused %s = input : i32[2] @s %c = state : bf16[64,8] @c %x = input : bf16[2,8] @x %y = fusion "
      "%s, "
      "%c, %x body graph @b %s = input : i32[2] @s %c = input : bf16[64,8] @c %x = input : bf16[2,8] @x "
      "%1 "
      "= silu %x %2 = scatter_rows %c, %1, %s output @a %2 end output @y %y end");
  // slots and x are read, two rows of 8 written
  EXPECT_EQ(node_cost(graph, graph.output("y").node).bytes, 2.0 * 4 + 2 * 8 * 2 + 2 * 8 * 2);
}

double flops_of(const std::string& line) {
  Graph graph = parse_graph(std::string(kLeaves) + line + "\noutput @y %y end");
  return node_cost(graph, graph.output("y").node).flops;
}

TEST(Facts, FlopsFollowTheConvention) {
  EXPECT_EQ(flops_of("%y = matmul %x, %w {trans_b=true}"), 2.0 * 4 * 16 * 8);
  EXPECT_EQ(flops_of("%y = matmul %x, %x {trans_a=true}"), 2.0 * 8 * 8 * 4);
  EXPECT_EQ(flops_of("%y = matmul %h, %t, %r"), 2.0 * 4 * 4 * 8 + 16);
  EXPECT_EQ(flops_of("%y = scaled_matmul %a, %one, %b, %one {trans_b=true}"), 2.0 * 200 * 64 * 300);
  EXPECT_EQ(flops_of("%y = grouped_matmul %x, %w, %seg {trans_b=true}"), 2.0 * 4 * 8 * 8);
  EXPECT_EQ(flops_of("%y = grouped_matmul_wgrad %x, %x, %seg"), 2.0 * 4 * 8 * 8);
  // Causal: every query sees half of its segment; 2 products of T x L/2 x heads head_dim.
  const std::string heads = "heads=2, kv_heads=2, head_dim=4, scale=0.5";
  EXPECT_EQ(flops_of("%y = attention %h, %h, %h, %seg {" + heads + "}"), 2 * 2.0 * 4 * 2 * 8);
  EXPECT_EQ(flops_of("%y = attention %h, %h, %h, %seg {" + heads + ", equal_length=2}"), 2 * 2.0 * 4 * 1 * 8);
  EXPECT_EQ(flops_of("%y = attention %h, %h, %h, %seg {" + heads + ", window=2}"), 2 * 2.0 * 4 * 1.5 * 8);
  EXPECT_EQ(flops_of("%y = attention_grad %h, %h, %h, %seg, %h, %lse, %h {" + heads + "}"), 5 * 2.0 * 4 * 2 * 8);
}

TEST(Facts, BytesAreInputsAndResultsOnce) {
  Graph graph = parse_graph(std::string(kLeaves) + "%y = add %h, %c output @y %y end");
  EXPECT_EQ(node_cost(graph, graph.output("y").node).bytes, 2.0 * 4 * 8 * 2 + 8 * 4);
}

}  // namespace
}  // namespace octet
