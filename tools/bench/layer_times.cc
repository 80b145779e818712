#include "bench/layer_times.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "bench/measure.h"
#include "bench/random_batches.h"
#include "exec/logical_states.h"
#include "train/auto_precision.h"
#include "train/language_model.h"
#include "train/stepper.h"

namespace octet {
namespace {

constexpr int64_t kLength = 1024, kHead = 64, kVocab = 1024;
// A measurement: back-to-back steps until power and clocks of a GPU are those of a long run, then the timed ones. bf16
// draws more power than FP8, so short measurements favour it.
constexpr double kSettleSeconds = 0.06, kSampleSeconds = 0.01;
constexpr int kSamples = 5;  // the median is used

int64_t sequence_length(const LayerShape& layer) { return std::min(layer.tokens, kLength); }

LanguageModel model_of(const LayerShape& layer) {
  ModelConfig model = model_family(layer.gated ? "llama" : "gpt2");
  model.vocab_size = kVocab;
  model.max_positions = kLength;
  model.hidden = layer.width;
  model.layers = layer.layers;
  model.heads = std::max<int64_t>(layer.width / kHead, 1);
  if (layer.gated) model.intermediate = (layer.width * 8 / 3 + 127) / 128 * 128;
  const int64_t length = sequence_length(layer);
  return {model, layer.tokens / length, length};
}

StepperOptions options_of(const Target& target) {
  Recipe recipe = parse_recipe("auto");
  recipe.statistics = false;
  return {
      .optimizer = {.lr = 1e-4},
      .compile = {.target = target, .recipe = recipe, .recompute = parse_recompute("auto", target), .verify = false}};
}

// Normal values, repeated after a million; norm weights are 1.
void fill_weights(Executor& executor) {
  constexpr int64_t kTile = 1'048'573;
  static const std::vector<float> normals = [] {
    std::vector<float> values(kTile);
    Philox random(7, 1);
    for (float& value : values) value = static_cast<float>(0.02 * random.normal());
    return values;
  }();
  const std::vector<float> ones(kTile, 1.0f);
  for (const LogicalState& tensor : logical_states(executor.program())) {
    if (tensor.role != StateRole::kMaster || tensor.name.ends_with(".bias")) continue;
    const auto tile = std::as_bytes(std::span(tensor.type.shape.rank() > 1 ? normals : ones));
    fill_logical(executor, tensor, 256, [&](int64_t at, std::span<std::byte> to) {
      for (size_t done = 0; done < to.size();) {
        const size_t from = (static_cast<size_t>(at) + done) % tile.size();
        const size_t piece = std::min(to.size() - done, tile.size() - from);
        std::memcpy(to.data() + done, tile.data() + from, piece);
        done += piece;
      }
    });
  }
  executor.prepare();
}

// A training step with the `fp8` linears at a precision level and all others in bf16, as captured graphs.
class TimedStep {
 public:
  TimedStep(const LayerShape& layer, const StepperOptions& options, const std::vector<PolicyGemm>& gemms,
            const std::set<std::string>& fp8, PrecisionLevel rung)
      : stepper_(plan_of(layer, options, gemms, fp8, rung), options) {
    fill_weights(stepper_.executor());
    const int64_t length = sequence_length(layer);
    const auto batches = random_batches(1, layer.tokens / length, length, kVocab);
    constexpr int kCaptured = 2;  // the first run launches node by node
    for (int step = 1; step <= kCaptured; ++step)
      check(stepper_.step({.micro_batches = batches, .lr = 1e-5, .step = step, .seed = 1337}).finite,
            ErrorCode::kInternal, "a step of {} tokens, {} wide: gradients are not finite", layer.tokens, layer.width);
  }

  double seconds() {
    const double once = run(1);
    run(static_cast<int64_t>(std::ceil(kSettleSeconds / once)));
    std::vector<double> samples;
    for (int i = 0; i < kSamples; ++i) samples.push_back(run(static_cast<int64_t>(std::ceil(kSampleSeconds / once))));
    return median(samples);
  }

  // GEMM seconds of these linears alone.
  double product_seconds(const std::set<std::string>& linears) {
    Executor& executor = stepper_.executor();
    std::vector<double> runs;
    for (int i = 0; i < 5; ++i) {
      executor.set_profiling(true);
      executor.run("train");
      runs.push_back(0);
      for (const NodeTime& time : executor.profile())
        if (linears.contains(time.name)) runs.back() += time.seconds;
    }
    executor.set_profiling(false);
    return median(runs);
  }

 private:
  double run(int64_t steps) {
    Executor& executor = stepper_.executor();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      executor.run("train");
      executor.run("apply");
    }
    executor.output("apply", "loss");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(steps);
  }

  static Plan plan_of(const LayerShape& layer, StepperOptions options, const std::vector<PolicyGemm>& gemms,
                      const std::set<std::string>& fp8, PrecisionLevel rung) {
    for (const PolicyGemm& gemm : gemms)
      options.compile.recipe.decisions[gemm.key()] =
          level_precision(fp8.contains(gemm.gemm) ? rung : PrecisionLevel::kHigh);
    Plan plan = compile_training(model_of(layer), options);
    for (const char* graph : {"accumulate", "eval"}) plan.graphs.erase(graph);  // not run: no kernels to bind and tune
    return plan;
  }

  Stepper stepper_;
};

// The group in every layer.
struct LayersGroup {
  LinearTiming shape;
  std::set<std::string> linears;
};

std::vector<LayersGroup> groups_of(const std::vector<PolicyGemm>& gemms, const std::vector<LinearTiming>& known) {
  auto same = [](const LinearTiming& a, const LinearTiming& b) {
    return a.tokens == b.tokens && a.out == b.out && a.in == b.in && a.linears == b.linears;
  };
  std::vector<LayersGroup> groups;
  for (const LinearGroup& group : linear_groups(gemms)) {
    const auto count = static_cast<int64_t>(group.linears.size());
    const LinearTiming shape{.tokens = group.tokens, .out = group.out / count, .in = group.in, .linears = count};
    if (std::any_of(known.begin(), known.end(), [&](const LinearTiming& t) { return same(t, shape); })) continue;
    auto found = std::find_if(groups.begin(), groups.end(), [&](const LayersGroup& g) { return same(g.shape, shape); });
    if (found == groups.end()) found = groups.insert(found, {shape, {}});
    found->linears.insert(group.linears.begin(), group.linears.end());
  }
  return groups;
}

}  // namespace

std::vector<LinearTiming> time_layer(const LayerShape& layer, const Target& target,
                                     const std::vector<LinearTiming>& known) {
  const StepperOptions options = options_of(target);
  const std::vector<PolicyGemm> gemms = policy_gemms(model_of(layer), options);
  const std::vector<LayersGroup> groups = groups_of(gemms, known);
  TimedStep high(layer, options, gemms, {}, PrecisionLevel::kHigh);
  double before = high.seconds();
  std::vector<LinearTiming> timings;
  for (const LayersGroup& group : groups) {
    const double products = high.product_seconds(group.linears);
    for (PrecisionLevel rung : {PrecisionLevel::kHigh, PrecisionLevel::kTensor, PrecisionLevel::kBlock}) {
      double seconds = products;
      if (rung != PrecisionLevel::kHigh) {  // clocks drift: compare with neighbouring bf16 measurements
        const double fp8 = TimedStep(layer, options, gemms, group.linears, rung).seconds(), after = high.seconds();
        seconds += fp8 - (before + after) / 2;
        before = after;
      }
      timings.push_back(group.shape);
      timings.back().precision = precision_level_name(rung);
      timings.back().seconds = std::max(0.0, seconds) / static_cast<double>(layer.layers);
    }
  }
  return timings;
}

}  // namespace octet
