// Report of a measured training step: struct, text and JSON.
//
// FLOP convention: a multiply-add is two; model FLOPs are the matrix products and attention of the train graph's
// forward and backward, attention over the causal half, its backward twice its forward; recomputation is not counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "exec/executor.h"

namespace octet {

// FLOPs of one run of graph "train" (one micro-batch) in this convention.
double model_flops(const Graph& train);

// Totals over the calls of one kernel for one op.
struct KernelSum {
  std::string op, kernel;
  int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
};
// Sorted by time; without the executor's time outside kernels.
std::vector<KernelSum> by_kernel(const std::vector<NodeTime>& profile);

struct StepReport {
  std::string model, recipe, recompute, cpu;
  int ranks = 1;
  int threads = 0;
  int64_t batch = 0, length = 0, micro_batches = 1, parameters = 0, steps = 0;
  std::vector<double> seconds;  // per step
  double first_loss = 0, last_loss = 0;
  double flops = 0;  // model FLOPs of a step, on all ranks
  GemmRate gemm;     // 2048^3 in the recipe's GEMM precision, same process
  double plan_seconds = 0;
  int64_t state_bytes = 0, arena_bytes = 0, input_bytes = 0, allocated_bytes = 0;
  int64_t resident_before = 0, peak = 0;  // of the process: before the stepper was made; at the end
  std::vector<NodeTime> profile;          // of `profiled_steps` further steps; empty without --profile
  int64_t profiled_steps = 0;

  int64_t tokens() const { return batch * length * micro_batches; }
  int64_t planned_bytes() const { return state_bytes + arena_bytes + input_bytes; }
};

std::string to_text(const StepReport& report, int64_t top);
std::string to_json(const StepReport& report);

}  // namespace octet
