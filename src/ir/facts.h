// The facts of an op, all in one place (ops/<family>.cc): shape rule, gradient rule, cost, precision class, aliasing.
//
// Adding an op: a row in ops.def, its facts, a reference kernel (kernels/cpu/<family>/), a case in the case list, and a
// line in docs/ir.md. A table test fails when one of these is missing. docs/adding_an_op.md walks through it.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace octet {

class Builder;

// FLOPs count a multiply-add as two, attention causal-halved; bytes = every input read and every result written once
// (callers who know that a result is unused subtract it).
struct Cost {
  double flops = 0;
  double bytes = 0;
};

// What the precision pass does with a result.
enum class ResultPrecision : uint8_t {
  kComputeType,  // takes the compute type of the recipe (bf16, or stays f32)
  kFloat32,      // stays f32: statistics, losses, optimiser state, weight gradients
  kUnchanged,    // integers, codes: never retyped
};

// The gradient rule's view of one forward node: emit nodes through `builder`, hand results to `add_gradient`.
class GradientContext {
 public:
  virtual ~GradientContext() = default;
  virtual Builder& builder() = 0;
  virtual const Graph& graph() const = 0;     // the graph being extended: forward nodes are in it
  virtual const Node& node() const = 0;       // the forward node
  virtual Value result(int index) const = 0;  // forward results and inputs, usable in the extended graph
  virtual Value input(int index) const = 0;
  virtual Value gradient(int result) const = 0;              // dL/d result, or none
  virtual bool wants(int input) const = 0;                   // false: no trainable leaf behind this input
  virtual void add_gradient(int input, Value gradient) = 0;  // summed when called more than once
  // Of a table whose gradient is rows (Update::kRows) in the place of that: `rows` [T, H] of the table's rows `ids`.
  virtual bool takes_rows(int) const { return false; }
  virtual void add_gradient_rows(int, Value, Value) {}
};

// The arrange rule's view of one node of a sharded graph: its operands as they lie, and ways to bring them where the op
// takes them. The rule changes `node` (operands, attributes that are local sizes); then it is added. Of an op whose
// only addend is optional, that operand is hidden: it joins a result of its own layout, else it is added behind.
class LayoutRequest {
 public:
  virtual ~LayoutRequest() = default;
  virtual const Graph& graph() const = 0;  // the sharded one: types are local
  virtual Node& node() = 0;
  virtual const Shape& whole_shape(size_t input) const = 0;
  virtual bool is_rows(size_t input) const = 0;  // batch_rows of the operand
  virtual const AxisList& row_axes() const = 0;  // that cut rows of the residual stream
  virtual bool is_read_by(Op op) const = 0;      // result 0
  // Of the parameter that result 0 is a gradient of; of the moments of the one whose gradient the operand is. Of other
  // values copies; the operand, settled.
  virtual Layout parameter_layout() const = 0;
  virtual Layout update_layout(size_t input) const = 0;
  virtual void redistribute(size_t input, const Layout& want) = 0;  // by collectives; absent operands stay so
  virtual void reduce(size_t input) = 0;  // sums become copies, or rows of the residual stream
  // One more operand: what `op` makes of this one, with the node's attributes.
  virtual void append(Op op, size_t input) = 0;

  const Layout& layout(size_t input) { return graph().layout(node().inputs[input]); }
  const Shape& shape(size_t input) { return graph().shape(node().inputs[input]); }
};

// How a node lies on a mesh of ranks. Leaves have what they are given.
struct LayoutRules {
  // Layouts of the results of a node with local types, from those of its inputs. Throws kInvalidArgument naming the
  // operand, its layout and what it must be.
  std::vector<Layout> (*place)(const Graph& graph, const Node& node) = nullptr;
  // Brings the operands to layouts that `place` takes. Null for ops that the shard pass makes or never sees.
  void (*arrange)(LayoutRequest& request) = nullptr;
  // Whether the rows (dim 0) of a result are those of an operand, one by one. Null: of no result.
  bool (*rows)(const Graph& graph, const Node& node, size_t result, size_t operand) = nullptr;
};

struct OpFacts {
  // Result types. Throws kInvalidArgument with both values in the message when inputs do not fit.
  std::vector<TensorType> (*infer)(const Graph& graph, const Node& node) = nullptr;
  LayoutRules layouts = {};
  // Null with `no_gradient` saying why ("integer result", "inference only", "is a gradient").
  void (*gradient)(GradientContext& context) = nullptr;
  const char* no_gradient = nullptr;
  Cost (*cost)(const Graph& graph, const Node& node) = nullptr;
  std::vector<ResultPrecision> precision = {ResultPrecision::kComputeType};  // per result; the last one repeats
  std::vector<int> in_place = {};  // inputs whose buffer result 0 may take over when that input dies here
  bool float32_in_place = false;   // only where result 0 is float32: cuBLASLt rounds narrower sums made in place twice
  std::vector<std::pair<int, int>> in_place_others = {};  // the same for later results: (result, input): adamw
  // As a member of a fusion it takes over inputs of its own only, which no other member reads: such members may run in
  // any order, or all at once.
  bool members_independent = false;
  // An optimiser's update of one parameter -> param, moments...: input 0 is the parameter, input 1 its gradient; where
  // its moments and its scalars (lr, step, clip, finite; 3: without lr) begin among the inputs. `moments` -1: no
  // update. adam_direction is one whose result 0 is what sgd takes for a gradient.
  int moments = -1, first_moment = 2, first_scalar = 4, scalars = 4;
  // Inputs that result 0 is a sum of, each as it is where it has the result's type; a single one is an optional operand
  // c, which sums of gradients become.
  std::vector<int> addends = {};
  // Operands, a bit each, in which result 0 is linear with factors that no other operand has a part in: the sum of what
  // the op makes of parts is what it makes of their sum, but for rounding.
  uint32_t linear = 0;
  std::vector<int> must_alias = {};  // per result, the first ones: the input whose storage it must share
  bool row_wise = false;             // a row of result 0 depends on the same row of the in_place inputs only
  bool elementwise = false;          // result 0 depends on the same element of its inputs only (after broadcast)
  bool view = false;                 // result 0 is the input's bytes under another shape (reshape)
  bool collective = false;           // needs the other ranks, or the place of this one
  bool cheap_to_recompute = false;   // selective recompute may clone it: few FLOPs per byte kept
  const char* meaning = "";          // one line for docs/ir.md
};

const OpFacts& op_facts(Op op);
// Rows into slots of a table: of a cache above all.
inline bool is_scatter(Op op) { return op == Op::kScatterRows || op == Op::kScatterCodes; }
inline bool is_optimizer_update(Op op) { return op_facts(op).moments >= 0; }

// A forward product of a linear's weight, or of the experts' weights that stand for one; not the output head, no
// router.
inline bool is_linear(const Node& node) {
  if (node.op == Op::kGroupedMatmul) return node.attr<std::string>("role") == "fprop";
  return node.op == Op::kMatmul && node.attr<std::string>("role") == "fprop" && !node.attr<bool>("head");
}

// The addends of result 0 that the node is given.
std::vector<size_t> addends(const Graph& graph, const Node& node);

// Of every value, whether its dim 0 is the rows of the micro-batch: as leaves say, and what follows from them.
ValueTable<char> batch_rows(const Graph& graph);

// Checks the attributes against the op's signature, then infers the result types.
std::vector<TensorType> infer_types(const Graph& graph, const Node& node);
// The layouts of the results by the op's rule; empty when all hold copies. Leaves: their own.
std::vector<Layout> infer_layouts(const Graph& graph, const Node& node);

// May result `result` of the node overwrite the buffer of its input `input`, when the input dies here and both have the
// same shape and bytes per element? For an op its facts say so, and every kernel keeps the promise. A fusion's kernel
// runs its members in the body's order on some rows at a time and reads an element or row before it writes the same
// one, so the answer follows from the members: the one that makes the result and all that read the input work in place
// on it, and none reads the input afterwards; or members_independent holds of it.
bool may_take_over(const Node& node, int result, int input);

// The input whose storage result `result` of the node must share; -1: none. For an op its facts say so; a
// fusion's result must where its body's output was made, through members that must and views, in an input of the body.
int must_alias(const Node& node, int result);
// The inputs that the node writes over: those of must_alias, and those a fusion's members overwrite without giving the
// result out, which the verifier refuses.
std::vector<int> overwritten_inputs(const Node& node);
Cost node_cost(const Graph& graph, NodeId id);

namespace facts {
#define OCTET_OP(suffix, name, ...) extern const OpFacts name;
#include "ir/ops.def"
}  // namespace facts

}  // namespace octet
