// For tests of folders that others wrote, each beside expected.safetensors: input_ids [2, 24] and logits [2, 24, V].
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "eval/verify.h"
#include "io/safetensors.h"
#include "weights/weights.h"

namespace octet {

inline std::vector<int32_t> input_ids(const std::string& folder) {
  const TensorSource expected(folder + "/expected.safetensors");
  const TensorView ids = expected.read("input_ids");  // [2, 24]
  std::vector<int32_t> first(static_cast<size_t>(ids.type.shape[1]));
  for (size_t i = 0; i < first.size(); ++i)
    first[i] = static_cast<int32_t>(load_element(ids.type.dtype, ids.bytes.data(), static_cast<int64_t>(i)));
  return first;
}

// Of the last token of the first text.
inline std::vector<float> expected_logits(const std::string& folder, const std::string& name = "logits") {
  const TensorSource expected(folder + "/expected.safetensors");
  const std::vector<float> all = floats_of(expected.read(name));
  const Shape shape = expected.read(name).type.shape;  // [2, 24, V]
  const auto end = all.begin() + shape[1] * shape[2];
  return {end - shape[2], end};
}

inline std::vector<float> logits(const std::string& folder, const std::string& recipe, const Target& target,
                                 int64_t chunk = 64) {
  const auto weights = open_weights(folder);
  IncrementalModel decoder(weights->config(), {.recipe = serving_recipe(*weights, target, recipe),
                                               .target = target,
                                               .prefill_chunk = chunk,
                                               .cache_dtype = DType::kF32});
  load_weights(*weights, decoder.executor());
  const auto result = decoder.append(input_ids(folder));
  return {result.begin(), result.end()};
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(static_cast<double>(a[i] - b[i])));
  return a.size() == b.size() ? most : INFINITY;
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i] - b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

// The same of the first text as one graph, by the interpreter, which defines what every op means.
inline std::vector<float> interpreted(const std::string& folder, const std::string& recipe) {
  const auto weights = open_weights(folder);
  const std::vector<int32_t> ids = input_ids(folder);
  const auto tokens = static_cast<int64_t>(ids.size());
  Graph graph("logits");
  Builder builder(graph);
  builder.output("logits",
                 build_logits(builder, weights->config(), {.tokens = tokens, .max_segments = 1, .max_length = tokens}));
  Program program;
  program.add_graph(std::move(graph));
  const Target target = interpreter_target();
  CompileOptions options{.target = target, .recipe = serving_recipe(*weights, target, recipe)};
  const auto executor = make_interpreter(std::move(compile(std::move(program), options).program));
  load_weights(*weights, *executor);
  std::ranges::copy(ids, input_as<int32_t>(*executor, "logits", "ids").begin());
  auto positions = input_as<int32_t>(*executor, "logits", "positions");
  std::iota(positions.begin(), positions.end(), 0);
  auto segments = input_as<int32_t>(*executor, "logits", "segments");
  segments[0] = 0, segments[1] = static_cast<int32_t>(tokens);
  executor->run("logits");
  const Graph& planned = executor->program().graph("logits");
  const int64_t vocab = weights->config().vocab_size;
  std::vector<float> all(static_cast<size_t>(tokens * vocab));
  convert(planned.dtype(planned.output("logits")), executor->output("logits", "logits").data(), DType::kF32, all.data(),
          tokens * vocab);
  return {all.end() - vocab, all.end()};
}

}  // namespace octet
