// A Program: several graphs over one state table.
//
// Training has graphs of roles train, accumulate (only when micro-batches > 1), apply, prepare and eval; under recipe
// auto also train_stats. Serving has forward, sample and copy_blocks graphs, one for each bucket.
//
// A state entry is found by what it is: the logical tensor it belongs to, its role, and an index where a tensor has
// several of one role. Names are made of these in one place (state_name); they are handles and are printed.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ir/graph.h"
#include "ir/placement.h"

namespace octet {

class Builder;

enum class StateRole : uint8_t {
  kMaster,         // the parameter itself: float32 in training, the loaded weights in inference
  kCompute,        // a copy in the compute type, made by prepare and apply
  kCodes,          // FP8 or integer codes; index: a CodesForm
  kScaleInv,       // reciprocal scales of codes; index: that of the codes
  kZero,           // zero points of integer codes, where they have some
  kColumns,        // of integer codes: column k of them belongs to this column of x
  kScale,          // delayed or static scale of an activation or gradient
  kAmax,           // of a step so far
  kAmaxHistory,    // of the steps before
  kGradient,       // sum over a step's micro-batches; index: a GradientPart
  kMoment,         // of the optimiser; index 0, 1 ...
  kKvCache,        // of an attention; index: a CacheSide
  kCacheScale,     // of an FP8 cache: rows are multiplied by it when they are stored
  kCacheScaleInv,  // its reciprocal, for when they are read
  kBuffer,         // what graphs pass to each other: sampled ids, hidden rows, loss sums
  kSaved,          // of a pipeline's stage: what forward keeps for backward, a copy for each slot
  kTransfer,       // what stages of a pipeline send each other; of a param: its gradient on the other stage that has it
  kMagnitudes,     // of codes in NF4 (ir/nf4.h): i8 codes of their blocks' magnitudes,
  kMagnitudeScales,   // the scales of these
  kMagnitudeOffsets,  // and what is added to them
  kStatistic,  // no parameter and saved all the same, changed by apply alone: a running mean. Its param is itself
};
const char* state_role_name(StateRole role);

enum CodesForm : int32_t { kPlainCodes = 0, kTransposedCodes = 1, kBlockCodes = 2 };  // the last two may be added
// The last two: of an int8 cache, scale_inv of every slot and kv head.
enum CacheSide : int32_t { kKeys, kValues, kKeyScales, kValueScales };

// Of a table whose gradient is rows: these, and the row of the table that each is a gradient of, distinct and
// ascending; -1 behind the last.
enum GradientPart : int32_t { kGradientRows = 0, kGradientIds = 1 };

// How training changes a parameter.
enum class Update : uint8_t {
  kDense,  // by a gradient of its shape
  kNone,   // not at all: it is frozen. No gradient, moment, master or checkpoint; a base's folder fills it
  kRows,   // by the rows that a step looks up: the others stay, and so do their moments. Every rank has all of it
};

struct StateEntry {
  std::string name;  // "": state_name()
  TensorType type;   // of one rank's part
  Layout layout = {};
  StateRole role = StateRole::kMaster;
  std::string param;                       // the parameter, activation or attention it belongs to; of a master its name
  int32_t index = 0;                       // among those of this role
  Update update = Update::kDense;          // of a master, of codes that stand for one, of a gradient of rows
  double initial = 0;                      // fill value of a fresh run (scales start at 1)
  int32_t slots = 1;                       // copies of it, of which a run reads and writes one; 0: of another stage
  std::vector<Placement> placements = {};  // the logical tensors in it where it is not just its own one
};

// Bytes of one copy of an entry that is held here, else 0; of all its copies, each aligned.
inline int64_t held_bytes(const StateEntry& entry) { return entry.slots > 0 ? entry.type.bytes() : 0; }
int64_t slot_bytes(const StateEntry& entry, int64_t alignment);

// "w", "w.bf16", "w.codes_t", "scale.x", "moment0.w", "kv.attn.k": also the names of tensors in scales.safetensors. An
// optimiser gives its moments names of its own (train/optimizer.h), those in optimizer.safetensors.
std::string state_name(StateRole role, const std::string& param, int32_t index = 0, DType dtype = DType::kF32);

class Program {
 public:
  std::string name = "program";

  // Adds or returns the entry of this name; a second add with another type throws kInternal.
  StateEntry& add_state(StateEntry entry);
  const StateEntry* find_state(const std::string& name) const;
  const StateEntry* find_state(const std::string& param, StateRole role, int32_t index = 0) const;
  const std::vector<StateEntry>& states() const { return states_; }
  std::vector<StateEntry>& states() { return states_; }  // types, placements and initial values may change
  int64_t state_bytes(std::initializer_list<StateRole> roles) const;

  Graph& add_graph(Graph graph);  // replaces one of the same name
  Graph* find_graph(const std::string& name) { return const_cast<Graph*>(std::as_const(*this).find_graph(name)); }
  const Graph* find_graph(const std::string& name) const;
  Graph* find_graph(GraphRole role) { return const_cast<Graph*>(std::as_const(*this).find_graph(role)); }
  const Graph* find_graph(GraphRole role) const;  // the first of this role
  Graph& graph(const std::string& name) { return const_cast<Graph&>(std::as_const(*this).graph(name)); }
  const Graph& graph(const std::string& name) const;  // throws kNotFound listing what there is
  std::vector<Graph>& graphs() { return graphs_; }
  const std::vector<Graph>& graphs() const { return graphs_; }
  Mesh mesh() const { return graphs_.empty() ? Mesh() : graphs_.front().mesh(); }  // all graphs have one

 private:
  std::vector<StateEntry> states_;
  std::map<std::string, size_t> state_index_;
  std::map<std::tuple<std::string, StateRole, int32_t>, size_t> by_role_;  // those with a param, but for buffers
  std::vector<Graph> graphs_;
};

// The layout of a state as a graph of this role sees it. One of a micro-batch adds (or maximises) what it makes into a
// state that is pending over dp: the parts there are those of other micro-batches. So are other ranks' parts of a
// gradient of rows, whose lists lie one behind the other.
Layout layout_in(GraphRole role, const Layout& state);
Layout layout_in(GraphRole role, const StateEntry& state);

// Of a frozen parameter in NF4: all but its codes.
inline bool is_of_nf4(StateRole role) { return role >= StateRole::kMagnitudes && role <= StateRole::kMagnitudeOffsets; }
inline bool is_row_gradient(const StateEntry& entry) {
  return entry.role == StateRole::kGradient && entry.update == Update::kRows;
}

// Adds the entry and returns its leaf in the builder's graph.
Value declare_state(Program& program, Builder& builder, StateEntry entry);

// Gives every param and state leaf and every update of the graphs an entry where none exists yet: kMaster for params,
// kStatistic for states with a rate, kBuffer for the rest. Makers declare what is something else.
void collect_state(Program& program);

// The most slots of a state that the graph reads or updates: it runs on one of them.
int32_t slots_of(const Program& program, const Graph& graph);

// The param or state leaf of an entry in the first graph that has one: its attrs say how the entry is filled.
const Node* find_leaf(const Program& program, const std::string& state);

// By attribute update of a parameter's leaf.
Update update_of(const Node& leaf);
inline bool is_frozen(const Node& leaf) { return update_of(leaf) == Update::kNone; }

// Whether the program updates parameters.
bool is_training(const Program& program);

// A logical tensor where it lies, whatever pack made of its entry.
struct LogicalState {
  std::string name;  // state_name() of the logical tensor: what files and errors call it
  StateRole role = StateRole::kMaster;
  std::string param;
  int32_t index = 0;
  Update update = Update::kDense;
  TensorType type;    // of the whole tensor, of which a rank's entry may hold a part
  std::string state;  // the entry
  Placement at;
};
// The one list that loading, saving and filling walk: all but compute copies, caches and buffers, in the order of the
// state table. Codes and scale_inv are in it in inference programs and of frozen parameters, which load them; training
// makes the others from masters.
std::vector<LogicalState> logical_states(const Program& program);
// Throws kInternal when there is none.
LogicalState find_logical_state(const Program& program, const std::string& param, StateRole role, int32_t index = 0);

// What a training checkpoint holds.
inline bool is_scale(StateRole role) { return role == StateRole::kScale || role == StateRole::kAmaxHistory; }
inline bool is_saved(StateRole role) {
  return role == StateRole::kMaster || role == StateRole::kMoment || role == StateRole::kStatistic || is_scale(role);
}

}  // namespace octet
