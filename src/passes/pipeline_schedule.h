// The order in which the stages of a pipeline work: a pure function that every rank computes for itself.
//
// A model of p stages with v chunks each is cut into p v pieces: piece g is chunk g / p of stage g mod p. A chunk has
// one place for what it receives in each direction and one for what it sends. All actions of all stages lie in one
// order, of which a stage's list is its own part: of those not yet done the first can always run, so that transfers
// end even where a send blocks until its receive.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace octet {

enum class PipelineKind : uint8_t {
  k1F1B,         // one chunk a stage; forward and backward take turns (arXiv 2104.04473, 2.2.1)
  kInterleaved,  // several: the bubble is that part of it (2.2.2); micro-batches are a multiple of stages
};

struct PipelineAction {
  enum class Kind : uint8_t { kForward, kBackward, kSend, kReceive };
  Kind kind = Kind::kForward;
  bool gradient = false;  // what is sent or received: activations of the next piece, or gradients of the one before
  int32_t chunk = 0;      // of this stage
  int32_t micro_batch = 0;
  int32_t slot = 0;  // of the chunk's saved activations: of kForward and kBackward
  int32_t peer = 0;  // the other stage of a transfer
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineSchedule {
  std::vector<PipelineAction> actions;
  std::vector<int32_t> slots;  // by chunk: the most micro-batches between their forward and the end of their backward
};

// Of stage `s` of `p`. Throws kInvalidArgument: sizes that are not positive or have no such schedule, with what would
// do.
PipelineSchedule schedule(PipelineKind kind, int32_t p, int32_t s, int32_t chunks, int32_t micro_batches);
// Of all stages, interleaved where chunks > 1.
std::vector<PipelineSchedule> schedules(int32_t p, int32_t chunks, int32_t micro_batches);

// The idle part of a step over its work, (p - 1) / (chunks m), where all pieces take the same time and transfers none.
inline double pipeline_bubble(int32_t p, int32_t chunks, int32_t micro_batches) {
  return static_cast<double>(p - 1) / (static_cast<double>(chunks) * micro_batches);
}

// How long a piece of the model takes for one micro-batch.
struct PieceSeconds {
  std::array<double, 2> forward = {}, backward = {};  // of a step's first micro-batch, and of each other one
  double send = 0, send_gradient = 0;                 // to the piece after it, to the one before
};
struct StageSeconds {
  double work = 0, transfers = 0;  // the rest until `end` it is idle
  double end = 0;                  // of its last action
};

// How stages carry what they send each other.
enum class Transfers : uint8_t {
  kInTurn,  // as on CPUs: a transfer begins when both stages have come to it and occupies both
  kBeside,  // a send goes by itself while both compute; whoever receives waits until it has come
};

// Runs the schedules of all stages, one action of a stage after the other, with these times by piece.
std::vector<StageSeconds> simulate(const std::vector<PipelineSchedule>& stages, const std::vector<PieceSeconds>& pieces,
                                   Transfers transfers = Transfers::kInTurn);

}  // namespace octet
