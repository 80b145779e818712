#include "train/optimizer.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/builder.h"
#include "ir/facts.h"
#include "passes/passes.h"
#include "train/schedule.h"

namespace octet {
namespace {

struct OptimizerRow {
  const char* name;
  Op op;
  std::array<const char*, 2> moments;              // prefixes of their names
  Attrs (*attrs)(const OptimizerConfig&);          // of the update, without the weight decay
  size_t (*moment_count)(const OptimizerConfig&);  // of these moments
};

Attrs adam_attrs(const OptimizerConfig& c) { return {{"beta1", c.beta1}, {"beta2", c.beta2}, {"eps", c.eps}}; }
Attrs sgd_attrs(const OptimizerConfig& c) { return {{"momentum", c.momentum}, {"nesterov", c.nesterov}}; }
size_t two_moments(const OptimizerConfig&) { return 2; }

constexpr OptimizerRow kOptimizers[] = {
    {"adamw", Op::kAdamw, {"adam_m.", "adam_v."}, adam_attrs, two_moments},
    {"sgd", Op::kSgd, {"sgd_momentum."}, sgd_attrs, [](const OptimizerConfig& c) -> size_t { return c.momentum != 0; }},
    {"lamb", Op::kLamb, {"lamb_m.", "lamb_v."}, adam_attrs, two_moments},
};

const OptimizerRow& row_of(const OptimizerConfig& config) {
  for (const OptimizerRow& row : kOptimizers)
    if (config.name == row.name) return row;
  fail(ErrorCode::kInvalidArgument, "optimizer.name is '{}' (want {})", config.name,
       fmt::join(optimizer_names(), ", "));
}

struct LrFactor {
  std::string pattern;
  double factor = 1;
};

LrFactor parse_lr_factor(const std::string& text) {
  const size_t equals = text.rfind('=');
  LrFactor parsed{.pattern = text.substr(0, equals)};
  const char *begin = text.data() + std::min(equals, text.size() - 1) + 1, *end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, parsed.factor);
  check(equals != std::string::npos && equals > 0 && stop == end && error == std::errc() && parsed.factor >= 0,
        ErrorCode::kInvalidArgument, "optimizer.lr_factors: '{}' (want PATTERN=FACTOR, as in embed.*=0.1)", text);
  return parsed;
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// The learning-rate factor and the weight decay of each parameter, by the settings' patterns.
class ParameterGroups {
 public:
  explicit ParameterGroups(const OptimizerConfig& config) : config_(config) {
    for (const std::string& text : config.lr_factors) factors_.push_back(parse_lr_factor(text));
  }

  double lr_factor(const std::string& param) const {
    for (const LrFactor& factor : factors_)
      if (matches(factor.pattern, param)) return factor.factor;
    return 1;
  }
  double weight_decay(const Node& param) const {
    const bool excepted =
        std::ranges::any_of(config_.no_decay, [&](const std::string& pattern) { return matches(pattern, param.name); });
    return param.results[0].shape.rank() >= 2 && !excepted ? config_.weight_decay : 0.0;
  }

  void check_patterns(const std::vector<Node>& params) const {
    std::vector<std::pair<const char*, std::string>> patterns;
    for (const LrFactor& factor : factors_) patterns.emplace_back("optimizer.lr_factors", factor.pattern);
    for (const std::string& pattern : config_.no_decay) patterns.emplace_back("optimizer.no_decay", pattern);
    for (const auto& [setting, pattern] : patterns) {
      const auto matched = [&named = pattern](const Node& param) { return matches(named, param.name); };
      const bool found = std::ranges::any_of(params, matched);
      check(found, ErrorCode::kInvalidArgument, "{}: no parameter matches '{}'; the first and the last are {} and {}",
            setting, pattern, params.front().name, params.back().name);
    }
  }

 private:
  const OptimizerConfig& config_;
  std::vector<LrFactor> factors_;
};

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : kOptimizers) names.emplace_back(row.name);
  return names;
}

void validate(const OptimizerConfig& c) {
  row_of(c);
  for (const std::string& text : c.lr_factors) parse_lr_factor(text);
  validate_schedule(c);
  check(!c.nesterov || c.momentum > 0, ErrorCode::kInvalidArgument,
        "optimizer.nesterov needs a momentum: optimizer.momentum is {}", c.momentum);
}

size_t moment_count(const OptimizerConfig& config) { return row_of(config).moment_count(config); }

std::string moment_name(const OptimizerConfig& config, size_t index, const std::string& param) {
  return row_of(config).moments.at(index) + param;
}

Graph apply_graph(const Graph& train, const OptimizerConfig& config, Program& program) {
  const OptimizerRow& row = row_of(config);
  const OpFacts& facts = op_facts(row.op);
  const size_t moments = moment_count(config);
  const ParameterGroups groups(config);
  Graph apply(GraphRole::kApply);
  Builder b(apply);
  b.set_phase(Phase::kOptimizer);
  Value lr = b.input("lr", {DType::kF32, {1}}), step = b.input("step", {DType::kF32, {1}});
  std::vector<Node> params;  // leaves with their attrs: initial values are read from any graph that has them
  for (const Node& node : train.nodes()) {
    if (node.op != Op::kParam || is_frozen(node)) continue;
    params.push_back(node);
    params.back().phase = Phase::kOptimizer;
  }
  check(!params.empty(), ErrorCode::kInvalidArgument, "no parameter is trained: all are frozen");
  groups.check_patterns(params);
  std::vector<Value> gradients;
  for (const Node& param : params) {
    const std::string& name = param.name;
    const TensorType& type = param.results[0];
    program.add_state({.name = name, .type = type});
    gradients.push_back(declare_state(program, b, {.type = type, .role = StateRole::kGradient, .param = name}));
    for (size_t i = 0; i < moments; ++i)
      program.add_state({.name = moment_name(config, i, name),
                         .type = type,
                         .role = StateRole::kMoment,
                         .param = name,
                         .index = static_cast<int32_t>(i)});
  }
  Value squares{b.emit(Op::kSquareSum, gradients, {}, "square_sum"), 0};
  NodeId norm = b.emit(Op::kClipFactor, {squares}, {{"max_norm", config.clip}}, "clip_factor");
  Value clip{norm, 1}, finite{norm, 2};
  std::map<double, Value> rates = {{1.0, lr}};
  for (size_t i = 0; i < params.size(); ++i) {
    const std::string& name = params[i].name;
    const auto rate = rates.try_emplace(groups.lr_factor(name)).first;
    if (!rate->second.exists()) rate->second = b.scale(lr, rate->first);
    std::vector<Value> inputs = {{apply.add(params[i]), 0}, gradients[i], rate->second, step, clip, finite};
    for (size_t m = 0; m < moments; ++m)
      inputs.insert(inputs.begin() + facts.first_moment + static_cast<ptrdiff_t>(m),
                    b.state(moment_name(config, m, name), params[i].results[0]));
    Attrs attrs = row.attrs(config);
    attrs.set("weight_decay", groups.weight_decay(params[i]));
    NodeId update = b.emit(row.op, std::move(inputs), std::move(attrs), name);
    b.update(name, {update, 0});
    for (size_t m = 0; m < moments; ++m) b.update(moment_name(config, m, name), {update, static_cast<int32_t>(m) + 1});
  }
  program.add_state({.name = kLossSum, .type = {DType::kF32, {1}}, .role = StateRole::kBuffer});
  b.output("loss", b.state(kLossSum, {DType::kF32, {1}}));
  b.output("grad_norm", {norm, 0});
  b.output("finite", finite);
  return apply;
}

}  // namespace octet
