// What the precision pass will do to one graph, decided before a node is touched: the precision of every GEMM, and
// which tensors are quantized how. Reports and the rewriting read the same decisions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/pass.h"
#include "passes/quantize_nodes.h"

namespace octet {

enum class OperandKind : uint8_t { kWeight, kActivation, kGradient };

// One way of quantizing an activation or gradient; the format follows from it.
struct Quantization {
  Scaling scaling = Scaling::kNone;
  bool gradient = false;
  auto operator<=>(const Quantization&) const = default;
};

struct GemmPlan {
  std::string gemm;
  GemmRole role = GemmRole::kFprop;
  GemmPrecision wanted, used;
  std::string reason;  // why wanted was not granted
  OperandKind operands[2] = {OperandKind::kActivation, OperandKind::kActivation};
  std::string operand_names[2];  // a weight's own name, or the key below
  int64_t m = 0, n = 0, k = 0;
};

struct PrecisionPlan {
  std::unordered_map<int32_t, GemmPlan> gemms;  // by node index: every GEMM of a linear
  std::vector<NodeId> order;                    // the same nodes, in node order
  // How FP8 GEMMs want activations and gradients; the name under which scales and statistics of each are kept.
  std::unordered_map<Value, std::set<Quantization>, ValueHash> quantizations;
  std::unordered_map<Value, std::string, ValueHash> keys;
};

// `serving`: an inference program, whose tokens come in any number.
PrecisionPlan plan_precision(const Graph& graph, const CompileOptions& options, bool serving);

// E4M3 forward; gradients by the recipe, but E4M3 under block scaling.
DType quantized_format(const Recipe& recipe, Quantization quantization);

}  // namespace octet
