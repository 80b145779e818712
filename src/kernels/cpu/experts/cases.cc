// Cases of mixtures of experts: ties and NaN in routers, all rows to one expert, experts without rows.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

constexpr double kNan = NAN;

CaseInput offsets(std::vector<double> values) {
  const auto count = static_cast<int64_t>(values.size());
  return given(DType::kI32, {count}, std::move(values));
}

// Distinct experts of every token, as top_k makes them.
CaseInput choices(int64_t tokens, int64_t k, int64_t experts) {
  std::vector<double> values;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < k; ++i) values.push_back(static_cast<double>((t * t + 3 * t + i) % experts));
  return given(DType::kI32, {tokens, k}, std::move(values));
}

// Every row once, mixed.
CaseInput places(int64_t tokens, int64_t k) {
  const int64_t rows = tokens * k;
  int64_t step = rows / 2 + 1;
  while (std::gcd(step, rows) != 1) ++step;
  std::vector<double> values;
  for (int64_t i = 0; i < rows; ++i) values.push_back(static_cast<double>(i * step % rows));
  return given(DType::kI32, {tokens, k}, std::move(values));
}

Attrs router(int64_t k, const char* scoring, bool renormalize) {
  return {{"k", k}, {"scoring", std::string(scoring)}, {"renormalize", renormalize}};
}

void add_router_cases(std::vector<Case>& cases) {
  const std::vector<DType> f32 = {DType::kF32};
  for (const char* scoring : {"softmax", "sigmoid"}) {
    for (bool renormalize : {false, true}) {
      const std::string name = std::string(scoring) + (renormalize ? "_renormalized" : "");
      cases.push_back({.op = Op::kTopK,
                       .name = name,
                       .inputs = {normal(DType::kF32, {9, 6})},
                       .attrs = router(2, scoring, renormalize),
                       .tolerance = transcendental(),
                       .dtypes = f32});
      cases.push_back(
          {.op = Op::kTopKGrad,
           .name = name,
           .inputs = {normal(DType::kF32, {9, 6}), choices(9, 2, 6), normal(DType::kF32, {9, 2}),
                      normal(DType::kF32, {9, 6}), normal(DType::kF32, {9})},
           .attrs = router(2, scoring, renormalize),
           .tolerance = {.relative = 1e-5, .absolute = 4e-6, .reason = "differences of float32 sums near 1"},
           .dtypes = f32});
    }
  }
  cases.push_back(
      {.op = Op::kTopK,
       .name = "ties_and_nan",
       .inputs = {given(DType::kF32, {4, 5}, {1,    1,    1,    1,    1,    0,         kNan, 2,         2, 1,
                                              kNan, kNan, kNan, kNan, kNan, -INFINITY, 3,    -INFINITY, 3, 0})},
       .attrs = router(3, "softmax", true),
       .tolerance = transcendental(),
       .dtypes = f32,
       .gradient = false});
  cases.push_back({.op = Op::kTopK,
                   .name = "8_of_128",
                   .inputs = {normal(DType::kF32, {33, 128}, 2)},
                   .attrs = router(8, "softmax", true),
                   .tolerance = transcendental(),
                   .dtypes = f32,
                   .gradient = false});
  cases.push_back({.op = Op::kTopK,
                   .name = "one_expert",
                   .inputs = {normal(DType::kF32, {5, 1})},
                   .attrs = router(1, "sigmoid", false),
                   .tolerance = transcendental(),
                   .dtypes = f32});
  cases.push_back({.op = Op::kTopKGrad,
                   .name = "weights_alone_8_of_128",
                   .inputs = {normal(DType::kF32, {7, 128}), choices(7, 8, 128), normal(DType::kF32, {7, 8})},
                   .attrs = router(8, "softmax", true),
                   .tolerance = {.relative = 1e-5, .absolute = 4e-6, .reason = "differences of float32 sums near 1"},
                   .dtypes = f32});
  cases.push_back({.op = Op::kTopKGrad,
                   .name = "scores_alone",
                   .inputs = {normal(DType::kF32, {7, 12}), choices(7, 2, 12), absent(), normal(DType::kF32, {7, 12})},
                   .attrs = router(2, "softmax", false),
                   .tolerance = {.relative = 1e-5, .absolute = 4e-6, .reason = "differences of float32 sums near 1"},
                   .dtypes = f32});
}

void add_row_cases(std::vector<Case>& cases) {
  const std::vector<DType> f32 = {DType::kF32};
  const auto group = [&](const char* name, CaseInput experts, int64_t groups) {
    cases.push_back({.op = Op::kGroupRows,
                     .name = name,
                     .inputs = {std::move(experts)},
                     .attrs = {{"groups", groups}},
                     .dtypes = f32,
                     .gradient = false});
  };
  group("7x2_of_5", choices(7, 2, 5), 5);
  group("all_to_one", given(DType::kI32, {4, 1}, {2, 2, 2, 2}), 4);
  group("1x1", given(DType::kI32, {1, 1}, {0}), 1);
  group("3000x8_of_128", choices(3000, 8, 128), 128);
  for (const auto& [tokens, k, experts, parts] : {std::tuple{7, 2, 5, 3}, std::tuple{600, 8, 128, 10}}) {
    std::vector<double> part;  // ascending, as texts sorted by adapter have them, some without a token
    for (int t = 0; t < tokens; ++t) part.push_back(static_cast<double>(t * parts / (tokens + 5)));
    cases.push_back({.op = Op::kGroupRows,
                     .name = fmt::format("{}x{}_of_{}_in_{}_parts", tokens, k, experts, parts),
                     .inputs = {choices(tokens, k, experts), given(DType::kI32, {tokens}, std::move(part))},
                     .attrs = {{"groups", int64_t{experts} * parts}, {"parts", int64_t{parts}}},
                     .dtypes = f32,
                     .gradient = false});
  }
  for (const auto& [tokens, k, width] : {std::tuple{5, 2, 9}, std::tuple{1, 1, 1}, std::tuple{67, 8, 264}}) {
    const std::string name = fmt::format("{}x{}x{}", tokens, k, width);
    cases.push_back({.op = Op::kDispatchRows, .name = name, .inputs = {x({tokens, width}), places(tokens, k)}});
    cases.push_back({.op = Op::kDispatchRows,
                     .name = name + "_scaled",
                     .inputs = {codes(DType::kE4M3, {tokens, width}), places(tokens, k), normal(DType::kF32, {tokens})},
                     .dtypes = f32,
                     .gradient = false});
    cases.push_back({.op = Op::kCombineRows,
                     .name = name,
                     .inputs = {x({tokens * k, width}), places(tokens, k), normal(DType::kF32, {tokens, k})},
                     .tolerance = accumulated(k)});
    cases.push_back({.op = Op::kCombineRows,
                     .name = name + "_sum",
                     .inputs = {x({tokens * k, width}), places(tokens, k)},
                     .tolerance = accumulated(k)});
    cases.push_back(
        {.op = Op::kCombineRowsGrad,
         .name = name,
         .inputs = {x({tokens * k, width}), places(tokens, k), normal(DType::kF32, {tokens, k}), x({tokens, width})},
         .tolerance = accumulated(width)});
  }
  cases.push_back(
      {.op = Op::kDispatchRows, .name = "4096x2x4096", .inputs = {x({4096, 4096}), places(4096, 2)}, .large = true});
  cases.push_back({.op = Op::kCombineRows,
                   .name = "4096x2x4096",
                   .inputs = {x({8192, 4096}), places(4096, 2), normal(DType::kF32, {4096, 2})},
                   .large = true});
}

std::vector<double> many_experts(int64_t experts, int64_t rows) {
  std::vector<double> values;
  for (int64_t e = 0; e <= experts; ++e) values.push_back(static_cast<double>(e * rows));
  return values;
}

void add_product_cases(std::vector<Case>& cases) {
  struct Groups {
    const char* name;
    std::vector<double> offsets;
    int64_t in, out;
  };
  const std::vector<Groups> groups = {{"3_experts", {0, 3, 4, 11}, 8, 16},
                                      {"some_without_rows", {0, 0, 5, 5, 5, 6}, 40, 24},
                                      {"all_to_one", {0, 0, 70, 70}, 64, 32},
                                      {"odd_sizes", {0, 1, 2, 20}, 37, 19},
                                      {"two_tiles", {0, 9, 139, 140, 150}, 144, 144},
                                      {"wide", {0, 100, 160}, 80, 256},
                                      {"whole_tiles", {0, 256, 256}, 64, 128},
                                      {"tails", {0, 0, 1, 200, 233}, 72, 264}};
  for (const Groups& g : groups) {
    const auto experts = static_cast<int64_t>(g.offsets.size()) - 1, rows = static_cast<int64_t>(g.offsets.back());
    cases.push_back({.op = Op::kGroupedMatmul,
                     .name = g.name,
                     .inputs = {x({rows, g.in}), x({experts * g.out, g.in}), offsets(g.offsets)},
                     .attrs = {{"trans_b", true}},
                     .tolerance = accumulated(g.in),
                     .gradient = rows < 50});
    cases.push_back({.op = Op::kGroupedMatmul,
                     .name = std::string(g.name) + "_dgrad",
                     .inputs = {x({rows, g.in}), x({experts * g.in, g.out}), offsets(g.offsets)},
                     .tolerance = accumulated(g.in),
                     .gradient = rows < 50});
    for (bool sum : {false, true}) {
      Case c{.op = Op::kGroupedMatmulWgrad,
             .name = std::string(g.name) + (sum ? "_sum" : ""),
             .inputs = {x({rows, g.out}), x({rows, g.in}), offsets(g.offsets)},
             .tolerance = accumulated(rows)};
      if (sum) c.inputs.push_back(normal(DType::kF32, {experts * g.out, g.in}));
      cases.push_back(std::move(c));
    }
    struct Scaling {
      const char *name, *a, *b;
      Shape a_scales, b_scales;
      DType format = DType::kE4M3;
    };
    const std::vector<Scaling> scalings = {{"tensor", "tensor", "tensor", {1}, {1}},
                                           {"rows", "row", "row", {rows}, {experts * g.out}},
                                           {"token_rows", "row", "tensor", {rows}, {1}},
                                           {"i8", "row", "row", {rows}, {experts * g.out}, DType::kI8}};
    for (const Scaling& s : scalings) {
      const bool integer = s.format == DType::kI8;
      const auto operand = [&](Shape shape) {
        return integer ? integers(DType::kI8, std::move(shape), -127, 128) : uniform(s.format, std::move(shape), -2, 2);
      };
      const auto scale = [&](Shape shape) {
        const double low = integer ? 0.002 : 0.25;
        return uniform(DType::kF32, std::move(shape), low, 4 * low);
      };
      cases.push_back({.op = Op::kScaledGroupedMatmul,
                       .name = std::string(g.name) + "_" + s.name,
                       .inputs = {operand({rows, g.in}), scale(s.a_scales), operand({experts * g.out, g.in}),
                                  scale(s.b_scales), offsets(g.offsets)},
                       .attrs = {{"trans_b", true},
                                 {"scaling_a", std::string(s.a)},
                                 {"scaling_b", std::string(s.b)},
                                 {"to", std::string("f32")}},
                       .tolerance = accumulated(4 * g.in),
                       .dtypes = {DType::kF32}});
    }
  }
  // What is not finite stays with its expert, in tiles that reach into the next one's rows or weights.
  const auto with_nan = [](const Shape& shape, int64_t first, int64_t last) {
    CaseInput input = x(shape);
    input.fill = [=, fill = input.fill](Philox& random, std::vector<double>& values) {
      fill(random, values);
      std::fill(values.begin() + first * shape[1], values.begin() + last * shape[1], kNan);
    };
    return input;
  };
  const auto add_nan = [&](Op op, const char* name, CaseInput a, CaseInput b, Attrs attrs) {
    cases.push_back({.op = op,
                     .name = name,
                     .inputs = {std::move(a), std::move(b), offsets({0, 37, 50, 83})},
                     .attrs = std::move(attrs),
                     .tolerance = accumulated(72),
                     .gradient = false});
  };
  add_nan(Op::kGroupedMatmul, "nan_of_an_expert", x({83, 72}), with_nan({3 * 40, 72}, 40, 80), {{"trans_b", true}});
  add_nan(Op::kGroupedMatmul, "nan_of_an_expert_dgrad", x({83, 72}), with_nan({3 * 72, 40}, 72, 144), {});
  add_nan(Op::kGroupedMatmulWgrad, "nan_of_an_expert", with_nan({83, 40}, 37, 50), x({83, 72}), {});
  add_nan(Op::kGroupedMatmulWgrad, "nan_beside", x({83, 40}), with_nan({83, 72}, 37, 50), {});
  // More tiles of results than a device has SMs.
  const std::vector<double> many_tiles = {0, 40, 41, 241};
  cases.push_back({.op = Op::kGroupedMatmul,
                   .name = "many_tiles",
                   .inputs = {x({241, 64}), x({3 * 6408, 64}), offsets(many_tiles)},
                   .attrs = {{"trans_b", true}},
                   .tolerance = accumulated(64),
                   .gradient = false});
  cases.push_back({.op = Op::kGroupedMatmul,
                   .name = "many_tiles_dgrad",
                   .inputs = {x({160, 64}), x({40 * 64, 520}), offsets(many_experts(40, 4))},
                   .tolerance = accumulated(64),
                   .gradient = false});
  cases.push_back({.op = Op::kGroupedMatmulWgrad,
                   .name = "many_tiles",
                   .inputs = {x({160, 136}), x({160, 264}), offsets(many_experts(40, 4))},
                   .tolerance = accumulated(160)});
  cases.push_back({.op = Op::kScaledGroupedMatmul,
                   .name = "many_tiles_rows",
                   .inputs = {uniform(DType::kE4M3, {241, 64}, -2, 2), uniform(DType::kF32, {241}, 0.25, 1),
                              uniform(DType::kE4M3, {3 * 6408, 64}, -2, 2), uniform(DType::kF32, {3 * 6408}, 0.25, 1),
                              offsets(many_tiles)},
                   .attrs = {{"trans_b", true},
                             {"scaling_a", std::string("row")},
                             {"scaling_b", std::string("row")},
                             {"to", std::string("bf16")}},
                   .tolerance = accumulated(4 * 64),
                   .dtypes = {DType::kF32}});
  struct Blocks {
    const char* name;
    std::vector<double> offsets;
    int64_t in, out;
  };
  const std::vector<Blocks> blocks = {{"blocks", {0, 4, 9}, 256, 128},
                                      {"blocks_few", {0, 0, 3, 8}, 272, 128},
                                      {"blocks_tails", {0, 0, 37, 200, 201}, 272, 128},
                                      {"blocks_many_tiles", many_experts(70, 2), 128, 256}};
  for (const Blocks& b : blocks) {
    const auto experts = static_cast<int64_t>(b.offsets.size()) - 1, rows = static_cast<int64_t>(b.offsets.back());
    const int64_t deep = (b.in + 127) / 128;
    cases.push_back({.op = Op::kScaledGroupedMatmul,
                     .name = b.name,
                     .inputs = {codes(DType::kE4M3, {rows, b.in}), uniform(DType::kF32, {deep, rows}, 0.001, 0.002),
                                codes(DType::kE4M3, {experts * b.out, b.in}),
                                uniform(DType::kF32, {experts * b.out / 128, deep}, 0.001, 0.002), offsets(b.offsets)},
                     .attrs = {{"trans_b", true},
                               {"scaling_a", std::string("1x128")},
                               {"scaling_b", std::string("128x128")},
                               {"to", std::string("bf16")}},
                     .tolerance = accumulated(2 * b.in),
                     .dtypes = {DType::kF32}});
  }
}

// Weights in integers by groups, with zero points and without, in rows and in the order of a kernel.
void add_group_cases(std::vector<Case>& cases) {
  const auto add = [&](const char* scaling, DType x, DType format, bool zero, const char* order,
                       const std::vector<double>& starts, int64_t n, int64_t k) {
    const int64_t rows = static_cast<int64_t>(starts.back()), outputs = (std::ssize(starts) - 1) * n;
    const bool codes_of_x = is_code(x), integer = is_integer_code(x);
    const Shape scales = scale_shape(parse_scale_layout(scaling), outputs, k);
    Case c{.op = Op::kScaledGroupedMatmul,
           .name = fmt::format("{}_{}_{}x{}x{}_{}{}{}", dtype_name(x), dtype_name(format), rows, n, k, scaling,
                               zero ? "_zeros" : "", *order != 0 ? "_" + std::string(order) : ""),
           .inputs = {integer ? codes(x, {rows, k}) : normal(x, {rows, k}),
                      uniform(DType::kF32, codes_of_x ? Shape{rows} : Shape{1}, 0.5, 1.5),
                      integers(format, {outputs, k}, -8, 8), uniform(DType::kF32, scales, 0.01, 0.1), offsets(starts)},
           .attrs = {{"trans_b", true},
                     {"scaling_a", std::string(codes_of_x ? "row" : "tensor")},
                     {"scaling_b", std::string(scaling)},
                     {"to", std::string("bf16")}},
           .tolerance = accumulated(k),
           .dtypes = {DType::kF32}};
    if (zero) c.inputs.push_back(integers(DType::kI8, scales, -8, 9));
    if (*order != 0) c.attrs.set("order", std::string(order));
    c.tolerance.reason = "as accumulated(k); codes of up to 8 less zero points of up to 8, scales of up to 0.1";
    c.tolerance.absolute *= integer ? 127 : 4;
    cases.push_back(std::move(c));
  };
  const std::vector<double> few = {0, 3, 3, 4, 9}, many = {0, 40, 41, 41}, tiles = {0, 0, 150, 290, 291, 291};
  for (const char* scaling : {"1x32", "1x64", "1x128", "row"})
    for (const bool zero : {false, true}) {
      for (const DType x : {DType::kI8, DType::kE4M3, DType::kBF16}) {
        add(scaling, x, DType::kI4, zero, "", few, 24, 128);
        add(scaling, x, DType::kI8, zero, "", few, 17, 128);
      }
      add(scaling, DType::kI8, DType::kI4, zero, "rows16", few, 48, 256);
      add(scaling, DType::kI8, DType::kI4, zero, "rows16", many, 16, 128);
      for (const DType x : {DType::kE4M3, DType::kBF16}) {
        const char* order = x == DType::kBF16 ? "wgmma_x16" : "wgmma_x8";
        add(scaling, x, DType::kI4, zero, order, few, 128, 256);
        add(scaling, x, DType::kI4, zero, order, many, 256, 128);
      }
    }
  add("1x128", DType::kE4M3, DType::kI4, true, "wgmma_x8", tiles, 128, 128);
  add("1x64", DType::kBF16, DType::kI4, false, "wgmma_x16", tiles, 128, 128);
  // More tiles than a GPU has SMs.
  add("1x128", DType::kE4M3, DType::kI4, false, "wgmma_x8", {0, 40, 40, 170}, 70 * 128, 256);
}

}  // namespace

std::vector<Case> experts_cases() {
  std::vector<Case> cases;
  add_router_cases(cases);
  add_row_cases(cases);
  add_product_cases(cases);
  add_group_cases(cases);
  return cases;
}

}  // namespace octet::cpu
