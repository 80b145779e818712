// For tests and benchmarks only: tiny training programs of both families, and a run of a few steps on an executor.
#pragma once

#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "exec/batch.h"
#include "exec/executor.h"
#include "exec/logical_states.h"
#include "model/model.h"
#include "passes/pass.h"
#include "passes/passes.h"

namespace octet {

inline void PrintTo(Recompute recompute, std::ostream* out) {
  constexpr const char* kNames[] = {"none", "light", "selective", "full"};
  *out << kNames[static_cast<size_t>(recompute)];
}

}  // namespace octet

namespace octet::tiny {

inline constexpr int64_t kTokens = 32, kLength = 16, kVocab = 40;

// Of a micro-batch; the tokens that it has are under `vocab`.
struct Sizes {
  int64_t tokens = kTokens, length = kLength, vocab = kVocab;
};

inline ModelConfig model(const std::string& architecture) {
  ModelConfig c = model_family(architecture);
  c.vocab_size = kVocab, c.max_positions = kLength, c.hidden = 32, c.layers = 2, c.heads = 4, c.intermediate = 64;
  if (architecture == "llama") c.kv_heads = 2;
  if (c.experts.count > 0) c.experts.count = 4, c.experts.per_token = 2;
  if (c.experts.intermediate > 0) c.experts.intermediate = 32;
  c.init_std = 0.08;
  return c;
}

inline Graph loss_graph(const std::string& name, const ModelConfig& config, bool training, const Sizes& sizes = {}) {
  Graph graph(name, graph_role(name));
  Builder builder(graph);
  build_loss(builder, config,
             {.tokens = sizes.tokens,
              .max_segments = sizes.tokens / sizes.length,
              .max_length = sizes.length,
              .equal_length = sizes.length,
              .training = training});
  return graph;
}

inline Graph loss_graph(const std::string& name, const std::string& architecture, bool training) {
  return loss_graph(name, model(architecture), training);
}

// Plain AdamW without clipping or decay over the parameters of graph train; adds their moments to the state table.
inline Graph apply_graph(Program& program) {
  Graph apply(GraphRole::kApply);
  Builder b(apply);
  b.set_phase(Phase::kOptimizer);
  Value lr = b.input("lr", {DType::kF32, {1}}), step = b.input("step", {DType::kF32, {1}}), one = b.constant(1);
  for (const Node& node : program.graph("train").nodes()) {
    if (node.op != Op::kParam) continue;
    const TensorType& type = node.results[0];
    const auto state = [&](StateRole role, int32_t index = 0) {
      return declare_state(program, b, {.type = type, .role = role, .param = node.name, .index = index});
    };
    const Value param = b.param(node.name, type.shape), gradient = state(StateRole::kGradient);
    const Value m = state(StateRole::kMoment, 0), v = state(StateRole::kMoment, 1);
    NodeId id = b.emit(Op::kAdamw, {param, gradient, m, v, lr, step, one, one},
                       {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.0}}, node.name);
    b.update(node.name, {id, 0});
    b.update(apply.node(m).name, {id, 1});
    b.update(apply.node(v).name, {id, 2});
  }
  return apply;
}

// Graphs train, accumulate, eval (differentiated) and apply.
inline Program training_program(const ModelConfig& config, const Sizes& sizes = {}) {
  Program program;
  program.add_graph(loss_graph("train", config, true, sizes));
  Graph apply = apply_graph(program);
  program.add_graph(loss_graph("eval", config, false, sizes));
  program.add_graph(std::move(apply));
  autodiff(program, {});
  return program;
}

inline Program training_program(const std::string& architecture) { return training_program(model(architecture)); }

template <typename T>
void write_state(Executor& executor, const std::string& name, const std::vector<T>& values) {
  executor.write_state(name, std::as_bytes(std::span(values)));
}

// Values of a parameter by its place and seed.
inline std::vector<float> initial_values(const std::string& name, const Shape& shape, uint64_t seed, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  Philox random(seed, stream);
  bool matrix = shape.rank() > 1, bias = name.ends_with("bias");
  for (float& value : values) value = matrix ? static_cast<float>(0.08 * random.normal()) : bias ? 0.0f : 1.0f;
  return values;
}

// Weights by name and seed, the same for every recipe that keeps them; then the compute copies.
inline void initialize(Executor& executor, uint64_t seed = 7) {
  uint64_t stream = 0;
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.role != StateRole::kMaster) continue;
    std::vector<float> values = initial_values(entry.name, entry.type.shape, seed, ++stream);
    if (entry.type.dtype == DType::kF32) {
      write_state(executor, entry.name, values);
    } else {
      std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
      convert(DType::kF32, values.data(), entry.type.dtype, bytes.data(), entry.type.shape.elements());
      executor.write_state(entry.name, bytes);
    }
  }
  for (const QuantizedParam& param : quantized_params(executor.program()))
    write_quantized(executor, param, initial_values(param.param, param.codes.type.shape, seed, ++stream));
  executor.prepare();
}

// A sequence that can be learned: every token is 7 more than the one before, with a start per sequence.
inline Batch batch(int number, const Sizes& sizes = {}) {
  Batch batch = token_batch(sizes.tokens / sizes.length, sizes.length, /*targets=*/true);
  const auto ids = batch.ints("ids"), targets = batch.ints("targets");
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    const int64_t start = number * 3 + t / sizes.length * 11;
    ids[static_cast<size_t>(t)] = static_cast<int32_t>((start + 7 * (t % sizes.length)) % sizes.vocab);
    targets[static_cast<size_t>(t)] = static_cast<int32_t>((start + 7 * (t % sizes.length + 1)) % sizes.vocab);
  }
  batch.add("loss_scale", {DType::kF32, {1}}, /*optional=*/true).values<float>()[0] =
      1.0f / (2 * static_cast<float>(sizes.tokens));
  batch.add("rng", {DType::kI64, {3}}, /*optional=*/true);
  return batch;
}

inline void feed(Executor& executor, const std::string& graph, int number) {
  write_inputs(executor, graph, batch(number));
}

// The mean loss per token of `graph` on one batch.
inline double loss(Executor& executor, const std::string& graph, int batch) {
  feed(executor, graph, batch);
  executor.run(graph);
  return static_cast<double>(output_as<float>(executor, graph, "loss")[0]) / kTokens;
}

// Losses of `steps` steps of two micro-batches each, then the evaluation loss.
inline std::vector<double> train(Executor& executor, int steps, double lr = 0.01) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    double first = loss(executor, "train", 2 * step), second = loss(executor, "accumulate", 2 * step + 1);
    losses.push_back((first + second) / 2);
    input_as<float>(executor, "apply", "lr")[0] = static_cast<float>(lr);
    input_as<float>(executor, "apply", "step")[0] = static_cast<float>(step + 1);
    executor.run("apply");
  }
  losses.push_back(loss(executor, "eval", 1));
  return losses;
}

// Bytes of a state, for comparing bit by bit.
inline std::vector<std::byte> state(Executor& executor, const std::string& name) {
  std::vector<std::byte> bytes(static_cast<size_t>(executor.program().find_state(name)->type.bytes()));
  executor.read_state(name, bytes);
  return bytes;
}

inline int count(const Graph& graph, Op op) {
  int found = 0;
  for (const Node& node : graph.nodes()) found += node.op == op;
  return found;
}

}  // namespace octet::tiny
