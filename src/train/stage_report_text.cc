// The report of a pipeline's stages as text and as JSON.
#include <fmt/ranges.h>

#include "base/error.h"
#include "train/stage_report.h"

namespace octet {
namespace {

// "0-3, 32-35".
std::string runs_text(const std::vector<int32_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) text += fmt::format("-{}", numbers[end - 1]);
    i = end;
  }
  return text;
}

std::string bytes_table(const PipelineReport& r) {
  size_t layers = 6, slots = 5;
  for (const StageReport& stage : r.stages) {
    layers = std::max(layers, runs_text(stage.layers).size());
    slots = std::max(slots, fmt::format("{}", fmt::join(stage.slots, ",")).size());
  }
  std::string out = fmt::format(
      "bytes of a rank of each stage; slots: micro-batches whose activations a chunk keeps\n"
      "  stage  {:<{}}  {:<{}}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>18}\n",
      "layers", layers, "slots", slots, "weights", "copies", "moments", "gradients", "scales", "kept", "arena",
      "borders", "peak", "bytes");
  for (size_t s = 0; s < r.stages.size(); ++s) {
    const StageReport& stage = r.stages[s];
    const PlanReport& b = stage.rank;
    out += fmt::format("  {:>5}  {:<{}}  {:<{}}", s, runs_text(stage.layers), layers,
                       fmt::format("{}", fmt::join(stage.slots, ",")), slots);
    for (const int64_t bytes : {b.frozen_bytes + b.weight_bytes, b.compute_bytes, b.moment_bytes, b.gradient_bytes,
                                b.scale_bytes, b.activation_bytes, b.transient_bytes + b.workspace_bytes,
                                b.transfer_bytes + b.input_bytes + b.padding_bytes, b.total_bytes})
      out += fmt::format("{:>12}", human_bytes(bytes));
    out += fmt::format("{:>18}\n", b.total_bytes);
  }
  return out;
}

std::string seconds_table(const PipelineReport& r) {
  std::string out =
      "seconds of a step by the target's rates, and what a rank sends other stages\n"
      "  stage   computing  collectives  transfers       idle     update        bytes sent\n";
  for (size_t s = 0; s < r.stages.size(); ++s) {
    const StageReport& stage = r.stages[s];
    out += fmt::format("  {:>5}{:>12.4f}{:>13.4f}{:>11.4f}{:>11.4f}{:>11.4f}{:>18.0f}\n", s, stage.computing,
                       stage.collectives, stage.transfers, stage.idle, stage.update, stage.sent_bytes);
  }
  return out;
}

bool same_collectives(const StageReport& a, const StageReport& b) {
  return collectives_json(a.rank.collectives) == collectives_json(b.rank.collectives);
}

std::string collectives_table(const PipelineReport& r) {
  std::string rows;
  for (size_t first = 0, end = 0; first < r.stages.size(); first = end) {
    end = first + 1;
    while (end < r.stages.size() && same_collectives(r.stages[first], r.stages[end])) ++end;
    const std::string stages = end - first > 1 ? fmt::format("{}-{}", first, end - 1) : fmt::format("{}", first);
    for (const CollectiveRow& row : r.stages[first].rank.collectives)
      rows += fmt::format("  {:<9}{:<16}{:<10}{:>9}{:>20.0f}  {}\n", stages, row.op, row.over, row.calls, row.bytes,
                          row.seconds > 0 ? fmt::format("{:9.4f}", row.seconds) : "");
  }
  return rows.empty() ? "" : "collectives of a step: stages, op, axes, calls, bytes sent, seconds\n" + rows;
}

std::string bytes_of_target(const PipelineReport& r, const Target& target) {
  if (target.memory_bytes == 0) return "";
  const StageReport& most = r.largest();
  const int64_t bytes = most.rank.total_bytes, missing = bytes - target.memory_bytes;
  const auto stage = &most - r.stages.data();
  return missing <= 0 ? fmt::format("fits {} of {}: stage {} has the most, {}\n", human_bytes(target.memory_bytes),
                                    target.name, stage, human_bytes(bytes))
                      : fmt::format("stage {} does NOT fit {}: it needs {} bytes of {}, {} ({}) are missing\n", stage,
                                    target.name, bytes, target.memory_bytes, missing, human_bytes(missing));
}

}  // namespace

std::string to_text(const PipelineReport& r, const Target& target) {
  const int32_t stages = r.model.mesh[Axis::kPipeline];
  std::string out = model_line(r.model);
  out += fmt::format("ranks     {} ({}); those of a stage are alike\n", r.model.mesh.ranks(), axes_text(r.model.mesh));
  out += fmt::format(
      "target    {}; {} micro-batches of {} {} a data rank; {} stages of {} chunk{}, {} of them compiled to {} "
      "nodes "
      "in {:.3f} s\n",
      target.name, r.micro_batches, r.model.units, r.model.unit.many(), stages, r.chunks, r.chunks > 1 ? "s" : "",
      r.compiled, r.model.nodes, r.model.compile_seconds);
  out += flops_line(r.model);
  out += bytes_table(r);
  if (r.has_rates) out += seconds_table(r);
  out += collectives_table(r);
  out += fmt::format(
      "bubble    idle over working: {:.4f} with transfers {} computing, as runs do them{}; (p - 1) / (v m) = {:.4f}\n",
      r.bubble, r.beside ? "beside" : "in turn with",
      r.beside ? "" : fmt::format("; {:.4f} beside it", r.beside_bubble), r.bubble_formula);
  if (r.has_rates)
    out += fmt::format(
        "step      {:.4f} s{}, {:.0f} {}/s; {:.1f} TFLOP/s a rank without recomputation, {:.1f} % of the {:.0f} "
        "that products in {} reach\n",
        r.step_seconds, r.beside ? "" : fmt::format(" ({:.4f} beside)", r.beside_seconds), r.units_per_second(),
        r.model.unit.many(), 1e-12 * r.rank_flops(), 100 * r.mfu(), 1e-12 * r.flops_rate, r.flops_name);
  else
    out += fmt::format("step      no seconds: target {} says no rates\n", target.name);
  return out + bytes_of_target(r, target);
}

std::string to_json(const PipelineReport& r) {
  const PlanReport& model = r.model;
  std::string stages;
  for (const StageReport& stage : r.stages) {
    stages += fmt::format(
        "{}{{\"layers\": [{}], \"slots\": [{}], \"rank_parameters\": {}, {}, \"transfer_bytes\": {}, \"total_bytes\": "
        "{}, "
        "\"sent_bytes\": {:.0f}, \"collectives\": {}",
        stages.empty() ? "" : ", ", fmt::join(stage.layers, ", "), fmt::join(stage.slots, ", "),
        stage.rank.rank_parameters, bytes_json(stage.rank), stage.rank.transfer_bytes, stage.rank.total_bytes,
        stage.sent_bytes, collectives_json(stage.rank.collectives));
    if (r.has_rates)
      stages += fmt::format(
          ", \"computing_seconds\": {:.6f}, \"collective_seconds\": {:.6f}, \"transfer_seconds\": {:.6f}, "
          "\"idle_seconds\": {:.6f}, \"update_seconds\": {:.6f}",
          stage.computing, stage.collectives, stage.transfers, stage.idle, stage.update);
    stages += "}";
  }
  std::string step;
  if (r.has_rates)
    step = fmt::format(
        "\"step_seconds\": {:.6f}, \"beside_seconds\": {:.6f}, \"{}_per_second\": {:.1f}, \"rank_flops\": {:.6g}, "
        "\"mfu\": {:.6f}, ",
        r.step_seconds, r.beside_seconds, model.unit.many(), r.units_per_second(), r.rank_flops(), r.mfu());
  return fmt::format(
      "{{\"parameters\": {}, \"active_parameters\": {}, \"{}\": {}, \"micro_batches\": {}, \"chunks\": {}, "
      "\"ranks\": {}, \"forward_flops\": {}, \"backward_flops\": {}, \"recompute_flops\": {}, \"bubble\": {:.6f}, "
      "\"beside_bubble\": {:.6f}, "
      "\"bubble_formula\": {:.6f}, {}\"stages\": [{}], \"nodes\": {}, \"compiled_stages\": {}, "
      "\"compile_seconds\": {:.4f}}}\n",
      model.parameters, model.active_parameters, model.unit.many(), model.units, r.micro_batches, r.chunks,
      model.mesh.ranks(), model.forward_flops, model.backward_flops, model.recompute_flops, r.bubble, r.beside_bubble,
      r.bubble_formula, step, stages, model.nodes, r.compiled, model.compile_seconds);
}

}  // namespace octet
