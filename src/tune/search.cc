#include "tune/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/threads.h"
#include "tune/layer_cost.h"
#include "tune/layout_space.h"

namespace octet {
namespace {

// Estimates err by so much against each other; where one of a kind has been planned, by less.
constexpr double kEstimateError = 1.06, kCorrectedError = 1.005;
constexpr size_t kTogether = 16;  // layouts that are planned before the next are chosen

// What layouts have in common whose layers cost the same.
std::string kind_of(const RunLayout& l) {
  return fmt::format("{} {} {} {}", l.tensor, l.context, l.sequence, l.recipe);
}

// How much work a layout does to need less memory than its siblings.
int64_t work_for_memory(const RunLayout& l) {
  const int64_t recompute = l.recompute == "full" ? 3 : l.recompute == "selective" ? 2 : l.recompute == "light" ? 1 : 0;
  return 2 * recompute + (l.transposes == "on-demand" ? 1 : 0);
}
RunLayout sibling(RunLayout l) {
  l.recompute = l.transposes = "";
  return l;
}

struct Guess {
  RunLayout layout;
  Estimate estimate;
  std::string kind;
};

class Search {
 public:
  Search(PaperPlanner& planner, const RunConfig& config, const SearchOptions& options)
      : planner_(planner), config_(config), options_(options) {
    result_.devices = options.devices;
    result_.global_batch = config.global_batch > 0 ? config.global_batch : config.micro_batch;
    if (planner.target().memory_bytes > 0)
      result_.memory_bytes =
          static_cast<int64_t>(static_cast<double>(planner.target().memory_bytes) * (1 - options.memory_margin));
  }

  SearchResult run() {
    const auto started = std::chrono::steady_clock::now();
    result_.model = planner_.facts(config_);
    list();
    plan_best();
    if (result_.best.empty()) {
      find_smallest();
    } else {
      confirm_best();
      find_full_recompute();
    }
    if (std::ssize(result_.best) > options_.rows) result_.best.resize(static_cast<size_t>(options_.rows));
    result_.rules = rules_.sorted();
    result_.planned = planned_, result_.compiled = planner_.compiled();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return std::move(result_);
  }

 private:
  bool fits(const Prediction& plan) const { return result_.memory_bytes == 0 || plan.bytes() <= result_.memory_bytes; }
  void report(int64_t done, int64_t total) const {
    if (!options_.progress) return;
    options_.progress(done, total,
                      result_.best.empty() ? "" : fmt::format("best {:.4g} s", result_.best[0].plan.seconds()));
  }

  // body(i) for each i, on all threads.
  template <typename Body>
  void each(size_t count, const Body& body) const {
    std::atomic<size_t> next{0};
    parallel_threads([&](int, int) {
      for (size_t i = next++; i < count; i = next++) body(i);
    });
  }

  // Costs of a layer for the smallest and the largest micro-batch of each kind; others lie between them.
  struct Costs {
    RunLayout small, large;
    std::array<LayerCost, 2> of = {};
    std::string refusal = {};

    LayerCost at(int64_t micro_batch) const {
      if (small.micro_batch == large.micro_batch) return of[0];
      return between(of[0], of[1],
                     static_cast<double>(micro_batch - small.micro_batch) /
                         static_cast<double>(large.micro_batch - small.micro_batch));
    }
  };
  void compute(Costs& costs) const {
    try {
      costs.of[0] = layer_cost(config_, costs.small, planner_.target());
      if (costs.small.micro_batch < costs.large.micro_batch)
        costs.of[1] = layer_cost(config_, costs.large, planner_.target());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) throw;
      costs.refusal = error.message();
    }
  }

  // Layouts with their estimates, the fastest first.
  void list() {
    const std::vector<RunLayout> layouts = list_layouts(config_, options_, planner_.target(), rules_);
    check(!layouts.empty(), ErrorCode::kInvalidArgument,
          "no layout of {} devices keeps the rules; the one that took out the most: {} (such as {})", options_.devices,
          rules_.sorted().empty() ? "none" : rules_.sorted()[0].rule,
          rules_.sorted().empty() ? "none" : rules_.sorted()[0].example);
    result_.listed = std::ssize(layouts) + rules_.count();
    std::map<std::string, size_t> index;
    std::vector<Costs> costs;
    std::vector<size_t> kind;
    for (const RunLayout& layout : layouts) {
      const auto [found, fresh] = index.emplace(kind_of(layout), costs.size());
      if (fresh) costs.push_back({layout, layout});
      Costs& own = costs[found->second];
      if (layout.micro_batch < own.small.micro_batch) own.small = layout;
      if (layout.micro_batch > own.large.micro_batch) own.large = layout;
      kind.push_back(found->second);
    }
    each(costs.size(), [&](size_t i) { compute(costs[i]); });
    Estimator estimate(result_.global_batch, planner_.target());
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Costs& own = costs[kind[i]];
      if (!own.refusal.empty()) {
        rules_.add(own.refusal, layouts[i]);
        continue;
      }
      const Estimate made = estimate(own.at(layouts[i].micro_batch), layouts[i]);
      lightest_.emplace_back(made.bytes, layouts[i]);
      if (result_.memory_bytes > 0 && made.bytes > result_.memory_bytes) {
        too_large(layouts[i], made.bytes);
        continue;
      }
      guesses_.push_back({layouts[i], made, fmt::format("{} {}", kind[i], layouts[i].shard)});
    }
    std::ranges::stable_sort(guesses_, [](const Guess& a, const Guess& b) {
      return a.estimate.seconds != b.estimate.seconds ? a.estimate.seconds < b.estimate.seconds : a.layout < b.layout;
    });
  }

  void too_large(const RunLayout& layout, int64_t bytes) {
    const int64_t missing = bytes - result_.memory_bytes;
    if (result_.least_missing == 0 || missing < result_.least_missing) result_.least_missing = missing;
    rules_.add("memory", layout);
  }

  // Kept while searching: what is found does not depend on how many rows are shown.
  int64_t kept() const { return std::max<int64_t>(options_.rows, 10); }
  // The slowest of those; infinite while there are fewer.
  double bar() const {
    return std::ssize(result_.best) < kept() ? std::numeric_limits<double>::infinity()
                                             : result_.best.back().plan.seconds();
  }

  bool is_worth_planning(const Guess& guess) {
    const auto lighter = done_.find(sibling(guess.layout));
    if (lighter != done_.end() && lighter->second < work_for_memory(guess.layout)) {
      rules_.add("the same layout with less recomputation fits", guess.layout);
      return false;
    }
    const auto ratio = ratios_.find(guess.kind);
    if (ratio == ratios_.end() || guess.estimate.seconds * ratio->second <= kCorrectedError * bar()) return true;
    rules_.add("estimated to be slower than those of the table", guess.layout);
    return false;
  }

  // Planned in the order of their estimates, siblings one after the other.
  void plan_best() {
    const auto total = std::ssize(guesses_);
    std::vector<Guess*> waiting;  // for a sibling that does less work
    size_t next = 0;
    while (true) {
      std::vector<Guess*> batch, later;
      std::set<RunLayout> chosen;
      const auto offer = [&](Guess* guess) {
        if (!is_worth_planning(*guess)) return;
        (batch.size() < kTogether && chosen.insert(sibling(guess->layout)).second ? batch : later).push_back(guess);
      };
      for (Guess* guess : waiting) offer(guess);
      while (next < guesses_.size() && batch.size() < kTogether) {
        if (guesses_[next].estimate.seconds > kEstimateError * bar()) break;
        offer(&guesses_[next++]);
      }
      if (batch.empty()) break;
      waiting = std::move(later);
      take(batch);
      report(static_cast<int64_t>(next), total);
    }
    if (next < guesses_.size())
      rules_.add("estimated to be slower than those of the table", guesses_[next].layout,
                 total - static_cast<int64_t>(next));
    report(total, total);
  }

  std::vector<std::optional<Prediction>> plan(const std::vector<Guess*>& batch) {
    std::vector<std::optional<Prediction>> plans(batch.size());
    std::vector<std::string> refusals(batch.size());
    each(batch.size(), [&](size_t i) {
      try {
        plans[i] = planner_.predict(with_layout(config_, batch[i]->layout));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) throw;
        refusals[i] = error.message();
      }
    });
    planned_ += std::ssize(batch);
    for (size_t i = 0; i < batch.size(); ++i)
      if (!refusals[i].empty()) rules_.add(refusals[i], batch[i]->layout);
    return plans;
  }

  // How far the estimates of a kind are off.
  void learn(const Guess& guess, const Prediction& plan) {
    const double ratio = plan.seconds() / guess.estimate.seconds;
    const auto known = ratios_.emplace(guess.kind, ratio).first;
    known->second = std::min(known->second, ratio);
  }

  void take(const std::vector<Guess*>& batch) {
    const std::vector<std::optional<Prediction>> plans = plan(batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (!plans[i]) continue;
      const Guess& guess = *batch[i];
      learn(guess, *plans[i]);
      if (!fits(*plans[i])) {
        too_large(guess.layout, plans[i]->bytes());
        continue;
      }
      const int64_t work = work_for_memory(guess.layout);
      const auto least = done_.emplace(sibling(guess.layout), work).first;
      least->second = std::min(least->second, work);
      insert({guess.layout, *plans[i]});
    }
  }

  void insert(const PlannedLayout& candidate) {
    const auto faster = [](const PlannedLayout& a, const PlannedLayout& b) {
      const double x = a.plan.seconds(), y = b.plan.seconds();
      return x != y ? x < y : a.layout < b.layout;
    };
    auto& best = result_.best;
    best.insert(std::ranges::upper_bound(best, candidate, faster), candidate);
    if (std::ssize(best) > kept()) best.pop_back();
  }

  // The first rows' plans are made of all layers, as many as take a moment, and the first one's in any case.
  void confirm_best() {
    constexpr int64_t kMoment = 128;  // layers
    const int64_t layers = resolve_model(config_, 0).layers;
    std::vector<PlannedLayout> sure;
    for (int64_t spent = layers; spent <= kMoment || sure.empty(); spent += layers) {
      if (result_.best.empty()) break;
      PlannedLayout first = result_.best[0];
      result_.best.erase(result_.best.begin());
      if (!first.plan.whole) first.plan = planner_.plan_whole(with_layout(config_, first.layout));
      if (fits(first.plan))
        sure.push_back(std::move(first));
      else
        too_large(first.layout, first.plan.bytes());
    }
    for (const PlannedLayout& row : sure) insert(row);
    // Seconds differ by rounding: a row that is not sure of its bytes does not come first for that.
    const auto first = std::ranges::find_if(result_.best, [](const PlannedLayout& row) { return row.plan.whole; });
    if (first != result_.best.end()) std::rotate(result_.best.begin(), first, first + 1);
  }

  void find_full_recompute() {
    if (options_.given.contains("recompute")) return;
    for (const PlannedLayout& row : result_.best)
      if (row.layout.recompute == "full" && !result_.full_recompute) result_.full_recompute = row;
    std::vector<Guess*> left;
    for (Guess& guess : guesses_)
      if (guess.layout.recompute == "full" && guess.layout.transposes == "cached") left.push_back(&guess);
    const auto corrected = [&](const Guess* guess) {
      const auto ratio = ratios_.find(guess->kind);
      return guess->estimate.seconds * (ratio == ratios_.end() ? 1 : ratio->second);
    };
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds && !left.empty(); ++round) {
      std::ranges::stable_sort(left, {}, corrected);
      auto& full = result_.full_recompute;
      if (full && corrected(left[0]) > full->plan.seconds()) return;
      const auto count = static_cast<ptrdiff_t>(std::min(left.size(), kTogether / 2));
      const std::vector<Guess*> batch(left.begin(), left.begin() + count);
      left.erase(left.begin(), left.begin() + count);
      const std::vector<std::optional<Prediction>> plans = plan(batch);
      for (size_t i = 0; i < batch.size(); ++i) {
        if (!plans[i]) continue;
        learn(*batch[i], *plans[i]);
        if (fits(*plans[i]) && (!full || plans[i]->seconds() < full->plan.seconds()))
          full = {batch[i]->layout, *plans[i]};
      }
    }
  }

  void find_smallest() {
    constexpr size_t kTried = 48;
    std::ranges::sort(lightest_);
    std::vector<Guess> tried;
    for (size_t i = 0; i < std::min(kTried, lightest_.size()); ++i) tried.push_back({.layout = lightest_[i].second});
    std::vector<Guess*> batch;
    for (Guess& guess : tried) batch.push_back(&guess);
    const std::vector<std::optional<Prediction>> plans = plan(batch);
    for (size_t i = 0; i < batch.size(); ++i)
      if (plans[i] && (!result_.smallest || plans[i]->bytes() < result_.smallest->plan.bytes()))
        result_.smallest = {batch[i]->layout, *plans[i]};
    if (result_.smallest) result_.least_missing = result_.smallest->plan.bytes() - result_.memory_bytes;
  }

  PaperPlanner& planner_;
  const RunConfig& config_;
  const SearchOptions& options_;
  SearchResult result_;
  Rules rules_;
  std::vector<Guess> guesses_;
  std::vector<std::pair<int64_t, RunLayout>> lightest_;  // by a lower bound of bytes
  std::map<std::string, double> ratios_;  // by kind: the least that a plan's seconds were of its estimate's
  std::map<RunLayout, int64_t> done_;     // by sibling: the least work for memory with which it fits
  int64_t planned_ = 0;
};

}  // namespace

SearchResult search_layouts(PaperPlanner& planner, const RunConfig& config, const SearchOptions& options) {
  check(options.devices >= 1, ErrorCode::kInvalidArgument, "{} devices (want 1 or more)", options.devices);
  check(options.memory_margin >= 0 && options.memory_margin < 1, ErrorCode::kInvalidArgument,
        "memory margin {} (want from 0 to below 1)", options.memory_margin);
  return Search(planner, config, options).run();
}

}  // namespace octet
