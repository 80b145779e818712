// ONNX Attention and RotaryEmbedding in terms of ours.
//
// A causal case becomes `attention` on the first Lq keys (later ones are invisible in ONNX's upper-left mask). A full
// one becomes `paged_attention` where every query is a sequence of its own that sees all keys, and, of no more queries
// than keys, `attention` that is not causal, whose last queries are zeros. A value size other than the key size is
// padded with zeros.
#include <cmath>

#include "golden_ops/golden_run.h"

namespace octet {
namespace {

// One of q, k, v as [B, L, heads, D] from [B, heads, L, D] or [B, L, heads * D], head size padded to `padded`.
struct Heads {
  int64_t batch, length, heads, dim;
  std::vector<double> values;

  Heads(const OnnxTensor& t, int64_t head_count, int64_t padded) {
    const bool split = t.dims.size() == 4;
    batch = t.dims[0];
    length = split ? t.dims[2] : t.dims[1];
    heads = split ? t.dims[1] : head_count;
    dim = split ? t.dims[3] : t.dims[2] / head_count;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t l = 0; l < length; ++l) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < padded; ++d) {
            const int64_t at =
                split ? ((b * heads + h) * length + l) * dim + d : ((b * length + l) * heads + h) * dim + d;
            values.push_back(d < dim ? t.values[static_cast<size_t>(at)] : 0.0);
          }
        }
      }
    }
  }
};

int64_t head_size(const OnnxTensor& t, int64_t heads) { return t.dims.size() == 4 ? t.dims[3] : t.dims[2] / heads; }

// Every query sees all keys of its batch: segments of k.length tokens, queries beyond q.length zero.
GoldenTensor not_causal(Attrs attrs, const Heads& q, const Heads& k, const Heads& v, DType dtype) {
  attrs.set("causal", false);
  const auto width = static_cast<int64_t>(k.values.size()) / (k.batch * k.length);
  const auto q_width = static_cast<int64_t>(q.values.size()) / (q.batch * q.length);
  std::vector<double> queries, starts = {0};
  for (int64_t b = 0; b < q.batch; ++b) {
    const auto begin = q.values.begin() + b * q.length * q_width;
    queries.insert(queries.end(), begin, begin + q.length * q_width);
    queries.resize(static_cast<size_t>((b + 1) * k.length * q_width));
    starts.push_back(static_cast<double>((b + 1) * k.length));
  }
  const int64_t tokens = k.batch * k.length;
  return run_op(Op::kAttention,
                {golden(dtype, {tokens, q_width}, queries), golden(dtype, {tokens, width}, k.values),
                 golden(dtype, {tokens, width}, v.values), golden(DType::kI32, {k.batch + 1}, starts)},
                attrs_for(Op::kAttention, attrs))[0];
}

}  // namespace

std::string check_attention(const OnnxCase& c) {
  if (c.has_input(3)) return "skip: attention mask tensor (Octet has segments instead)";
  if (c.has_input(4)) return "skip: past keys and values as tensors";
  if (c.number("softcap", 0) != 0) return "skip: softcap";
  const bool split = c.inputs[0]->dims.size() == 4;
  const auto q_heads = split ? c.inputs[0]->dims[1] : static_cast<int64_t>(c.number("q_num_heads", 1));
  const auto kv_heads = split ? c.inputs[1]->dims[1] : static_cast<int64_t>(c.number("kv_num_heads", 1));
  const int64_t dim = head_size(*c.inputs[0], q_heads), v_dim = head_size(*c.inputs[2], kv_heads),
                padded = std::max(dim, v_dim);
  const Heads q(*c.inputs[0], q_heads, padded), k(*c.inputs[1], kv_heads, padded), v(*c.inputs[2], kv_heads, padded);
  const DType dtype = *c.inputs[0]->dtype;
  const bool causal = c.number("is_causal", 0) != 0;
  if (causal && q.length > k.length) return "skip: causal with fewer keys than queries";
  Attrs attrs = {{"heads", q_heads},     {"kv_heads", kv_heads},
                 {"head_dim", padded},   {"scale", c.number("scale", 1 / std::sqrt(static_cast<double>(dim)))},
                 {"window", int64_t{0}}, {"max_length", causal ? q.length : k.length},
                 {"dropout", 0.0},       {"equal_length", int64_t{0}}};
  const int64_t tokens = q.batch * q.length, width = kv_heads * padded;
  const GoldenTensor queries = golden(dtype, {tokens, q_heads * padded}, q.values);
  GoldenTensor out, whole;
  if (causal) {
    const auto first_keys = [&](const Heads& x) {
      std::vector<double> kept;
      for (int64_t b = 0; b < x.batch; ++b) {
        const auto begin = x.values.begin() + b * x.length * width;
        kept.insert(kept.end(), begin, begin + q.length * width);
      }
      return golden(dtype, {tokens, width}, kept);
    };
    std::vector<double> starts;
    for (int64_t b = 0; b <= q.batch; ++b) starts.push_back(static_cast<double>(b * q.length));
    out = run_op(Op::kAttention, {queries, first_keys(k), first_keys(v), golden(DType::kI32, {q.batch + 1}, starts)},
                 attrs)[0];
  } else {
    // The cache holds batch b in block b of k.length slots; query t is sequence t.
    attrs.set("block_size", k.length);
    std::vector<double> starts = {0}, blocks;
    for (int64_t t = 0; t < tokens; ++t) {
      starts.push_back(static_cast<double>(t + 1));
      const int64_t block = t / q.length;
      blocks.push_back(static_cast<double>(block));
    }
    const GoldenTensor lengths =
        golden(DType::kI32, {tokens}, std::vector<double>(static_cast<size_t>(tokens), static_cast<double>(k.length)));
    out = run_op(Op::kPagedAttention,
                 {queries, golden(dtype, {k.batch * k.length, width}, k.values),
                  golden(dtype, {k.batch * k.length, width}, v.values), golden(DType::kI32, {tokens + 1}, starts),
                  lengths, golden(DType::kI32, {tokens, 1}, blocks)},
                 attrs_for(Op::kPagedAttention, attrs))[0];
    if (q.length <= k.length) whole = not_causal(attrs, q, k, v, dtype);
  }
  // [B, length, heads, padded] -> ONNX's layout without the padding
  const auto agrees = [&](const GoldenTensor& result, int64_t length) {
    std::vector<double> actual(static_cast<size_t>(tokens * q_heads * v_dim));
    for (int64_t b = 0; b < q.batch; ++b) {
      for (int64_t l = 0; l < q.length; ++l) {
        for (int64_t h = 0; h < q_heads; ++h) {
          for (int64_t d = 0; d < v_dim; ++d) {
            const int64_t to =
                split ? ((b * q_heads + h) * q.length + l) * v_dim + d : ((b * q.length + l) * q_heads + h) * v_dim + d;
            actual[static_cast<size_t>(to)] =
                result.values[static_cast<size_t>(((b * length + l) * q_heads + h) * padded + d)];
          }
        }
      }
    }
    // float16 cases: ONNX rounds scores and probabilities to float16 as well.
    return dtype == DType::kF16 ? compare(actual, *c.outputs[0], 4e-3, 1e-3) : compare(actual, *c.outputs[0]);
  };
  const std::string difference = agrees(out, q.length);
  return !difference.empty() || whole.values.empty() ? difference : agrees(whole, k.length);
}

// The cases' tables are random, not sines of angles: y = cos x + sin R(x), and our rope by known angles gives the
// quarter turn R(x) of every pair, so the layout, the rotated part and the sign are compared exactly.
std::string check_rotary(const OnnxCase& c) {
  const OnnxTensor& x = *c.inputs[0];
  const bool split = x.dims.size() == 4;
  const auto heads = split ? x.dims[1] : static_cast<int64_t>(c.number("num_heads", 1));
  const int64_t dim = head_size(x, heads);
  const Heads tokens(x, heads, dim);
  const int64_t count = tokens.batch * tokens.length;
  const auto given = static_cast<int64_t>(c.number("rotary_embedding_dim", 0));
  const int64_t rotary = given > 0 ? given : dim, pairs = rotary / 2;
  const bool interleaved = c.number("interleaved", 0) != 0;
  const double theta = 100.0;
  const GoldenTensor turned =
      run_op(Op::kRope,
             {golden(DType::kF32, {count, heads * dim}, tokens.values),
              golden(DType::kI32, {count}, std::vector<double>(static_cast<size_t>(count), 1.0))},
             {{"heads", heads},
              {"head_dim", dim},
              {"rotary_dim", rotary},
              {"theta", theta},
              {"interleaved", interleaved},
              {"scaling", std::string("none")}})[0];
  std::vector<double> actual(tokens.values.size());
  for (int64_t t = 0; t < count; ++t) {
    const int64_t row = c.has_input(3) ? static_cast<int64_t>(c.inputs[3]->values[static_cast<size_t>(t)]) : t;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        const auto from = static_cast<size_t>((t * heads + h) * dim + d);
        const int64_t b = t / tokens.length, l = t % tokens.length;
        const auto to =
            static_cast<size_t>(split ? ((b * heads + h) * tokens.length + l) * dim + d : static_cast<int64_t>(from));
        if (d >= rotary) {
          actual[to] = turned.values[from];
          continue;
        }
        const int64_t pair = interleaved ? d / 2 : d % pairs;
        const double angle = std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary));
        const double quarter = (turned.values[from] - std::cos(angle) * tokens.values[from]) / std::sin(angle);
        const auto table = static_cast<size_t>(row * pairs + pair);
        actual[to] = c.inputs[1]->values[table] * tokens.values[from] + c.inputs[2]->values[table] * quarter;
      }
    }
  }
  return compare(actual, *c.outputs[0], 1e-5, 1e-5);  // dividing by sin(angle) >= 0.03 magnifies one float32 rounding
}

}  // namespace octet
