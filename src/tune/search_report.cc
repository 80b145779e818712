#include "tune/search_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "train/plan_report.h"

namespace octet {
namespace {

struct TimePart {
  const char *name, *key;
  double TimeSplit::*field;
};
constexpr TimePart kTimes[] = {{"products", "products", &TimeSplit::products},
                               {"attention", "attention", &TimeSplit::attention},
                               {"other kernels", "other", &TimeSplit::other},
                               {"waiting for collectives", "collectives", &TimeSplit::collectives},
                               {"update", "update", &TimeSplit::update},
                               {"host", "host", &TimeSplit::host},
                               {"transfers between stages", "transfers", &TimeSplit::transfers},
                               {"idle", "idle", &TimeSplit::idle}};
struct MemoryPart {
  const char* key;
  int64_t MemorySplit::*field;
};
constexpr MemoryPart kMemory[] = {{"weights", &MemorySplit::weights}, {"copies", &MemorySplit::copies},
                                  {"moments", &MemorySplit::moments}, {"gradients", &MemorySplit::gradients},
                                  {"scales", &MemorySplit::scales},   {"activations", &MemorySplit::activations},
                                  {"arena", &MemorySplit::arena},     {"others", &MemorySplit::others}};

double rank_flops(const Prediction& plan, const ModelFacts& model) {
  return model.unit_flops * plan.units_per_second() / static_cast<double>(plan.ranks);
}

// "0.12 s less idle, 0.03 s more update": where two steps differ by more than a hundredth of what they do in all.
std::string difference(const TimeSplit& a, const TimeSplit& b) {
  struct Change {
    const char* name;
    double seconds;
  };
  std::vector<Change> changes;
  for (const TimePart& part : kTimes) changes.push_back({part.name, a.*part.field - b.*part.field});
  std::ranges::stable_sort(changes,
                           [](const Change& x, const Change& y) { return std::abs(x.seconds) > std::abs(y.seconds); });
  const double least = std::max(0.05 * std::abs(changes[0].seconds), 1e-6);
  std::string text;
  for (const auto& [name, seconds] : changes)
    if (std::abs(seconds) >= least)
      text += fmt::format("{}{:.4g} s {} {}", text.empty() ? "" : ", ", std::abs(seconds),
                          seconds < 0 ? "less" : "more", name);
  return text.empty() ? "nothing but rounding" : text;
}

std::string rows_text(const SearchResult& r) {
  size_t width = 6;
  for (const PlannedLayout& row : r.best) width = std::max(width, to_text(row.layout).size());
  std::string out = fmt::format(
      "seconds of a step; bytes of the fullest rank, in GiB (states: weights, copies, moments, gradients, scales); *: "
      "planned with all layers\n"
      "  {:>2}  {:<{}} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} | {:>7} {:>7} {:>7} {:>7}\n",
      "#", "layout", width, "step", fmt::format("{}/s", r.model.unit.brief), "TFLOP/s", "products", "attent.", "other",
      "collect.", "update", "idle", "bytes", "states", "kept", "arena");
  constexpr double kGiB = 1 << 30;
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / kGiB; };
  for (size_t i = 0; i < r.best.size(); ++i) {
    const Prediction& p = r.best[i].plan;
    const TimeSplit& t = p.time;
    const MemorySplit& m = p.memory;
    out += fmt::format(
        "  {:>2}{} {:<{}} {:>9.4g} {:>9} {:>8.1f} {:>8.3g} {:>8.3g} {:>8.3g} {:>8.3g} {:>8.3g} {:>8.3g} | {:>7.4g} "
        "{:>7.4g} {:>7.3g} {:>7.3g}\n",
        i + 1, p.whole ? '*' : ' ', to_text(r.best[i].layout), width, p.seconds(), human_count(p.units_per_second()),
        1e-12 * rank_flops(p, r.model), t.products, t.attention, t.other, t.collectives + t.transfers,
        t.update + t.host, t.idle, gib(p.bytes()), gib(m.weights + m.copies + m.moments + m.gradients + m.scales),
        gib(m.activations), gib(m.arena));
  }
  return out;
}

std::string nothing_fits(const SearchResult& r, const Target& target) {
  if (!r.smallest) return "none of the layouts can be planned: see the rules above\n";
  return fmt::format(
      "nothing fits: of {} bytes that a plan may have on {} the layout that needs the least, {}, needs {}: {} bytes "
      "({}) are missing; take more devices, a larger margin of memory, shorter sequences or a smaller model\n",
      r.memory_bytes, target.name, to_text(r.smallest->layout), r.smallest->plan.bytes(), r.least_missing,
      human_bytes(r.least_missing));
}

}  // namespace

std::string to_text(const SearchResult& r, const Target& target, const TokenBudget& budget) {
  std::string out = fmt::format("model     {}: {} parameters\n", r.model.description,
                                human_count(static_cast<double>(r.model.parameters)));
  out += fmt::format("devices   {} of target {}{}; train.global_batch {}\n", r.devices, target.name,
                     target.node_devices > 0 ? fmt::format(", in machines of {}", target.node_devices) : "",
                     r.global_batch);
  out += fmt::format("search    {} layouts, {} planned from {} compiled programs, in {:.2f} s\n", r.listed, r.planned,
                     r.compiled, r.seconds);
  for (const RuleCount& rule : r.rules) {
    const bool memory = rule.rule == "memory";
    out += fmt::format("  {:>9}  {}{}; such as {}\n", rule.count,
                       memory ? fmt::format("need more than {} ({} bytes), the nearest by {}",
                                            human_bytes(r.memory_bytes), r.memory_bytes, r.least_missing)
                              : rule.rule,
                       "", rule.example);
  }
  if (r.best.empty()) return out + nothing_fits(r, target);
  out += rows_text(r);
  const Prediction& best = r.best[0].plan;
  if (r.best.size() > 1)
    out += fmt::format("why       1 beats 2 by {:.2f} %: {}\n", 100 * (r.best[1].plan.seconds() / best.seconds() - 1),
                       difference(best.time, r.best[1].plan.time));
  if (r.full_recompute)
    out += fmt::format("gain      {:.3f}x over the fastest with full recomputation, {:.4g} s: {}\n",
                       r.full_recompute->plan.seconds() / best.seconds(), r.full_recompute->plan.seconds(),
                       to_text(r.full_recompute->layout));
  if (budget.units > 0)
    out += to_text(budget, spend(budget, best.units_per_second(), best.ranks, target), r.model.unit.many(), target);
  return out;
}

std::string plan_json(const Prediction& p, const ModelFacts& model) {
  std::string time, memory;
  for (const TimePart& part : kTimes)
    time += fmt::format("{}\"{}\": {:.6f}", time.empty() ? "" : ", ", part.key, p.time.*part.field);
  for (const MemoryPart& part : kMemory)
    memory += fmt::format("{}\"{}\": {}", memory.empty() ? "" : ", ", part.key, p.memory.*part.field);
  return fmt::format(
      "\"memory_bytes\": {}, \"step_seconds\": {:.6f}, \"{}_per_second\": {:.1f}, \"rank_flops\": {:.6g}, \"time\": "
      "{{{}}}, \"memory\": {{{}}}, \"planned_whole\": {}",
      p.bytes(), p.seconds(), model.unit.many(), p.units_per_second(), rank_flops(p, model), time, memory, p.whole);
}

std::string to_json(const SearchResult& r, const Target& target, const TokenBudget& budget) {
  const auto candidate = [&](const PlannedLayout& c) {
    RunConfig config = with_layout({}, c.layout);
    const SettingsTable table = settings_of(config);
    nlohmann::json settings;
    for (const std::string& name : layout_settings()) settings[name] = table.get(name);
    return fmt::format("{{\"settings\": {}, {}}}", settings.dump(), plan_json(c.plan, r.model));
  };
  std::string rows, rules;
  for (const PlannedLayout& row : r.best) rows += (rows.empty() ? "" : ", ") + candidate(row);
  for (const RuleCount& rule : r.rules)
    rules += fmt::format("{}{{\"rule\": {}, \"layouts\": {}, \"example\": {}}}", rules.empty() ? "" : ", ",
                         nlohmann::json(rule.rule).dump(), rule.count, nlohmann::json(rule.example).dump());
  std::string spent;
  if (budget.units > 0 && !r.best.empty())
    spent = to_json(budget, spend(budget, r.best[0].plan.units_per_second(), r.devices, target));
  return fmt::format(
      "{{\"model\": {}, \"parameters\": {}, \"devices\": {}, \"target\": {}, \"global_batch\": {}, \"layouts\": {}, "
      "\"planned\": {}, \"compiled\": {}, \"seconds\": {:.3f}, \"memory_limit\": {}, \"least_missing\": {}, "
      "{}\"best\": "
      "[{}], \"rules\": [{}], \"full_recompute\": {}, \"smallest\": {}}}\n",
      nlohmann::json(r.model.description).dump(), r.model.parameters, r.devices, nlohmann::json(target.name).dump(),
      r.global_batch, r.listed, r.planned, r.compiled, r.seconds, r.memory_bytes, r.least_missing, spent, rows, rules,
      r.full_recompute ? candidate(*r.full_recompute) : "null", r.smallest ? candidate(*r.smallest) : "null");
}

}  // namespace octet
