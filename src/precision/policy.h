// recipe=auto: chooses the precision level of every GEMM of a linear from statistics of its operands.
//
// The levels: FP8 with one scale per tensor, FP8 with a scale per 128-block, BF16. A GEMM is demoted at once when an
// operand does not fit its level, and promoted to a cheaper level only after that level has met the thresholds, with a
// margin, for `dwell` rounds in a row: twice as many after every further demotion. Linears that read one x all avoid an
// FP8 level that the Target's timings show to be slower for them together. Pure host code: no graph, no device.
// docs/numerics.md gives the thresholds and why.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "ir/target.h"
#include "ir/tensor_stats.h"
#include "precision/recipe.h"

namespace octet {

enum class PrecisionLevel : uint8_t { kTensor, kBlock, kHigh };
const char* precision_level_name(PrecisionLevel level);  // as LinearTiming spells it: fp8-tensor, fp8-block, bf16
GemmPrecision level_precision(PrecisionLevel level);

using TensorStats = std::array<float, kTensorStatCount>;  // by TensorStat
using StatsTable = std::map<std::string, TensorStats>;    // by tensor: "layers.3.mlp.up.x", ".dy", ".weight"

// Signal to noise in dB of one way of scaling (kStatTensor, kStatBlock or kStatBlockT); 99 where nothing is lost.
double snr_db(const TensorStats& stats, int scaling);

struct PolicySettings {
  int64_t dwell = 4;                                       // rounds of statistics before a cheaper level
  double leave_db = 18, return_db = 22;                    // demoted below the first, promoted above the second
  double leave_underflow = 0.25, return_underflow = 0.10;  // shares of non-zero values lost
  bool operator==(const PolicySettings&) const = default;
};

// A GEMM the policy decides on: C [m, n] = A [m, k] B [k, n], its operands named as in the StatsTable.
struct PolicyGemm {
  std::string gemm;  // the linear's name
  GemmRole role = GemmRole::kFprop;
  int64_t m = 0, n = 0, k = 0;
  std::array<std::string, 2> operands;
  std::string unsupported_reason = {};  // why FP8 is impossible here, or ""
  std::string held = {};  // a frozen weight, held once: all GEMMs that read it are of one level; "": it has a master
  std::string key() const { return gemm + "/" + gemm_role_name(role); }
};

// Linears that read one x: it is quantized once for all of them, so they are timed together.
struct LinearGroup {
  std::vector<std::string> linears;  // by name, in the order of their products
  int64_t tokens = 0, in = 0;
  int64_t out = 0;  // of all of them
};
std::vector<LinearGroup> linear_groups(const std::vector<PolicyGemm>& gemms);

struct Switch {
  int64_t step = 0;
  std::string gemm;  // PolicyGemm::key()
  PrecisionLevel from = PrecisionLevel::kTensor, to = PrecisionLevel::kTensor;
  std::string reason;  // as text, with the values
  bool operator==(const Switch&) const = default;
};

class PrecisionPolicy {
 public:
  // All GEMMs start on the cheapest level they may take. switches() then tells which of them start higher, at step 0.
  PrecisionPolicy(std::vector<PolicyGemm> gemms, const PolicySettings& settings, const Target& target);

  // One round: returns the switches to make before the next step. Throws kInternal naming an operand without
  // statistics.
  std::vector<Switch> observe(int64_t step, const StatsTable& stats);

  PrecisionLevel level(const std::string& key) const;  // throws kNotFound
  const std::vector<PolicyGemm>& gemms() const { return gemms_; }
  std::map<std::string, GemmPrecision> decisions() const;            // Recipe::decisions
  const std::vector<Switch>& switches() const { return switches_; }  // all so far, in order

  // Everything a resumed run needs, as JSON. restore() takes a state of the same GEMMs, kInvalidArgument otherwise, and
  // returns the switches, at `step`, of GEMMs that stood where this Target's timings do not let them stand.
  std::string state() const;
  std::vector<Switch> restore(const std::string& json, const std::string& where, int64_t step);

 private:
  struct GemmState {
    PrecisionLevel level = PrecisionLevel::kTensor;
    PrecisionLevel candidate = PrecisionLevel::kTensor;  // the cheapest that has held in all calm rounds
    int64_t stable_rounds = 0;                           // rounds in a row in which a cheaper level held
    int64_t demotions = 0;                               // times it was moved up the ladder
    std::array<std::string, 2> refusals;                 // why kTensor and kBlock may not be taken, or ""
  };
  struct Wanted {
    PrecisionLevel level = PrecisionLevel::kTensor;
    std::string reason = {};
  };
  Wanted judge(size_t i, const StatsTable& stats);
  void level_out(std::vector<Wanted>& wanted) const;
  void refuse(const Target& target);
  std::string unsupported_reason(const PolicyGemm& gemm, PrecisionLevel level, const StatsTable& stats,
                                 bool to_return) const;
  void move(int64_t step, size_t i, PrecisionLevel to, std::string reason);

  std::vector<PolicyGemm> gemms_;
  std::vector<GemmState> states_;
  PolicySettings settings_;
  std::vector<Switch> switches_;
};

// Levels of all GEMMs for people: a row for each run of equal layers, a column for each linear, its fprop/dgrad/wgrad
// as T (one scale), B (128-blocks) or 16 (BF16).
std::string precision_map(const PrecisionPolicy& policy);

}  // namespace octet
