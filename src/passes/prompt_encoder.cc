// What makes the rows of virtual tokens (adapt.h): trained ones, or P-tuning's encoder as PEFT has it, an MLP or a
// bidirectional LSTM in front of one. Source: Liu et al., GPT understands, too (arXiv 2103.10385).
#include <fmt/format.h>

#include <cmath>

#include "passes/adapt.h"

namespace octet {
namespace {

class PromptEncoder {
 public:
  PromptEncoder(Builder& builder, const AdapterSpec& spec, int64_t hidden) : b_(builder), spec_(spec), out_(hidden) {}

  // [virtual tokens, hidden]
  Value rows() {
    if (spec_.encoder_hidden == 0) return b_.param("prompt.weight", {spec_.virtual_tokens, out_}, {.std = 0.02});
    Value x = b_.param("prompt_encoder.embedding.weight", {spec_.virtual_tokens, out_}, {.std = 1});
    for (int64_t layer = 0; layer < spec_.encoder_layers; ++layer)
      x = b_.concat({lstm(x, fmt::format("l{}", layer), false), lstm(x, fmt::format("l{}_reverse", layer), true)}, 1);
    const int last = spec_.encoder_layers > 0 ? 2 : 4;
    const int64_t width = b_.shape(x).cols();  // of an LSTM, both directions
    for (int i = 0; i <= last; i += 2) {       // of torch.nn.Sequential, where 1 and 3 are ReLUs
      if (i > 0) x = b_.relu(x);
      const std::string layer = fmt::format("prompt_encoder.mlp_head.{}", i);
      const int64_t in = b_.shape(x).cols();
      const int64_t out = i == last ? out_ : spec_.encoder_layers > 0 ? width : spec_.encoder_hidden;
      x = b_.add(b_.matmul(x, uniform(layer + ".weight", {out, in}, in), false, true),
                 uniform(layer + ".bias", {out}, in));
    }
    return x;
  }

 private:
  // Within 1 / sqrt(fan): PyTorch's values of linears and LSTMs.
  Value uniform(const std::string& name, const Shape& shape, int64_t fan) {
    const Value leaf = b_.param(name, shape);
    Attrs& attrs = b_.graph().mutable_node(leaf.node).attrs;
    attrs.set("init", "uniform");
    attrs.set("std", 1 / std::sqrt(3.0 * static_cast<double>(fan)));
    return leaf;
  }

  Value sigmoid(Value x) { return b_.add(b_.scale(b_.tanh(b_.scale(x, 0.5)), 0.5), b_.constant(0.5)); }

  // [T, H] of x [T, in], from the first row to the last or from the last to the first: with gates i, f, g, o of
  // x W_ih^T + b_ih + h W_hh^T + b_hh, c' = f c + i g and h' = o tanh(c').
  Value lstm(Value x, const std::string& which, bool reverse) {
    const int64_t tokens = b_.shape(x)[0], in = b_.shape(x)[1], h_size = spec_.encoder_hidden;
    const std::string head = "prompt_encoder.lstm_head.";
    const auto param = [&](const char* name, const Shape& shape) {
      return uniform(head + name + which, shape, h_size);
    };
    const Value weight = param("weight_ih_", {4 * h_size, in}), again = param("weight_hh_", {4 * h_size, h_size});
    const Value bias = b_.add(param("bias_ih_", {4 * h_size}), param("bias_hh_", {4 * h_size}));
    const Value given = b_.add(b_.matmul(x, weight, false, true), bias);
    std::vector<Value> rows(static_cast<size_t>(tokens));
    Value h, c;
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t t = reverse ? tokens - 1 - i : i;
      Value gates = b_.slice(given, 0, t, t + 1);
      if (h.exists()) gates = b_.add(b_.matmul(h, again, false, true), gates);
      const Value kept = sigmoid(b_.slice(gates, 1, 0, 2 * h_size));  // i, f
      const Value made = b_.tanh(b_.slice(gates, 1, 2 * h_size, 3 * h_size));
      Value next = b_.mul(b_.slice(kept, 1, 0, h_size), made);
      if (c.exists()) next = b_.add(next, b_.mul(b_.slice(kept, 1, h_size, 2 * h_size), c));
      c = next;
      h = b_.mul(sigmoid(b_.slice(gates, 1, 3 * h_size, 4 * h_size)), b_.tanh(c));
      rows[static_cast<size_t>(t)] = h;
    }
    return tokens == 1 ? h : b_.concat(rows, 0);
  }

  Builder& b_;
  const AdapterSpec& spec_;
  int64_t out_;
};

}  // namespace

Value build_prompt(Builder& builder, const AdapterSpec& adapter, int64_t hidden) {
  return PromptEncoder(builder, adapter, hidden).rows();
}

}  // namespace octet
