// What a fusion computes, read from its body. A fusion has no name of its own: kernels, targets and passes ask what the
// members are (docs/ir.md, "Fusions").
//
// Most fusions are chains: a producer with what is added before or after it, and sinks that read its result:
//
//   (bias) activation | activation(gate) * up | (sum of ranks) (residual) norm | their gradients | rope | nothing
//     -> amax, quantize, column sum
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ir/graph.h"

namespace octet {

// What makes the value that the sinks read; of those from kScatterRows on, what the fusion is.
enum class Producer : uint8_t {
  kNorm,            // layer_norm, rms_norm
  kNormGrad,        // their gradients
  kActivation,      // gelu, silu, relu; its square: mul(act, act)
  kActivationGrad,  // their gradients; of the square: act_grad(x, dy act + dy act)
  kGated,           // mul(act(gate), up)
  kGatedGrad,       // dgate = act_grad(gate, dy up), dup = dy act(gate)
  kRope,
  kPlain,        // no producer: sinks of one input; or compute_scale and the quantize that reads it
  kProduct,      // matmul or scaled_matmul with its bias, slices of its columns, or the exchange of its rows
  kScatterRows,  // the scatter_rows or scatter_codes of a layer's keys and values, ropes and norms of heads before them
  kUpdate,       // updates of states side by side
  kRouter,       // the logits of a router of few tokens, its top_k and the group_rows of the chosen
  kAddend,       // a grouped product that contracts few columns, an adapter's: where they lie, the sum it is added to
};
inline constexpr int kProducers = 13;

// What a fusion of a producer may have: a set of bits.
enum class FusionPart : uint32_t {
  kCore = 1,             // members of the producer itself, more than one
  kBias = 1 << 1,        // a [C] added before an activation, or to a product
  kResidual = 1 << 2,    // a matrix added before a norm, after its gradient; to a product, rounded once, in its type
  kAmax = 1 << 3,        // max |x| of the result
  kQuantize = 1 << 4,    // codes and scales of the result
  kColumnSum = 1 << 5,   // sums over its rows
  kScale = 1 << 6,       // compute_scale
  kRope = 1 << 7,        // the ropes before scatter_rowss
  kColumns = 1 << 8,     // operands that are columns of a wider matrix
  kAccumulate = 1 << 9,  // products that start from a float32 sum
  kSiblings = 1 << 10,   // products of one x as one product
  kSlices = 1 << 11,     // a product whose result is cut into columns by its epilogue
  kOptimizer = 1 << 12,  // updates by one optimiser, with cast and amax of the new parameter; norms; trust ratios
  kUpdateScales = 1 << 13,
  kMaximum = 1 << 14,
  kRankSum = 1 << 15,   // before a norm: the all_reduce of a few rows, which its kernel makes
  kRankRows = 1 << 16,  // the all_gather of a product's rows, or their reduce_scatter: beside its own part
  kHeadNorm = 1 << 17,  // the rms_norms of heads before the ropes of scatter_rowss
};
inline constexpr int kFusionParts = 18;

const char* producer_name(Producer producer);  // "norm_grad"
const char* part_name(FusionPart part);        // "column_sum"

struct Sinks {
  const Node *amax = nullptr, *quantize = nullptr, *column_sum = nullptr;
};

// The members of a chain; null: absent. Nodes are those of the body.
struct Chain {
  Producer producer = Producer::kPlain;
  const Node* core = nullptr;      // the norm, activation, gradient or rope; of kGatedGrad what makes dgate
  const Node* bias = nullptr;      // add before an activation: bias->inputs[1] is [C]
  const Node* residual = nullptr;  // add before a norm or after its gradient
  const Node* rank_sum = nullptr;  // all_reduce by a sum, read by the residual, or the norm where there is none
  const Node* product = nullptr;   // kGated: mul; a squared activation: mul(act, act); kGatedGrad: what makes dup
  const Node* dact = nullptr;      // kGatedGrad: dy * up; a squared activation's gradient: dy act + dy act
  const Node* remade = nullptr;    // gradients: the activation made again from its input
  const Node* scale = nullptr;     // kPlain: the compute_scale whose scale the quantize reads
  bool squared = false;
  std::array<Sinks, 2> sinks = {};  // of the result; kGatedGrad: of dgate and of dup
  Value result, result_up;          // what the sinks read; kGatedGrad: dgate and dup
};

// The chain a body is, or none when it is none of the first eight producers or has a member that the chain does not
// name. Slices of columns of an input count as the input.
std::optional<Chain> read_chain(const Graph& body);

// What the body is; none when no producer describes it (tests' own fusions).
std::optional<Producer> fusion_producer(const Graph& body);

// The FusionParts that the body has, of those that a body shows.
uint32_t fusion_parts(const Graph& body);

// "add+norm+quantize", "adamw x32": for messages, profiles and dumps.
std::string fusion_label(const Node& fusion);

// What a node is called in profiles: its op, or its fusion's label.
std::string node_label(const Node& node);

bool is_norm(Op op);             // layer_norm, rms_norm
bool is_norm_grad(Op op);        // theirs
bool is_activation(Op op);       // gelu, silu, relu
bool is_activation_grad(Op op);  // theirs
Op activation_of(Op gradient);
bool is_amax(const Node& node);                      // reduce amax over all
bool is_column_sum(const Node& node);                // reduce sum over rows
bool is_bias(const Graph& graph, const Node& node);  // add of a [C], C > 1, to a matrix

}  // namespace octet
