// A calibration text on its way through a model, layer by layer: only its hidden states and one layer's weights are
// held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/input_scales.h"
#include "compress/layer_graphs.h"
#include "exec/batch.h"
#include "weights/weights.h"

namespace octet {

// `samples` windows of `length` tokens, at places of a text of `ids` that the seed chooses, none overlapping; the first
// token of each is `begin_id` where that is >= 0. Throws kInvalidArgument for a text that is too short, naming how many
// windows it has.
std::vector<int32_t> choose_windows(const std::vector<int32_t>& ids, int64_t samples, int64_t length, uint64_t seed,
                                    int32_t begin_id = -1);

struct ObservedInput {
  LinearInput input;
  std::vector<InputStats> stats;  // one; of experts, one of each
  std::vector<float> gram;        // X^T X [K, K] over all tokens, of experts [E, K, K]; empty unless asked for
};

class CalibrationRun {
 public:
  // `ids`: whole windows of `length`. Runs the embedding of `weights`, all in float32 on the target.
  CalibrationRun(const WeightSource& weights, const std::vector<int32_t>& ids, int64_t length, const Target& target);

  // Runs a layer over all windows; `advance`: what it makes becomes what the next one reads. Throws kInvalidArgument
  // naming the linear whose inputs are not finite.
  std::vector<ObservedInput> observe(const LayerGraph& layer, const WeightSource& weights, bool grams, bool advance);
  // The same without statistics, onward.
  void advance(const LayerGraph& layer, const WeightSource& weights);

 private:
  std::unique_ptr<Executor> load(Graph graph, const WeightSource& weights) const;
  template <typename Fn>
  void for_each_window(Executor& executor, const std::string& graph, bool advance, const Fn& after);

  Target target_;
  int64_t length_ = 0, windows_ = 0, hidden_ = 0;
  Batch batch_;                // of one window
  std::vector<float> states_;  // [windows, length, hidden]
};

}  // namespace octet
