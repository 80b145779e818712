// Reference measurements: GEMM and copy rates of this machine, memory of this process, medians.
//
// GEMMs run through the executor, with the kernels that training uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/target.h"

namespace octet {

double median(std::vector<double> values);

// Seconds of each of `repeats` runs of `work`, after `warmup` untimed runs.
std::vector<double> time_runs(int64_t warmup, int64_t repeats, const std::function<void()>& work);

struct GemmRate {
  std::string precision, kernel;  // kernel: name of the kernel that ran
  int64_t m = 0, n = 0, k = 0;
  double median_seconds = 0, best_seconds = 0;
  double flops_per_second = 0;  // 2 m n k / best_seconds
};

// y [m, n] = a [m, k] b [n, k]^T: the forward product of a linear layer. precision: f32 | bf16 | fp8-tensor | fp8-block
// (float32 accumulation; f32 results for f32, bf16 for the others).
GemmRate measure_gemm(const Target& target, const std::string& precision, int64_t m, int64_t n, int64_t k,
                      int64_t repeats);
std::vector<std::string> gemm_precisions();

// Bytes per second (read + written) of all threads copying `bytes`.
double measure_copy(int64_t bytes, int64_t repeats);
// Memory read bandwidth of all threads over `bytes`, which bounds decoding on a CPU. The memory is in huge pages, like
// an executor's arena.
class MemoryReader {
 public:
  explicit MemoryReader(int64_t bytes);
  double run();  // bytes per second of one pass

 private:
  int64_t bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
};

struct MemoryUse {
  int64_t resident = 0, peak = 0;  // VmRSS, VmHWM
};
MemoryUse process_memory();

std::string cpu_model();  // name given by the operating system

}  // namespace octet
