#include "train/stepper.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "dist/communicator.h"
#include "passes/passes.h"
#include "passes/stage_graphs.h"
#include "train/batches.h"

namespace octet {
namespace {

const TensorType kScalar{DType::kF32, {1}};

double scalar_output(Executor& executor, const std::string& graph, const std::string& name) {
  const double value = output_as<float>(executor, graph, name)[0];
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;  // a NaN's sign has no meaning
}

// With the stage of the pipeline that the rank runs.
StepperOptions of_rank(StepperOptions options) {
  if (options.ranks != nullptr) {
    const Coordinate at = options.ranks->coordinate();
    options.compile.parallel.stage = at[Axis::kPipeline];
    std::string& dumps = options.compile.dump_dir;  // of a stage's first rank: the others have the same program
    if (at[Axis::kData] + at[Axis::kContext] + at[Axis::kTensor] > 0) dumps.clear();
    if (!dumps.empty() && options.compile.parallel.mesh[Axis::kPipeline] > 1)
      dumps += fmt::format("/stage_{}", at[Axis::kPipeline]);
  }
  return options;
}

}  // namespace

StepperOptions stepper_options(const RunConfig& c, const Target& target) {
  return {.optimizer = c.optimizer,
          .compile = compile_options(c, target),
          .library_masks = c.dropout_masks == "library" && !c.deterministic,
          .cuda = {.eager = c.eager, .check_every_node = c.check_nodes, .deterministic = c.deterministic}};
}

std::string graph_name(GraphRole role, int64_t shape) {
  return shape == 0 ? graph_role_name(role) : fmt::format("{}.{}", graph_role_name(role), shape);
}

Program training_program(const TrainingWorkload& workload, const StepperOptions& options) {
  const int64_t train = workload.shapes(GraphRole::kTrain), eval = workload.shapes(GraphRole::kEval);
  check(train == 1 && (eval == 1 || options.compile.parallel.mesh[Axis::kPipeline] == 1), ErrorCode::kUnsupported,
        "batches have {} shapes in training and {} in evaluation: one is supported in training, and in evaluation too "
        "where there are stages; pad the batches to one shape{}",
        train, eval, train == 1 ? ", or set parallel.pipeline=1" : "");
  check(options.optimizer.sparse.empty() || options.compile.target.device != Device::kCuda || options.interpret,
        ErrorCode::kUnsupported,
        "optimizer.sparse: {} has no kernels of gradients of rows: leave it out, or set train.device=cpu",
        options.compile.target.name);
  Program program = training_program(workload.loss(GraphRole::kTrain, 0), workload.loss(GraphRole::kEval, 0),
                                     options.optimizer, micro_batches_of(options.compile.parallel));
  for (int64_t shape = 1; shape < eval; ++shape) {
    Graph graph = workload.loss(GraphRole::kEval, shape);
    graph.set_role(GraphRole::kEval, graph_name(GraphRole::kEval, shape));
    program.add_graph(std::move(graph));
  }
  if (options.library_masks) allow_library_masks(program);
  return program;
}

Plan compile_training(const TrainingWorkload& workload, const StepperOptions& options) {
  return compile(training_program(workload, options), of_rank(options).compile);
}

TrainingState take_state(Executor& executor) {
  TrainingState state;
  for (const StateEntry& entry : executor.program().states()) {
    if (!is_saved(entry.role) || entry.slots == 0 || entry.update == Update::kNone) continue;
    state.tensors.emplace_back(entry.name, std::vector<std::byte>(static_cast<size_t>(entry.type.bytes())));
    executor.read_state(entry.name, state.tensors.back().second);
  }
  return state;
}

void put_state(Executor& executor, const TrainingState& state) {
  for (const auto& [name, bytes] : state.tensors) {
    if (executor.program().find_state(name) != nullptr) executor.write_state(name, bytes);
  }
  executor.prepare();
}

Stepper::Stepper(const TrainingWorkload& workload, const StepperOptions& options)
    : Stepper(compile_training(workload, options), options) {}

Stepper::Stepper(Plan plan, const StepperOptions& options)
    : options_(of_rank(options)),
      plan_(std::move(plan)),
      executor_(options.interpret ? make_interpreter(plan_.program, InterpretMode::kFloat32, options.ranks)
                                  : make_executor(plan_, options.cuda, options.ranks)) {
  if (plan_.program.mesh()[Axis::kPipeline] > 1) stage_.emplace(*executor_, options_.compile.parallel);
}

int64_t StepWork::targets() const {
  int64_t targets = 0;
  for (const Batch& batch : micro_batches) targets += batch.target_count;
  return targets;
}

double StepWork::weight() const {
  double weight = 0;
  for (const Batch& batch : micro_batches) weight += weight_of_targets(batch);
  return weight;
}

std::map<std::string, int64_t> StepWork::loss_counts() const {
  std::map<std::string, int64_t> counts;
  for (const Batch& batch : micro_batches)
    for (const auto& [name, count] : batch.loss_counts) counts[name] += count;
  return counts;
}

StepResult Stepper::step(const StepWork& work) {
  begin(work);
  run_remaining_micro_batches(work);
  apply(work);
  return wait(work);
}

StatsTable Stepper::read_statistics() const {
  const std::string graph = graph_name(GraphRole::kTrainStats), prefix = "stats.";
  StatsTable table;
  for (const NamedValue& output : plan_.program.graph(graph).outputs()) {
    if (!output.name.starts_with(prefix)) continue;
    auto values = output_as<float>(*executor_, graph, output.name);
    std::copy(values.begin(), values.end(), table[output.name.substr(prefix.size())].begin());
  }
  if (Communicator* ranks = executor_->ranks())  // those of micro-batch 0 count, whatever the mesh
    for (auto& [name, stats] : table) broadcast(*ranks, std::as_writable_bytes(std::span(stats)));
  return table;
}

void Stepper::enqueue(const StepWork& work, size_t micro_batch) {
  const GraphRole role = static_cast<int64_t>(micro_batch) >= data_ranks() ? GraphRole::kAccumulate
                         : work.statistics                                 ? GraphRole::kTrainStats
                                                                           : GraphRole::kTrain;
  run_graph(work, micro_batch, graph_name(role, work.micro_batches[micro_batch].shape));
}

void Stepper::run_graph(const StepWork& work, size_t micro_batch, const std::string& graph, int32_t slot) {
  Batch step;
  const std::map<std::string, int64_t> counts = work.loss_counts();
  step.add("loss_scale", kScalar).values<float>()[0] = counts.empty() ? 1.0f / static_cast<float>(work.weight()) : 1;
  for (const auto& [name, count] : counts)
    step.add("loss_scale." + name, kScalar).values<float>()[0] = count > 0 ? 1.0f / static_cast<float>(count) : 0;
  const auto rng = step.add("rng", {DType::kI64, {3}}, /*optional=*/true).values<int64_t>();
  rng[0] = static_cast<int64_t>(work.seed);
  rng[1] = work.step;
  rng[2] = static_cast<int64_t>(micro_batch);
  write_batch(graph, work.micro_batches[micro_batch], step);
  executor_->run(graph, slot);
}

// A stage reads of a batch what its graphs need.
void Stepper::write_batch(const std::string& graph, const Batch& batch, const Batch& others) {
  if (!stage_) return write_inputs(*executor_, graph, batch, others);
  Batch parts[] = {batch, others};
  for (Batch& part : parts)
    for (auto& [name, tensor] : part.tensors) tensor.optional = true;
  write_inputs(*executor_, graph, parts[0], parts[1]);
}

void Stepper::begin(const StepWork& work) {
  if (work.targets() == 0) return;
  if (stage_) return;  // its first micro-batch waits for other stages, whose order is that of the whole step
  enqueue(work, static_cast<size_t>(data_rank()));
  if (work.statistics) statistics_ = read_statistics();  // outputs last until the next run
}

bool Stepper::run_remaining_micro_batches(const StepWork& work, const Stop& stop) {
  if (work.targets() == 0) return true;
  if (stage_) {
    if (stop && stop()) return false;
    stage_->step([&](const std::string& graph, int64_t micro_batch, int32_t slot) {
      run_graph(work, static_cast<size_t>(data_rank() + micro_batch * data_ranks()), graph, slot);
    });
    stage_->share_gradients();
    return true;
  }
  for (int64_t i = data_rank() + data_ranks(); i < std::ssize(work.micro_batches); i += data_ranks()) {
    if (stop && stop()) return false;
    enqueue(work, static_cast<size_t>(i));
  }
  return true;
}

void Stepper::apply(const StepWork& work) {
  if (work.targets() == 0) return;
  Batch inputs;
  inputs.add("lr", kScalar).values<float>()[0] = static_cast<float>(work.lr);
  inputs.add("step", kScalar).values<float>()[0] = static_cast<float>(work.step - work.skipped);
  const std::string graph = graph_name(GraphRole::kApply);
  write_inputs(*executor_, graph, inputs);
  executor_->run(graph);
}

StepResult Stepper::wait(const StepWork& work) {
  StepResult result{.targets = work.targets(), .weight = work.weight()};
  if (result.targets == 0) return {.loss = std::nan("")};
  const std::string graph = graph_name(GraphRole::kApply);
  double loss = scalar_output(*executor_, graph, "loss");  // the first wait for a device
  if (stage_) loss = stage_->from_last(loss);
  result.loss = work.loss_counts().empty() ? loss / result.weight : loss;
  result.grad_norm = scalar_output(*executor_, graph, "grad_norm");
  result.finite = scalar_output(*executor_, graph, "finite") != 0;
  for (const NamedValue& output : plan_.program.graph(graph).outputs()) {
    if (output.name == "loss" || output.name == "grad_norm" || output.name == "finite") continue;
    const double sum = scalar_output(*executor_, graph, output.name);
    result.sums[output.name] = stage_ ? stage_->from_last(sum) : sum;
  }
  if (work.statistics) result.statistics = std::exchange(statistics_, {});
  return result;
}

EvalOutputs Stepper::run_evaluation(const Batch& batch) {
  std::string last = graph_name(GraphRole::kEval, batch.shape);
  const auto run = [&](const std::string& graph) {
    write_batch(graph, batch);
    executor_->run(graph);
  };
  if (stage_) {
    last = eval_graph(options_.compile.parallel.chunks - 1);
    stage_->evaluate(run);
  } else {
    run(last);
  }
  const auto scalar = [this, last](const std::string& name) {
    const double own = !stage_ || stage_->is_last() ? scalar_output(*executor_, last, name) : 0;
    return stage_ ? stage_->from_last(own) : own;
  };
  const auto ints = [this, last](const std::string& name) {
    check(!stage_, ErrorCode::kInternal, "output {} of a pipeline is read", name);
    const std::span<const int32_t> values = output_as<int32_t>(*executor_, last, name);
    return std::vector<int32_t>(values.begin(), values.end());
  };
  return {.scalar = scalar, .ints = ints};
}

std::vector<double> Stepper::evaluate(const Batch& batch, const std::vector<std::string>& outputs) {
  const EvalOutputs read = run_evaluation(batch);
  std::vector<double> values;
  for (const std::string& name : outputs) values.push_back(read.scalar(name));
  return values;
}

Stepper::TokenScores Stepper::score_tokens(const Batch& batch) {
  const std::string graph = graph_name(GraphRole::kEval, batch.shape);
  write_batch(graph, batch);
  executor_->run(graph);
  const auto losses = output_as<float>(*executor_, graph, "loss_per_token");
  const auto likeliest = output_as<int32_t>(*executor_, graph, kLikeliestOutput);
  return {.losses = {losses.begin(), losses.end()}, .likeliest = {likeliest.begin(), likeliest.end()}};
}

std::vector<double> Stepper::measure(const Batch& batch, const TrainingWorkload& workload) {
  return workload.measure(batch, run_evaluation(batch));
}

std::vector<double> Stepper::join_parts(const std::vector<double>& own, int64_t batches) const {
  Communicator* ranks = executor_->ranks();
  if (ranks == nullptr) return own;
  const std::vector<std::vector<std::byte>> all = gather(*ranks, std::as_bytes(std::span(own)));
  // Rank 0 has the first batch and every data_ranks()-th behind it; `width` bytes of each.
  const int64_t of_first = (batches + data_ranks() - 1) / data_ranks();
  const size_t width = batches > 0 ? all[0].size() / static_cast<size_t>(of_first) : 1;
  std::vector<double> parts(static_cast<size_t>(batches) * width / sizeof(double));
  for (int32_t rank = 0; rank < std::ssize(all); ++rank) {
    const std::vector<std::byte>& part = all[static_cast<size_t>(rank)];
    for (size_t i = 0; i < part.size() / width; ++i) {
      const auto index = static_cast<int64_t>(i) * data_ranks() + ranks->mesh().coordinate(rank)[Axis::kData];
      std::memcpy(reinterpret_cast<std::byte*>(parts.data()) + static_cast<size_t>(index) * width,
                  part.data() + i * width, width);
    }
  }
  return parts;
}

void allow_library_masks(Program& program) {
  Graph& train = *program.find_graph(GraphRole::kTrain);
  for (int32_t i = 0; i < train.size(); ++i) {
    Node& node = train.mutable_node(NodeId{i});
    if (node.op == Op::kAttention && node.attr<double>("dropout") > 0) node.attrs.set("library_mask", true);
  }
}

Program training_program(Graph train, Graph eval, const OptimizerConfig& optimizer, int64_t micro_batches) {
  Program program;
  program.name = "training";
  train.set_role(GraphRole::kTrain);
  eval.set_role(GraphRole::kEval);
  mark_sparse(train, optimizer);
  Graph apply = apply_graph(program.add_graph(std::move(train)), optimizer, program, micro_batches);
  program.add_graph(std::move(eval));
  program.add_graph(std::move(apply));
  return program;
}

}  // namespace octet
