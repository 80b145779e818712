// One compiled stage of a model of few layers, or such a model without stages, in numbers that grow by the same amount
// with every further layer: two samples tell what any number of layers needs. What depends on the number of data ranks
// alone (gradients that are summed in the update) is timed for any mesh.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "ir/plan.h"
#include "passes/node_clock.h"

namespace octet {

// What a chunk of a stage has for itself, or the graphs of a micro-batch where there are no stages.
struct PieceSample {
  int64_t inputs = 0;                                       // bytes of its graphs' inputs
  int64_t transfers = 0, transfers_aligned = 0;             // what it sends and receives
  int64_t slot = 0, slot_aligned = 0;                       // activations of one micro-batch
  int64_t sent = 0, sent_gradient = 0;                      // to the piece after it, to the one before
  int64_t kept = 0;                                         // of its arena, activations: where there are no stages
  std::vector<int64_t> arenas;                              // by graph
  std::array<GraphSeconds, 2> forward = {}, backward = {};  // of a step's first micro-batch, and of each other one
};

struct StageSample {
  int64_t layers = 0;
  // States: weights, compute copies, moments, gradients, scales, of tied tables the other end's gradient, alignment.
  std::array<int64_t, 7> states = {};
  int64_t inputs = 0;  // of the update
  int64_t workspace = 0;
  int64_t shared = 0;                   // gradients of tied tables that are sent once a step
  std::vector<int64_t> arenas;          // of the graphs of the update
  std::shared_ptr<const Graph> update;  // the graph "apply", timed by update_seconds()
  PieceSample piece;
};

// Of a whole model without stages, and of stage `stage` of a model that compile_whole() made.
StageSample sample_whole(const Plan& plan, int64_t layers);
StageSample sample_stage(const Plan& plan, int64_t layers, int32_t slots);

// What the layers between two samples add.
struct LayerStep {
  const StageSample *few, *more;
};
// `base` with so many layers, which differ from its own by a multiple of the step's.
StageSample with_layers(const StageSample& base, const LayerStep& step, int64_t layers);
// Seconds of its update with the ranks of this mesh.
GraphSeconds update_seconds(const StageSample& base, const LayerStep& step, int64_t layers, const Mesh& mesh,
                            const Target& target);

}  // namespace octet
