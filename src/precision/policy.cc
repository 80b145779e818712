#include "precision/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

constexpr PrecisionLevel kPrecisionLevels[] = {PrecisionLevel::kTensor, PrecisionLevel::kBlock, PrecisionLevel::kHigh};
constexpr double kNoNoise = 99;
constexpr double kSlower = 1.02;        // FP8 is refused where timings show more loss: they differ from run to run
constexpr double kSameDistance = 1e-6;  // octaves

int64_t at(PrecisionLevel level) { return static_cast<int64_t>(level); }

// The results of tensor_stats a GEMM's operands are judged by on a level: wgrad contracts over tokens and reads the
// codes of the transposes.
int scaling_of(PrecisionLevel level, GemmRole role) {
  if (level == PrecisionLevel::kTensor) return kStatTensor;
  return role == GemmRole::kWgrad ? kStatBlockT : kStatBlock;
}

std::string milliseconds(double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); }

// Why timings say that this precision is not worth taking, or "": decided at the nearest shape measured in both, or by
// the sum over shapes equally near.
std::string slower_reason(const Target& target, const std::string& precision, const LinearGroup& group) {
  const auto linears = static_cast<double>(group.linears.size());
  auto octaves = [](int64_t a, double b) { return std::fabs(std::log2(static_cast<double>(a)) - std::log2(b)); };
  auto shape = [](int64_t linears, int64_t out, int64_t in, int64_t tokens) {
    return fmt::format("{} of {} x {} at {} tokens", linears, out, in, tokens);
  };
  double nearest = std::numeric_limits<double>::infinity(), fp8_seconds = 0, high_seconds = 0;
  std::string shapes;
  for (const LinearTiming& fp8 : target.timings) {
    if (fp8.precision != precision) continue;
    const double distance = octaves(fp8.tokens, static_cast<double>(group.tokens)) +
                            octaves(fp8.in, static_cast<double>(group.in)) +
                            octaves(fp8.out, static_cast<double>(group.out) / linears) + octaves(fp8.linears, linears);
    if (distance > nearest + kSameDistance) continue;
    auto high = std::ranges::find_if(target.timings, [&](const LinearTiming& t) {
      return t.precision == "bf16" && t.tokens == fp8.tokens && t.out == fp8.out && t.in == fp8.in &&
             t.linears == fp8.linears;
    });
    if (high == target.timings.end()) continue;
    if (distance < nearest - kSameDistance) {
      nearest = distance;
      fp8_seconds = high_seconds = 0;
      shapes.clear();
    }
    fp8_seconds += fp8.seconds;
    high_seconds += high->seconds;
    shapes += (shapes.empty() ? "" : " and ") + shape(fp8.linears, fp8.out, fp8.in, fp8.tokens);
  }
  if (shapes.empty() || fp8_seconds <= kSlower * high_seconds) return "";
  const auto count = static_cast<int64_t>(group.linears.size());
  return fmt::format("{} is slower here: {} beside {} in bf16 for {}, measured nearest to {} on {}", precision,
                     milliseconds(fp8_seconds), milliseconds(high_seconds), shapes,
                     shape(count, group.out / count, group.in, group.tokens), target.name);
}

}  // namespace

const char* precision_level_name(PrecisionLevel level) {
  constexpr const char* kNames[] = {"fp8-tensor", "fp8-block", "bf16"};
  return kNames[static_cast<size_t>(level)];
}

GemmPrecision level_precision(PrecisionLevel level) {
  if (level == PrecisionLevel::kHigh) return {};
  return {.codes = true, .scaling = level == PrecisionLevel::kTensor ? Scaling::kCurrent : Scaling::kBlock};
}

double snr_db(const TensorStats& stats, int scaling) {
  auto noise = static_cast<double>(stats[static_cast<size_t>(scaling + kNoise)]);
  return noise > 0 ? std::min(kNoNoise, -10 * std::log10(noise)) : kNoNoise;
}

std::vector<LinearGroup> linear_groups(const std::vector<PolicyGemm>& gemms) {
  std::map<std::string, std::string> inputs;  // linear -> its x
  for (const PolicyGemm& gemm : gemms) {
    if (gemm.role == GemmRole::kFprop) inputs[gemm.gemm] = gemm.operands[0];
    if (gemm.role == GemmRole::kWgrad) inputs.emplace(gemm.gemm, gemm.operands[1]);
  }
  std::vector<LinearGroup> groups;
  std::map<std::string, size_t> by_input;
  std::set<std::string> known;
  for (const PolicyGemm& gemm : gemms) {
    if (!known.insert(gemm.gemm).second) continue;
    const auto [m, n, k] = std::tuple(gemm.m, gemm.n, gemm.k);
    const bool wgrad = gemm.role == GemmRole::kWgrad, dgrad = gemm.role == GemmRole::kDgrad;
    const int64_t tokens = wgrad ? k : m, out = wgrad ? m : dgrad ? k : n, in = wgrad || dgrad ? n : k;
    const auto x = inputs.find(gemm.gemm);
    const auto [place, made] = by_input.emplace(x != inputs.end() ? x->second : gemm.gemm, groups.size());
    if (made) groups.push_back({.tokens = tokens, .in = in});
    groups[place->second].linears.push_back(gemm.gemm);
    groups[place->second].out += out;
  }
  return groups;
}

PrecisionPolicy::PrecisionPolicy(std::vector<PolicyGemm> gemms, const PolicySettings& settings, const Target& target)
    : gemms_(std::move(gemms)), states_(gemms_.size()), settings_(settings) {
  refuse(target);
  std::vector<Wanted> first(gemms_.size());
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const auto& refusals = states_[i].refusals;
    auto allowed = std::ranges::find_if(refusals, [](const std::string& refusal) { return refusal.empty(); });
    first[i] = {kPrecisionLevels[allowed - refusals.begin()], refusals[0]};
  }
  level_out(first);
  for (size_t i = 0; i < gemms_.size(); ++i) {
    if (first[i].level == PrecisionLevel::kTensor) continue;
    switches_.push_back({0, gemms_[i].key(), PrecisionLevel::kTensor, first[i].level, first[i].reason});
    states_[i].level = states_[i].candidate = first[i].level;
  }
}

// GEMMs that read one frozen weight all take the level of the one that needs most.
void PrecisionPolicy::level_out(std::vector<Wanted>& wanted) const {
  std::map<std::string, std::vector<size_t>> readers;
  for (size_t i = 0; i < gemms_.size(); ++i)
    if (!gemms_[i].held.empty()) readers[gemms_[i].held].push_back(i);
  for (const auto& [weight, list] : readers) {
    const size_t most = *std::ranges::max_element(list, {}, [&](size_t i) { return wanted[i].level; });
    int64_t level = at(wanted[most].level);
    const auto refuses = [&](size_t i) { return !states_[i].refusals[static_cast<size_t>(level)].empty(); };
    while (level < at(PrecisionLevel::kHigh) && std::ranges::any_of(list, refuses)) ++level;
    const std::string reason = fmt::format("{} is held once, for {} in {} too", weight, gemms_[most].key(),
                                           precision_level_name(kPrecisionLevels[level]));
    for (const size_t i : list)
      if (wanted[i].level != kPrecisionLevels[level]) wanted[i] = {kPrecisionLevels[level], reason};
  }
}

// A linear's products pay or do not pay together, and with those of the linears that read its x: whoever quantizes an
// operand quantizes it for all.
void PrecisionPolicy::refuse(const Target& target) {
  std::map<std::string, std::array<std::string, 2>> slower;  // by linear
  for (const LinearGroup& group : linear_groups(gemms_)) {
    const std::array<std::string, 2> unsupported_reasons = {
        slower_reason(target, precision_level_name(PrecisionLevel::kTensor), group),
        slower_reason(target, precision_level_name(PrecisionLevel::kBlock), group)};
    for (const std::string& linear : group.linears) slower[linear] = unsupported_reasons;
  }
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const std::string& impossible = gemms_[i].unsupported_reason;
    states_[i].refusals = impossible.empty() ? slower.at(gemms_[i].gemm) : std::array{impossible, impossible};
  }
}

// Why the operands do not fit this level, or "".
std::string PrecisionPolicy::unsupported_reason(const PolicyGemm& gemm, PrecisionLevel level, const StatsTable& stats,
                                                bool to_return) const {
  if (level == PrecisionLevel::kHigh) return "";
  const double least_db = to_return ? settings_.return_db : settings_.leave_db;
  const double max_underflow = to_return ? settings_.return_underflow : settings_.leave_underflow;
  for (const std::string& operand : gemm.operands) {
    auto found = stats.find(operand);
    check(found != stats.end(), ErrorCode::kInternal, "policy: no statistics of {}, an operand of {}", operand,
          gemm.key());
    const TensorStats& tensor = found->second;
    const int scaling = scaling_of(level, gemm.role);
    const auto lost = static_cast<double>(tensor[static_cast<size_t>(scaling + kUnderflow)]);
    const double snr = snr_db(tensor, scaling);
    const char* how = level == PrecisionLevel::kTensor ? "under one scale" : "in 128-blocks";
    if (tensor[kStatNotFinite] > 0)
      return fmt::format("{}: {:.3g} % of its values are not finite", operand, 100 * tensor[kStatNotFinite]);
    if (snr < least_db || lost > max_underflow)
      return fmt::format(
          "{} {}: SNR {:.1f} dB (at least {:g}), underflow {:.2f} % (at most {:g}); amax {:.4g}, "
          "{:.0f} binades, {:.1f} in a block",
          operand, how, snr, least_db, 100 * lost, 100 * max_underflow, tensor[kStatAmax], tensor[kStatBinades],
          tensor[kStatBlockBinades]);
  }
  return "";
}

void PrecisionPolicy::move(int64_t step, size_t i, PrecisionLevel to, std::string reason) {
  GemmState& state = states_[i];
  switches_.push_back({step, gemms_[i].key(), state.level, to, std::move(reason)});
  if (to > state.level) ++state.demotions;
  state.level = state.candidate = to;
  state.stable_rounds = 0;
}

// What a GEMM's own operands ask for, its present level where they ask for nothing.
PrecisionPolicy::Wanted PrecisionPolicy::judge(size_t i, const StatsTable& stats) {
  const PolicyGemm& gemm = gemms_[i];
  GemmState& state = states_[i];
  auto first_that_holds = [&](int64_t from, int64_t to, bool to_return) {
    while (from < to && (!state.refusals[static_cast<size_t>(from)].empty() ||
                         !unsupported_reason(gemm, kPrecisionLevels[from], stats, to_return).empty()))
      ++from;
    return kPrecisionLevels[from];
  };
  std::string misfit = unsupported_reason(gemm, state.level, stats, /*to_return=*/false);
  if (!misfit.empty()) {
    PrecisionLevel to = first_that_holds(at(state.level) + 1, at(PrecisionLevel::kHigh), /*to_return=*/false);
    if (state.level == PrecisionLevel::kTensor &&
        to == PrecisionLevel::kHigh) {  // say what became of the level between
      const std::string& refusal = state.refusals[static_cast<size_t>(PrecisionLevel::kBlock)];
      misfit += "; " + (refusal.empty() ? unsupported_reason(gemm, PrecisionLevel::kBlock, stats, false) : refusal);
    }
    return {to, std::move(misfit)};
  }
  PrecisionLevel cheaper = first_that_holds(0, at(state.level), /*to_return=*/true);
  if (cheaper == state.level) {
    state.stable_rounds = 0;
    state.candidate = state.level;
    return {state.level};
  }
  state.candidate = state.stable_rounds == 0 ? cheaper : std::max(state.candidate, cheaper);
  const int64_t needed = settings_.dwell << std::clamp<int64_t>(state.demotions - 1, 0, 6);
  if (++state.stable_rounds < needed) return {state.level};
  return {state.candidate,
          fmt::format("{} has held for {} rounds of statistics (SNR at least {:g} dB, underflow at most {:g} %)",
                      precision_level_name(state.candidate), state.stable_rounds, settings_.return_db,
                      100 * settings_.return_underflow)};
}

std::vector<Switch> PrecisionPolicy::observe(int64_t step, const StatsTable& stats) {
  const size_t before = switches_.size();
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < gemms_.size(); ++i) wanted.push_back(judge(i, stats));
  level_out(wanted);
  for (size_t i = 0; i < gemms_.size(); ++i)
    if (wanted[i].level != states_[i].level) move(step, i, wanted[i].level, std::move(wanted[i].reason));
  return {switches_.begin() + static_cast<ptrdiff_t>(before), switches_.end()};
}

PrecisionLevel PrecisionPolicy::level(const std::string& key) const {
  for (size_t i = 0; i < gemms_.size(); ++i) {
    if (gemms_[i].key() == key) return states_[i].level;
  }
  fail(ErrorCode::kNotFound, "policy: no GEMM is called {}", key);
}

std::map<std::string, GemmPrecision> PrecisionPolicy::decisions() const {
  std::map<std::string, GemmPrecision> result;
  for (size_t i = 0; i < gemms_.size(); ++i) result[gemms_[i].key()] = level_precision(states_[i].level);
  return result;
}

std::string PrecisionPolicy::state() const {
  nlohmann::json states = nlohmann::json::object(), switches = nlohmann::json::array();
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const GemmState& s = states_[i];
    states[gemms_[i].key()] = {at(s.level), at(s.candidate), s.stable_rounds, s.demotions};
  }
  for (const Switch& s : switches_) switches.push_back({s.step, s.gemm, at(s.from), at(s.to), s.reason});
  return nlohmann::json{{"standings", std::move(states)}, {"switches", std::move(switches)}}.dump();
}

std::vector<Switch> PrecisionPolicy::restore(const std::string& json, const std::string& where, int64_t step) {
  nlohmann::json state = parse_json(json, where);
  auto level = [](const nlohmann::json& value) {
    return kPrecisionLevels[std::clamp<int64_t>(value.get<int64_t>(), 0, at(PrecisionLevel::kHigh))];
  };
  try {
    const nlohmann::json& states = state.at("standings");
    check(states.size() == gemms_.size(), ErrorCode::kInvalidArgument,
          "{}: decisions on {} GEMMs, this model has {}: set resume=never to start afresh", where, states.size(),
          gemms_.size());
    for (size_t i = 0; i < gemms_.size(); ++i) {
      const nlohmann::json& kept = states.at(gemms_[i].key());
      GemmState& s = states_[i];
      s.level = level(kept.at(0));
      s.candidate = level(kept.at(1));
      s.stable_rounds = kept.at(2).get<int64_t>();
      s.demotions = kept.at(3).get<int64_t>();
    }
    switches_.clear();
    for (const nlohmann::json& s : state.at("switches"))
      switches_.push_back({s.at(0).get<int64_t>(), s.at(1).get<std::string>(), level(s.at(2)), level(s.at(3)),
                           s.at(4).get<std::string>()});
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "{}: not the state of this model's decisions ({}): set resume=never", where,
         error.what());
  }
  const size_t kept = switches_.size();
  std::vector<Wanted> wanted;
  for (const GemmState& s : states_) {
    int64_t allowed = at(s.level);
    while (allowed < at(PrecisionLevel::kHigh) && !s.refusals[static_cast<size_t>(allowed)].empty()) ++allowed;
    wanted.push_back(
        {kPrecisionLevels[allowed], s.level == PrecisionLevel::kHigh ? "" : s.refusals[static_cast<size_t>(s.level)]});
  }
  level_out(wanted);
  for (size_t i = 0; i < gemms_.size(); ++i)
    if (wanted[i].level != states_[i].level) move(step, i, wanted[i].level, std::move(wanted[i].reason));
  return {switches_.begin() + static_cast<ptrdiff_t>(kept), switches_.end()};
}

std::string precision_map(const PrecisionPolicy& policy) {
  std::vector<std::string> rows, columns;
  std::map<std::string, std::map<std::string, std::string>> cells;  // [row][column]
  auto remember = [](std::vector<std::string>& list, const std::string& name) {
    if (std::ranges::find(list, name) == list.end()) list.push_back(name);
  };
  for (const PolicyGemm& gemm : policy.gemms()) {
    size_t dot = gemm.gemm.starts_with("layers.") ? gemm.gemm.find('.', 7) : std::string::npos;
    std::string row = dot == std::string::npos ? "-" : gemm.gemm.substr(7, dot - 7);
    std::string column = dot == std::string::npos ? gemm.gemm : gemm.gemm.substr(dot + 1);
    remember(rows, row);
    remember(columns, column);
    static constexpr const char* kLetters[] = {"T", "B", "16"};
    std::string& cell = cells[row][column];
    cell += (cell.empty() ? "" : "/") + std::string(kLetters[at(policy.level(gemm.key()))]);
  }
  std::sort(columns.begin(), columns.end());
  std::string text = fmt::format("{:<10}", "layer");
  for (const std::string& column : columns) text += fmt::format(" {:<9}", column);
  text += "  fprop/dgrad/wgrad: T one scale, B 128-blocks, 16 bf16\n";
  for (size_t first = 0; first < rows.size();) {
    size_t last = first;
    while (last + 1 < rows.size() && cells[rows[last + 1]] == cells[rows[first]]) ++last;
    text += fmt::format("{:<10}", first == last ? rows[first] : rows[first] + "-" + rows[last]);
    for (const std::string& column : columns) text += fmt::format(" {:<9}", cells[rows[first]][column]);
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
    first = last + 1;
  }
  return text;
}

}  // namespace octet
