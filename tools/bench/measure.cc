#include "bench/measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/threads.h"
#include "exec/executor.h"
#include "ir/builder.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

TensorType scales_of(bool block, int64_t rows, int64_t columns, bool weight) {
  if (!block) return {DType::kF32, {1}};
  int64_t groups = (columns + 127) / 128;
  return {DType::kF32, weight ? Shape{(rows + 127) / 128, groups} : Shape{groups, rows}};
}

Program gemm_program(const std::string& precision, int64_t m, int64_t n, int64_t k) {
  Graph graph("gemm");
  Builder b(graph);
  bool fp8 = precision.starts_with("fp8");
  DType operand = fp8 ? DType::kE4M3 : precision == "bf16" ? DType::kBF16 : DType::kF32;
  Value x = b.input("x", {operand, {m, k}}), w = b.input("w", {operand, {n, k}}), y;
  if (fp8) {
    bool block = precision == "fp8-block";
    Value x_scale = b.input("x_scale", scales_of(block, m, k, false));
    Value w_scale = b.input("w_scale", scales_of(block, n, k, true));
    Attrs attrs = {{"trans_b", true},
                   {"scaling_a", std::string(block ? "1x128" : "tensor")},
                   {"scaling_b", std::string(block ? "128x128" : "tensor")},
                   {"to", std::string("bf16")}};
    y = {b.emit(Op::kScaledMatmul, {x, x_scale, w, w_scale}, attrs, "y"), 0};
  } else {
    y = b.matmul(x, w, false, true);
  }
  b.output("y", y);
  graph.set_stage(Stage::kPacked);
  Program program;
  program.name = "gemm";
  program.add_graph(std::move(graph));
  return program;
}

// Finite values of one magnitude, varied so that no work is skipped; scales are 1.
void fill_inputs(Executor& executor) {
  const Graph& graph = executor.program().graph("gemm");
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kInput) continue;
    std::span<std::byte> bytes = executor.input("gemm", node.name);
    DType dtype = node.results[0].dtype;
    bool scale = node.name.ends_with("scale");
    for (int64_t i = 0; i < node.results[0].shape.elements(); ++i) {
      double value = static_cast<double>((i * 7919) % 251 - 125) / 128;
      store_element(dtype, bytes.data(), i, scale ? 1.0 : value);
    }
  }
}

int64_t status_kib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1));
  return 0;
}

}  // namespace

double median(std::vector<double> values) {
  check(!values.empty(), ErrorCode::kInternal, "median of no values");
  std::sort(values.begin(), values.end());
  size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> time_runs(int64_t warmup, int64_t repeats, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int64_t i = 0; i < warmup + repeats; ++i) {
    auto begin = Clock::now();
    work();
    if (i >= warmup) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

std::vector<std::string> gemm_precisions() { return {"f32", "bf16", "fp8-tensor", "fp8-block"}; }

GemmRate measure_gemm(const Target& target, const std::string& precision, int64_t m, int64_t n, int64_t k,
                      int64_t repeats) {
  auto executor = make_executor(plan_memory(gemm_program(precision, m, n, k), target));
  fill_inputs(*executor);
  auto seconds = time_runs(2, repeats, [&] { executor->run("gemm"); });
  executor->set_profiling(true);  // for the kernel's name; its time is not used
  executor->run("gemm");
  GemmRate rate{.precision = precision, .m = m, .n = n, .k = k};
  for (const NodeTime& time : executor->profile())
    if (time.flops > 0) rate.kernel = time.kernel;
  if (target.device == Device::kCuda) {  // GEMM only, without copies between host and device
    seconds.clear();
    for (int64_t i = 0; i < repeats; ++i) {
      executor->set_profiling(true);
      executor->run("gemm");
      for (const NodeTime& time : executor->profile())
        if (time.flops > 0) seconds.push_back(time.seconds / static_cast<double>(time.calls));
    }
  }
  rate.median_seconds = median(seconds);
  rate.best_seconds = *std::min_element(seconds.begin(), seconds.end());
  rate.flops_per_second =
      2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / rate.best_seconds;
  return rate;
}

double measure_copy(int64_t bytes, int64_t repeats) {
  auto from = std::make_unique<std::byte[]>(static_cast<size_t>(bytes));  // zero-filled: pages are mapped
  auto to = std::make_unique<std::byte[]>(static_cast<size_t>(bytes));
  auto copy = [&] {
    parallel_for(bytes, 1 << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.get() + begin, from.get() + begin, static_cast<size_t>(end - begin));
    });
  };
  auto seconds = time_runs(1, repeats, copy);
  return 2 * static_cast<double>(bytes) / *std::min_element(seconds.begin(), seconds.end());
}

MemoryReader::MemoryReader(int64_t bytes) : bytes_(bytes), memory_(nullptr, &std::free) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const auto size = static_cast<size_t>((bytes + kHugePage - 1) / kHugePage * kHugePage);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, size)));
  check(memory_ != nullptr, ErrorCode::kOutOfMemory, "cannot allocate {} bytes to read", bytes);
  madvise(memory_.get(), size, MADV_HUGEPAGE);
  std::memset(memory_.get(), 1, size);
}

double MemoryReader::run() {
  using Words = uint64_t __attribute__((vector_size(64)));
  struct Run {
    Words words[4];
  };
  const auto* runs = reinterpret_cast<const Run*>(memory_.get());
  std::atomic<uint64_t> seen{0};  // keeps the compiler from removing the loads
  const auto seconds = time_runs(0, 1, [&] {
    parallel_for(bytes_ / static_cast<int64_t>(sizeof(Run)), 4096, [&](int64_t begin, int64_t end) {
      Run all = {};
      for (const Run* run = runs + begin; run < runs + end; ++run)
        for (int i = 0; i < 4; ++i) all.words[i] ^= run->words[i];
      const Words words = all.words[0] ^ all.words[1] ^ all.words[2] ^ all.words[3];
      for (size_t i = 0; i < 8; ++i) seen ^= words[i];
    });
  });
  return static_cast<double>(bytes_) / seconds[0];
}

MemoryUse process_memory() { return {.resident = status_kib("VmRSS:") * 1024, .peak = status_kib("VmHWM:") * 1024}; }

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model;
  while (std::getline(file, line) && model.empty()) {
    size_t colon = line.find(": ");
    if (colon != std::string::npos && line.starts_with("model name")) model = line.substr(colon + 2);
  }
  return model.empty() ? "unknown CPU" : model;
}

}  // namespace octet
