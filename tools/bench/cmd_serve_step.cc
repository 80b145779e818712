// octet-bench serve-step: a decode step of a serving runner at a fixed batch and context, compared with the roofline of
// its bytes and FLOPs; and the time of a prefill. Random weights and tokens; the loop is the engine's.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/step_report.h"
#include "exec/timeline.h"
#include "infer/plan_runner.h"
#include "ir/facts.h"
#include "ir/text.h"
#include "numbers.h"
#include "passes/serving_graphs.h"
#include "weights/weights.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Options {
  std::string model = "llama2-7b", recipe = "bf16", kv_cache = "bf16", device = "auto", timeline;
  std::vector<int64_t> batches = {64}, prompts = {};
  int64_t context = 1024, steps = 30, layers = 0, block_size = 0, max_step_tokens = 2048, top = 12, adapters = 0,
          rank = 16;
  double bytes_per_second = 0;
  bool profile = false, plan_only = false, no_warm_up = false, all_rows = false;
};

// Roofline seconds of this graph at `context` keys per sequence: each GEMM the longer of its FLOPs and bytes, plus one
// read of keys and values.
struct Floor {
  double gemm = 0, cache = 0;
  double total() const { return gemm + cache; }
};
bool is_product(Op op) {
  return op == Op::kMatmul || op == Op::kScaledMatmul || op == Op::kGroupedMatmul || op == Op::kScaledGroupedMatmul;
}

Floor floor_of(const Graph& graph, const Target& target, double bytes_per_second, int64_t keys) {
  Floor floor;
  const auto add_product = [&](const Graph& of, NodeId id, double bytes) {
    const Op op = of.node(id).op;
    const bool scaled = op == Op::kScaledMatmul || op == Op::kScaledGroupedMatmul;
    const double rate = scaled ? target.fp8_flops : target.bf16_flops;
    floor.gemm += std::max(rate > 0 ? node_cost(of, id).flops / rate : 0, bytes / bytes_per_second);
  };
  for (int32_t i = 0; i < graph.size(); ++i) {
    const NodeId id{i};
    const Node& node = graph.node(id);
    if (is_product(node.op)) {
      add_product(graph, id, node_cost(graph, id).bytes);
    } else if (node.op == Op::kFusion) {  // bytes of the whole fusion
      const auto& members = node.body->nodes();
      const auto product =
          std::find_if(members.begin(), members.end(), [](const Node& member) { return is_product(member.op); });
      if (product != members.end())
        add_product(*node.body, NodeId{static_cast<int32_t>(product - members.begin())}, node_cost(graph, id).bytes);
    } else if (node.op == Op::kPagedAttention) {
      double row_bytes = 0;
      for (size_t side : {1, 2}) {
        const TensorType& cache = graph.type(node.inputs[side]);
        const int64_t heads = node.attr<int64_t>("kv_heads");
        row_bytes += static_cast<double>(heads * cached_head_bytes(cache.shape.cols() / heads, cache.dtype));
      }
      floor.cache += row_bytes * static_cast<double>(keys) / bytes_per_second;
    }
  }
  return floor;
}

class StepBench {
 public:
  StepBench(const Options& options, const Target& target) : options_(options), target_(target) {
    rate_ = options.bytes_per_second > 0 ? options.bytes_per_second : target.bytes_per_second;
    measured_ = rate_ <= 0;
    int64_t longest = options.context;
    for (int64_t prompt : options.prompts) longest = std::max(longest, prompt);
    ServingOptions serving{
        .engine = {.context = longest,
                   .max_sequences = *std::max_element(options.batches.begin(), options.batches.end()),
                   .max_step_tokens = options.max_step_tokens,
                   .block_size = options.block_size,
                   .kv_cache_bytes = options.plan_only ? int64_t{40} << 30 : 0,
                   .all_rows = options.all_rows},
        .target = target,
        .recipe = parse_recipe(options.recipe),
        .cache_dtype = parse_cache_dtype(options.kv_cache)};
    if (options.adapters > 0) serving.adapters = {.slots = options.adapters, .ranks = {options.rank}};
    if (!options.timeline.empty()) timeline_ = make_device_timeline();
    ModelConfig model = named_model(options.model);
    model.max_positions = std::max(model.max_positions, longest);
    if (options.layers > 0) model.layers = options.layers;
    auto begin = Clock::now();
    ServingProgram program = build_serving_program(model, serving);
    const Plan& plan = program.plan;
    size_t nodes = 0;
    for (const Graph& graph : plan.program.graphs()) nodes += static_cast<size_t>(graph.size());
    fmt::print(
        "{} {} kv {} on {}: {} graphs of {} nodes planned in {:.2f} s; weights {:.2f} GB, cache {:.2f} GB, arena "
        "{:.3f} GB, inputs {:.1f} MB\n",
        options.model, options.recipe, options.kv_cache, target.name, plan.program.graphs().size(), nodes,
        seconds_since(begin), 1e-9 * static_cast<double>(plan.state_bytes - program.limits.kv_bytes),
        1e-9 * static_cast<double>(program.limits.kv_bytes), 1e-9 * static_cast<double>(plan.arena_bytes),
        1e-6 * static_cast<double>(plan.input_bytes));
    if (options.plan_only) print_graphs(program);
    if (options.plan_only) return;
    begin = Clock::now();
    runner_ = std::make_unique<PlanRunner>(std::move(program));
    const double bind = seconds_since(begin);
    begin = Clock::now();
    fill_random_weights(runner_->executor(), 1337);
    const double load = seconds_since(begin);
    begin = Clock::now();
    if (target.traits.captures_graphs && !options.no_warm_up) runner_->warm_up();
    fmt::print("bound in {:.2f} s, weights written in {:.2f} s, warmed up in {:.2f} s\n", bind, load,
               seconds_since(begin));
  }

  // The planned graphs of the requested steps, as text.
  void print_graphs(const ServingProgram& program) const {
    auto print_first = [&](const std::vector<ForwardBucket>& buckets, int64_t tokens) {
      for (const ForwardBucket& bucket : buckets) {
        if (bucket.tokens < tokens) continue;
        fmt::print("{}\n", print(program.plan.program.graph(bucket.graph)));
        return;
      }
    };
    for (int64_t batch : options_.batches) print_first(program.decode, batch);
    for (int64_t prompt : options_.prompts) print_first(program.mixed, prompt);
  }

  void run() {
    if (runner_ == nullptr) return;
    fmt::print("{:>6} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>6} {:>12} {:>9} {:>9} {:>9}\n", "batch", "context",
               "step us", "min us", "floor us", "gemm us", "cache us", "%", "tokens/s", "fill us", "sample us",
               "wait us");
    for (int64_t batch : options_.batches) decode(batch);
    for (int64_t prompt : options_.prompts) prefill(prompt);
  }

 private:
  int64_t blocks_of(int64_t tokens) const {
    return (tokens + runner_->limits().block_size - 1) / runner_->limits().block_size;
  }

  // `batch` sequences of `context` tokens, the last `count` of them in this step.
  StepInput step_input(int64_t batch, int64_t context, int64_t count) const {
    const RunnerLimits& limits = runner_->limits();
    StepInput step{.segments = {0}, .decode_only = count == 1};
    step.groups.resize(limits.groups.size());
    for (int64_t s = 0; s < batch; ++s) {
      for (int64_t i = 0; i < count; ++i) {
        step.ids.push_back(static_cast<int32_t>((s * 7919 + i * 104729) % limits.vocab));
        step.positions.push_back(static_cast<int32_t>(context - count + i));
        step.from.push_back(-1);  // ids sampled greedily of random weights would soon be alike, and their experts too
      }
      if (options_.adapters > 0) step.adapters.push_back(static_cast<int32_t>(s * options_.adapters / batch));
      step.segments.push_back(static_cast<int32_t>(step.ids.size()));
      step.kv_lengths.push_back(static_cast<int32_t>(context));
      step.logit_rows.push_back(static_cast<int32_t>(step.ids.size()) - 1);
      for (size_t g = 0; g < step.groups.size(); ++g) {  // scattered blocks, as after long serving
        const CacheGroup& group = limits.groups[g];
        const int64_t pool = group.blocks % 7 == 0 ? group.blocks - 1 : group.blocks;
        auto block = [&](int64_t i) { return static_cast<int32_t>((s * blocks_of(context) + i) * 7 % pool); };
        for (int64_t i = 0; i < group.blocks_per_sequence; ++i)
          step.groups[g].table.push_back(i < blocks_of(context) ? block(i) : -1);
        for (int64_t i = context - count; i < context; ++i)
          step.groups[g].slots.push_back(
              static_cast<int32_t>(block(i / limits.block_size) * limits.block_size + i % limits.block_size));
      }
    }
    return step;
  }

  SampleInput sample_input(int64_t batch) const {
    SampleInput sample;
    for (int64_t s = 0; s < batch; ++s) {
      sample.params.insert(sample.params.end(), {0.0f, 1.0f, 0.0f});
      sample.top_k.push_back(0);
      sample.seeds.insert(sample.seeds.end(), {1, s, 0});
      sample.store.push_back(static_cast<int32_t>(s));
    }
    return sample;
  }

  struct Times {
    std::vector<double> step, fill, sample, wait;
  };

  // The engine's order: the next forward is enqueued before waiting for the last step's ids.
  Times loop(const StepInput& step, const SampleInput& sampling, int64_t steps) {
    Times times;
    runner_->forward(step);
    runner_->sample(sampling);
    auto last = Clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      auto begin = Clock::now();
      runner_->forward(step);
      times.fill.push_back(seconds_since(begin));
      begin = Clock::now();
      runner_->wait();
      times.wait.push_back(seconds_since(begin));
      begin = Clock::now();
      runner_->sample(sampling);
      times.sample.push_back(seconds_since(begin));
      times.step.push_back(seconds_since(last));
      last = Clock::now();
    }
    runner_->wait();
    return times;
  }

  // If the target has no memory bandwidth, it is measured in alternation with the steps, since other load on the
  // machine varies; medians of both.
  Times timed_loop(const StepInput& step, const SampleInput& sampling) {
    if (!measured_) return loop(step, sampling, options_.steps);
    constexpr int64_t kTurn = 3;
    MemoryReader reader(int64_t{1} << 29);
    std::vector<double> rates;
    Times times;
    for (int64_t done = 0; done < options_.steps; done += kTurn) {
      rates.push_back(reader.run());
      const Times turn = loop(step, sampling, std::min(kTurn, options_.steps - done));
      for (auto field : {&Times::step, &Times::fill, &Times::sample, &Times::wait})
        (times.*field).insert((times.*field).end(), (turn.*field).begin(), (turn.*field).end());
    }
    rate_ = median(rates);
    return times;
  }

  const Graph& graph(const std::string& name) const { return runner_->executor().program().graph(name); }

  void report(const std::string& forward, const std::string& sample, int64_t batch, int64_t tokens, int64_t context,
              const Times& times, bool caches) {
    Floor floor = floor_of(graph(forward), target_, rate_, caches ? batch * context : 0);
    floor.gemm += floor_of(graph(sample), target_, rate_, 0).gemm;
    const double middle = median(times.step);
    fmt::print(
        "{:>6} {:>8} {:>10.1f} {:>10.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>6.1f} {:>12.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n",
        batch, context, middle * 1e6, *std::min_element(times.step.begin(), times.step.end()) * 1e6,
        floor.total() * 1e6, floor.gemm * 1e6, floor.cache * 1e6, 100 * floor.total() / middle,
        static_cast<double>(tokens) / middle, median(times.fill) * 1e6, median(times.sample) * 1e6,
        median(times.wait) * 1e6);
    if (measured_)
      fmt::print("    roofline at {:.1f} GB/s, the read bandwidth measured between the steps\n", rate_ * 1e-9);
  }

  void decode(int64_t batch) {
    const StepInput step = step_input(batch, options_.context, 1);
    const SampleInput sampling = sample_input(batch);
    loop(step, sampling, 3);
    const Times times = timed_loop(step, sampling);
    const std::string forward = forward_graph_of("decode", step), sample = sample_graph_of(batch);
    report(forward, sample, batch, batch, options_.context, times, true);
    if (timeline_ != nullptr) print_timeline(forward, step, sampling);
    if (options_.profile) print_profile({forward, sample}, step, sampling);
  }

  void prefill(int64_t tokens) {
    const StepInput step = step_input(1, tokens, tokens);
    const SampleInput sampling = sample_input(1);
    loop(step, sampling, 3);
    const Times times = timed_loop(step, sampling);
    const std::string forward = forward_graph_of("mixed", step), sample = sample_graph_of(1);
    report(forward, sample, 1, tokens, tokens, times, false);
    if (timeline_ != nullptr) print_timeline(forward, step, sampling);
    if (options_.profile) print_profile({forward, sample}, step, sampling);
  }

  std::string forward_graph_of(const char* kind, const StepInput& step) const {
    const std::string adapters = options_.adapters > 0 ? fmt::format(".r{}", options_.rank) : "";
    return fmt::format("{}.{}{}", kind, runner_->padded_tokens(step), adapters);
  }

  std::string sample_graph_of(int64_t rows) const {
    int64_t bucket = 1;
    while (bucket < rows) bucket = std::min(2 * bucket, runner_->limits().rows);
    return fmt::format("sample.{}", bucket);
  }

  void print_timeline(const std::string& graph, const StepInput& step, const SampleInput& sampling) {
    constexpr int64_t kSteps = 10;
    timeline_->begin();
    loop(step, sampling, kSteps - 1);
    const std::vector<DeviceActivity> activities = timeline_->end();
    fmt::print("{}", timeline_text(activities, kSteps, options_.top));
    write_file(fmt::format("{}.{}.json", options_.timeline, graph), timeline_json(activities));
  }

  // Profile per kernel, of a few more steps launched node by node.
  void print_profile(const std::vector<std::string>& graphs, const StepInput& step, const SampleInput& sampling) {
    constexpr int64_t kSteps = 5;
    Executor& executor = runner_->executor();
    executor.set_profiling(true);
    loop(step, sampling, kSteps - 1);
    std::vector<NodeTime> profile = executor.profile();
    executor.set_profiling(false);
    std::erase_if(profile, [&](const NodeTime& time) {
      return std::find(graphs.begin(), graphs.end(), time.graph) == graphs.end();
    });
    const std::vector<KernelSum> list = by_kernel(profile);
    double all = 0;
    for (const KernelSum& sum : list) all += sum.seconds;
    for (size_t i = 0; i < std::min(list.size(), static_cast<size_t>(options_.top)); ++i) {
      const KernelSum& time = list[i];
      fmt::print("    {:<18} {:<34} {:>5} calls {:>9.1f} us {:>5.1f} % {:>8.1f} TFLOP/s {:>8.1f} GB/s\n", time.op,
                 time.kernel, time.calls / kSteps, time.seconds / kSteps * 1e6, 100 * time.seconds / all,
                 time.flops / time.seconds * 1e-12, time.bytes / time.seconds * 1e-9);
    }
    fmt::print("    {:<18} {:<34} {:>5}       {:>9.1f} us\n", "all", "", "", all / kSteps * 1e6);
  }

  const Options& options_;
  const Target& target_;
  double rate_ = 0;  // bytes per second
  bool measured_ = false;
  std::unique_ptr<DeviceTimeline> timeline_;  // constructed before the runner, whose graphs it records
  std::unique_ptr<PlanRunner> runner_;
};

void run_serve_step(const Options& options) {
  const Target target =
      options.plan_only && options.device == "h200" ? h200_target() : target_of(resolve_device(options.device));
  StepBench(options, target).run();
}

}  // namespace

void add_serve_step_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("serve-step", "A decode step of a serving runner compared with its roofline");
  command->add_option("--model", options->model, "a named size")->capture_default_str();
  command->add_option("--recipe", options->recipe)->capture_default_str();
  command->add_option("--kv-cache", options->kv_cache, "f32 | bf16 | e4m3 | int8")->capture_default_str();
  command->add_option("--device", options->device, "auto | cpu | cuda; with --plan-only also h200")
      ->capture_default_str();
  command->add_option("--batch", options->batches, "sequences (several values allowed)")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--prompt", options->prompts, "also time the prefill of one prompt of this many tokens");
  command->add_option("--context", options->context, "cached tokens per sequence")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--steps", options->steps, "timed steps")->capture_default_str()->check(positive());
  command->add_option("--layers", options->layers, "override the size's")->check(not_negative());
  command->add_option("--block-size", options->block_size, "tokens per cache block");
  command->add_option("--max-step-tokens", options->max_step_tokens)->capture_default_str();
  command->add_option("--adapters", options->adapters, "LoRA adapters of zeros on all linears, dealt out to sequences")
      ->check(not_negative());
  command->add_option("--adapter-rank", options->rank)->capture_default_str()->check(positive());
  command->add_option("--bandwidth", options->bytes_per_second, "memory bandwidth of the roofline, bytes per second");
  command->add_option("--top", options->top, "number of kernels to list")->capture_default_str();
  command->add_flag("--profile", options->profile, "profile kernel by kernel");
  command->add_option("--timeline", options->timeline,
                      "trace files PREFIX.GRAPH.json of 10 more steps, and the GPU's idle time (needs CUPTI)");
  command->add_flag("--plan-only", options->plan_only, "only plan, and print the graphs of the requested steps");
  command->add_flag("--no-warm-up", options->no_warm_up);
  command->add_flag("--all-rows", options->all_rows, "compute the last layer of a prompt for every row");
  command->callback([options] { run_serve_step(*options); });
}

}  // namespace octet
