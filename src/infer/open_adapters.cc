// Adapters that an engine's options name, and the tables that hold them.
#include <algorithm>
#include <bit>
#include <mutex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "infer/adapter_store.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

constexpr int64_t kLeastRank = 8;  // of a class: rows of 16 bytes, which GPUs' kernels want
constexpr int64_t kUsualRank = 16, kUsualSlots = 64;
constexpr int64_t kSlotBytes = int64_t{8} << 30;  // of slots that nobody asked for, in all

// Of the ranks up to its own and above half of it.
int64_t class_rank(int64_t rank) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(rank, kLeastRank))));
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

// Weights of the base, read from its folder once more when one is first asked for.
BaseWeight base_weights(const std::string& model) {
  struct Opened {
    std::mutex mutex;
    std::unique_ptr<WeightSource> weights;
    ParamShapes shapes;
  };
  return [model, opened = std::make_shared<Opened>()](const std::string& param) {
    check(!model.empty(), ErrorCode::kUnsupported, "DoRA's norms are of the base's weights, and these are random");
    const std::lock_guard lock(opened->mutex);
    if (opened->weights == nullptr) {
      opened->weights = open_weights(model);
      opened->shapes = param_shapes(opened->weights->config());
    }
    return opened->weights->read(param, opened->shapes.at(param));
  };
}

}  // namespace

void AdapterStore::load(const std::string& name, const std::string& folder, bool replace) {
  Adapter adapter = read_adapter(folder, config_);
  check(
      adapter.base_copies.empty() && !adapter.unties_head, ErrorCode::kUnsupported,
      "adapter {}: {} brings {} of its base, which the texts of one batch share: merge it into its base (octet export "
      "--merge) and serve that",
      name, folder, adapter.base_copies.empty() ? "another head" : adapter.base_copies.begin()->first);
  // What made the virtual tokens.
  std::erase_if(adapter.tensors, [](const auto& tensor) { return tensor.first.starts_with("prompt_encoder."); });
  load(name, adapter.spec, adapter.tensors, replace, folder);
}

AdapterPlan plan_adapters(const EngineOptions& o, const ModelConfig& config) {
  AdapterPlan plan;
  if (o.adapters.empty() && o.max_adapters == 0) {
    check(
        o.max_adapter_rank == 0 && o.adapter_targets.empty(), ErrorCode::kInvalidArgument,
        "max_adapter_rank {} and adapter_targets \"{}\" without adapters: give some, or room for them by max_adapters",
        o.max_adapter_rank, o.adapter_targets);
    return plan;
  }
  std::set<int64_t> ranks;
  std::set<std::string> targets;
  AdapterTables& tables = plan.tables;
  for (const auto& [name, folder] : o.adapters) {
    const AdapterSpec spec = read_adapter(folder, config).spec;
    int64_t rank = 0;
    for (const LowRank& low : spec.low_rank) {
      rank = std::max(rank, low.rank);
      tables.dora |= low.dora;
      for (const std::string& param : low.params) targets.insert(adapter_target(param));
    }
    if (rank > 0) ranks.insert(class_rank(rank));
    tables.virtual_tokens = std::max(tables.virtual_tokens, spec.virtual_tokens);
  }
  if (o.max_adapter_rank > 0) ranks.insert(class_rank(o.max_adapter_rank));
  if (ranks.empty() && o.max_adapters > 0) ranks.insert(class_rank(kUsualRank));
  tables.ranks.assign(ranks.begin(), ranks.end());
  const auto given = static_cast<int64_t>(o.adapters.size());
  tables.slots = o.max_adapters > 0 ? o.max_adapters : std::min(given, kUsualSlots);
  tables.most_bytes = o.max_adapters > 0 ? 0 : kSlotBytes;
  if (o.adapter_targets.empty())
    plan.targets.assign(targets.begin(), targets.end());
  else if (o.adapter_targets != "all")
    plan.targets = words_of(o.adapter_targets);
  return plan;
}

std::unique_ptr<AdapterStore> open_adapters(const EngineOptions& options, const ModelConfig& config,
                                            const std::string& model, const AdapterTables& tables) {
  if (tables.empty()) return nullptr;
  const LoggedTime time("adapters");
  auto store = std::make_unique<AdapterStore>(tables, base_weights(model), config);
  const std::vector<std::pair<std::string, std::string>> given(options.adapters.begin(), options.adapters.end());
  parallel_for(std::ssize(given), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      store->load(given[static_cast<size_t>(i)].first, given[static_cast<size_t>(i)].second);
  });
  return store;
}

}  // namespace octet
