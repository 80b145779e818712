// add_adapters: many adapters in one serving graph. Every row of a step goes with the adapter of its own text.
//
// A device holds `slots` adapters of each class of ranks. Rows of a step are sorted by class and slot, so that the rows
// of one adapter are a group and grouped_matmul takes each group to its own matrices: y += (x A[slot]^T) B[slot]^T.
// Linears that read one x have one table of A. Groups in front of a class's first slot and behind its last one have
// zeros, for rows without an adapter of that class: they get an addend of 0. The scale of an adapter is in its B.
// Rows of experts are sorted by expert and within one, being in the order of tokens, by slot: a group is an expert's
// rows of a slot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace octet {

// Linears of a graph that read one x: "layers.0.attn.q" of the first, the names of their weights, and their shapes; of
// experts those of one.
struct AdaptedLinears {
  std::string name;
  std::vector<std::string> params = {};
  int64_t in = 0;
  std::vector<int64_t> out = {};
  int64_t experts = 1;
};

// What a program has room for.
struct AdapterTables {
  int64_t slots = 0;                // adapters of each class that are on the device at once
  int64_t most_bytes = 0;           // lowers slots, to 8 at the least, whose addends would take more; 0: it does not
  std::vector<int64_t> ranks = {};  // of the classes, ascending: an adapter is of the first that holds all its ranks
  bool dora = false;                // gains of the linears' outputs too
  int64_t virtual_tokens = 0;       // rows in front of a text, at most, of adapters that are a class of their own,
  int64_t hidden = 0;               // each of so many elements
  DType dtype = DType::kF32;
  std::vector<AdaptedLinears> linears = {};

  // Of the classes, and of adapters with virtual tokens behind them: an adapter's slot of all is class * slots + slot.
  int64_t classes() const { return static_cast<int64_t>(ranks.size()) + (virtual_tokens > 0 ? 1 : 0); }
  bool empty() const { return slots == 0 || classes() == 0; }
  int64_t slot_bytes() const;  // of one slot of every class, of addends
};

// The linears of a model graph whose weights' names contain one of `targets` ("attn.q", "mlp.experts.up"), of all but
// routers and experts where none is given. The head is not among them.
std::vector<AdaptedLinears> adapted_linears(const Graph& graph, const std::vector<std::string>& targets = {});

// "attn.q" of "layers.3.attn.q.weight".
std::string adapter_target(const std::string& weight);

// The states, kBuffers that begin as zeros. Groups of a class: slots + 2, and of each expert as many, side by side.
std::string lora_a_state(const AdaptedLinears& linears, int64_t rank);  // [experts (slots + 2) linears rank, in]
std::string lora_b_state(const std::string& param, int64_t rank);       // [experts (slots + 2) out, rank]
// [classes slots + 1, out]: a row less 1 is what outputs are multiplied by; that behind the slots stays 0.
std::string gain_state(const std::string& param);
inline constexpr const char* kVirtualTokensState = "adapters.virtual_tokens";  // [slots virtual_tokens, hidden]

// What a graph does for its rows.
struct AdapterVariant {
  std::vector<size_t> classes = {};  // indices of ranks
  bool dora = false, virtual_tokens = false;
  bool empty() const { return classes.empty() && !virtual_tokens; }
};

// Inputs beside the graph's own: of each class of rank R lora_offsets.R i32[slots + 3], of its groups, and
// lora_groups.R i32[T], of tokens, where experts are adapted; gain_rows i32[T] of the gains; virtual_slots i32[T], the
// row that a virtual token is put in (-1 = nowhere), and virtual_rows i32[T], which of the state's it is.
std::string lora_offsets_input(int64_t rank);
std::string lora_groups_input(int64_t rank);
inline constexpr const char *kGainRowsInput = "gain_rows", *kVirtualSlotsInput = "virtual_slots",
                            *kVirtualRowsInput = "virtual_rows";

// `graph`: of tokens to logits. The same with the adapters of the variant.
Graph add_adapters(Program& program, const Graph& graph, const AdapterTables& tables, const AdapterVariant& variant);

}  // namespace octet
