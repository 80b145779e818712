#include "train/optimizer.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/builder.h"
#include "passes/passes.h"
#include "train/schedule.h"

namespace octet {
namespace {

// What the update of a parameter is made of.
struct UpdateParts {
  std::string name;
  Value param, gradient, rate, step, clip, finite;
  std::vector<Value> moments;
  double weight_decay;
  bool trust;  // the rate takes the trust ratio
};

struct OptimizerRow {
  const char* name;
  std::array<const char*, 2> moments;              // prefixes of their names
  size_t (*moment_count)(const OptimizerConfig&);  // of these moments
  // The new parameter and moments.
  std::vector<Value> (*update)(Builder& b, const OptimizerConfig&, const UpdateParts&);
  bool trust = false;  // it makes norms of whole parameters
};

std::vector<Value> results_of(NodeId node, size_t moments) {
  std::vector<Value> results;
  for (size_t i = 0; i <= moments; ++i) results.push_back({node, static_cast<int32_t>(i)});
  return results;
}

Attrs adam_attrs(const OptimizerConfig& c, const UpdateParts& of) {
  return {{"beta1", c.beta1}, {"beta2", c.beta2}, {"eps", c.eps}, {"weight_decay", of.weight_decay}};
}

Value squares_of(Builder& b, Value x, const std::string& name) {
  return {b.emit(Op::kSquareSum, {x}, {{"stages", false}}, name), 0};
}

std::vector<Value> adamw_update(Builder& b, const OptimizerConfig& c, const UpdateParts& of) {
  return results_of(
      b.emit(Op::kAdamw, {of.param, of.gradient, of.moments[0], of.moments[1], of.rate, of.step, of.clip, of.finite},
             adam_attrs(c, of), of.name),
      2);
}

std::vector<Value> sgd_with(Builder& b, const UpdateParts& of, Value gradient, Value rate, Value clip, Attrs attrs) {
  std::vector<Value> inputs = {of.param, gradient, rate, of.step, clip, of.finite};
  inputs.insert(inputs.end(), of.moments.begin(), of.moments.end());
  return results_of(b.emit(Op::kSgd, std::move(inputs), std::move(attrs), of.name), of.moments.size());
}

std::vector<Value> sgd_update(Builder& b, const OptimizerConfig& c, const UpdateParts& of) {
  return sgd_with(b, of, of.gradient, of.rate, of.clip,
                  {{"momentum", c.momentum}, {"nesterov", c.nesterov}, {"weight_decay", of.weight_decay}});
}

// The direction, whose step is scaled by the parameter's norm over its own (arXiv 1904.00962).
std::vector<Value> lamb_update(Builder& b, const OptimizerConfig& c, const UpdateParts& of) {
  const NodeId adam =
      b.emit(Op::kAdamDirection, {of.param, of.gradient, of.moments[0], of.moments[1], of.step, of.clip, of.finite},
             adam_attrs(c, of), of.name + ".direction");
  Value rate = of.rate;
  if (of.trust)
    rate = {b.emit(Op::kTrustRatio,
                   {squares_of(b, of.param, of.name + ".norm"), squares_of(b, {adam, 0}, of.name + ".direction.norm"),
                    of.rate},
                   {}, of.name + ".ratio"),
            0};
  UpdateParts plain = of;
  plain.moments.clear();
  const Value one = b.constant(1);  // the direction is of clipped gradients
  return {
      sgd_with(b, plain, {adam, 0}, rate, one, {{"momentum", 0.0}, {"weight_decay", 0.0}})[0], {adam, 1}, {adam, 2}};
}

// The rate of SGD, inside the momentum, scaled by the parameter's norm over the gradient's (arXiv 1708.03888).
std::vector<Value> lars_update(Builder& b, const OptimizerConfig& c, const UpdateParts& of) {
  Value rate = of.rate;
  if (of.trust)
    rate = {b.emit(Op::kTrustRatio,
                   {squares_of(b, of.param, of.name + ".norm"), squares_of(b, of.gradient, of.name + ".gradient.norm"),
                    of.rate, of.clip},
                   {{"coefficient", c.trust_coefficient}, {"weight_decay", of.weight_decay}, {"eps", c.eps}},
                   of.name + ".ratio"),
            0};
  return sgd_with(
      b, of, of.gradient, rate, of.clip,
      {{"momentum", c.momentum}, {"nesterov", c.nesterov}, {"weight_decay", of.weight_decay}, {"rate_inside", true}});
}

size_t two_moments(const OptimizerConfig&) { return 2; }
size_t one_if_momentum(const OptimizerConfig& c) { return c.momentum != 0 ? 1 : 0; }

constexpr OptimizerRow kOptimizers[] = {
    {"adamw", {"adam_m.", "adam_v."}, two_moments, adamw_update},
    {"sgd", {"sgd_momentum."}, one_if_momentum, sgd_update},
    {"lamb", {"lamb_m.", "lamb_v."}, two_moments, lamb_update, true},
    {"lars", {"lars_momentum."}, one_if_momentum, lars_update, true},
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

bool is_none(const std::vector<std::string>& patterns) { return patterns == std::vector<std::string>{"none"}; }

// The learning-rate factor, the weight decay and the trust of each parameter, by the settings' patterns.
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

  // By optimizer.no_trust; without it those with weight decay.
  bool has_trust(const Node& param) const {
    if (config_.no_trust.empty()) return weight_decay(param) != 0;
    return is_none(config_.no_trust) ||
           std::ranges::none_of(config_.no_trust, [&](const auto& pattern) { return matches(pattern, param.name); });
  }

  void check_patterns(const std::vector<Node>& params) const {
    std::vector<std::pair<const char*, std::string>> patterns;
    for (const LrFactor& factor : factors_) patterns.emplace_back("optimizer.lr_factors", factor.pattern);
    for (const std::string& pattern : config_.no_decay) patterns.emplace_back("optimizer.no_decay", pattern);
    if (!is_none(config_.no_trust))
      for (const std::string& pattern : config_.no_trust) patterns.emplace_back("optimizer.no_trust", pattern);
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

// An update of some rows of a parameter and its moments, the same as of whole ones: they are taken out and put back.
// Of all, where there are no ids.
std::vector<Value> update_rows(Builder& b, UpdateParts& parts, Value ids,
                               const std::function<std::vector<Value>()>& update) {
  if (!ids.exists()) return update();
  std::vector<Value*> tables = {&parts.param};
  for (Value& moment : parts.moments) tables.push_back(&moment);
  std::vector<Value> whole;
  for (Value* table : tables) {
    whole.push_back(*table);
    *table = b.select_rows(*table, ids);
  }
  std::vector<Value> results = update();
  for (size_t i = 0; i < whole.size(); ++i)
    results[i] = {b.emit(Op::kScatterRows, {whole[i], results[i], ids}, {}, parts.name), 0};
  return results;
}

void blend_statistics(Builder& b, const Graph& train, Value finite, Program& program) {
  const auto sum = [&](const std::string& output) {
    const TensorType& type = train.type(train.output(output));
    program.add_state({.name = sum_state(output), .type = type, .role = StateRole::kBuffer});
    return b.state(sum_state(output), type);
  };
  for (const std::string& output : statistic_outputs(train)) {
    if (!output.starts_with(kStatisticPrefix)) continue;
    const std::string name = output.substr(std::string(kStatisticPrefix).size());
    const Value leaf = train.find_leaf(Op::kState, name);
    check(leaf.exists() && train.node(leaf).attrs.has("rate"), ErrorCode::kInternal,
          "{} is blended and is no statistic of graph {}", name, train.name());
    Node statistic = train.node(leaf);
    statistic.phase = Phase::kOptimizer;
    const double rate = statistic.attr<double>("rate");
    const Value mean = sum(output), count = sum(kStatisticCountPrefix + name);
    const Value old{b.graph().add(std::move(statistic)), 0};
    b.update(name, {b.emit(Op::kBlend, {old, mean, count, finite}, {{"rate", rate}}, name), 0});
  }
}

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
  check(c.sparse.empty() || !row_of(c).trust, ErrorCode::kInvalidArgument,
        "optimizer.sparse: {} has trust ratios of whole parameters: set optimizer.name=adamw or sgd", c.name);
  check(c.no_trust.empty() || row_of(c).trust, ErrorCode::kInvalidArgument,
        "optimizer.no_trust: {} has no trust ratios: they are of lamb and lars", c.name);
}

size_t moment_count(const OptimizerConfig& config) { return row_of(config).moment_count(config); }

std::string moment_name(const OptimizerConfig& config, size_t index, const std::string& param) {
  return row_of(config).moments.at(index) + param;
}

void mark_sparse(Graph& graph, const OptimizerConfig& config) {
  for (const std::string& pattern : config.sparse) {
    bool found = false;
    for (int32_t i = 0; i < graph.size(); ++i) {
      Node& node = graph.mutable_node(NodeId{i});
      if (node.op != Op::kParam || is_frozen(node) || !matches(pattern, node.name)) continue;
      check(node.results[0].shape.rank() == 2, ErrorCode::kInvalidArgument,
            "optimizer.sparse: '{}' matches {} {}, which is no table", pattern, node.name, to_string(node.results[0]));
      node.attrs.set("update", "rows");
      found = true;
    }
    check(found, ErrorCode::kInvalidArgument, "optimizer.sparse: no parameter that is trained matches '{}'", pattern);
  }
}

Graph apply_graph(const Graph& train, const OptimizerConfig& config, Program& program, int64_t micro_batches) {
  const OptimizerRow& row = row_of(config);
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
    check(!row.trust || update_of(param) == Update::kDense, ErrorCode::kUnsupported,
          "{}: its gradient is rows, and {} has trust ratios of whole parameters: set optimizer.name=adamw or sgd",
          name, config.name);
    program.add_state({.name = name, .type = type, .update = update_of(param)});
    add_gradient_states(program, train, param, micro_batches);
    const StateEntry& gradient = *program.find_state(name, StateRole::kGradient);
    gradients.push_back(b.state(gradient.name, gradient.type));
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
    UpdateParts parts{.name = name,
                      .param = {apply.add(params[i]), 0},
                      .gradient = gradients[i],
                      .rate = rate->second,
                      .step = step,
                      .clip = clip,
                      .finite = finite,
                      .weight_decay = groups.weight_decay(params[i]),
                      .trust = groups.has_trust(params[i])};
    for (size_t m = 0; m < moments; ++m)
      parts.moments.push_back(b.state(moment_name(config, m, name), params[i].results[0]));
    Value ids;
    if (update_of(params[i]) == Update::kRows) {
      const StateEntry& entry = *program.find_state(name, StateRole::kGradient, kGradientIds);
      ids = b.state(entry.name, entry.type);
    }
    const std::vector<Value> results = update_rows(b, parts, ids, [&] { return row.update(b, config, parts); });
    b.update(name, results[0]);
    for (size_t m = 0; m < moments; ++m) b.update(moment_name(config, m, name), results[m + 1]);
  }
  blend_statistics(b, train, finite, program);
  for (const std::string& name : summed_outputs(train)) {
    program.add_state({.name = sum_state(name), .type = {DType::kF32, {1}}, .role = StateRole::kBuffer});
    b.output(name, b.state(sum_state(name), {DType::kF32, {1}}));
  }
  b.output("grad_norm", {norm, 0});
  b.output("finite", finite);
  return apply;
}

}  // namespace octet
