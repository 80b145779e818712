// Cases of the elementwise ops: odd sizes around vector widths, broadcasts, special values.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
  const double inf = INFINITY, nan = NAN;
  const std::vector<double> specials = {0.0,    -0.0,  inf,   -inf,  nan,     1e-40,   3.3e38,
                                        -500.0, 448.0, 464.0, 465.0, 57344.0, 61440.0, 0x1p-10};
  for (const char* to : {"f32", "bf16", "f16", "e4m3", "e5m2"}) {
    cases.push_back({.op = Op::kCast,
                     .name = std::string("5x37_to_") + to,
                     .inputs = {x({5, 37}, 30.0)},
                     .attrs = {{"to", std::string(to)}},
                     .dtypes = {DType::kF32, DType::kBF16, DType::kF16},
                     .gradient = std::string(to) == "f32"});
    cases.push_back({.op = Op::kCast,
                     .name = std::string("specials_to_") + to,
                     .inputs = {given_x({14}, specials)},
                     .attrs = {{"to", std::string(to)}},
                     .gradient = false});
  }
  for (const char* to : {"f32", "bf16"}) {
    for (DType from : {DType::kE4M3, DType::kE5M2}) {
      cases.push_back({.op = Op::kCast,
                       .name = std::string("codes_to_") + to,
                       .inputs = {codes(from, {3, 43})},
                       .attrs = {{"to", std::string(to)}},
                       .dtypes = {from},
                       .gradient = false});
    }
  }
  cases.push_back({.op = Op::kScale, .name = "3x41", .inputs = {x({3, 41})}, .attrs = {{"value", 0.125}}});
  cases.push_back({.op = Op::kScale,
                   .name = "third",
                   .inputs = {x({67})},
                   .attrs = {{"value", 1.0 / 3}},
                   .tolerance = {.relative = 1.2e-7, .reason = "the factor is rounded to float32 before the product"}});

  // Around zero, tails where the value underflows, and values that overflow exp in float32.
  const std::vector<double> tails = {0.0, -0.0, 1e-6, -1e-6, 5.5, -5.5, 12.0, -12.0, 90.0, -90.0, 3e4, -3e4};
  for (const bool far : {false, true}) {
    cases.push_back({.op = Op::kTanh,
                     .name = far ? "tails" : "7x33",
                     .inputs = {far ? given_x({12}, tails) : x({7, 33})},
                     .tolerance = transcendental(),
                     .gradient = !far});
  }
  struct Activation {
    Op op, gradient;
    Attrs attrs;
  };
  for (const Activation& a : {Activation{Op::kGelu, Op::kGeluGrad, {{"approximate", true}}},
                              Activation{Op::kGelu, Op::kGeluGrad, {{"approximate", false}}},
                              Activation{Op::kSilu, Op::kSiluGrad, {}}, Activation{Op::kRelu, Op::kReluGrad, {}}}) {
    const bool relu = a.op == Op::kRelu;
    const std::string form = a.op != Op::kGelu ? "" : a.attrs.get<bool>("approximate") ? "_tanh" : "_erf";
    const Tolerance tolerance = relu ? exact() : transcendental();
    cases.push_back(
        {.op = a.op, .name = "7x33" + form, .inputs = {x({7, 33}, 2.0)}, .attrs = a.attrs, .tolerance = tolerance});
    cases.push_back({.op = a.op,
                     .name = "tails" + form,
                     .inputs = {given_x({12}, tails)},
                     .attrs = a.attrs,
                     .tolerance = tolerance,
                     .gradient = false});
    cases.push_back({.op = a.gradient,
                     .name = "7x33" + form,
                     .inputs = {x({7, 33}, 2.0), x({7, 33})},
                     .attrs = a.attrs,
                     .tolerance = tolerance});
    cases.push_back({.op = a.gradient,
                     .name = "tails" + form,
                     .inputs = {given_x({12}, tails), x({12})},
                     .attrs = a.attrs,
                     .tolerance = tolerance});
    cases.push_back({.op = a.op,
                     .name = "300x257" + form,
                     .inputs = {x({300, 257}, 3.0)},
                     .attrs = a.attrs,
                     .tolerance = tolerance,
                     .gradient = false});
    cases.push_back({.op = a.gradient,
                     .name = "300x257" + form,
                     .inputs = {x({300, 257}, 3.0), x({300, 257})},
                     .attrs = a.attrs,
                     .tolerance = tolerance});
    cases.push_back(
        {.op = a.op, .name = "512x4096" + form, .inputs = {x({512, 4096})}, .attrs = a.attrs, .large = true});
    cases.push_back({.op = a.gradient,
                     .name = "512x4096" + form,
                     .inputs = {x({512, 4096}), x({512, 4096})},
                     .attrs = a.attrs,
                     .large = true});
  }

  for (Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kMaximum}) {
    cases.push_back({.op = op, .name = "5x19", .inputs = {x({5, 19}), x({5, 19})}});
    cases.push_back({.op = op, .name = "5x35_row", .inputs = {x({5, 35}), x({35})}});
    cases.push_back({.op = op, .name = "4x9_one", .inputs = {x({4, 9}), x({1})}});
    cases.push_back({.op = op, .name = "300x257", .inputs = {x({300, 257}), x({300, 257})}, .gradient = false});
    cases.push_back({.op = op, .name = "300x257_row", .inputs = {x({300, 257}), x({257})}, .gradient = false});
    // Float32 biases and scalars with 16-bit activations.
    cases.push_back({.op = op,
                     .name = "6x21_row_f32",
                     .inputs = {x({6, 21}), normal(DType::kF32, {21})},
                     .dtypes = {DType::kBF16}});
    cases.push_back(
        {.op = op, .name = "6x21_one_f32", .inputs = {x({6, 21}), normal(DType::kF32, {1})}, .dtypes = {DType::kBF16}});
    cases.push_back({.op = op, .name = "1x1", .inputs = {x({1, 1}), x({1, 1})}});
    cases.push_back({.op = op,
                     .name = "70_one_f32",
                     .inputs = {normal(DType::kF32, {70}), normal(DType::kF32, {1})},
                     .dtypes = {DType::kF32}});
    cases.push_back({.op = op, .name = "1024x1024", .inputs = {x({1024, 1024}), x({1024, 1024})}, .large = true});
  }
  cases.push_back({.op = Op::kMaximum,
                   .name = "nan",
                   .inputs = {given_x({4}, {nan, 1, inf, -inf}), given_x({4}, {1, nan, 2, -2})},
                   .gradient = false});

  const Tolerance dropped{.relative = 1.2e-7, .reason = "1/(1-p) is rounded to float32 before the product"};
  cases.push_back({.op = Op::kDropout,
                   .name = "7x13",
                   .inputs = {x({7, 13}), rng_state()},
                   .attrs = {{"p", 0.1}, {"key", int64_t{5}}},
                   .tolerance = dropped});
  cases.push_back({.op = Op::kDropout,
                   .name = "3x130_half",
                   .inputs = {x({3, 130}), rng_state()},
                   .attrs = {{"p", 0.5}, {"key", int64_t{77}}},
                   .tolerance = dropped});
  cases.push_back({.op = Op::kDropout,
                   .name = "301x259",
                   .inputs = {x({301, 259}), rng_state()},
                   .attrs = {{"p", 0.1}, {"key", int64_t{6}}},
                   .tolerance = dropped,
                   .gradient = false});
  cases.push_back({.op = Op::kDropout,
                   .name = "7x13_nothing_stays",
                   .inputs = {x({7, 13}), rng_state()},
                   .attrs = {{"p", 0.99999999}, {"key", int64_t{5}}},
                   .tolerance = dropped,
                   .gradient = false});
  // Parts of a matrix: first row, first column and columns of the whole; whole rows or not, words of one block or not.
  struct Part {
    int64_t rows, cols;
    std::vector<int64_t> origin;
  };
  for (const Part& p : {Part{7, 13, {5, 2, 29}}, Part{7, 13, {1, 0, 13}}, Part{8, 16, {3, 0, 16}},
                        Part{33, 64, {3, 64, 130}}, Part{301, 259, {1000, 259, 777}}, Part{2, 1030, {0, 7, 2060}}}) {
    cases.push_back({.op = Op::kDropout,
                     .name = fmt::format("{}x{}_from_{}", p.rows, p.cols, fmt::join(p.origin, "_")),
                     .inputs = {x({p.rows, p.cols}), rng_state()},
                     .attrs = {{"p", 0.25}, {"key", int64_t{5}}, {"origin", p.origin}},
                     .tolerance = dropped,
                     .gradient = false});
  }
  for (const auto& [rows, cols, p] : {std::tuple{7, 13, 0.1}, {3, 136, 0.5}, {301, 259, 0.75}}) {
    cases.push_back({.op = Op::kDropout,
                     .name = fmt::format("{}x{}_bytes", rows, cols),
                     .inputs = {x({rows, cols}), rng_state()},
                     .attrs = {{"p", p}, {"key", int64_t{6}}, {"bits", int64_t{8}}},
                     .tolerance = dropped,
                     .gradient = rows < 10});
  }
  for (const Part& p :
       {Part{7, 13, {5, 2, 29}}, Part{8, 16, {3, 0, 16}}, Part{33, 64, {3, 64, 130}}, Part{65, 64, {3, 64, 192}}}) {
    cases.push_back({.op = Op::kDropout,
                     .name = fmt::format("{}x{}_from_{}_bytes", p.rows, p.cols, fmt::join(p.origin, "_")),
                     .inputs = {x({p.rows, p.cols}), rng_state()},
                     .attrs = {{"p", 0.25}, {"key", int64_t{5}}, {"bits", int64_t{8}}, {"origin", p.origin}},
                     .tolerance = dropped,
                     .gradient = false});
  }
  cases.push_back({.op = Op::kDropout,
                   .name = "512x1024",
                   .inputs = {x({512, 1024}), rng_state()},
                   .attrs = {{"p", 0.1}, {"key", int64_t{5}}},
                   .large = true});
  return cases;
}

}  // namespace octet::cpu
