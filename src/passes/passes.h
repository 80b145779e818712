// The passes of the pipeline, in its order. Each is a function of its name; those made of steps (pass.h) name them.
#pragma once

#include "passes/pass.h"

namespace octet {

// --- autodiff: appends the gradient of output "loss" to graph "train".
//
// Before: outputs "loss" (f32[1], the sum over tokens). After: input "loss_scale" f32[1] seeds dL/dloss (the trainer
// feeds 1 / valid tokens of the whole step), and for every param P the update "grad.P" (a kGradient state, f32, the
// param's shape) is made. Program-level: a graph "accumulate" is a copy of "train" whose updates add to grad.P, with
// the addition folded into the wgrad matmul's or embedding_grad's c operand where it is one.
// Of a table with update = rows, which only lookups may read, the updates are "grad.P" f32[C, H] and "grad_ids.P"
// i32[C]: the rows that a step's micro-batches looked up, each once (coalesce_rows), C = gradient_rows(). Outputs of
// Builder::blend become the updates "sum.statistic.NAME" and "sum.statistic_count.NAME", added up likewise. State
// "loss_sum" f32[1] gets the loss in "train", and in "accumulate" the loss is added to it; so do "sum.NAME" of other
// outputs f32[1] of "train" (metrics of a step). Every linear's GEMMs carry attrs gemm="<linear name>" and role = fprop
// | dgrad | wgrad.
//
// Steps: differentiate; fold_sums, which makes those additions parts of the products.
inline constexpr const char *kLossSum = "loss_sum", *kSumPrefix = "sum.";
std::string sum_state(const std::string& output);
std::vector<std::string> summed_outputs(const Graph& train);     // "loss", then the others
std::vector<std::string> statistic_outputs(const Graph& train);  // those of Builder::blend, of any shape
// The most rows of a table that a step of all data ranks looks up, at most those that it has. Throws kUnsupported where
// something other than lookups reads the table.
int64_t gradient_rows(const Graph& train, const Node& table, int64_t micro_batches);
// Declares what a parameter's gradient is kept in.
void add_gradient_states(Program& program, const Graph& train, const Node& param, int64_t micro_batches);
// Of all data ranks in a step.
inline int64_t micro_batches_of(const Parallel& parallel) {
  return int64_t{parallel.micro_batches} * parallel.mesh[Axis::kData];
}

bool autodiff(Program& program, const CompileOptions& options);
std::span<const Step> autodiff_steps();
// Graph level: returns the graph with outputs "grad.<param>" appended, sums folded.
Graph differentiate(const Graph& forward, const std::string& loss_output = "loss");

// --- precision: from logical float32 to the recipe's types, and FP8 for the GEMMs the recipe and its decisions name.
//
// Retypes results by their ResultPrecision. In training programs (graph role apply, or a state of role moment or
// gradient) params of rank >= 2 stay float32 masters and the model graphs read compute copies: state "P.bf16", or
// FP8 codes "P.codes" + "P.scale_inv" ("P.block_codes" ... under block scaling, "_t" for transposed ones); graphs
// "prepare" (made here) and "apply" (extended here) refresh them. Rank-1 params are read as they are. In inference
// programs params are retyped in place; those of FP8 linears are kept as states "P.codes" and "P.scale_inv" only (no
// master; attrs scaling, margin and pow2 of the leaf "P.codes" tell the loader how they are made). FP8 linears
// become quantize + scaled_matmul; one quantize per tensor, scaling and format is shared by all its users. Delayed
// scaling keeps states scale.K, amax_history.K, amax.K for tensor K ("<gemm>.x" or "<gemm>.dy" of the first linear
// reading it); "train" records an amax, "accumulate" the maximum with it, "apply" advances. In inference programs
// current scaling takes one scale a row: no token's codes depend on another's. Under recipe fp32 nothing changes; tf32
// only marks the products. With Recipe::statistics a training program also gets graph "train_stats": "train" with
// outputs "stats.K", the tensor_stats of every operand K of a linear's GEMM (activations, gradients, master weights).
bool precision(Program& program, const CompileOptions& options);

bool is_model_graph(const Graph& graph);  // any but "apply" and "prepare"

// What precision() makes of a GEMM of a linear.
enum class OperandKind : uint8_t { kWeight, kActivation, kGradient };
struct GemmPlan {
  std::string gemm;
  GemmRole role = GemmRole::kFprop;
  GemmPrecision wanted = {}, used = {};
  std::string reason;  // why one that the recipe wants in FP8 stays in the compute type, or ""
  OperandKind kinds[2] = {OperandKind::kActivation, OperandKind::kActivation};
  std::string operands[2];  // names of their statistics: tensor K as above, or the weight's own name
  int64_t m = 0, n = 0, k = 0;
};
struct GemmReport : GemmPlan {
  GraphRole graph = GraphRole::kNone;
};
// By graph, in node order; pure.
std::vector<GemmReport> precision_report(const Program& program, const CompileOptions& options);

// --- recompute: what backward makes again instead of keeping it from forward.
//
// none: nothing. light: what takes little time: FP8 codes of values that are kept anyway or one activation away from
// them, in one pass of the Target's, and silu where the gradient of its product makes it on the way. selective: what is
// large to keep and cheap to make: nodes the facts allow, FLOPs per byte kept below a bound, from values that are kept
// or cheap themselves; never products or attention. full: everything inside a layer (by layer index) is made again from
// what enters the layer. Clones have phase recompute and stand right before their first reader; they read the forward's
// scales and random counters, and nothing reads their amax.
//
// Beside that, but under none: an activation that is stored for current scaling alone is computed twice in forward, for
// its amax and for its codes, on GPUs whose Target fuses both: no more bytes are moved, and none are held between.
//
// Steps: recompute_backward; recompute_for_codes, which is the last of these.
bool recompute(Program& program, const CompileOptions& options);
std::span<const Step> recompute_steps();

// --- stages: from the whole model's graphs to those of one stage of a pipeline (CompileOptions::parallel).
//
// Piece g of stages x chunks is chunk g / stages of stage g mod stages: a run of layers, cut so that the longest piece
// is as short as the Target's times say; embedding with the first, last norm, head and loss with the last one, backward
// with its forward. Graphs "train" and "accumulate" become forward and backward graphs of each chunk, "eval" one of
// each (passes/stage_graphs.h names them). What crosses from forward to backward becomes states of role kSaved, one
// copy a slot of the schedule; what crosses between pieces states of role kTransfer, which actions outside the graphs
// carry. States of other stages stay in the table with no slots. "apply" updates what the stage has, and its square_sum
// is a part of the whole; a table that both ends read has its gradient on both: its part of the other end is a state
// of role kTransfer, which apply adds, and the first stage counts it.
bool stages(Program& program, const CompileOptions& options);

// --- shard: from logical tensors to the parts that one rank of a mesh (CompileOptions::parallel) holds.
//
// States get layouts by the `split` of their parameters and the level of the sharded optimiser; then every graph is
// rewritten node by node: operands are brought to the layouts that the op's rule takes, by collectives, attributes that
// are sizes become local ones, and the rules give the layouts of the results. docs/ir.md, "Layouts".
//
// A linear's weight decides which way it goes: weights never move over tp. Column-split: x whole, y cut; row-split: x
// cut, y a sum, which is brought to the layout of the residual stream: copies, or with `sequence` cut along rows. cp
// cuts rows from the inputs on, and heads inside attention. Gradients stay sums until the apply graph.
bool shard(Program& program, const CompileOptions& options);

// --- fuse: a producer, what is added before or after it and the sinks of its result become one fusion node, as far as
// the Target's kernels go (ir/fusion.h).
//
// A fusion node has a body graph: input leaves in the order of the node's inputs, outputs in the order of its results;
// results nobody uses are dropped. Body leaves and outputs are called "<member>.<index>": "norm.0" among the inputs is
// the norm's first input, "norm.0" among the outputs its first result. Every value in a body still rounds to its
// declared type: fused and unfused agree bit for bit.
//
// Sums can merge into a product's accumulator instead, and round once where two roundings were: kAccumulate (float32
// sums) and kResidual (in the compute type) of Producer::kProduct.
//
// Steps: merge_sums for these, fuse_patterns for the others.
bool fuse(Program& program, const CompileOptions& options);
std::span<const Step> fuse_steps();

// --- group_collectives: collectives of one kind over the same ranks that do not wait for each other become one, of
// several values: one call, so one latency. In graphs of a whole step (apply, prepare) nodes are ordered for it by how
// many collectives stand before them; in graphs of a micro-batch only small values join, where the operands are there
// already.
bool group_collectives(Graph& graph);

// --- pack: the physical layout of parameters. Logical names and shapes (checkpoints, users) never change; off, every
// parameter is stored as its logical self. Its steps:
//
// - pad_vocab, where the Target has vocab_multiple > 1: tables an output head reads get zero rows up to that multiple,
//   with their moments, gradients and copies; losses count the logical classes only (attr classes), an output keeps its
//   logical columns. Padded rows start at zero and stay zero.
// - order_codes: integer weights lie in the order that the Target's kernels of their products want.
// - merge_siblings, where the Target's products take kSiblings: in inference programs, linears that read the same x (q,
//   k, v; gate, up) become one product with a weight (or FP8 codes) of all their rows, and slices; where they take
//   kSlices, product and slices are one fusion. Codes of experts lie expert by expert.
// - fold_slices: fusions whose kernels take kColumns slice the product's result themselves.
//
// State entries say where each logical tensor lies in them (placements): loaders and checkpoints go by these.
bool pack(Program& program, const CompileOptions& options);
std::span<const Step> pack_steps();

// What the steps run. A program they do not fit is left alone; they return whether something changed.
bool pad_vocab(Program& program, int64_t multiple, bool embeddings = false);
bool order_codes(Graph& graph, const Target& target);
bool merge_siblings(Program& program, bool fused = false);
bool fold_slices(Graph& graph, const Target& target);
// A fusion that fold_slices would take apart, or none.
NodeId find_foldable_product(const Graph& graph, const Target& target);

// --- group_updates: many small nodes become a few fusions, each one launch, where the Target fuses Producer::kUpdate.
//
// kOptimizer: one optimiser's updates of up to 32 parameters, each with the cast and amax of the new parameter; members
// are "adamw<n>" (the op's name), "cast<n>", "amax<n>"; also the norms of parameters and updates that trust ratios are
// made of ("norm<n>"), and these ("ratio<n>"). kUpdateScales: scales and histories of delayed scaling
// ("scale<n>"). kMaximum: amaxes over micro-batches ("maximum<n>"). Runs after pack, which changes shapes of
// parameters.
bool group_updates(Program& program, const CompileOptions& options);

// --- schedule: hides large collectives in graphs of micro-batches behind kernels, where CompileOptions::parallel says
// overlap: moves each up until the nodes before its first reader take as long as it does by the Target's times,
// together with the nodes that make its operand where others stand in front of these (a product's gradient of x comes
// before that of w), or products for weights' gradients down behind it, and makes it async (ir/plan.h). What no node
// reads comes right behind what makes it, and one that is read rises above it rather than wait for it; other
// collectives keep their order. All ranks have one order, and nodes compute what they did: the same bits.
bool schedule(Graph& graph, const CompileOptions& options);

}  // namespace octet
