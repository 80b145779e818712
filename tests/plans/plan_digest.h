// Digest of a compiled plan: hashes that distinguish kinds of changes, and counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/plan.h"

namespace octet {

struct PlanDigest {
  // Of the computations of every graph, each as often as it runs, with outputs, updates and states: whatever the order,
  // the names and the phases of nodes.
  uint64_t computes = 0;
  uint64_t text = 0;    // of the printed program: order, names, layers and phases too
  uint64_t memory = 0;  // of the printed memory plan: the offset of every value
  std::string kinds;    // "silu+mul+quantize x4, ...": the fusions of all graphs, then the other nodes
};
PlanDigest digest(const Plan& plan);

// FNV-1a: the same on every machine and with every library.
uint64_t hash_text(std::string_view text);

// The program and its memory plan as text in which a value is called by name and op instead of by number
// ("%layers.0.mlp.up.matmul"), so that two such texts are compared with `diff`.
std::string readable(const Plan& plan);

}  // namespace octet
