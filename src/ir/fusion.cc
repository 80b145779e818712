#include "ir/fusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ir/facts.h"

namespace octet {
namespace {

constexpr const char* kProducerNames[kProducers] = {
    "norm",  "norm_grad", "activation",   "activation_grad", "gated",  "gated_grad", "rope",
    "plain", "product",   "scatter_rows", "update",          "router", "addend"};
constexpr const char* kPartNames[kFusionParts] = {"core",       "bias",      "residual",  "amax",          "quantize",
                                                  "column_sum", "scale",     "rope",      "columns",       "accumulate",
                                                  "siblings",   "slices",    "optimizer", "update_scales", "maximum",
                                                  "rank_sum",   "rank_rows", "head_norm"};

bool is_reduce(const Node& node, const char* kind, const char* axis) {
  return node.op == Op::kReduce && node.attr<std::string>("reduction") == kind &&
         node.attr<std::string>("axis") == axis;
}

int32_t input_count(const Graph& body) { return static_cast<int32_t>(body.inputs().size()); }

// The body's members but for slices of its inputs, which count as inputs.
class Members {
 public:
  explicit Members(const Graph& body) : body_(body) {
    for (const Node& node : body.nodes()) {
      const bool sliced = node.op == Op::kSlice && body.node(node.inputs[0]).op == Op::kInput;
      if (node.op != Op::kInput && !sliced) nodes_.push_back(&node);
    }
  }
  const std::vector<const Node*>& nodes() const { return nodes_; }
  size_t count() const { return nodes_.size(); }
  Value result(const Node& node) const { return {NodeId{static_cast<int32_t>(&node - body_.nodes().data())}, 0}; }
  bool reads(const Node& reader, size_t slot, const Node* maker) const {
    return maker != nullptr && slot < reader.inputs.size() && reader.inputs[slot] == result(*maker);
  }
  bool adds_bias(const Node& node) const { return is_bias(body_, node); }
  bool same_shapes(const Node& sum) const { return body_.shape(sum.inputs[0]) == body_.shape(sum.inputs[1]); }
  template <typename Like>
  std::vector<const Node*> all(const Like& like) const {
    std::vector<const Node*> found;
    std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(found),
                 [&](const Node* node) { return like(*node); });
    return found;
  }
  std::vector<const Node*> all(Op op) const {
    return all([op](const Node& node) { return node.op == op; });
  }

 private:
  const Graph& body_;
  std::vector<const Node*> nodes_;
};

// Fills in what is made before the sinks; false when the members are no such chain. `used` counts them.
bool read_forward_activation(const Members& m, Chain& chain, size_t& used) {
  const auto acts = m.all([](const Node& node) { return is_activation(node.op); });
  if (acts.size() != 1) return false;
  chain.core = acts[0], chain.producer = Producer::kActivation, chain.result = m.result(*chain.core), used = 1;
  for (const Node* add : m.all(Op::kAdd)) {
    if (!m.reads(*chain.core, 0, add) || !m.adds_bias(*add)) return false;
    chain.bias = add, ++used;
  }
  for (const Node* mul : m.all(Op::kMul)) {
    const bool left = m.reads(*mul, 0, chain.core), right = m.reads(*mul, 1, chain.core);
    if (chain.product != nullptr || (!left && !right) || !m.same_shapes(*mul)) return false;
    chain.product = mul, chain.squared = left && right, chain.result = m.result(*mul), ++used;
    if (!chain.squared) chain.producer = Producer::kGated;
  }
  return chain.producer != Producer::kGated || chain.bias == nullptr;
}

bool read_activation_gradient(const Members& m, Chain& chain, size_t& used) {
  const auto grads = m.all([](const Node& node) { return is_activation_grad(node.op); });
  const auto acts = m.all([](const Node& node) { return is_activation(node.op); });
  if (grads.size() != 1 || acts.size() > 1) return false;
  chain.core = grads[0], chain.producer = Producer::kActivationGrad, chain.result = m.result(*chain.core);
  chain.remade = acts.empty() ? nullptr : acts[0];
  if (chain.remade != nullptr && chain.remade->inputs[0] != chain.core->inputs[0]) return false;
  used = 1 + acts.size();
  const auto products = m.all(Op::kMul), sums = m.all(Op::kAdd);
  if (products.empty()) return sums.empty() && acts.empty();
  if (sums.size() == 1) {  // of the square: dy act + dy act
    const Node* product = products[0];
    chain.squared = true, chain.dact = sums[0], used += 2;
    return products.size() == 1 && m.reads(*chain.core, 1, sums[0]) && m.reads(*sums[0], 0, product) &&
           m.reads(*sums[0], 1, product);
  }
  if (products.size() != 2 || !sums.empty()) return false;
  for (const Node* product : products) (m.reads(*chain.core, 1, product) ? chain.dact : chain.product) = product;
  if (chain.dact == nullptr || chain.product == nullptr) return false;
  const bool share_dy = std::ranges::any_of(chain.dact->inputs, [&](Value factor) {
    return factor == chain.product->inputs[0] || factor == chain.product->inputs[1];
  });
  if (!share_dy) return false;
  chain.producer = Producer::kGatedGrad, chain.result_up = m.result(*chain.product), used += 2;
  return true;
}

bool read_norm(const Members& m, Chain& chain, size_t& used) {
  const auto cores = m.all([](const Node& node) { return is_norm(node.op) || is_norm_grad(node.op); });
  if (cores.size() != 1) return false;
  chain.core = cores[0], chain.producer = is_norm(chain.core->op) ? Producer::kNorm : Producer::kNormGrad;
  chain.result = m.result(*chain.core), used = 1;
  for (const Node* add : m.all(Op::kAdd)) {
    const bool before = chain.producer == Producer::kNorm && m.reads(*chain.core, 0, add);
    const bool after =
        chain.producer == Producer::kNormGrad && m.reads(*add, 0, chain.core) != m.reads(*add, 1, chain.core);
    if (chain.residual != nullptr || !m.same_shapes(*add) || (!before && !after)) return false;
    chain.residual = add, ++used;
    if (after) chain.result = m.result(*add);
  }
  for (const Node* sum : m.all(Op::kAllReduce)) {
    const Node& reader = chain.residual != nullptr ? *chain.residual : *chain.core;
    const bool read = m.reads(reader, 0, sum) || (chain.residual != nullptr && m.reads(reader, 1, sum));
    if (chain.producer != Producer::kNorm || chain.rank_sum != nullptr || !read || sum->inputs.size() != 1 ||
        sum->attr<std::string>("reduction") != "sum")
      return false;
    chain.rank_sum = sum, ++used;
  }
  return true;
}

bool read_plain(const Members& m, Chain& chain, size_t& used) {
  if (m.count() == 0) return false;
  const auto scales = m.all(Op::kComputeScale);
  if (scales.empty()) {
    chain.result = m.nodes()[0]->inputs[0];
    return m.count() >= 2;
  }
  const auto quantizes = m.all(Op::kQuantize);
  if (scales.size() != 1 || quantizes.size() != 1 || !m.reads(*quantizes[0], 1, scales[0])) return false;
  chain.scale = scales[0], chain.result = quantizes[0]->inputs[0], used = 1;
  return true;
}

bool read_producer(const Members& m, Chain& chain, size_t& used) {
  const auto has = [&](const auto& like) {
    return std::ranges::any_of(m.nodes(), [&](const Node* node) { return like(node->op); });
  };
  if (has(is_activation_grad)) return read_activation_gradient(m, chain, used);
  if (has(is_activation)) return read_forward_activation(m, chain, used);
  if (has(is_norm) || has(is_norm_grad)) return read_norm(m, chain, used);
  if (has([](Op op) { return op == Op::kRope; })) {
    const auto ropes = m.all(Op::kRope);
    chain.core = ropes[0], chain.producer = Producer::kRope, chain.result = m.result(*ropes[0]), used = 1;
    return ropes.size() == 1;
  }
  return read_plain(m, chain, used);
}

// Whether the member is a sink, the first of its kind.
bool add_sink(Sinks& sinks, const Node& node) {
  const Node** place = node.op == Op::kQuantize ? &sinks.quantize
                       : is_amax(node)          ? &sinks.amax
                       : is_column_sum(node)    ? &sinks.column_sum
                                                : nullptr;
  if (place == nullptr || *place != nullptr) return false;
  *place = &node;
  return true;
}

}  // namespace

const char* producer_name(Producer producer) { return kProducerNames[static_cast<size_t>(producer)]; }

const char* part_name(FusionPart part) {
  size_t bit = 0;
  while ((static_cast<uint32_t>(part) >> bit) > 1) ++bit;
  return kPartNames[bit];
}

bool is_norm(Op op) { return op == Op::kLayerNorm || op == Op::kRmsNorm; }
bool is_norm_grad(Op op) { return op == Op::kLayerNormGrad || op == Op::kRmsNormGrad; }
bool is_amax(const Node& node) { return is_reduce(node, "amax", "all"); }
bool is_column_sum(const Node& node) { return is_reduce(node, "sum", "rows"); }
bool is_bias(const Graph& graph, const Node& node) {
  return node.op == Op::kAdd && graph.shape(node.inputs[0]).rank() == 2 && graph.shape(node.inputs[1]).rank() == 1 &&
         graph.shape(node.inputs[1])[0] > 1;
}
bool is_activation(Op op) { return op == Op::kGelu || op == Op::kSilu || op == Op::kRelu; }
bool is_activation_grad(Op op) { return op == Op::kGeluGrad || op == Op::kSiluGrad || op == Op::kReluGrad; }
Op activation_of(Op gradient) {
  return gradient == Op::kGeluGrad ? Op::kGelu : gradient == Op::kSiluGrad ? Op::kSilu : Op::kRelu;
}

std::optional<Chain> read_chain(const Graph& body) {
  const Members members(body);
  Chain chain;
  size_t used = 0;
  if (!read_producer(members, chain, used)) return std::nullopt;
  for (const Node* node : members.nodes()) {
    if (node->inputs.empty()) continue;
    const bool of_up = chain.producer == Producer::kGatedGrad && node->inputs[0] == chain.result_up;
    if (!of_up && node->inputs[0] != chain.result) continue;
    if (add_sink(chain.sinks[of_up ? 1 : 0], *node)) ++used;
  }
  return used == members.count() ? std::optional(chain) : std::nullopt;
}

// Updates, and the norms and rates between them.
static bool is_of_optimizer(const Node& node) {
  return is_optimizer_update(node.op) || node.op == Op::kSquareSum || node.op == Op::kTrustRatio;
}

std::optional<Producer> fusion_producer(const Graph& body) {
  const Members members(body);
  const auto is_update = [](const Node& node) {
    return is_of_optimizer(node) || node.op == Op::kUpdateScales || node.op == Op::kMaximum;
  };
  if (!members.all(Op::kTopK).empty()) return Producer::kRouter;
  if (!members.all(Op::kMatmul).empty() || !members.all(Op::kScaledMatmul).empty() ||
      !members.all(Op::kScaledGroupedMatmul).empty())
    return Producer::kProduct;
  if (!members.all([](const Node& node) { return is_scatter(node.op); }).empty()) return Producer::kScatterRows;
  if (!members.all(is_update).empty()) return Producer::kUpdate;
  if (!members.all(Op::kGroupedMatmul).empty()) return Producer::kAddend;
  const auto chain = read_chain(body);
  return chain ? std::optional(chain->producer) : std::nullopt;
}

uint32_t fusion_parts(const Graph& body) {
  const Members members(body);
  uint32_t parts = 0;
  const auto has = [&](FusionPart part, bool present) {
    if (present) parts |= static_cast<uint32_t>(part);
  };
  has(FusionPart::kColumns, members.count() + static_cast<size_t>(input_count(body)) < body.nodes().size());
  if (const auto chain = read_chain(body)) {
    has(FusionPart::kCore, chain->product != nullptr || chain->dact != nullptr);
    has(FusionPart::kBias, chain->bias != nullptr);
    has(FusionPart::kResidual, chain->residual != nullptr);
    has(FusionPart::kScale, chain->scale != nullptr);
    has(FusionPart::kRankSum, chain->rank_sum != nullptr);
    for (const Sinks& sinks : chain->sinks) {
      has(FusionPart::kAmax, sinks.amax != nullptr);
      has(FusionPart::kQuantize, sinks.quantize != nullptr);
      has(FusionPart::kColumnSum, sinks.column_sum != nullptr);
    }
    return parts;
  }
  const std::optional<Producer> producer = fusion_producer(body);
  has(FusionPart::kCore,
      producer == Producer::kScatterRows || producer == Producer::kRouter || producer == Producer::kAddend);
  has(FusionPart::kBias, producer == Producer::kProduct && !members.all(Op::kAdd).empty());
  has(FusionPart::kSlices, producer == Producer::kProduct && !members.all(Op::kSlice).empty());
  has(FusionPart::kRankRows, !members.all([](const Node& node) { return op_facts(node.op).collective; }).empty());
  has(FusionPart::kRope, !members.all(Op::kRope).empty());
  has(FusionPart::kHeadNorm, producer == Producer::kScatterRows && !members.all(Op::kRmsNorm).empty());
  has(FusionPart::kOptimizer, !members.all(is_of_optimizer).empty());
  has(FusionPart::kUpdateScales, !members.all(Op::kUpdateScales).empty());
  has(FusionPart::kMaximum, !members.all(Op::kMaximum).empty());
  return parts;
}

std::string fusion_label(const Node& fusion) {
  std::vector<std::pair<std::string, int>> ops;  // in order of the first
  const Members members(*fusion.body);
  for (const Node* node : members.nodes()) {
    const std::string name = node->op == Op::kReduce ? node->attr<std::string>("reduction") : op_name(node->op);
    const auto known = std::ranges::find_if(ops, [&](const auto& entry) { return entry.first == name; });
    if (known == ops.end()) {
      ops.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  std::string label;
  for (const auto& [name, count] : ops) {
    label += fmt::format("{}{}{}", label.empty() ? "" : "+", name, count > 1 ? fmt::format(" x{}", count) : "");
  }
  return label;
}

std::string node_label(const Node& node) { return node.op == Op::kFusion ? fusion_label(node) : op_name(node.op); }

}  // namespace octet
