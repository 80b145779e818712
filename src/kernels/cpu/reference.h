// The reference kernels: one plain function per op of ops.def, on doubles, simple enough to be verified by reading.
//
// They define the ops; fast kernels are tested against them and the interpreter runs them. A reference kernel gets
// node attrs, inputs (null = absent) and results whose type is set and whose values are sized and zero; it must not
// round to the declared types (the caller does), must not read state, and checks indices before use.
// A missing definition is a link error.
#pragma once

#include <cmath>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/cpu/kernel.h"

namespace octet::cpu {

using RefInputs = std::span<const RefTensor* const>;
using RefResults = std::span<RefTensor>;

namespace reference {
#define OCTET_OP(suffix, name, ...) void name(const Node& node, RefInputs in, RefResults out);
#include "ir/ops.def"

// Whether optional input `index` is present.
inline bool present(RefInputs in, size_t index) { return index < in.size() && in[index] != nullptr; }

// An element of an integer tensor.
inline int64_t integer(double value) { return static_cast<int64_t>(value); }
inline int64_t integer(const RefTensor* tensor, int64_t i) { return integer((*tensor)[i]); }

// Words 4 block .. 4 block + 3 of a node's stream, from its input i64[3]: seed, step, micro-batch.
inline PhiloxBlock random_block(const RefTensor& rng, uint32_t key, uint64_t block) {
  return graph_random(static_cast<uint64_t>(integer(rng[0])), static_cast<uint64_t>(integer(rng[1])),
                      static_cast<uint32_t>(integer(rng[2])), key, block);
}

inline uint32_t byte_of(const PhiloxBlock& words, int i) {
  return words[static_cast<size_t>(i / 4)] >> (8 * (i % 4)) & 0xff;
}

// The transpose of x, whose rows have `cols` elements.
std::vector<double> transposed(const std::vector<double>& x, int64_t cols);

// (codes - zero) * scale_inv; `zero` may be null.
RefTensor dequantized(const RefTensor& codes, const RefTensor& scale_inv, const RefTensor* zero = nullptr);
// Codes of a product's weights row after row, whatever the order that it names.
RefTensor in_rows(const Node& node, const RefTensor& codes);

}  // namespace reference

// Evaluates a graph on doubles in node order, each result rounded to its declared type where it is defined; values
// declared f32 stay float64 unless `round_f32`. `leaf` gives the values of input, param and state leaves; constants and
// fusions (through their bodies) are evaluated here. Returns outputs, then updates, in the graph's order.
struct Evaluated {
  std::vector<RefTensor> outputs, updates;
};
using LeafFn = std::function<const RefTensor&(const Node&)>;
// Called for every evaluated node with its inputs and rounded results, for conformance tests of whole programs.
using NodeObserver = std::function<void(const Node&, RefInputs in, const std::vector<RefTensor>& results)>;
// Makes the results of collectives; without it they are errors.
using CollectiveFn = std::function<std::vector<RefTensor>(const Graph&, const Node&, RefInputs in)>;
Evaluated evaluate(const Graph& graph, const LeafFn& leaf, bool round_f32, const NodeObserver& observe = {},
                   const CollectiveFn& collective = {});

// One node: results sized, computed, rounded.
std::vector<RefTensor> evaluate_node(const Graph& graph, const Node& node, RefInputs in, bool round_f32,
                                     const CollectiveFn& collective = {});

// In place; integers truncate, f32 only when `round_f32`.
void round_values(RefTensor& tensor, bool round_f32);

// Bytes of the declared type <-> doubles.
RefTensor load_tensor(const TensorType& type, const void* data);
void store_tensor(const RefTensor& tensor, void* data);

}  // namespace octet::cpu
