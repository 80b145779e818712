#include "bench/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/json.h"
#include "ir/facts.h"

namespace octet {
namespace {

constexpr const char* kOverhead = "(overhead)";

}  // namespace

std::vector<KernelSum> by_kernel(const std::vector<NodeTime>& profile) {
  std::map<std::pair<std::string, std::string>, KernelSum> sums;
  for (const NodeTime& time : profile) {
    if (time.name == kOverhead) continue;
    KernelSum& sum = sums[{time.op, time.kernel}];
    sum.op = time.op;
    sum.kernel = time.kernel;
    sum.calls += time.calls;
    sum.seconds += time.seconds;
    sum.flops += time.flops;
    sum.bytes += time.bytes;
  }
  std::vector<KernelSum> list;
  for (auto& [key, sum] : sums) list.push_back(std::move(sum));
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return list;
}

namespace {

struct Overhead {
  double kernels = 0, outside = 0;
  double fraction() const { return kernels + outside > 0 ? outside / (kernels + outside) : 0; }
};

Overhead overhead_of(const std::vector<NodeTime>& profile) {
  Overhead overhead;
  for (const NodeTime& time : profile) (time.name == kOverhead ? overhead.outside : overhead.kernels) += time.seconds;
  return overhead;
}

std::string memory_text(const StepReport& r) {
  auto mb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  int64_t grown = r.peak - r.resident_before;
  return fmt::format(
      "memory: plan {:.1f} MB (state {:.1f}, arena {:.1f}, inputs {:.1f}), allocated {:.1f} MB ({:+.2f} %); process "
      "peak {:.1f} MB, {:.1f} MB above its start ({:+.2f} % of the plan)\n",
      mb(r.planned_bytes()), mb(r.state_bytes), mb(r.arena_bytes), mb(r.input_bytes), mb(r.allocated_bytes),
      100.0 * (static_cast<double>(r.allocated_bytes) / static_cast<double>(r.planned_bytes()) - 1), mb(r.peak),
      mb(grown), 100.0 * (static_cast<double>(grown) / static_cast<double>(r.planned_bytes()) - 1));
}

std::string profile_text(const StepReport& r, int64_t top) {
  if (r.profile.empty()) return "";
  auto steps = static_cast<double>(r.profiled_steps);
  Overhead overhead = overhead_of(r.profile);
  std::string text = fmt::format(
      "outside kernels: {:.3f} ms a step, {:.2f} % (kernels {:.3f} ms)\n{:<20} {:<32} {:>6} {:>10} {:>6} "
      "{:>9} {:>8}\n",
      overhead.outside / steps * 1e3, overhead.fraction() * 100, overhead.kernels / steps * 1e3, "op", "kernel",
      "calls", "ms/step", "%", "GFLOP/s", "GB/s");
  int64_t shown = 0;
  for (const KernelSum& sum : by_kernel(r.profile)) {
    if (shown++ == top) break;
    text += fmt::format("{:<20} {:<32} {:>6} {:>10.3f} {:>6.1f} {:>9.1f} {:>8.1f}\n", sum.op, sum.kernel,
                        sum.calls / r.profiled_steps, sum.seconds / steps * 1e3, 100 * sum.seconds / overhead.kernels,
                        sum.flops / sum.seconds / 1e9, sum.bytes / sum.seconds / 1e9);
  }
  return text;
}

}  // namespace

double model_flops(const Graph& train) {
  double flops = 0;
  for (int32_t i = 0; i < train.size(); ++i) {
    const Node& node = train.node(NodeId{i});
    if (node.phase == Phase::kRecompute) continue;
    double cost = node_cost(train, NodeId{i}).flops;
    if (node.op == Op::kMatmul || node.op == Op::kScaledMatmul || node.op == Op::kAttention) flops += cost;
    // Its five GEMMs include recomputing the scores; by convention four count.
    if (node.op == Op::kAttentionGrad) flops += cost * 4 / 5;
  }
  return flops;
}

std::string to_text(const StepReport& r, int64_t top) {
  double middle = median(r.seconds), best = *std::min_element(r.seconds.begin(), r.seconds.end());
  auto tokens = static_cast<double>(r.tokens());
  std::string text = fmt::format(
      "{} {} ({:.1f} M parameters), B {} T {} x {} micro-batch(es), recompute {}, {} rank(s), {} threads, {}\n",
      r.model, r.recipe, static_cast<double>(r.parameters) / 1e6, r.batch, r.length, r.micro_batches, r.recompute,
      r.ranks, r.threads, r.cpu);
  text += fmt::format("step: median {:.2f} ms, min {:.2f} ms of {}; {:.1f} tokens/s (median); loss {:.4f} -> {:.4f}\n",
                      middle * 1e3, best * 1e3, r.steps, tokens / middle, r.first_loss, r.last_loss);
  text += fmt::format(
      "model FLOPs: {:.2f} G a step ({:.1f} M a token), {:.1f} GFLOP/s = {:.1f} % of the {:.1f} GFLOP/s of a {} GEMM "
      "of "
      "{}^3 ({}) on one rank\n",
      r.flops / 1e9, r.flops / tokens / 1e6, r.flops / middle / 1e9,
      100 * r.flops / middle / (r.gemm.flops_per_second * r.ranks), r.gemm.flops_per_second / 1e9, r.gemm.precision,
      r.gemm.m, r.gemm.kernel);
  text += fmt::format("planning and binding: {:.3f} s\n", r.plan_seconds);
  return text + memory_text(r) + profile_text(r, top);
}

std::string to_json(const StepReport& r) {
  double middle = median(r.seconds);
  nlohmann::json json = {{"program", "octet"},
                         {"model", r.model},
                         {"recipe", r.recipe},
                         {"recompute", r.recompute},
                         {"cpu", r.cpu},
                         {"ranks", r.ranks},
                         {"threads", r.threads},
                         {"batch", r.batch},
                         {"length", r.length},
                         {"micro_batches", r.micro_batches},
                         {"parameters", r.parameters},
                         {"steps", r.steps},
                         {"median_ms", middle * 1e3},
                         {"min_ms", *std::min_element(r.seconds.begin(), r.seconds.end()) * 1e3},
                         {"tokens_per_second", static_cast<double>(r.tokens()) / middle},
                         {"model_gflops_per_step", r.flops / 1e9},
                         {"gflops", r.flops / middle / 1e9},
                         {"gemm_gflops", r.gemm.flops_per_second / 1e9},
                         {"gemm_precision", r.gemm.precision},
                         {"plan_seconds", r.plan_seconds},
                         {"planned_bytes", r.planned_bytes()},
                         {"state_bytes", r.state_bytes},
                         {"arena_bytes", r.arena_bytes},
                         {"input_bytes", r.input_bytes},
                         {"allocated_bytes", r.allocated_bytes},
                         {"resident_before_bytes", r.resident_before},
                         {"max_rss_bytes", r.peak},
                         {"first_loss", r.first_loss},
                         {"last_loss", r.last_loss}};
  if (!r.profile.empty()) {
    auto steps = static_cast<double>(r.profiled_steps);
    json["overhead_fraction"] = overhead_of(r.profile).fraction();
    for (const KernelSum& sum : by_kernel(r.profile))
      json["kernels"].push_back({{"op", sum.op},
                                 {"kernel", sum.kernel},
                                 {"calls", sum.calls / r.profiled_steps},
                                 {"ms", sum.seconds / steps * 1e3},
                                 {"gflops", sum.flops / sum.seconds / 1e9},
                                 {"gb_per_second", sum.bytes / sum.seconds / 1e9}});
  }
  return json.dump(1) + "\n";
}

}  // namespace octet
