#include "train/plan_report.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "exec/logical_states.h"
#include "ir/facts.h"
#include "passes/plan_memory.h"
#include "train/auto_precision.h"
#include "train/stepper.h"

namespace octet {

std::string human_bytes(int64_t bytes) {
  double value = static_cast<double>(bytes);
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (value < 1024) return fmt::format("{:.4g} {}", value, unit);
    value /= 1024;
  }
  return fmt::format("{:.5g} TiB", value);
}

std::string human_count(double count) {
  for (const char* unit : {"", "k", "M", "G"}) {
    if (count < 1000) return fmt::format("{:.4g}{}", count, unit);
    count /= 1000;
  }
  return fmt::format("{:.4g}T", count);
}

namespace {

std::string line(const char* what, int64_t bytes, const std::string& note = {}) {
  return fmt::format("  {:<34}{:>16}  {:>12}{}\n", what, bytes, human_bytes(bytes), note.empty() ? "" : "  " + note);
}

// Weights of experts that a token does not go to.
int64_t inactive_parameters(const Graph& train, int64_t tokens) {
  int64_t count = 0;
  for (const Node& node : train.nodes()) {
    const bool scaled = node.op == Op::kScaledGroupedMatmul;
    if ((!scaled && node.op != Op::kGroupedMatmul) || node.phase != Phase::kForward) continue;
    const int64_t experts = train.shape(node.operand("offsets"))[0] - 1, chosen = node.results[0].shape[0] / tokens;
    count += train.shape(node.inputs[scaled ? 2 : 1]).elements() / experts * (experts - chosen);
  }
  return count;
}

double phase_flops(const Graph& graph, Phase phase) {
  double flops = 0;
  for (int32_t i = 0; i < graph.size(); ++i)
    if (graph.node(NodeId{i}).phase == phase) flops += node_cost(graph, NodeId{i}).flops;
  return flops;
}

// "layers.7.attn.q" -> "layers.*.attn.q".
std::string any_layer(std::string name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return name;
  size_t end = name.find('.', kLayers.size());
  if (end == std::string::npos) end = name.size();
  return name.replace(kLayers.size(), end - kLayers.size(), "*");
}

std::vector<PeakRow> peak_rows(const std::vector<LivePiece>& pieces) {
  std::map<std::tuple<std::string, std::string, std::string, bool>, PeakRow> groups;
  for (const LivePiece& piece : pieces) {
    std::string name = any_layer(piece.name);
    PeakRow& row = groups[{name, piece.op, to_string(piece.type), piece.kept}];
    row = {name, piece.op, piece.type, piece.kept, row.pieces + 1, row.bytes + piece.bytes};
  }
  std::vector<PeakRow> rows;
  for (auto& [key, row] : groups) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, [](const PeakRow& a, const PeakRow& b) { return a.bytes > b.bytes; });
  return rows;
}

}  // namespace

void add_collectives(const Graph& graph, const Target& target, const std::string& name, int64_t runs,
                     std::vector<CollectiveRow>& rows) {
  const std::vector<int32_t> joins = joins_of(graph);
  const double times = static_cast<double>(runs);
  struct Async {
    int32_t join;
    double end;
    size_t row;
  };
  std::vector<Async> open;
  double now = 0, ended = 0;  // of the kernels; of the last collective
  const auto wait = [&](double end, size_t row) {
    rows[row].exposed += times * std::max(end - now, 0.0);
    now = std::max(now, end);
  };
  for (int32_t i = 0; i <= graph.size(); ++i) {
    for (const Async& async : open)
      if (async.join == i) wait(async.end, async.row);
    std::erase_if(open, [&](const Async& async) { return async.join == i; });
    if (i == graph.size()) break;
    const Node& node = graph.node(NodeId{i});
    const NodeSeconds seconds = clock_seconds(graph, NodeId{i}, target);
    now += seconds.kernel;
    if (!exchanges(node)) continue;
    const Node& exchange = *exchange_of(node);
    CollectiveRow made{name, op_name(exchange.op), exchange.attr<std::string>("over")};
    auto row = std::ranges::find_if(rows, [&](const CollectiveRow& other) {
      return other.graph == made.graph && other.op == made.op && other.over == made.over;
    });
    if (row == rows.end()) row = rows.insert(row, std::move(made));
    row->calls += runs;
    row->bytes += times * exchanged_bytes(graph, node);
    if (target.link_bytes_per_second <= 0) continue;
    row->seconds += times * seconds.link;
    ended = std::max(now, ended) + seconds.exposed();
    const auto at = static_cast<size_t>(row - rows.begin());
    if (const int32_t join = joins[static_cast<size_t>(i)]; join >= 0)
      open.push_back({join, ended, at});
    else
      wait(ended, at);
  }
}

// A master, or the codes that stand for one.
template <typename Tensor>
bool is_parameter(const Tensor& state) {
  return state.role == StateRole::kMaster || (state.role == StateRole::kCodes && state.update == Update::kNone);
}

void report_bytes(const Plan& plan, PlanReport& r) {
  const Program& program = plan.program;
  r.mesh = program.mesh();
  for (const StateEntry& entry : program.states())
    if (is_parameter(entry) && entry.slots > 0) r.rank_parameters += entry.type.shape.elements();
  r.weight_bytes = program.state_bytes({StateRole::kMaster});
  r.compute_bytes =
      program.state_bytes({StateRole::kCompute, StateRole::kCodes, StateRole::kScaleInv, StateRole::kMagnitudes,
                           StateRole::kMagnitudeScales, StateRole::kMagnitudeOffsets});
  for (const StateEntry& entry : program.states()) {
    if (entry.update != Update::kNone) continue;
    const int64_t bytes = entry.type.bytes() * entry.slots;
    r.frozen_bytes += bytes;
    (entry.role == StateRole::kMaster ? r.weight_bytes : r.compute_bytes) -= bytes;
  }
  r.moment_bytes = program.state_bytes({StateRole::kMoment, StateRole::kStatistic});
  r.gradient_bytes = program.state_bytes({StateRole::kGradient, StateRole::kAmax, StateRole::kBuffer});
  r.scale_bytes = program.state_bytes({StateRole::kScale, StateRole::kAmaxHistory});
  r.transfer_bytes = program.state_bytes({StateRole::kTransfer});
  const int64_t kept_in_arena = plan.graphs.at(program.find_graph(GraphRole::kTrain)->name()).saved_bytes;
  r.activation_bytes = kept_in_arena + program.state_bytes({StateRole::kSaved});
  r.workspace_bytes = plan.workspace_bytes;
  r.transient_bytes = plan.arena_bytes - plan.workspace_bytes - kept_in_arena;
  r.input_bytes = plan.input_bytes;
  r.total_bytes = plan.total_bytes();
  r.padding_bytes = plan.state_bytes;
  for (const StateEntry& entry : program.states()) r.padding_bytes -= entry.type.bytes() * entry.slots;
  const Graph& fullest = peak_graph(plan);
  const GraphPlan& fullest_plan = plan.graphs.at(fullest.name());
  if (fullest_plan.peak_node != NodeId::kNone) {
    r.peak_at = fmt::format("{} of graph {}", describe(fullest, fullest_plan.peak_node), fullest.name());
    r.live_bytes = fullest_plan.live_bytes;
    r.peak = peak_rows(live_at_peak(plan, fullest));
  }
  for (const Graph& graph : program.graphs()) r.nodes += graph.size();
}

void report_model(const TrainingWorkload& workload, const Program& whole, PlanReport& r) {
  for (const LogicalState& tensor : logical_states(whole)) {
    if (!is_parameter(tensor)) continue;
    r.parameters += tensor.type.shape.elements();
    if (tensor.update != Update::kNone) r.trained_parameters += tensor.type.shape.elements();
  }
  const Graph& train = *whole.find_graph(GraphRole::kTrain);
  r.model = workload.description(), r.unit = workload.unit();
  r.units = workload.units() / whole.mesh()[Axis::kContext];
  for (const Node& node : train.nodes()) r.causal &= node.op != Op::kAttention || node.attr<bool>("causal");
  auto per_unit = [&](Phase phase) { return phase_flops(train, phase) / static_cast<double>(r.units); };
  r.active_parameters = r.parameters - inactive_parameters(train, r.units);
  r.forward_flops = per_unit(Phase::kForward);
  r.backward_flops = per_unit(Phase::kBackward);
  r.recompute_flops = per_unit(Phase::kRecompute);
}

std::pair<double, std::string> product_rate(const Recipe& recipe, const Target& target) {
  const bool codes = recipe.scaling != Scaling::kNone && dtype_bytes(recipe.forward_format) == 1;
  if (codes) return {target.fp8_flops, "FP8"};
  if (recipe.compute == DType::kF32) return {target.f32_flops, "fp32"};
  return {target.bf16_flops, "bf16"};
}

namespace {

StepTime step_time(const PlanReport& report, const Plan& plan, const CompileOptions& options) {
  StepTime step{.micro_batches = options.parallel.micro_batches, .host = plan.target.step.step_seconds};
  for (const Graph& graph : plan.program.graphs()) {
    const GraphSeconds once = graph_seconds(graph, plan.target);
    if (graph.role() == GraphRole::kTrain) step.model += once;
    if (graph.role() == GraphRole::kApply) step.update += once;
    if (graph.role() != GraphRole::kAccumulate) continue;
    for (int64_t i = 1; i < step.micro_batches; ++i) step.model += once;
  }
  const Mesh& mesh = plan.program.mesh();
  const auto units = static_cast<double>(report.units * step.micro_batches);
  step.units = units * mesh[Axis::kContext] * mesh[Axis::kData];
  step.model_flops = (report.forward_flops + report.backward_flops) * units / mesh[Axis::kTensor];
  std::tie(step.flops_rate, step.flops_name) = product_rate(options.recipe, plan.target);
  return step;
}

std::string step_text(const StepTime& s, const CountedUnit& unit) {
  const auto share = [&](double seconds) { return fmt::format("{:.1f} %", 100 * seconds / s.seconds()); };
  std::string out = fmt::format(
      "step      {:.4f} s of {} micro-batch{}: products {}, attention {}, other kernels {}, waiting for collectives "
      "{}, "
      "update {}, host {}\n",
      s.seconds(), s.micro_batches, s.micro_batches == 1 ? "" : "es", share(s.model.kernels[0]),
      share(s.model.kernels[1]), share(s.model.kernels[2]), share(s.model.waiting), share(s.update.all()),
      share(s.host));
  const double rate = s.model_flops / s.seconds();
  out += fmt::format("speed     {:.0f} {}/s, {:.1f} TFLOP/s a rank without recomputation{}\n", s.units / s.seconds(),
                     unit.many(), 1e-12 * rate,
                     s.flops_rate > 0 ? fmt::format(", {:.1f} % of the {:.0f} that products in {} reach",
                                                    100 * rate / s.flops_rate, 1e-12 * s.flops_rate, s.flops_name)
                                      : "");
  return out;
}

std::string step_json(const PlanReport& r) {
  if (!r.step) return "";
  const StepTime& s = *r.step;
  return fmt::format(
      "\"micro_batches\": {}, \"step_seconds\": {:.6f}, \"{}_per_second\": {:.1f}, \"product_seconds\": {:.6f}, "
      "\"attention_seconds\": {:.6f}, \"other_seconds\": {:.6f}, \"collective_seconds\": {:.6f}, "
      "\"update_seconds\": {:.6f}, \"host_seconds\": {:.6f}, \"rank_flops\": {:.6g}, ",
      s.micro_batches, s.seconds(), r.unit.many(), s.units / s.seconds(), s.model.kernels[0], s.model.kernels[1],
      s.model.kernels[2], s.model.waiting, s.update.all(), s.host, s.model_flops / s.seconds());
}

}  // namespace

PlanReport report_plan(const TrainingWorkload& workload, const Plan& plan, double compile_seconds,
                       const CompileOptions& options) {
  const Program& program = plan.program;
  check(program.mesh()[Axis::kPipeline] == 1, ErrorCode::kInternal,
        "a plan of one stage of {} is not a plan of the model", program.mesh()[Axis::kPipeline]);
  PlanReport r;
  r.compile_seconds = compile_seconds;
  report_model(workload, program, r);
  report_bytes(plan, r);
  for (const Graph& graph : program.graphs())
    if (graph.role() != GraphRole::kPrepare) add_collectives(graph, plan.target, graph.name(), 1, r.collectives);
  r.saved = saved_for_backward(*program.find_graph(GraphRole::kTrain));
  if (plan.target.bf16_flops > 0 && plan.target.bytes_per_second > 0) r.step = step_time(r, plan, options);
  return r;
}

PlanReport plan_training(const TrainingWorkload& workload, const RunConfig& config, const Target& target) {
  auto started = std::chrono::steady_clock::now();
  const StepperOptions options = stepper_options(config, target);
  std::optional<AutoPrecision> decided;
  if (options.compile.recipe.statistics) decided.emplace(workload, options, config.policy, config.auto_interval);
  const Plan plan = decided ? decided->plan() : compile_training(workload, options);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  PlanReport report = report_plan(workload, plan, seconds, options.compile);
  if (decided) {
    const PrecisionPolicy& policy = decided->policy();
    report.precision = precision_map(policy);
    for (const PolicyGemm& gemm : policy.gemms())
      report.levels[gemm.key()] = precision_level_name(policy.level(gemm.key()));
  }
  return report;
}

std::string model_line(const PlanReport& r) {
  const auto count = [](int64_t parameters) { return human_count(static_cast<double>(parameters)); };
  return fmt::format(
      "model     {}: {} parameters{}{}\n", r.model, count(r.parameters),
      r.trained_parameters == r.parameters ? "" : fmt::format(", {} of them trained", count(r.trained_parameters)),
      r.active_parameters == r.parameters
          ? ""
          : fmt::format(", {} of them active a {}", count(r.active_parameters), r.unit.one));
}

std::string flops_line(const PlanReport& r) {
  return fmt::format("FLOPs     {} forward + {} backward + {} recomputed a {} ({})\n", human_count(r.forward_flops),
                     human_count(r.backward_flops), human_count(r.recompute_flops), r.unit.one,
                     r.causal ? "causal attention" : "a token sees its whole sequence");
}

std::string axes_text(const Mesh& mesh) {
  std::string axes;
  for (Axis axis : kAllAxes)
    if (mesh[axis] > 1) axes += fmt::format("{}{}={}", axes.empty() ? "" : " ", axis_name(axis), mesh[axis]);
  return axes;
}

std::string to_text(const PlanReport& r, const Target& target) {
  std::string out = model_line(r);
  if (r.mesh.ranks() > 1)
    out += fmt::format("ranks     {} ({}), all alike: each holds {} parameters; what follows is of one\n",
                       r.mesh.ranks(), axes_text(r.mesh), human_count(static_cast<double>(r.rank_parameters)));
  out += fmt::format("target    {}; one micro-batch of {} {}; {} nodes compiled in {:.3f} s\n", target.name, r.units,
                     r.unit.many(), r.nodes, r.compile_seconds);
  out += flops_line(r);
  if (!r.precision.empty()) out += "precision of GEMMs at the start\n" + r.precision;
  out += "bytes\n";
  if (r.frozen_bytes > 0) out += line("frozen weights", r.frozen_bytes);
  out += line("weights (float32 masters)", r.weight_bytes);
  out += line("compute copies of weights", r.compute_bytes);
  out += line("optimiser moments", r.moment_bytes);
  out += line("gradients", r.gradient_bytes);
  out += line("FP8 scales and histories", r.scale_bytes);
  out += line("activations kept for backward", r.activation_bytes);
  out += line("transient values at the peak", r.transient_bytes, r.peak_at);
  out += line("workspace of kernels", r.workspace_bytes);
  out += line("inputs", r.input_bytes);
  out += line("alignment of states", r.padding_bytes);
  out += line("peak", r.total_bytes);
  if (!r.collectives.empty()) out += "collectives: graph, op, axes, calls, bytes sent, ms, ms that kernels wait\n";
  for (const CollectiveRow& row : r.collectives)
    out += fmt::format("  {:<12}{:<16}{:<10}{:>6}{:>18.0f}  {}\n", row.graph, row.op, row.over, row.calls, row.bytes,
                       row.seconds > 0 ? fmt::format("{:9.3f}{:9.3f}", 1e3 * row.seconds, 1e3 * row.exposed) : "");
  if (r.step) out += step_text(*r.step, r.unit);
  if (target.memory_bytes > 0)
    out += r.total_bytes <= target.memory_bytes
               ? fmt::format("fits {} of {}\n", human_bytes(target.memory_bytes), target.name)
               : fmt::format("does NOT fit {}: {} bytes ({}) are missing\n", target.name,
                             r.total_bytes - target.memory_bytes, human_bytes(r.total_bytes - target.memory_bytes));
  return out;
}

std::string peak_text(const PlanReport& r) {
  constexpr double kShown = 0.001;  // of the peak
  std::string out = fmt::format("the arena at its peak, {}: {} bytes live\n", r.peak_at, r.live_bytes);
  PeakRow rest{.name = "everything smaller"};
  auto row = [&](const PeakRow& p, const std::string& type) {
    out += fmt::format("  {:>14} {:>5.1f} % {:>5} x  {:<9} {:<20} {:<32} {}\n", p.bytes,
                       100.0 * static_cast<double>(p.bytes) / static_cast<double>(r.live_bytes), p.pieces,
                       p.kept ? "kept" : "", p.op, p.name, type);
  };
  for (const PeakRow& p : r.peak) {
    if (static_cast<double>(p.bytes) >= kShown * static_cast<double>(r.live_bytes)) {
      row(p, to_string(p.type));
    } else {
      rest.pieces += p.pieces, rest.bytes += p.bytes;
    }
  }
  if (rest.pieces > 0) row(rest, "");
  return out;
}

std::string collectives_json(const std::vector<CollectiveRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const CollectiveRow& row : rows)
    list.push_back({{"graph", row.graph},
                    {"op", row.op},
                    {"over", row.over},
                    {"calls", row.calls},
                    {"bytes", row.bytes},
                    {"seconds", row.seconds},
                    {"exposed_seconds", row.exposed}});
  return list.dump();
}

std::string bytes_json(const PlanReport& r) {
  return fmt::format(
      "\"weight_bytes\": {}, \"compute_bytes\": {}, \"moment_bytes\": {}, \"gradient_bytes\": {}, \"scale_bytes\": {}, "
      "\"activation_bytes\": {}, \"transient_bytes\": {}, \"workspace_bytes\": {}, \"input_bytes\": {}, "
      "\"padding_bytes\": {}, \"frozen_bytes\": {}",
      r.weight_bytes, r.compute_bytes, r.moment_bytes, r.gradient_bytes, r.scale_bytes, r.activation_bytes,
      r.transient_bytes, r.workspace_bytes, r.input_bytes, r.padding_bytes, r.frozen_bytes);
}

std::string to_json(const PlanReport& r) {
  return fmt::format(
      "{{\"parameters\": {}, \"trained_parameters\": {}, \"active_parameters\": {}, \"{}\": {}, \"forward_flops\": {}, "
      "\"backward_flops\": {}, "
      "\"recompute_flops\": {}, {}, \"ranks\": {}, \"rank_parameters\": {}, \"collectives\": {}, "
      "\"total_bytes\": {}, {}\"nodes\": {}, \"compile_seconds\": {:.4f}, \"precision\": {}}}\n",
      r.parameters, r.trained_parameters, r.active_parameters, r.unit.many(), r.units, r.forward_flops,
      r.backward_flops, r.recompute_flops, bytes_json(r), r.mesh.ranks(), r.rank_parameters,
      collectives_json(r.collectives), r.total_bytes, step_json(r), r.nodes, r.compile_seconds,
      nlohmann::json(r.levels).dump());
}

}  // namespace octet
