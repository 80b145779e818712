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

constexpr Rung kRungs[] = {Rung::kTensor, Rung::kBlock, Rung::kHigh};
constexpr double kNoNoise = 99;
constexpr double kSlower = 1.02;        // FP8 is refused where timings show more loss: they differ from run to run
constexpr double kSameDistance = 1e-6;  // octaves

int64_t at(Rung rung) { return static_cast<int64_t>(rung); }

// The results of tensor_stats a GEMM's operands are judged by on a rung: wgrad contracts over tokens and reads the
// codes of the transposes.
int scaling_of(Rung rung, GemmRole role) {
  if (rung == Rung::kTensor) return kStatTensor;
  return role == GemmRole::kWgrad ? kStatBlockT : kStatBlock;
}

std::string milliseconds(double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); }

// Why timings say that this precision is not worth taking, or "": decided at the nearest shape measured in both, or by
// the sum over shapes equally near.
std::string timing_objection(const Target& target, const std::string& precision, const LinearGroup& group) {
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
    auto high = std::find_if(target.timings.begin(), target.timings.end(), [&](const LinearTiming& t) {
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

const char* rung_name(Rung rung) {
  switch (rung) {
    case Rung::kTensor: return "fp8-tensor";
    case Rung::kBlock: return "fp8-block";
    case Rung::kHigh: return "bf16";
  }
  fail(ErrorCode::kInternal, "rung {} does not exist", static_cast<int>(rung));
}

GemmPrecision rung_precision(Rung rung) {
  if (rung == Rung::kHigh) return {};
  return {.codes = true, .scaling = rung == Rung::kTensor ? Scaling::kCurrent : Scaling::kBlock};
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
    : gemms_(std::move(gemms)), standings_(gemms_.size()), settings_(settings) {
  refuse(target);
  for (size_t i = 0; i < gemms_.size(); ++i) {
    Standing& standing = standings_[i];
    auto allowed = std::find_if(standing.refusals.begin(), standing.refusals.end(),
                                [](const std::string& refusal) { return refusal.empty(); });
    Rung first = kRungs[allowed - standing.refusals.begin()];
    if (first == Rung::kTensor) continue;
    switches_.push_back({0, gemms_[i].key(), Rung::kTensor, first, standing.refusals[0]});
    standing.rung = standing.candidate = first;
  }
}

// A linear's products pay or do not pay together, and with those of the linears that read its x: whoever quantizes an
// operand quantizes it for all.
void PrecisionPolicy::refuse(const Target& target) {
  std::map<std::string, std::array<std::string, 2>> slower;  // by linear
  for (const LinearGroup& group : linear_groups(gemms_)) {
    const std::array<std::string, 2> objections = {timing_objection(target, rung_name(Rung::kTensor), group),
                                                   timing_objection(target, rung_name(Rung::kBlock), group)};
    for (const std::string& linear : group.linears) slower[linear] = objections;
  }
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const std::string& impossible = gemms_[i].objection;
    standings_[i].refusals = impossible.empty() ? slower.at(gemms_[i].gemm) : std::array{impossible, impossible};
  }
}

// Why the operands do not fit this rung, or "".
std::string PrecisionPolicy::objection(const PolicyGemm& gemm, Rung rung, const StatsTable& stats,
                                       bool to_return) const {
  if (rung == Rung::kHigh) return "";
  const double least_db = to_return ? settings_.return_db : settings_.leave_db;
  const double most_underflow = to_return ? settings_.return_underflow : settings_.leave_underflow;
  for (const std::string& operand : gemm.operands) {
    auto found = stats.find(operand);
    check(found != stats.end(), ErrorCode::kInternal, "policy: no statistics of {}, an operand of {}", operand,
          gemm.key());
    const TensorStats& tensor = found->second;
    const int scaling = scaling_of(rung, gemm.role);
    const auto lost = static_cast<double>(tensor[static_cast<size_t>(scaling + kUnderflow)]);
    const double snr = snr_db(tensor, scaling);
    const char* how = rung == Rung::kTensor ? "under one scale" : "in 128-blocks";
    if (tensor[kStatNotFinite] > 0)
      return fmt::format("{}: {:.3g} % of its values are not finite", operand, 100 * tensor[kStatNotFinite]);
    if (snr < least_db || lost > most_underflow)
      return fmt::format(
          "{} {}: SNR {:.1f} dB (at least {:g}), underflow {:.2f} % (at most {:g}); amax {:.4g}, "
          "{:.0f} binades, {:.1f} in a block",
          operand, how, snr, least_db, 100 * lost, 100 * most_underflow, tensor[kStatAmax], tensor[kStatBinades],
          tensor[kStatBlockBinades]);
  }
  return "";
}

void PrecisionPolicy::move(int64_t step, size_t i, Rung to, std::string reason) {
  Standing& standing = standings_[i];
  switches_.push_back({step, gemms_[i].key(), standing.rung, to, std::move(reason)});
  if (to > standing.rung) ++standing.falls;
  standing.rung = standing.candidate = to;
  standing.calm = 0;
}

std::vector<Switch> PrecisionPolicy::observe(int64_t step, const StatsTable& stats) {
  const size_t before = switches_.size();
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const PolicyGemm& gemm = gemms_[i];
    Standing& standing = standings_[i];
    auto first_that_holds = [&](int64_t from, int64_t to, bool to_return) {
      while (from < to && (!standing.refusals[static_cast<size_t>(from)].empty() ||
                           !objection(gemm, kRungs[from], stats, to_return).empty()))
        ++from;
      return kRungs[from];
    };
    std::string misfit = objection(gemm, standing.rung, stats, /*to_return=*/false);
    if (!misfit.empty()) {
      Rung to = first_that_holds(at(standing.rung) + 1, at(Rung::kHigh), /*to_return=*/false);
      if (standing.rung == Rung::kTensor && to == Rung::kHigh) {  // say what became of the rung between
        const std::string& refusal = standing.refusals[static_cast<size_t>(Rung::kBlock)];
        misfit += "; " + (refusal.empty() ? objection(gemm, Rung::kBlock, stats, false) : refusal);
      }
      move(step, i, to, std::move(misfit));
      continue;
    }
    Rung cheaper = first_that_holds(0, at(standing.rung), /*to_return=*/true);
    if (cheaper == standing.rung) {
      standing.calm = 0;
      standing.candidate = standing.rung;
      continue;
    }
    standing.candidate = standing.calm == 0 ? cheaper : std::max(standing.candidate, cheaper);
    const int64_t needed = settings_.dwell << std::clamp<int64_t>(standing.falls - 1, 0, 6);
    if (++standing.calm < needed) continue;
    move(step, i, standing.candidate,
         fmt::format("{} has held for {} rounds of statistics (SNR at least {:g} dB, underflow at most {:g} %)",
                     rung_name(standing.candidate), standing.calm, settings_.return_db,
                     100 * settings_.return_underflow));
  }
  return {switches_.begin() + static_cast<ptrdiff_t>(before), switches_.end()};
}

Rung PrecisionPolicy::rung(const std::string& key) const {
  for (size_t i = 0; i < gemms_.size(); ++i) {
    if (gemms_[i].key() == key) return standings_[i].rung;
  }
  fail(ErrorCode::kNotFound, "policy: no GEMM is called {}", key);
}

std::map<std::string, GemmPrecision> PrecisionPolicy::decisions() const {
  std::map<std::string, GemmPrecision> result;
  for (size_t i = 0; i < gemms_.size(); ++i) result[gemms_[i].key()] = rung_precision(standings_[i].rung);
  return result;
}

std::string PrecisionPolicy::state() const {
  nlohmann::json standings = nlohmann::json::object(), switches = nlohmann::json::array();
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const Standing& s = standings_[i];
    standings[gemms_[i].key()] = {at(s.rung), at(s.candidate), s.calm, s.falls};
  }
  for (const Switch& s : switches_) switches.push_back({s.step, s.gemm, at(s.from), at(s.to), s.reason});
  return nlohmann::json{{"standings", std::move(standings)}, {"switches", std::move(switches)}}.dump();
}

std::vector<Switch> PrecisionPolicy::restore(const std::string& json, const std::string& where, int64_t step) {
  nlohmann::json state = parse_json(json, where);
  auto rung = [](const nlohmann::json& value) {
    return kRungs[std::clamp<int64_t>(value.get<int64_t>(), 0, at(Rung::kHigh))];
  };
  try {
    const nlohmann::json& standings = state.at("standings");
    check(standings.size() == gemms_.size(), ErrorCode::kInvalidArgument,
          "{}: decisions on {} GEMMs, this model has {}: set resume=never to start afresh", where, standings.size(),
          gemms_.size());
    for (size_t i = 0; i < gemms_.size(); ++i) {
      const nlohmann::json& kept = standings.at(gemms_[i].key());
      Standing& s = standings_[i];
      s.rung = rung(kept.at(0));
      s.candidate = rung(kept.at(1));
      s.calm = kept.at(2).get<int64_t>();
      s.falls = kept.at(3).get<int64_t>();
    }
    switches_.clear();
    for (const nlohmann::json& s : state.at("switches"))
      switches_.push_back({s.at(0).get<int64_t>(), s.at(1).get<std::string>(), rung(s.at(2)), rung(s.at(3)),
                           s.at(4).get<std::string>()});
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "{}: not the state of this model's decisions ({}): set resume=never", where,
         error.what());
  }
  const size_t kept = switches_.size();
  for (size_t i = 0; i < gemms_.size(); ++i) {
    const Standing& s = standings_[i];
    int64_t allowed = at(s.rung);
    while (allowed < at(Rung::kHigh) && !s.refusals[static_cast<size_t>(allowed)].empty()) ++allowed;
    if (kRungs[allowed] != s.rung) move(step, i, kRungs[allowed], s.refusals[static_cast<size_t>(s.rung)]);
  }
  return {switches_.begin() + static_cast<ptrdiff_t>(kept), switches_.end()};
}

std::string precision_map(const PrecisionPolicy& policy) {
  std::vector<std::string> rows, columns;
  std::map<std::string, std::map<std::string, std::string>> cells;  // [row][column]
  auto remember = [](std::vector<std::string>& list, const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const PolicyGemm& gemm : policy.gemms()) {
    size_t dot = gemm.gemm.starts_with("layers.") ? gemm.gemm.find('.', 7) : std::string::npos;
    std::string row = dot == std::string::npos ? "-" : gemm.gemm.substr(7, dot - 7);
    std::string column = dot == std::string::npos ? gemm.gemm : gemm.gemm.substr(dot + 1);
    remember(rows, row);
    remember(columns, column);
    static constexpr const char* kLetters[] = {"T", "B", "16"};
    std::string& cell = cells[row][column];
    cell += (cell.empty() ? "" : "/") + std::string(kLetters[at(policy.rung(gemm.key()))]);
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
