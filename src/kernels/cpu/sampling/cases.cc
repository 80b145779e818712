// Cases of sampling: greedy and random rows in one tensor, each filter alone and combined, masked and padded rows.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

constexpr Tolerance kLogprob{
    .relative = 1e-5, .absolute = 1e-5, .reason = "float32 exp and log, sums over 1000 tokens"};

struct Parameters {
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 0;
};

// Seeds of rows are 42 + row. If two scores, or the mass at a filter's edge and its target, were equal up to rounding,
// a backend might choose another token; with these seeds they are not.
void add_sample(std::vector<Case>& cases, const std::string& name, int64_t vocab, const std::vector<Parameters>& rows,
                bool raw = false, const Fill& fill = {}) {
  std::vector<double> params, top_k, seeds;
  for (size_t r = 0; r < rows.size(); ++r) {
    params.insert(params.end(), {rows[r].temperature, rows[r].top_p, rows[r].min_p});
    top_k.push_back(static_cast<double>(rows[r].top_k));
    seeds.insert(seeds.end(), {static_cast<double>(42 + r), static_cast<double>(r % 3), static_cast<double>(17 * r)});
  }
  const auto count = static_cast<int64_t>(rows.size());
  CaseInput logits = x({count, vocab}, 2.0);
  if (fill) logits.fill = fill;
  std::vector<CaseInput> inputs = {std::move(logits), given(DType::kF32, {count, 3}, params),
                                   given(DType::kI32, {count}, top_k), given(DType::kI64, {count, 3}, seeds)};
  if (raw) inputs.push_back(x({count, vocab}, 2.0));
  cases.push_back(
      {.op = Op::kSample, .name = name, .inputs = std::move(inputs), .tolerance = kLogprob, .gradient = false});
}

// All kinds of rows in one tensor: parameters differ by request.
std::vector<Parameters> mixed_rows() {
  return {{.temperature = 0}, {.temperature = 1}, {.temperature = 0.8, .top_p = 0.9},
          {.top_k = 40},      {.min_p = 0.1},     {.temperature = 1.2, .top_p = 0.8, .min_p = 0.05, .top_k = 200}};
}

// Vocabularies of real models and odd ones: vector tails, unaligned rows, more strips than a team has warps.
void add_vocabularies(std::vector<Case>& cases) {
  for (int64_t vocab : {1, 7, 130, 1023, 1025, 4099, 50257}) {
    add_sample(cases, fmt::format("vocab_{}", vocab), vocab, mixed_rows());
  }
  add_sample(cases, "vocab_128256", 128256,
             {{.temperature = 0}, {.temperature = 1}, {.temperature = 0.8, .top_p = 0.9}, {.top_p = 0.9, .top_k = 50}});
  add_sample(cases, "vocab_262144", 262144, {{.top_p = 0.99}, {.top_k = 5000}});
  add_sample(cases, "raw_50257", 50257, {{.temperature = 0}, {.temperature = 1}, {.top_p = 0.5}}, true);
}

void add_extremes(std::vector<Case>& cases) {
  add_sample(cases, "cold", 3000, {{.temperature = 1e-3}, {.temperature = 1e-3, .top_p = 0.9}, {.temperature = 0.02}});
  add_sample(cases, "hot", 3000,
             {{.temperature = 100}, {.temperature = 100, .top_p = 0.5}, {.temperature = 100, .min_p = 0.99}});
  add_sample(cases, "limits", 3000,
             {{.top_p = 1e-6}, {.top_k = 1}, {.top_k = 3000}, {.top_k = 2999}, {.min_p = 1}, {.top_p = 0.9999}});
  const Fill equal = [](Philox&, std::vector<double>& values) { std::fill(values.begin(), values.end(), 1.5); };
  // Targets that are not multiples of equal masses.
  add_sample(cases, "all_equal", 5003,
             {{.temperature = 0}, {}, {.top_k = 10}, {.top_p = 0.33331}, {.min_p = 0.5}, {.top_k = 3000}}, false,
             equal);
  const Fill ties = [](Philox& random, std::vector<double>& values) {
    for (double& value : values) value = static_cast<double>(random.below(4)) * 0.5;
  };
  add_sample(cases, "ties", 4000, {{.temperature = 0}, {}, {.top_k = 100}, {.top_p = 0.33331}, {.top_p = 0.77773}},
             false, ties);
  const Fill masked = [](Philox& random, std::vector<double>& values) {
    for (double& value : values) value = random.below(500) == 0 ? random.normal() : -INFINITY;
  };
  add_sample(cases, "mostly_masked", 5000, {{.temperature = 0}, {}, {.top_k = 4000}, {.top_p = 0.9}, {.min_p = 0.1}},
             false, masked);
  const Fill peaked = [](Philox& random, std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = random.normal() * 3 + (i % 1009 == 77 ? 15 : 0);
  };
  add_sample(cases, "peaked", 32000, mixed_rows(), false, peaked);
  const Fill wide = [](Philox& random, std::vector<double>& values) {
    for (double& value : values) value = random.normal() * 1e30;
  };
  add_sample(cases, "wide", 2000, {{.temperature = 0}, {.temperature = 1}, {.top_p = 0.9}, {.top_k = 300}}, false,
             wide);
}

}  // namespace

std::vector<Case> sampling_cases() {
  std::vector<Case> cases;
  cases.push_back({.op = Op::kSelectTokenIds,
                   .name = "mixed",
                   .inputs = {integers(DType::kI32, {5}, 0, 99), integers(DType::kI32, {3, 1}, 100, 199),
                              given(DType::kI32, {5}, {-1, 2, 0, -1, 2})},
                   .dtypes = {DType::kF32},
                   .gradient = false});
  cases.push_back({.op = Op::kSelectTokenIds,
                   .name = "nothing_drawn",
                   .inputs = {integers(DType::kI32, {4}, 1, 99), given(DType::kI32, {3, 1}, {7, -1, 9}),
                              given(DType::kI32, {4}, {1, 0, -1, 2})},
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
  cases.push_back(
      {.op = Op::kAdjustLogits,
       .name = "wide_masks",
       .inputs = {x({3, 5003}), entries, values, integers(DType::kI32, {2, 157}, -int64_t{1} << 31, int64_t{1} << 31),
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
  add_vocabularies(cases);
  add_extremes(cases);
  cases.push_back({.op = Op::kSample,
                   .name = "nothing_finite",
                   .inputs = {given_x({2, 4}, {-INFINITY, NAN, -INFINITY, INFINITY, INFINITY, 1, -INFINITY, NAN}),
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
  for (auto [vocab, k] : {std::pair<int64_t, int64_t>{7, 7}, {5003, 3000}, {50257, 20}, {128256, 20}}) {
    cases.push_back({.op = Op::kTopLogprobs,
                     .name = fmt::format("{}_of_{}", k, vocab),
                     .inputs = {x({2, vocab}, 2.0)},
                     .attrs = {{"k", k}},
                     .tolerance = kLogprob,
                     .gradient = false});
  }
  cases.push_back({.op = Op::kTopLogprobs,
                   .name = "masked",
                   .inputs = {given_x({1, 5}, {-INFINITY, 2, NAN, 2, -INFINITY})},
                   .attrs = {{"k", int64_t{5}}},
                   .tolerance = kLogprob,
                   .gradient = false});
  return cases;
}

}  // namespace octet::cpu
