#include "tune/paper_plan.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "model/model_spec.h"
#include "passes/stage_graphs.h"
#include "train/stage_report.h"
#include "train/stepper.h"

namespace octet {
namespace {

// Layers after which a model repeats itself; 0: its plans are made of all layers.
int64_t period_of(const RunConfig& config) {
  if (config.workload != "language" || config.objective != "next_token" || config.adapter.is_on()) return 0;
  if (parse_recipe(config.recipe).statistics) return 0;
  const ModelSpec model(resolve_model(config, 0));
  const auto period = static_cast<int64_t>(model.pattern.size());
  constexpr int64_t kLongest = 4;
  return period <= kLongest && model.layers % period == 0 ? period : 0;
}

int64_t layers_of_model(const RunConfig& config) { return resolve_model(config, 0).layers; }

StepperOptions options_of(const RunConfig& config, const Target& target) {
  StepperOptions options = stepper_options(config, target);
  options.compile.verify = false;
  return options;
}

void add(TimeSplit& time, const GraphSeconds& seconds, double times) {
  time.products += times * seconds.kernels[0], time.attention += times * seconds.kernels[1];
  time.other += times * seconds.kernels[2], time.collectives += times * seconds.waiting;
}

// What tells settings apart: all that are not their defaults.
std::string key_of(const RunConfig& config) {
  RunConfig own;
  const SettingsTable table = settings_of(own);  // its defaults are what the struct holds here
  own = config;
  return table.changed_line();
}

double sent_seconds(int64_t bytes, const Mesh& mesh, const Target& target) {
  return bytes == 0 ? 0 : link_seconds(static_cast<double>(bytes), {Axis::kPipeline}, mesh, target);
}

// Micro-batches of a step as few as its schedule's shape needs, and how many times as many as stages are left out.
std::pair<int32_t, int32_t> steady_part(int32_t stages, int32_t micro_batches) {
  const int32_t rounds = std::max((micro_batches - 3 * stages - 1) / stages, 0);
  return {micro_batches - rounds * stages, rounds};
}

double end_of(const std::vector<StageSeconds>& stages) {
  return std::ranges::max_element(stages, {}, &StageSeconds::end)->end;
}

}  // namespace

// Compiled plans of few layers. Without stages: two samples; with: first, middle (two of them) and last stage.
struct PaperPlanner::Unit {
  std::mutex mutex;
  int64_t period = 1, units = 0;  // units: of a micro-batch; 0: not yet compiled
  StageSample first, middle, more, last;
  std::vector<double> seconds;  // by layer, of all few
  LayerStep step() const { return {&middle, &more}; }
};

PaperPlanner::PaperPlanner(Target target) : target_(std::move(target)) {
  check(target_.bf16_flops > 0 && target_.bytes_per_second > 0, ErrorCode::kInvalidArgument,
        "target {} says no rates, by which steps are timed: want bf16_flops and bytes_per_second in its file, as "
        "`octet plan --target h200` has them",
        target_.name);
}
PaperPlanner::~PaperPlanner() = default;

int64_t PaperPlanner::compiled() const {
  const std::scoped_lock lock(mutex_);
  return std::ssize(units_);
}

std::shared_ptr<const PaperPlanner::Unit> PaperPlanner::unit_of(const RunConfig& config, int64_t period) {
  RunConfig few = config;
  const bool staged = config.pipeline > 1;
  if (config.shard == "none") few.data_ranks = std::min<int64_t>(config.data_ranks, 2);
  few.pipeline = staged ? 4 : 1, few.chunks = 1;
  few.layers = (staged ? 5 : 3) * period;
  few.global_batch = 8 * few.micro_batch * few.data_ranks;
  const std::string key = key_of(few);
  std::shared_ptr<Unit> unit;
  {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Unit>& known = units_[key];
    if (known == nullptr) known = std::make_shared<Unit>();
    unit = known;
  }
  const std::scoped_lock own(unit->mutex);  // others wait for it rather than compile the same
  if (unit->units > 0) return unit;
  unit->period = period;
  int64_t units = 0;
  if (!staged) {
    for (const int64_t layers : {2 * period, 3 * period}) {
      few.layers = layers;
      const std::unique_ptr<TrainingWorkload> workload = workload_row(few).plan(few);
      units = workload->units();
      (layers == 2 * period ? unit->middle : unit->more) =
          sample_whole(compile_training(*workload, options_of(few, target_)), layers);
    }
  } else {
    const std::unique_ptr<TrainingWorkload> workload = workload_row(few).plan(few);
    units = workload->units();
    StepperOptions options = options_of(few, target_);
    Parallel& parallel = options.compile.parallel;
    const int64_t layers[] = {period, period, 2 * period, period};
    for (int32_t s = 0; s < 4; ++s) parallel.cut.insert(parallel.cut.end(), static_cast<size_t>(layers[s]), s);
    Program whole = compile_whole(training_program(*workload, options), options.compile);
    pad_for_stages(whole, options.compile);
    unit->seconds = layer_seconds(*whole.find_graph(GraphRole::kTrain), target_);
    const std::vector<PipelineSchedule> order = schedules(4, 1, parallel.micro_batches);
    StageSample* samples[] = {&unit->first, &unit->middle, &unit->more, &unit->last};
    for (int32_t s = 0; s < 4; ++s) {
      parallel.stage = s;
      *samples[s] =
          sample_stage(compile_stage(whole, options.compile), layers[s], order[static_cast<size_t>(s)].slots[0]);
    }
  }
  unit->units = units;
  return unit;
}

ModelFacts PaperPlanner::facts(const RunConfig& config) {
  RunConfig alone = config;
  alone.tensor = alone.context = alone.pipeline = alone.data_ranks = alone.chunks = 1;
  alone.chosen_mesh.reset();
  alone.sequence = false, alone.shard = "none", alone.recompute = "none", alone.transposes = "cached";
  if (!parse_recipe(alone.recipe).statistics) alone.recipe = "bf16";
  alone.micro_batch = 1, alone.global_batch = 1;
  const std::string key = key_of(alone);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = facts_.find(key); found != facts_.end()) return found->second;
  }
  const auto report = [&](const RunConfig& of) {
    const std::unique_ptr<TrainingWorkload> workload = workload_row(of).plan(of);
    const StepperOptions options = options_of(of, target_);
    PlanReport made;
    report_model(*workload, compile_whole(training_program(*workload, options), options.compile), made);
    return made;
  };
  const int64_t period = period_of(alone);
  const int64_t layers = period > 0 ? layers_of_model(alone) : 0;
  ModelFacts facts;
  if (period == 0 || layers <= 3 * period) {
    const PlanReport r = report(alone);
    facts = {r.model, r.unit, r.parameters, r.forward_flops + r.backward_flops};
  } else {
    RunConfig few = alone, more = alone;
    few.layers = period, more.layers = 2 * period;
    const PlanReport a = report(few), b = report(more);
    const int64_t steps = layers / period - 1;
    const double flops = a.forward_flops + a.backward_flops;
    facts = {workload_row(alone).plan(alone)->description(), a.unit,
             a.parameters + steps * (b.parameters - a.parameters),
             flops + static_cast<double>(steps) * (b.forward_flops + b.backward_flops - flops)};
  }
  const std::scoped_lock lock(mutex_);
  return facts_.emplace(key, std::move(facts)).first->second;
}

namespace {

void set_states(MemorySplit& memory, const StageSample& stage) {
  memory.weights = stage.states[0], memory.copies = stage.states[1], memory.moments = stage.states[2];
  memory.gradients = stage.states[3], memory.scales = stage.states[4];
  memory.others = stage.states[5] + stage.states[6] + stage.inputs;
}

// Without stages.
Prediction of_sample(const StageSample& all, const GraphSeconds& update, int64_t units, const RunConfig& config,
                     const Target& target) {
  const Mesh mesh = config.mesh();
  const int64_t count = config.accumulation() / mesh[Axis::kData];
  const auto micro_batches = static_cast<double>(count);
  Prediction made{.units = static_cast<double>(units) * micro_batches * mesh[Axis::kData], .ranks = mesh.ranks()};
  set_states(made.memory, all);
  made.memory.others += all.piece.inputs;
  made.memory.activations = all.piece.kept;
  made.memory.arena =
      std::max(std::ranges::max(all.arenas), std::ranges::max(all.piece.arenas)) + all.workspace - all.piece.kept;
  add(made.time, all.piece.forward[0], 1);
  add(made.time, all.piece.forward[1], micro_batches - 1);
  made.time.update = update.all(), made.time.host = target.step.step_seconds;
  return made;
}

}  // namespace

Prediction PaperPlanner::compose_whole(const RunConfig& config, const Unit& unit) const {
  const int64_t layers = layers_of_model(config);
  return of_sample(with_layers(unit.middle, unit.step(), layers),
                   update_seconds(unit.middle, unit.step(), layers, config.mesh(), target_), unit.units, config,
                   target_);
}

PaperPlanner::Order PaperPlanner::order_of(int32_t stages, int32_t chunks, int32_t micro_batches) {
  const std::array<int32_t, 3> key = {stages, chunks, micro_batches};
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = orders_.find(key); found != orders_.end()) return found->second;
  }
  auto made = std::make_shared<const std::vector<PipelineSchedule>>(schedules(stages, chunks, micro_batches));
  const std::scoped_lock lock(mutex_);
  return orders_.emplace(key, std::move(made)).first->second;
}

Prediction PaperPlanner::compose_stages(const RunConfig& config, const Unit& unit) {
  const Mesh mesh = config.mesh();
  const auto p = mesh[Axis::kPipeline], v = static_cast<int32_t>(config.chunks);
  const auto micro_batches = static_cast<int32_t>(config.accumulation() / mesh[Axis::kData]);
  const int64_t layers = layers_of_model(config);
  std::vector<double> seconds;  // as layer_seconds() of the whole model
  const int64_t few = std::ssize(unit.seconds);
  for (int64_t l = 0; l < layers; ++l) {
    const int64_t from_end = layers - l;
    const int64_t same = l < unit.period ? l : from_end <= unit.period ? few - from_end : unit.period + l % unit.period;
    seconds.push_back(unit.seconds[static_cast<size_t>(same)]);
  }
  const std::vector<int32_t> cut = balance_layers(seconds, p, v);
  std::vector<int64_t> sizes(static_cast<size_t>(p * v), 0);
  for (const int32_t piece : cut) ++sizes[static_cast<size_t>(piece)];
  for (const int64_t size : sizes)
    if (size % unit.period != 0) return plan_whole(config);
  std::map<std::pair<int32_t, int64_t>, StageSample> samples;
  const auto sample = [&](int32_t piece, int32_t last, int64_t size) -> const StageSample& {
    const int32_t kind = piece == 0 ? 0 : piece == last ? 2 : 1;
    const StageSample& base = kind == 0 ? unit.first : kind == 2 ? unit.last : unit.middle;
    const auto found = samples.find({kind, size});
    if (found != samples.end()) return found->second;
    return samples.emplace(std::pair(kind, size), with_layers(base, unit.step(), size)).first->second;
  };
  const auto [part, rounds] = steady_part(p, micro_batches);
  const Order of_part = order_of(p, v, part);
  const std::vector<PipelineSchedule>& order = *of_part;
  std::vector<PieceSeconds> pieces(static_cast<size_t>(p * v));
  std::map<std::pair<int32_t, int64_t>, double> updates;
  double once = 0;
  Prediction made{
      .stages = p, .units = static_cast<double>(unit.units) * micro_batches * mesh[Axis::kData], .ranks = mesh.ranks()};
  std::vector<TimeSplit> times(static_cast<size_t>(p));
  for (int32_t s = 0; s < p; ++s) {
    int64_t own = 0;
    for (int32_t c = 0; c < v; ++c) own += sizes[static_cast<size_t>(c * p + s)];
    const StageSample& stage = sample(s, p - 1, own);
    MemorySplit memory;
    set_states(memory, stage);
    int64_t arena = std::ranges::max(stage.arenas);
    TimeSplit& time = times[static_cast<size_t>(s)];
    for (int32_t c = 0; c < v; ++c) {
      const int32_t g = c * p + s;
      const PieceSample& piece = sample(g, p * v - 1, sizes[static_cast<size_t>(g)]).piece;
      const int64_t slots = order[static_cast<size_t>(s)].slots[static_cast<size_t>(c)];
      memory.activations += slots * piece.slot;
      memory.others += slots * (piece.slot_aligned - piece.slot) + piece.transfers_aligned + piece.inputs;
      arena = std::max(arena, std::ranges::max(piece.arenas));
      for (const auto& way : {piece.forward, piece.backward})
        add(time, way[0], 1), add(time, way[1], micro_batches - 1);
      PieceSeconds& timed = pieces[static_cast<size_t>(g)];
      for (size_t i = 0; i < 2; ++i)
        timed.forward[i] = piece.forward[i].all(), timed.backward[i] = piece.backward[i].all();
      timed.send = sent_seconds(piece.sent, mesh, target_);
      timed.send_gradient = sent_seconds(piece.sent_gradient, mesh, target_);
    }
    memory.arena = arena + stage.workspace;
    const int32_t kind = s == 0 ? 0 : s == p - 1 ? 2 : 1;
    const StageSample& base = kind == 0 ? unit.first : kind == 2 ? unit.last : unit.middle;
    auto update = updates.find({kind, own});
    if (update == updates.end())
      update = updates
                   .emplace(std::pair(kind, own), update_seconds(base, unit.step(), own, mesh, target_).all() +
                                                      sent_seconds(stage.shared, mesh, target_))
                   .first;
    once = std::max(once, update->second);
    if (s == 0 || memory.total() > made.memory.total()) made.memory = memory, made.stage = s;
  }
  const Transfers way = target_.traits.overlaps_transfers ? Transfers::kBeside : Transfers::kInTurn;
  const std::vector<StageSeconds> simulated = simulate(order, pieces, way);
  double end = end_of(simulated);
  double longer = 0;  // a round of as many micro-batches as stages
  if (rounds > 0) longer = end - end_of(simulate(*order_of(p, v, part - p), pieces, way));
  end += rounds * longer;
  const auto work = [](const TimeSplit& t) { return t.products + t.attention + t.other + t.collectives; };
  const size_t busiest = static_cast<size_t>(std::ranges::max_element(times, {}, work) - times.begin());
  made.time = times[busiest];
  made.time.transfers = simulated[busiest].transfers * micro_batches / part;
  made.time.idle = std::max(end - work(made.time) - made.time.transfers, 0.0);
  made.time.update = once, made.time.host = target_.step.step_seconds;
  return made;
}

Prediction PaperPlanner::predict(const RunConfig& config) {
  const int64_t period = period_of(config);
  const int64_t layers = period == 0 ? 0 : layers_of_model(config);
  constexpr int64_t kFew = 3;  // layers that are planned as they are
  if (layers <= kFew * period || layers < config.pipeline * config.chunks * period) return plan_whole(config);
  const std::shared_ptr<const Unit> unit = unit_of(config, period);
  return config.pipeline > 1 ? compose_stages(config, *unit) : compose_whole(config, *unit);
}

Prediction PaperPlanner::plan_whole(const RunConfig& config) const {
  const std::unique_ptr<TrainingWorkload> workload = workload_row(config).plan(config);
  Prediction made;
  if (config.pipeline == 1 && parse_recipe(config.recipe).statistics) {
    const PlanReport r = plan_training(*workload, config, target_);
    const StepTime& step = *r.step;
    made = {.units = step.units, .ranks = r.mesh.ranks()};
    made.memory = {.weights = r.weight_bytes + r.frozen_bytes,
                   .copies = r.compute_bytes,
                   .moments = r.moment_bytes,
                   .gradients = r.gradient_bytes,
                   .scales = r.scale_bytes,
                   .activations = r.activation_bytes,
                   .arena = r.transient_bytes + r.workspace_bytes,
                   .others = r.padding_bytes + r.input_bytes};
    add(made.time, step.model, 1);
    made.time.update = step.update.all(), made.time.host = step.host;
  } else if (config.pipeline == 1) {
    const Plan plan = compile_training(*workload, options_of(config, target_));
    const StageSample all = sample_whole(plan, 1);
    made = of_sample(all, graph_seconds(*all.update, target_), workload->units(), config, target_);
  } else {
    const PipelineReport r = plan_stages(*workload, config, target_, /*verify=*/false);
    const PlanReport& most = r.largest().rank;
    made = {.stage = static_cast<int32_t>(&r.largest() - r.stages.data()),
            .stages = static_cast<int32_t>(r.stages.size()),
            .units = r.units(),
            .ranks = r.model.mesh.ranks()};
    made.memory = {.weights = most.weight_bytes + most.frozen_bytes,
                   .copies = most.compute_bytes,
                   .moments = most.moment_bytes,
                   .gradients = most.gradient_bytes,
                   .scales = most.scale_bytes,
                   .activations = most.activation_bytes,
                   .arena = most.transient_bytes + most.workspace_bytes,
                   .others = most.padding_bytes + most.input_bytes + most.transfer_bytes};
    const StageReport& busiest = *std::ranges::max_element(
        r.stages, {}, [](const StageReport& stage) { return stage.computing + stage.collectives; });
    made.time = {.products = busiest.kernels[0],
                 .attention = busiest.kernels[1],
                 .other = busiest.kernels[2],
                 .collectives = busiest.collectives,
                 .host = target_.step.step_seconds,
                 .transfers = busiest.transfers,
                 .idle = busiest.idle};
    made.time.update = r.step_seconds - made.time.total();
  }
  made.whole = true;
  return made;
}

}  // namespace octet
