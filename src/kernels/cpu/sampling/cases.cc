// Cases of sampling: greedy and drawn rows side by side, every filter alone and together, masked and padded rows.
#include "kernels/cpu/cases.h"

namespace octet::cpu {
namespace {

constexpr Tolerance kLogprob{
    .relative = 1e-5, .absolute = 1e-5, .reason = "float32 exp and log, sums over 1000 tokens"};

struct Parameters {
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 0;
};

void add_sample(std::vector<Case>& cases, const std::string& name, int64_t vocab, const std::vector<Parameters>& rows,
                bool raw = false) {
  std::vector<double> params, top_k, seeds;
  for (size_t r = 0; r < rows.size(); ++r) {
    params.insert(params.end(), {rows[r].temperature, rows[r].top_p, rows[r].min_p});
    top_k.push_back(static_cast<double>(rows[r].top_k));
    seeds.insert(seeds.end(), {static_cast<double>(42 + r), static_cast<double>(r % 3), static_cast<double>(17 * r)});
  }
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<CaseInput> inputs = {x({count, vocab}, 2.0), given(DType::kF32, {count, 3}, params),
                                   given(DType::kI32, {count}, top_k), given(DType::kI64, {count, 3}, seeds)};
  if (raw) inputs.push_back(x({count, vocab}, 2.0));
  cases.push_back(
      {.op = Op::kSample, .name = name, .inputs = std::move(inputs), .tolerance = kLogprob, .gradient = false});
}

}  // namespace

std::vector<Case> sampling_cases() {
  std::vector<Case> cases;
  cases.push_back({.op = Op::kFeedTokens,
                   .name = "mixed",
                   .inputs = {integers(DType::kI32, {5}, 0, 99), integers(DType::kI32, {3, 1}, 100, 199),
                              given(DType::kI32, {5}, {-1, 2, 0, -1, 2})},
                   .dtypes = {DType::kF32},
                   .gradient = false});
  const CaseInput entries = given(DType::kI32, {4, 2}, {0, 3, 2, 36, -1, 0, 0, 0});
  const CaseInput values = given(DType::kF32, {4, 3}, {1.5, 1, 0, 0, 1.25, 0.5, 9, 9, 9, -INFINITY, 1, 0});
  const Tolerance one_operation{.relative = 3e-7, .absolute = 3e-7, .reason = "three float32 operations"};
  cases.push_back({.op = Op::kAdjustLogits,
                   .name = "entries",
                   .inputs = {x({3, 37}), entries, values},
                   .tolerance = one_operation,
                   .gradient = false});
  cases.push_back({.op = Op::kAdjustLogits,
                   .name = "masks",
                   .inputs = {x({3, 37}), entries, values, given(DType::kI32, {2, 2}, {-2, 31, 0x0f0f, 0}),
                              given(DType::kI32, {3}, {1, -1, 0})},
                   .tolerance = one_operation,
                   .gradient = false});
  add_sample(cases, "greedy", 37, {{.temperature = 0}, {.temperature = 0, .top_k = 5}});
  add_sample(cases, "temperature", 1000, {{}, {.temperature = 0.7}, {.temperature = 2}, {.temperature = 0}});
  add_sample(cases, "top_k", 1000, {{.top_k = 1}, {.top_k = 5}, {.top_k = 50}, {.top_k = 2000}});
  add_sample(cases, "top_p", 1000, {{.top_p = 0.1}, {.top_p = 0.5}, {.top_p = 0.9}, {.top_p = 0.999}});
  add_sample(cases, "min_p", 1000, {{.min_p = 0.5}, {.min_p = 0.05}, {.min_p = 1}});
  add_sample(
      cases, "together", 1000,
      {{.temperature = 0.8, .top_p = 0.9, .min_p = 0.02, .top_k = 40}, {.temperature = 1.5, .top_p = 0.7, .top_k = 9}});
  add_sample(cases, "raw", 100, {{.temperature = 0}, {.temperature = 1}}, true);
  cases.push_back(
      {.op = Op::kSample,
       .name = "nothing_finite",
       .inputs = {given_x({2, 4}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 1, -INFINITY, NAN}),
                  given(DType::kF32, {2, 3}, {1, 1, 0, 1, 0.9, 0}), given(DType::kI32, {2}, {0, 2}),
                  given(DType::kI64, {2, 3}, {1, 2, 3, 4, 5, 6})},
       .tolerance = kLogprob,
       .gradient = false});
  for (int64_t k : {1, 5, 20}) {
    cases.push_back({.op = Op::kTopLogprobs,
                     .name = fmt::format("k{}", k),
                     .inputs = {x({3, 1000}, 2.0)},
                     .attrs = {{"k", k}},
                     .tolerance = kLogprob,
                     .gradient = false});
  }
  return cases;
}

}  // namespace octet::cpu
