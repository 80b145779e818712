#include "ir/builder_calls.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text_words.h"

namespace octet {
namespace {

constexpr int64_t kMaxAxis = 8;

}  // namespace

// What a row of the table reads its arguments from, by position.
class BuilderArguments {
 public:
  BuilderArguments(const BuilderMethod& method, std::vector<Argument> all) : method_(method), all_(std::move(all)) {}

  Value value(size_t i) const {
    const auto* value = std::get_if<Value>(&all_[i]);
    return value != nullptr ? *value : Value::none();
  }
  const std::vector<Value>& values(size_t i) const { return std::get<std::vector<Value>>(all_[i]); }
  bool flag(size_t i) const { return std::get<bool>(all_[i]); }
  int64_t whole(size_t i) const { return std::get<int64_t>(all_[i]); }
  double number(size_t i) const { return std::get<double>(all_[i]); }
  const std::string& text(size_t i) const { return std::get<std::string>(all_[i]); }
  const Attrs& attrs(size_t i) const { return std::get<Attrs>(all_[i]); }
  Shape shape(size_t i) const { return checked(std::get<Shape>(all_[i])); }
  TensorType type(size_t i) const {
    const auto& type = std::get<TensorType>(all_[i]);
    return {type.dtype, checked(type.shape)};
  }
  int axis(size_t i) const {
    const int64_t axis = whole(i);
    check(axis >= -kMaxAxis && axis < kMaxAxis, ErrorCode::kInvalidArgument, "{}: axis {} (want {} to {})",
          method_.name, axis, -kMaxAxis, kMaxAxis - 1);
    return static_cast<int>(axis);
  }
  // Which of the parameter's words.
  size_t word(size_t i) const {
    const auto& words = method_.parameters[i].words;
    return static_cast<size_t>(std::ranges::find(words, text(i)) - words.begin());
  }

 private:
  const Shape& checked(const Shape& shape) const {
    check(shape.rank() > 0 && can_be_stored(shape), ErrorCode::kInvalidArgument,
          "{}: shape {}: dims must be positive and elements at most 2^56", method_.name, to_string(shape));
    return shape;
  }

  const BuilderMethod& method_;
  std::vector<Argument> all_;
};

namespace {

using Values = std::vector<Value>;
using Arguments = BuilderArguments;

AttentionOptions attention_options(Builder& b, const Arguments& a) {
  AttentionOptions options{.heads = a.whole(4),
                           .kv_heads = a.whole(5),
                           .head_dim = a.whole(6),
                           .scale = a.number(7),
                           .causal = a.flag(8),
                           .window = a.whole(9),
                           .max_length = a.whole(10),
                           .equal_length = a.whole(11),
                           .dropout = a.number(12),
                           .dropout_bits = a.whole(15),
                           .alibi = a.number(13),
                           .alibi_scale = a.number(14)};
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.head_dim == 0 && options.heads > 0) options.head_dim = b.shape(a.value(0)).cols() / options.heads;
  check(options.head_dim > 0, ErrorCode::kInvalidArgument, "attention: {} heads of {} (want positive numbers)",
        options.heads, options.head_dim);
  return options;
}

// An op by its name; floats among its attributes may be given as whole numbers.
Values emit_named(Builder& b, const Arguments& a) {
  const std::optional<Op> op = find_op(a.text(0));
  if (!op) {
    std::vector<std::string> names;
    for (const OpInfo& info : all_ops()) names.emplace_back(info.name);
    fail(ErrorCode::kInvalidArgument, "emit: no op is named '{}'{}: docs/ops.md lists them", a.text(0),
         if_near(a.text(0), names, " (nearest: {})"));
  }
  check(!is_named_leaf(*op) && *op != Op::kConstant && *op != Op::kFusion, ErrorCode::kInvalidArgument,
        "emit: {} has a method of its own, or is made by passes alone", a.text(0));
  Attrs attrs;
  for (const auto& [key, value] : a.attrs(2).entries()) {
    const AttrSpec* spec = find_attr(*op, key);
    const auto* whole = std::get_if<int64_t>(&value);
    const bool floats = spec != nullptr && std::holds_alternative<double>(spec->fallback);
    attrs.set(key, floats && whole != nullptr ? Attr(static_cast<double>(*whole)) : value);
  }
  const NodeId id = b.emit(*op, a.values(1), std::move(attrs), a.text(3));
  Values results;
  for (size_t i = 0; i < b.graph().node(id).results.size(); ++i) results.push_back({id, static_cast<int32_t>(i)});
  return results;
}

#define OCTET_UNARY(op)                                                                             \
  {                                                                                                 \
#op, "x", "y", "", [](Builder & b, const Arguments& a) -> Values { return {b.op(a.value(0))}; } \
  }
#define OCTET_BINARY(op, meaning)                                                                \
  {                                                                                              \
#op, "a, b", "y", meaning,                                                                   \
        [](Builder & b, const Arguments& a) -> Values { return {b.op(a.value(0), a.value(1))}; } \
  }

std::vector<BuilderMethod> rows() {
  return {
      {"input", "name: str, type: type, attrs: attrs = {}", "value",
       "A leaf whose contents come with every run, such as type (\"f32\", (8, 16)).",
       [](Builder& b, const Arguments& a) -> Values { return {b.input(a.text(0), a.type(1), a.attrs(2))}; }},
      {"param",
       "name: str, shape: shape, init: normal | zeros | ones = normal, std: float = 0.02, split: none | column | row | "
       "vocab = none",
       "value",
       "A parameter in float32, its name behind the scope's. init and std say how training begins, split how ranks may "
       "share it: by rows (column), by columns (row), by rows of a table (vocab).",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.param(a.text(0), a.shape(1),
                         {static_cast<Init>(a.word(2)), a.number(3), static_cast<Split>(a.word(4))})};
       }},
      {"state", "name: str, type: type", "value", "What runs keep: read here, renewed by update().",
       [](Builder& b, const Arguments& a) -> Values { return {b.state(a.text(0), a.type(1))}; }},
      {"constant", "value: float, shape: shape = 1", "value", "A float32 value in every element.",
       [](Builder& b, const Arguments& a) -> Values { return {b.constant(a.number(0), a.shape(1))}; }},
      {"of_tokens", "name: str, tokens: int, attrs: attrs = {}", "value",
       "An input i32[tokens], a number of every token.",
       [](Builder& b, const Arguments& a) -> Values { return {b.of_tokens(a.text(0), a.whole(1), a.attrs(2))}; }},
      {"token_ids", "tokens: int", "value", "Input \"ids\" i32[tokens].",
       [](Builder& b, const Arguments& a) -> Values { return {b.token_ids(a.whole(0))}; }},
      {"positions", "tokens: int", "value", "Input \"positions\" i32[tokens]: of a token in its sequence.",
       [](Builder& b, const Arguments& a) -> Values { return {b.positions(a.whole(0))}; }},
      {"targets", "tokens: int", "value", "Input \"targets\" i32[tokens]; -1: none.",
       [](Builder& b, const Arguments& a) -> Values { return {b.targets(a.whole(0))}; }},
      {"segments", "max_segments: int", "value",
       "Input \"segments\" i32[max_segments + 1]: where sequences begin, then the end of the last, repeated.",
       [](Builder& b, const Arguments& a) -> Values { return {b.segments(a.whole(0))}; }},
      {"rng", "", "value", "Input \"rng\" i64[3]: seed, step and micro-batch, of dropout.",
       [](Builder& b, const Arguments&) -> Values { return {b.rng()}; }},
      {"linear",
       "x, name: str, out: int, bias: bool = false, std: float = 0.02, split: none | column | row | vocab = column",
       "y",
       "x W^T (+ bias) with parameters NAME.weight [out, in] and NAME.bias: what recipes put into FP8. split=row: of a "
       "linear whose inputs a column-split one made.",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.linear(a.value(0), a.text(1), a.whole(2),
                          {.bias = a.flag(3), .std = a.number(4), .split = static_cast<Split>(a.word(5))})};
       }},
      {"head", "x, table, name: str", "y", "Logits x table^T, kept in high precision by recipes.",
       [](Builder& b, const Arguments& a) -> Values { return {b.head(a.value(0), a.value(1), a.text(2))}; }},
      {"matmul", "a, b, trans_a: bool = false, trans_b: bool = false, c?, attrs: attrs = {}", "y",
       "op(a) op(b) + c; attrs {\"float32\": True}: in float32 under every recipe.",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.matmul(a.value(0), a.value(1), a.flag(2), a.flag(3), a.value(4), a.attrs(5))};
       }},
      {"cast", "x, to: str", "y", "To another type by its name: \"f32\", \"bf16\", ...",
       [](Builder& b, const Arguments& a) -> Values { return {b.cast(a.value(0), parse_dtype(a.text(1)))}; }},
      {"scale", "x, value: float", "y", "x times a number.",
       [](Builder& b, const Arguments& a) -> Values { return {b.scale(a.value(0), a.number(1))}; }},
      {"gelu", "x, approximate: bool", "y", "approximate: by tanh.",
       [](Builder& b, const Arguments& a) -> Values { return {b.gelu(a.value(0), a.flag(1))}; }},
      OCTET_UNARY(silu),
      OCTET_UNARY(relu),
      OCTET_UNARY(tanh),
      OCTET_BINARY(add, "b: like a, of its last dim, or of one element."),
      OCTET_BINARY(sub, ""),
      OCTET_BINARY(mul, ""),
      OCTET_BINARY(maximum, ""),
      {"dropout", "x, p: float, bits: int = 32", "y", "p 0 returns x. bits 8: fewer random numbers, other masks.",
       [](Builder& b, const Arguments& a) -> Values { return {b.dropout(a.value(0), a.number(1), a.whole(2))}; }},
      {"layer_norm", "x, weight, bias, eps: float", "y, mean, rstd", "Over the last dim.",
       [](Builder& b, const Arguments& a) -> Values {
         const Builder::Norm norm = b.layer_norm(a.value(0), a.value(1), a.value(2), a.number(3));
         return {norm.y, norm.mean, norm.rstd};
       }},
      {"rms_norm", "x, weight, eps: float", "y, rstd", "Over the last dim.",
       [](Builder& b, const Arguments& a) -> Values {
         const Builder::Norm norm = b.rms_norm(a.value(0), a.value(1), a.number(2));
         return {norm.y, norm.rstd};
       }},
      {"attention",
       "q, k, v, segments, heads: int, kv_heads: int = 0, head_dim: int = 0, scale: float = 0, causal: bool = true, "
       "window: int = 0, max_length: int = 0, equal_length: int = 0, dropout: float = 0, alibi: float = 0, "
       "alibi_scale: float = 1, dropout_bits: int = 32",
       "out, lse",
       "Of tokens of one sequence, q [tokens, heads head_dim]. kv_heads 0: as many as heads; head_dim 0: what q's "
       "width makes it; scale 0: 1/sqrt(head_dim). window N: a token sees itself and N-1 before it. max_length: of the "
       "longest sequence, equal_length: of all. alibi: linear biases whose slopes end at 2^-alibi, times alibi_scale.",
       [](Builder& b, const Arguments& a) -> Values {
         const Builder::AttentionResult result =
             b.attention(a.value(0), a.value(1), a.value(2), a.value(3), attention_options(b, a));
         return {result.out, result.lse};
       }},
      {"rope",
       "x, positions, heads: int, head_dim: int, rotary_dim: int = -1, theta: float = 10000, "
       "interleaved: bool = false, scaling: none | linear | llama3 | yarn = none, factor: float = 1, "
       "low_freq_factor: float = 1, high_freq_factor: float = 4, original_max_positions: int = 8192, "
       "truncate: bool = true, attention_factor: float = 1",
       "y", "Rotary positions; rotary_dim -1: the whole head.",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.rope(a.value(0), a.value(1),
                        {.heads = a.whole(2),
                         .head_dim = a.whole(3),
                         .rotary_dim = a.whole(4),
                         .theta = a.number(5),
                         .interleaved = a.flag(6),
                         .scaling = a.text(7),
                         .factor = a.number(8),
                         .low_freq_factor = a.number(9),
                         .high_freq_factor = a.number(10),
                         .original_max_positions = a.whole(11),
                         .truncate = a.flag(12),
                         .attention_factor = a.number(13)})};
       }},
      {"embedding", "ids, table", "y", "Rows of the table.",
       [](Builder& b, const Arguments& a) -> Values { return {b.embedding(a.value(0), a.value(1))}; }},
      {"cross_entropy", "logits, targets, lse?", "per_token, lse", "The loss of every token, 0 where its target is -1.",
       [](Builder& b, const Arguments& a) -> Values {
         const Builder::Loss loss = b.cross_entropy(a.value(0), a.value(1), a.value(2));
         return {loss.per_token, loss.lse};
       }},
      {"reshape", "x, shape: shape", "y", "",
       [](Builder& b, const Arguments& a) -> Values { return {b.reshape(a.value(0), a.shape(1))}; }},
      {"slice", "x, axis: int, begin: int, end: int", "y", "",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.slice(a.value(0), a.axis(1), a.whole(2), a.whole(3))};
       }},
      {"concat", "parts..., axis: int", "y", "",
       [](Builder& b, const Arguments& a) -> Values { return {b.concat(a.values(0), a.axis(1))}; }},
      {"transpose", "x", "y", "Of a matrix.",
       [](Builder& b, const Arguments& a) -> Values { return {b.transpose(a.value(0))}; }},
      {"reduce", "x, reduction: sum | max | amax, axis: rows | all", "y", "In float32: to [columns], or to [1].",
       [](Builder& b, const Arguments& a) -> Values { return {b.reduce(a.value(0), a.text(1), a.text(2))}; }},
      {"select_rows", "x, rows", "y", "",
       [](Builder& b, const Arguments& a) -> Values { return {b.select_rows(a.value(0), a.value(1))}; }},
      {"top_k", "logits, k: int, scoring: softmax | sigmoid, renormalize: bool", "weights, experts, scores, lse",
       "The k experts of each row of logits f32[tokens, experts].",
       [](Builder& b, const Arguments& a) -> Values {
         const Builder::Routing routing = b.top_k(a.value(0), a.whole(1), a.text(2), a.flag(3));
         return {routing.weights, routing.experts, routing.scores, routing.lse};
       }},
      {"group_rows", "experts, groups: int", "places, offsets, counts", "Where rows of each expert go.",
       [](Builder& b, const Arguments& a) -> Values {
         const Builder::Groups groups = b.group_rows(a.value(0), a.whole(1));
         return {groups.places, groups.offsets, groups.counts};
       }},
      {"dispatch_rows", "x, places", "rows", "A row for every token and expert of its, those of one expert together.",
       [](Builder& b, const Arguments& a) -> Values { return {b.dispatch_rows(a.value(0), a.value(1))}; }},
      {"combine_rows", "rows, places, weights", "y", "Their weighted sums, by token.",
       [](Builder& b, const Arguments& a) -> Values { return {b.combine_rows(a.value(0), a.value(1), a.value(2))}; }},
      {"grouped_linear", "rows, offsets, name: str, out: int, std: float", "y",
       "linear() of each expert; NAME.weight is [experts out, in].",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.grouped_linear(a.value(0), a.value(1), a.text(2), a.whole(3), a.number(4))};
       }},
      {"segment_mean", "x, segments", "y", "The mean of each sequence's rows.",
       [](Builder& b, const Arguments& a) -> Values { return {b.segment_mean(a.value(0), a.value(1))}; }},
      {"emit", "op: str, inputs..., attrs: attrs = {}, name: str = ", "...", "Any op of docs/ops.md by its name.",
       emit_named},
      {"output", "name: str, value", "", "Names a result.",
       [](Builder& b, const Arguments& a) -> Values { return b.output(a.text(0), a.value(1)), Values{}; }},
      {"statistic", "name: str, shape: shape, rate: float, initial: float = 0", "value",
       "A float32 state that training changes without a gradient: after a finite step it is nearer, by `rate`, to the "
       "mean that blend() gives.",
       [](Builder& b, const Arguments& a) -> Values {
         return {b.statistic(a.text(0), a.shape(1), a.number(2), a.number(3))};
       }},
      {"blend", "statistic, sum, count?", "",
       "What the statistic is blended with: over all micro-batches and ranks of a step the sums over the counts, a "
       "count of 1 each where none is given.",
       [](Builder& b, const Arguments& a) -> Values {
         b.blend(a.value(0), a.value(1), a.value(2));
         return {};
       }},
      {"update", "state: str, value", "", "What a state holds after a run.",
       [](Builder& b, const Arguments& a) -> Values { return b.update(a.text(0), a.value(1)), Values{}; }},
  };
}

#undef OCTET_UNARY
#undef OCTET_BINARY

Argument default_of(ArgumentKind kind, std::string_view word) {
  double number = 0;
  text::read_number(word, number);
  switch (kind) {
    case ArgumentKind::kBool: return word == "true";
    case ArgumentKind::kInt: return static_cast<int64_t>(number);
    case ArgumentKind::kFloat: return number;
    case ArgumentKind::kShape: return Shape{1};
    case ArgumentKind::kAttrs: return Attrs();
    default: return std::string(word);
  }
}

// "x", "c?", "parts...", "bias: bool = false", "init: normal | zeros = normal".
BuilderParameter read_parameter(std::string_view text) {
  const size_t colon = text.find(':');
  BuilderParameter made{.name = std::string(text.substr(0, colon))};
  if (colon == std::string_view::npos) {
    if (made.name.ends_with('?')) made.name.pop_back(), made.fallback = Argument();
    if (made.name.ends_with("...")) made.name.resize(made.name.size() - 3), made.kind = ArgumentKind::kValues;
    return made;
  }
  const std::string_view rest = text::trim(text.substr(colon + 1));
  const size_t equals = rest.find('=');
  const std::vector<std::string_view> words = text::split_list(rest.substr(0, equals), '|');
  constexpr std::pair<std::string_view, ArgumentKind> kKinds[] = {
      {"bool", ArgumentKind::kBool},   {"int", ArgumentKind::kInt},   {"float", ArgumentKind::kFloat},
      {"shape", ArgumentKind::kShape}, {"type", ArgumentKind::kType}, {"attrs", ArgumentKind::kAttrs},
      {"str", ArgumentKind::kString}};
  const auto* kind = std::ranges::find(kKinds, words[0], &std::pair<std::string_view, ArgumentKind>::first);
  made.kind = kind != std::end(kKinds) ? kind->second : ArgumentKind::kString;
  if (kind == std::end(kKinds)) made.words.assign(words.begin(), words.end());
  if (equals != std::string_view::npos) made.fallback = default_of(made.kind, text::trim(rest.substr(equals + 1)));
  return made;
}

bool fits(ArgumentKind kind, const Argument& argument) {
  switch (kind) {
    case ArgumentKind::kValue: return std::holds_alternative<Value>(argument) && std::get<Value>(argument).exists();
    case ArgumentKind::kValues: return std::holds_alternative<std::vector<Value>>(argument);
    case ArgumentKind::kBool: return std::holds_alternative<bool>(argument);
    case ArgumentKind::kInt: return std::holds_alternative<int64_t>(argument);
    case ArgumentKind::kFloat: return std::holds_alternative<double>(argument);
    case ArgumentKind::kString: return std::holds_alternative<std::string>(argument);
    case ArgumentKind::kShape: return std::holds_alternative<Shape>(argument);
    case ArgumentKind::kType: return std::holds_alternative<TensorType>(argument);
    case ArgumentKind::kAttrs: return std::holds_alternative<Attrs>(argument);
  }
  return false;
}

const char* kind_name(ArgumentKind kind) {
  constexpr const char* kNames[] = {"a value", "values",  "a bool", "a whole number", "a number",
                                    "a text",  "a shape", "a type", "attributes"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

const std::vector<BuilderMethod>& builder_methods() {
  static const std::vector<BuilderMethod> table = [] {
    std::vector<BuilderMethod> made = rows();
    for (BuilderMethod& row : made) {
      for (const std::string_view one : text::split_list(row.signature)) row.parameters.push_back(read_parameter(one));
      for (const std::string_view one : text::split_list(row.results)) row.result_names.emplace_back(one);
    }
    return made;
  }();
  return table;
}

const BuilderMethod& builder_method(std::string_view name) {
  for (const BuilderMethod& row : builder_methods())
    if (name == row.name) return row;
  std::vector<std::string> names;
  for (const BuilderMethod& row : builder_methods()) names.emplace_back(row.name);
  const std::string word(name.substr(0, 80));
  fail(ErrorCode::kInvalidArgument, "a builder has no method '{}'{}: docs/builder.md lists them", word,
       if_near(word, names, " (nearest: {})"));
}

size_t parameter_index(const BuilderMethod& method, std::string_view name) {
  const auto found = std::ranges::find(method.parameters, name, &BuilderParameter::name);
  return static_cast<size_t>(found - method.parameters.begin());
}

std::vector<Value> call(Builder& builder, const BuilderMethod& method, std::span<const Argument> arguments) {
  const auto& parameters = method.parameters;
  check(arguments.size() <= parameters.size(), ErrorCode::kInvalidArgument, "{}: {} arguments (it takes {}: {})",
        method.name, arguments.size(), parameters.size(), method.signature);
  std::vector<Argument> all(arguments.begin(), arguments.end());
  all.resize(parameters.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const BuilderParameter& parameter = parameters[i];
    if (std::holds_alternative<std::monostate>(all[i])) {
      check(parameter.fallback.has_value(), ErrorCode::kInvalidArgument, "{}: argument {} is missing ({})", method.name,
            parameter.name, method.signature);
      all[i] = *parameter.fallback;
      continue;
    }
    if (const auto* whole = std::get_if<int64_t>(&all[i]); whole != nullptr && parameter.kind == ArgumentKind::kFloat)
      all[i] = static_cast<double>(*whole);
    check(fits(parameter.kind, all[i]), ErrorCode::kInvalidArgument, "{}: argument {} is of the wrong type (want {})",
          method.name, parameter.name, kind_name(parameter.kind));
    const auto* word = std::get_if<std::string>(&all[i]);
    check(word == nullptr || parameter.words.empty() ||
              std::ranges::find(parameter.words, *word) != parameter.words.end(),
          ErrorCode::kInvalidArgument, "{}: {} '{}' (want {})", method.name, parameter.name,
          word != nullptr ? *word : "", fmt::join(parameter.words, ", "));
  }
  return method.run(builder, BuilderArguments(method, std::move(all)));
}

std::string named_param(const Builder& builder, const BuilderMethod& method, std::span<const Argument> arguments) {
  const std::string_view called = method.name;
  if (called != "param" && called != "linear" && called != "grouped_linear") return "";
  const size_t at = parameter_index(method, "name");
  const auto* name = at < arguments.size() ? std::get_if<std::string>(&arguments[at]) : nullptr;
  return name == nullptr ? "" : builder.path(*name) + (called == "param" ? "" : ".weight");
}

}  // namespace octet
