#include "eval/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "exec/batch.h"
#include "ir/facts.h"
#include "passes/pass.h"

namespace octet {
namespace {

// The model with an output for every tensor that may get a static scale.
Graph calibration_graph(const ModelConfig& model, int64_t length) {
  Graph graph("calibrate");
  Builder builder(graph);
  builder.output("logits", build_logits(builder, model, {.tokens = length, .max_segments = 1, .max_length = length}));
  std::map<std::string, Value> wanted;
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::kAttention) wanted[node.name + ".k"] = node.inputs[1], wanted[node.name + ".v"] = node.inputs[2];
    if (!is_linear(node)) continue;
    const Value x = node.inputs[0];
    if (seen.try_emplace({index(x.node), x.result}, true).second) wanted[node.attrs.get<std::string>("gemm")] = x;
  }
  for (const auto& [name, value] : wanted) {
    const NodeId amax =
        builder.emit(Op::kReduce, {value}, {{"reduction", std::string("amax")}, {"axis", std::string("all")}}, name);
    builder.output("amax." + name, {amax, 0});
  }
  return graph;
}

}  // namespace

CalibratedAmax calibrate(const WeightSource& weights, std::span<const int32_t> ids, const CalibrationOptions& options,
                         const std::function<void(int64_t)>& on_progress) {
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t total = options.max_tokens > 0 ? std::min(options.max_tokens, count) : count;
  const int64_t length = std::min({options.length, weights.config().max_positions, total});
  check(length > 0, ErrorCode::kInvalidArgument, "the calibration text has no tokens");
  for (int32_t id : ids)
    check(id >= 0 && id < weights.config().vocab_size, ErrorCode::kInvalidArgument,
          "token {} of the calibration text is outside the vocabulary of {}", id, weights.config().vocab_size);
  const auto executor = load_graph(calibration_graph(weights.config(), length),
                                   {.target = options.target, .recipe = parse_recipe("fp32")}, weights);
  Batch batch = token_batch(1, length, /*targets=*/false);
  CalibratedAmax amax;
  for (int64_t first = 0; first + length <= total; first += length) {
    std::copy_n(ids.begin() + static_cast<ptrdiff_t>(first), length, batch.ints("ids").begin());
    if (options.begin_id >= 0) batch.ints("ids")[0] = options.begin_id;
    write_inputs(*executor, "calibrate", batch);
    executor->run("calibrate");
    for (const NamedValue& output : executor->program().graph("calibrate").outputs()) {
      if (!output.name.starts_with("amax.")) continue;
      const float value = output_as<float>(*executor, "calibrate", output.name)[0];
      const std::string name = output.name.substr(5);
      check(std::isfinite(value), ErrorCode::kInvalidArgument, "{} is not finite on the calibration text", name);
      float& most = amax[name];
      most = std::max(most, value);
    }
    if (on_progress) on_progress(first + length);
  }
  return amax;
}

}  // namespace octet
