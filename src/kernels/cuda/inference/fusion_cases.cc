#include "kernels/cuda/inference/fusion_cases.h"

#include "ir/builder.h"

namespace octet::cuda {
namespace {

// The inputs in the order the fuse pass takes them.
std::vector<cpu::CaseInput> operands(const RopeAppend& f) {
  const int64_t width = f.kv_heads * f.dim, rows = f.tokens + 5;
  const cpu::CaseInput cache =
      is_code(f.cache) ? cpu::codes(f.cache, {rows, width}) : cpu::normal(f.cache, {rows, width});
  std::vector<double> slots;
  for (int64_t t = 0; t < f.tokens; ++t) slots.push_back(t % 3 == 1 ? -1.0 : static_cast<double>(rows - 1 - t));
  std::vector<cpu::CaseInput> list;
  if (f.sliced) {
    list = {cpu::x({f.tokens, f.heads * f.dim + 2 * width}, 20.0), cpu::integers(DType::kI32, {f.tokens}, 0, 100000),
            cache};
  } else if (f.turns) {
    list = {cpu::x({f.tokens, f.heads * f.dim}), cpu::integers(DType::kI32, {f.tokens}, 0, 100000),
            cpu::x({f.tokens, width}, 20.0), cache};
  } else {
    list = {cache, cpu::x({f.tokens, width}, 20.0)};
  }
  list.push_back(cpu::given(DType::kI32, {f.tokens}, slots));
  const bool codes = f.cache == DType::kI8;
  const cpu::CaseInput scales = cpu::normal(DType::kF32, {rows, f.kv_heads});
  if (f.scaled || codes) list.push_back(codes ? scales : cpu::given(DType::kF32, {1}, {37.3}));
  list.push_back(cache);
  if (!f.sliced) list.push_back(cpu::x({f.tokens, width}, 20.0));
  if (f.scaled || codes) list.push_back(codes ? scales : cpu::given(DType::kF32, {1}, {0.3}));
  if (f.normed) list.insert(list.end(), 2, cpu::normal(DType::kF32, {f.dim}));
  return list;
}

Graph make_body(const RopeAppend& f, const std::vector<TensorType>& types) {
  Graph body(f.turns ? "rope_scatter_rows" : "scatter_rows_pair");
  std::vector<Value> leaves;
  for (const TensorType& type : types) {
    const std::string name = fmt::format("leaf.{}", leaves.size());
    leaves.push_back({body.add({.op = Op::kInput, .results = {type}, .name = name}), 0});
  }
  size_t next = 0;
  const auto leaf = [&] { return leaves[next++]; };
  const auto member = [&](const char* name, Op op, std::vector<Value> inputs, Attrs attrs = {}) {
    return Value{body.add({.op = op, .inputs = std::move(inputs), .attrs = std::move(attrs), .name = name}), 0};
  };
  const auto rope = [&](int64_t heads) {
    Attrs attrs = {{"heads", heads}, {"head_dim", f.dim}, {"theta", 10000.0}, {"interleaved", f.interleaved}};
    if (f.rotary_dim > 0) attrs.set("rotary_dim", f.rotary_dim);
    return attrs;
  };
  Value keys, q, v;
  if (f.turns) {
    q = leaf();
    const Value positions = leaf();
    Value k;
    if (f.sliced) {
      Builder builder(body);
      const Value merged = q;
      const int64_t keys_at = f.heads * f.dim, values_at = keys_at + f.kv_heads * f.dim;
      v = builder.slice(merged, 1, values_at, values_at + f.kv_heads * f.dim);
      q = builder.slice(merged, 1, 0, keys_at), k = builder.slice(merged, 1, keys_at, values_at);
    } else {
      k = leaf();
    }
    if (f.normed) {
      const auto norm = [&](Value x, int64_t heads, Value weight) {
        const Value rows =
            member("heads", Op::kReshape, {x}, {{"shape", std::vector<int64_t>{f.tokens * heads, f.dim}}});
        const Value y = member("norm", Op::kRmsNorm, {rows, weight}, {{"eps", 1e-6}});
        return member("back", Op::kReshape, {y}, {{"shape", std::vector<int64_t>{f.tokens, heads * f.dim}}});
      };
      q = norm(q, f.heads, leaves[leaves.size() - 2]), k = norm(k, f.kv_heads, leaves.back());
    }
    q = member("rope_q", Op::kRope, {q, positions}, rope(f.heads));
    keys = member("rope_k", Op::kRope, {k, positions}, rope(f.kv_heads));
  }
  const Value k_cache = leaf();
  if (!f.turns) keys = leaf();
  const Value slots = leaf();
  const bool codes = f.cache == DType::kI8;
  const Op scatter = codes ? Op::kScatterCodes : Op::kScatterRows;
  std::vector<Value> append = {k_cache, keys, slots};
  if (f.scaled || codes) append.push_back(leaf());
  keys = member("append_k", scatter, append);
  const Value v_cache = leaf();
  append = {v_cache, f.sliced ? v : leaf(), slots};
  if (f.scaled || codes) append.push_back(leaf());
  const Value values = member("append_v", scatter, append);
  if (f.turns) body.outputs().push_back({"rope_q.0", q});
  body.outputs().push_back({"append_k.0", keys});
  if (codes) body.outputs().push_back({"append_k.1", {keys.node, 1}});
  body.outputs().push_back({"append_v.0", values});
  if (codes) body.outputs().push_back({"append_v.1", {values.node, 1}});
  return body;
}

}  // namespace

cpu::Case rope_append_case(const RopeAppend& f) {
  const std::string kind = f.turns ? "rope_scatter_rows" : "scatter_rows_pair";
  cpu::Case c{.op = Op::kFusion,
              .name = fmt::format("{}_{}x{}+{}x{}_{}", kind, f.tokens, f.heads, f.kv_heads, f.dim, dtype_name(f.cache)),
              .inputs = operands(f),
              .dtypes = {DType::kBF16},
              .gradient = false};
  if (f.rotary_dim > 0) c.name += fmt::format("_of{}", f.rotary_dim);
  if (f.interleaved) c.name += "_interleaved";
  if (f.scaled) c.name += "_scaled";
  if (f.sliced) c.name += "_sliced";
  if (f.normed) c.name += "_normed";
  c.body = [f](const std::vector<TensorType>& types) { return make_body(f, types); };
  return c;
}

}  // namespace octet::cuda
