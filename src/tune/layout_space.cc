#include "tune/layout_space.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "model/model_spec.h"
#include "passes/pass.h"

namespace octet {
namespace {

// Smallest parts that are worth a rank: tokens of parallel.context, and of a micro-batch the most.
constexpr int64_t kLeastContext = 1024, kMostTokens = 65536;

class Space {
 public:
  Space(const RunConfig& config, const SearchOptions& options, const Target& target, Rules& rules)
      : config_(config),
        options_(options),
        target_(target),
        rules_(rules),
        model_(resolve_model(config, 0)),
        batch_(config.global_batch > 0 ? config.global_batch : config.micro_batch) {
    const ModelSpec spec(model_);
    for (const LayerSpec& layer : spec.pattern) experts_ |= layer.mixer.experts.count > 0;
  }

  std::vector<RunLayout> list() {
    for (const int64_t tensor : sizes("parallel.tensor", config_.tensor))
      for (const int64_t context : sizes("parallel.context", config_.context))
        for (const int64_t pipeline : sizes("parallel.pipeline", config_.pipeline)) add_mesh(tensor, context, pipeline);
    return std::move(layouts_);
  }

 private:
  bool given(const std::string& name) const { return options_.given.contains(name); }
  std::vector<int64_t> sizes(const std::string& name, int64_t value) const {
    return given(name) ? std::vector<int64_t>{value} : divisors(options_.devices);
  }
  std::vector<std::string> words(const std::string& name, const std::string& value,
                                 std::vector<std::string> all) const {
    return given(name) ? std::vector{value} : std::move(all);
  }

  void add_mesh(int64_t tensor, int64_t context, int64_t pipeline) {
    const int64_t others = tensor * context * pipeline;
    const std::string mesh = fmt::format("tensor {}, context {}, pipeline {}", tensor, context, pipeline);
    if (options_.devices % others != 0 || others > options_.devices)
      return rules_.add("the mesh fills the devices", mesh);
    const int64_t data = options_.devices / others;
    if (given("parallel.data") && data != config_.data_ranks) return rules_.add("parallel.data as given", mesh);
    if (experts_ && tensor * context > 1) return rules_.add("experts are split over parallel.data alone", mesh);
    if (model_.heads % (tensor * context) != 0)
      return rules_.add(fmt::format("{} heads divide among tensor x context ranks", model_.heads), mesh);
    const int64_t kv = model_.kv_head_count();
    if (kv > 1 && kv % tensor != 0) return rules_.add(fmt::format("{} key heads divide among tensor ranks", kv), mesh);
    if (const int64_t own = std::max<int64_t>(kv / tensor, 1); own > 1 && own % context != 0)
      return rules_.add(fmt::format("{} key heads divide among context ranks", own), mesh);
    if (!given("parallel.tensor") && target_.node_devices > 0 && tensor > target_.node_devices)
      return rules_.add(fmt::format("tensor ranks stay in a machine of {}", target_.node_devices), mesh);
    if (!given("parallel.context") && context > 1 && config_.sequence_length / context < kLeastContext)
      return rules_.add(fmt::format("context ranks have {} tokens of a sequence", kLeastContext), mesh);
    if (pipeline > model_.layers)
      return rules_.add(fmt::format("stages have layers of their own, of {}", model_.layers), mesh);
    for (const int64_t micro_batch : micro_batches())
      add_micro_batch({tensor, context, pipeline, data, 1, micro_batch});
  }

  std::vector<int64_t> micro_batches() const {
    if (given("train.micro_batch")) return {config_.micro_batch};
    std::vector<int64_t> sizes = {1};
    while (2 * sizes.back() * config_.sequence_length <= kMostTokens && 2 * sizes.back() <= batch_)
      sizes.push_back(2 * sizes.back());
    return sizes;
  }

  void add_micro_batch(RunLayout layout) {
    const int64_t together = layout.micro_batch * layout.data;
    if (batch_ % together != 0)
      return rules_.add(fmt::format("train.global_batch {} is shared equally", batch_), layout);
    const int64_t tokens = layout.micro_batch * config_.sequence_length;
    const int64_t steps = batch_ / together;
    for (const int64_t chunks : chunk_counts(layout.pipeline)) {
      layout.chunks = chunks;
      if (chunks > 1 && (layout.pipeline == 1 || steps % layout.pipeline != 0)) {
        rules_.add("chunks: micro-batches of a data rank are a multiple of stages", layout);
        continue;
      }
      for (const bool sequence : given("parallel.sequence") ? std::vector{config_.sequence}
                                 : layout.tensor > 1        ? std::vector{false, true}
                                                            : std::vector{false}) {
        layout.sequence = sequence;
        if (tokens % (layout.context * (sequence ? layout.tensor : 1)) != 0) {
          rules_.add("tokens of a micro-batch divide among ranks", layout);
          continue;
        }
        add_memory(layout);
      }
    }
  }

  std::vector<int64_t> chunk_counts(int64_t pipeline) const {
    if (given("parallel.chunks")) return {config_.chunks};
    std::vector<int64_t> counts = {1};
    for (const int64_t chunks : divisors(model_.layers))
      if (pipeline > 1 && chunks > 1 && chunks * pipeline <= model_.layers) counts.push_back(chunks);
    return counts;
  }

  // What trades memory for time, and the recipe.
  void add_memory(RunLayout layout) {
    std::vector<std::string> shards = {"none"};
    if (layout.data * layout.context > 1) shards = {"none", "optimizer", "gradients", "parameters"};
    std::vector<std::string> recipes = {"bf16"};
    if (target_.fp8_flops > 0) recipes = {"bf16", "fp8-current", "fp8-delayed", "fp8-block"};
    for (const std::string& shard : words("parallel.shard", config_.shard, shards))
      for (const std::string& recompute : words("recompute", config_.recompute, {"none", "light", "selective", "full"}))
        for (const std::string& recipe : words("precision.recipe", config_.recipe, recipes)) {
          layout.shard = shard, layout.recompute = recompute, layout.recipe = recipe;
          if (layout.recompute == "auto") layout.recompute = target_.prefer_recompute ? "light" : "none";
          const bool codes = parse_recipe(recipe).scaling != Scaling::kNone;
          std::vector<std::string> transposes = {"cached"};
          if (codes && target_.fp8_tn_only) transposes = {"cached", "on-demand"};
          for (const std::string& kept : words("precision.transposes", config_.transposes, transposes)) {
            layout.transposes = kept;
            layouts_.push_back(layout);
          }
        }
  }

  const RunConfig& config_;
  const SearchOptions& options_;
  const Target& target_;
  Rules& rules_;
  ModelConfig model_;
  int64_t batch_;
  bool experts_ = false;
  std::vector<RunLayout> layouts_;
};

}  // namespace

void Rules::add(const std::string& rule, const std::string& example, int64_t count) {
  RuleCount& own = rules_[rule];
  own.rule = rule, own.count += count;
  if (own.example.empty()) own.example = example;
}

void Rules::add(const std::string& rule, const RunLayout& example, int64_t count) {
  RuleCount& own = rules_[rule];
  own.rule = rule, own.count += count;
  if (own.example.empty()) own.example = to_text(example);
}

int64_t Rules::count() const {
  int64_t sum = 0;
  for (const auto& [name, rule] : rules_) sum += rule.count;
  return sum;
}

std::vector<RuleCount> Rules::sorted() const {
  std::vector<RuleCount> all;
  for (const auto& [name, rule] : rules_) all.push_back(rule);
  std::ranges::stable_sort(all, [](const RuleCount& a, const RuleCount& b) { return a.count > b.count; });
  return all;
}

std::vector<RunLayout> list_layouts(const RunConfig& config, const SearchOptions& options, const Target& target,
                                    Rules& rules) {
  std::vector<RunLayout> layouts = Space(config, options, target, rules).list();
  std::ranges::sort(layouts);
  return layouts;
}

}  // namespace octet
