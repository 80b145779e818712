#include "infer/encoder_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "exec/batch.h"
#include "infer/serving_program.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

// On CPUs, where a short step is what one text waits for, more sizes than on GPUs.
std::vector<int64_t> token_buckets(const EncoderProgramOptions& options) {
  const DeviceTraits& traits = options.target.traits;
  const int64_t most = options.max_step_tokens, multiple = traits.bucket_multiple;
  std::vector<int64_t> sizes;
  for (int64_t base = traits.least_bucket; base < most; base *= 2)
    for (int64_t size = base; size < 2 * base && size < most; size += base / traits.buckets_per_doubling)
      sizes.push_back(size);
  sizes.push_back((most + multiple - 1) / multiple * multiple);
  return sizes;
}

Graph encoder_graph(const std::string& name, const ModelConfig& model, const EncoderProgramOptions& options,
                    const BatchShape& shape) {
  Graph graph(name, GraphRole::kForward);
  Builder builder(graph);
  const ModelOutputs outputs = build_outputs(builder, model, shape);
  Value values = classifies(model) ? outputs.classes : Value::none();
  Value rows = outputs.hidden;
  if (!values.exists() && options.pooling == Pooling::kMean) {
    if (options.include_prompt)
      values = builder.segment_mean(rows, builder.segments(shape.max_segments));
    else
      rows = builder.segment_mean(
          rows, builder.input("parts", {DType::kI32, {2 * shape.max_segments + 1}}, {{"rest", "last"}}));
  }
  if (!values.exists()) values = builder.select_rows(rows, builder.input("rows", {DType::kI32, {shape.max_segments}}));
  builder.output("values", values);
  remove_dead_nodes(graph);  // a head that nothing here reads has no codes either
  return graph;
}

}  // namespace

EncoderRunner::EncoderRunner(const ModelConfig& model, const EncoderProgramOptions& options)
    : pooling_(classifies(model) ? Pooling::kCls : options.pooling),
      width_(classifies(model) ? model.labels : model.hidden),
      copies_(1 + options.target.traits.steps_ahead) {
  Program program;
  program.name = "encoder";
  for (int64_t tokens : token_buckets(options)) {
    const Bucket bucket{tokens, std::min(options.max_sequences, tokens)};
    for (int64_t copy = 0; copy < copies_; ++copy)
      program.add_graph(encoder_graph(
          graph_name(bucket, copy), model, options,
          {.tokens = tokens, .max_segments = bucket.sequences, .max_length = std::min(options.max_length, tokens)}));
    buckets_.push_back(bucket);
  }
  Plan plan = compile(std::move(program), {.target = options.target, .recipe = options.recipe});
  weight_bytes_ = plan.state_bytes, activation_bytes_ = plan.arena_bytes + plan.input_bytes;
  executor_ = make_executor(std::move(plan));
}

std::string EncoderRunner::graph_name(const Bucket& bucket, int64_t copy) {
  return fmt::format("encode.{}.{}", bucket.tokens, copy);
}

const EncoderRunner::Bucket& EncoderRunner::bucket_of(int64_t tokens, int64_t sequences) const {
  const auto holds = [&](const Bucket& bucket) { return bucket.tokens >= tokens && bucket.sequences >= sequences; };
  const auto found = std::ranges::find_if(buckets_, holds);
  check(found != buckets_.end(), ErrorCode::kInternal, "encoder: a step of {} tokens and {} sequences (at most {}, {})",
        tokens, sequences, max_tokens(), max_sequences());
  return *found;
}

void EncoderRunner::fill(const std::string& graph, std::span<const EncoderSequence> step) {
  const bool by_parts = executor_->program().graph(graph).find_leaf(Op::kInput, "parts").exists();
  std::vector<int32_t> ids, positions, types, segments, rows, parts;
  for (const EncoderSequence& sequence : step) {
    const auto at = static_cast<int32_t>(ids.size()), count = static_cast<int32_t>(sequence.ids.size());
    const auto left_out = static_cast<int32_t>(std::min<int64_t>(sequence.left_out, count));
    rows.push_back(by_parts                     ? static_cast<int32_t>(parts.size()) + 1
                   : pooling_ == Pooling::kLast ? at + count - 1
                                                : at);
    segments.push_back(at);
    parts.insert(parts.end(), {at, at + left_out});  // a prompt and what is behind it, in turn
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    types.insert(types.end(), sequence.types.begin(), sequence.types.end());
    types.resize(ids.size());
    for (int32_t t = 0; t < count; ++t) positions.push_back(t);
  }
  segments.push_back(static_cast<int32_t>(ids.size()));  // padding belongs to no sequence
  parts.push_back(segments.back());
  const InputValues values[] = {{"ids", ids},           {"positions", positions}, {"token_types", types},
                                {"segments", segments}, {"rows", rows},           {"parts", parts}};
  write_inputs(*executor_, graph, values);
}

void EncoderRunner::launch(std::span<const EncoderSequence> step) {
  check(std::ssize(launched_) < copies_, ErrorCode::kInternal, "encoder: {} launched steps have not been collected",
        launched_.size());
  int64_t tokens = 0;
  for (const EncoderSequence& sequence : step) tokens += std::ssize(sequence.ids);
  const std::string graph = graph_name(bucket_of(tokens, std::ssize(step)), steps_++ % copies_);
  fill(graph, step);
  executor_->run(graph);
  launched_.push_back({graph, std::ssize(step)});
}

std::vector<float> EncoderRunner::collect() {
  check(!launched_.empty(), ErrorCode::kInternal, "encoder: no step has been launched");
  const Launched step = launched_.front();
  launched_.erase(launched_.begin());
  const Graph& graph = executor_->program().graph(step.graph);
  std::vector<float> values(static_cast<size_t>(step.sequences * width_));
  convert(graph.dtype(graph.output("values")), executor_->output(step.graph, "values").data(), DType::kF32,
          values.data(), std::ssize(values));
  return values;
}

void EncoderRunner::warm_up() {
  for (const Bucket& bucket : buckets_) {
    for (int64_t run = 0; run < 2 * copies_; ++run) {
      const std::string graph = graph_name(bucket, run % copies_);
      fill(graph, {});
      executor_->run(graph);
      executor_->output(graph, "values");
    }
  }
}

}  // namespace octet
