// What the types of a KV cache cost attention: its outputs against those of a cache of float32, for keys and values
// that are normal, with channels or tokens that stand out. The table is printed (docs/numerics.md has it).
#include <gtest/gtest.h>

#include <cmath>

#include "ir/text.h"
#include "kernels/cpu/reference.h"

namespace octet::cpu {
namespace {

constexpr int64_t kTokens = 256, kHeads = 4, kKvHeads = 2, kDim = 64, kWidth = kKvHeads * kDim;

// `cache`: the type; what is appended and read by `append` and `scales`.
Graph attention_graph(const std::string& cache, const std::string& append, const std::string& scales) {
  return parse_graph(fmt::format(R"(graph @g
    %q = input : f32[{0},{1}] @q
    %k = input : f32[{0},{2}] @k
    %v = input : f32[{0},{2}] @v
    %slots = input : i32[{0}] @slots
    %segments = input : i32[2] @segments
    %lengths = input : i32[1] @lengths
    %table = input : i32[1,16] @table
    %k_scale = input : f32[1] @k_scale
    %v_scale = input : f32[1] @v_scale
    %k_inv = input : f32[1] @k_inv
    %v_inv = input : f32[1] @v_inv
    %kc = state : {3}[{0},{2}] @kc
    %vc = state : {3}[{0},{2}] @vc
    %ks = state : f32[{0},{6}] @ks
    %vs = state : f32[{0},{6}] @vs
    {4}
    %y = paged_attention %q, %a, %b, %segments, %lengths, %table{5} {{heads={7}, kv_heads={6}, head_dim={8}, scale=0.125, block_size=16}}
    output @y %y
    end)",
                                 kTokens, kHeads * kDim, kWidth, cache, append, scales, kKvHeads, kHeads, kDim));
}

struct Data {
  RefTensor q, k, v;
};

std::vector<double> attention(const Graph& graph, const Data& data) {
  const auto amax = [](const RefTensor& x) {
    double largest = 0;
    for (double value : x.values) largest = std::max(largest, std::fabs(value));
    return largest;
  };
  std::map<std::string, RefTensor> leaves;
  const LeafFn leaf = [&](const Node& node) -> const RefTensor& {
    RefTensor& tensor = leaves[node.name];
    tensor = {node.results[0], std::vector<double>(static_cast<size_t>(node.results[0].shape.elements()))};
    const auto fill = [&](const auto& value) {
      for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = value(i);
    };
    const auto index = [](size_t i) { return static_cast<double>(i); };
    if (node.name == "q") tensor = data.q;
    if (node.name == "k") tensor = data.k;
    if (node.name == "v") tensor = data.v;
    if (node.name == "slots" || node.name == "table") fill(index);
    if (node.name == "segments") tensor.values = {0, kTokens};
    if (node.name == "lengths") tensor.values = {kTokens};
    if (node.name == "k_scale") tensor.values = {448 / amax(data.k)};
    if (node.name == "v_scale") tensor.values = {448 / amax(data.v)};
    if (node.name == "k_inv") tensor.values = {amax(data.k) / 448};
    if (node.name == "v_inv") tensor.values = {amax(data.v) / 448};
    return tensor;
  };
  return evaluate(graph, leaf, true).outputs[0].values;
}

double distance(const std::vector<double>& x, const std::vector<double>& wanted) {
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) error += (x[i] - wanted[i]) * (x[i] - wanted[i]), size += wanted[i] * wanted[i];
  return std::sqrt(error / size);
}

TEST(CacheError, OfInt8IsBelowThatOfFp8) {
  // No scale, one of all keys and one of all values; a scale a token and head.
  const std::string rows = "%a = scatter_rows %kc, %k, %slots %b = scatter_rows %vc, %v, %slots";
  const Graph exact = attention_graph("f32", rows, "");
  const Graph plain = attention_graph("e4m3", rows, "");
  const Graph scaled =
      attention_graph("e4m3", "%a = scatter_rows %kc, %k, %slots, %k_scale %b = scatter_rows %vc, %v, %slots, %v_scale",
                      ", %k_inv, %v_inv");
  const Graph int8 = attention_graph(
      "i8", "%a = scatter_codes %kc, %k, %slots, %ks %b = scatter_codes %vc, %v, %slots, %vs", ", %a.1, %b.1");
  struct Kind {
    const char* name;
    double channel, token;  // times as large: one channel of each head, one token in 32
  };
  fmt::print("{:<26} {:>10} {:>10} {:>10}\n", "relative error of", "e4m3", "e4m3 x s", "int8");
  for (const Kind& kind :
       {Kind{"normal", 1, 1}, {"tokens x 8", 1, 8}, {"channels x 8", 8, 1}, {"channels x 32", 32, 1}}) {
    Philox random(5, 0);
    const auto normal = [&](int64_t width, bool outliers) {
      RefTensor x{{DType::kF32, {kTokens, width}}, std::vector<double>(static_cast<size_t>(kTokens * width))};
      for (int64_t i = 0; i < x.size(); ++i) {
        x.values[static_cast<size_t>(i)] = random.normal() * (outliers && i % kDim == 3 ? kind.channel : 1) *
                                           (outliers && i / width % 32 == 7 ? kind.token : 1);
      }
      return x;
    };
    const Data data{normal(kHeads * kDim, false), normal(kWidth, true), normal(kWidth, true)};
    const std::vector<double> wanted = attention(exact, data);
    const double fp8 = distance(attention(plain, data), wanted), fp8_scaled = distance(attention(scaled, data), wanted);
    const double codes = distance(attention(int8, data), wanted);
    fmt::print("{:<26} {:>10.4f} {:>10.4f} {:>10.4f}\n", kind.name, fp8, fp8_scaled, codes);
    EXPECT_GT(codes, 0) << kind.name;
    EXPECT_LT(codes, fp8) << kind.name;
    EXPECT_LT(codes, fp8_scaled) << kind.name;
  }
}

}  // namespace
}  // namespace octet::cpu
