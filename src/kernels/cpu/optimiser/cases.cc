// Cases of the optimisers, the sum of squares and the clip factor.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

std::vector<Case> optimiser_cases() {
  std::vector<Case> cases;
  const DType f = DType::kF32;
  const double inf = INFINITY, nan = NAN;
  const auto one = [&](double value) { return given(f, {1}, {value}); };
  const auto update = [&](Op op, const std::string& name, Shape shape, Attrs attrs, double step, double clip,
                          double finite, bool large = false, std::vector<DType> gradients = {DType::kF32}) {
    std::vector<CaseInput> inputs = {normal(f, shape), x(shape)};
    if (op != Op::kSgd) inputs.push_back(normal(f, shape, 0.1)), inputs.push_back(uniform(f, shape, 0.0, 0.1));
    if (op != Op::kAdamDirection) inputs.push_back(one(3e-4));
    for (double scalar : {step, clip, finite}) inputs.push_back(one(scalar));
    if (attrs.get_or<double>("momentum", 0) != 0) inputs.push_back(normal(f, shape));
    cases.push_back(
        {.op = op,
         .name = name,
         .inputs = std::move(inputs),
         .attrs = std::move(attrs),
         .tolerance =
             op == Op::kSgd || op == Op::kAdamDirection  // whose results are not scaled by a small rate
                 ? Tolerance{2e-6, 5e-7, "float32: sums of three terms up to 4 that may cancel, each rounded"}
                 : Tolerance{2e-6, 5e-8,
                             "float32: a few ulp; moments are sums of two terms up to 0.5 that may cancel, each "
                             "rounded"},
         .dtypes = std::move(gradients),
         .large = large,
         .gradient = false});
  };
  const Attrs adam = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  for (Op op : {Op::kAdamw, Op::kAdamDirection}) {
    update(op, "first_step", {7, 5}, adam, 1, 1, 1);
    update(op, "late_clipped", {67}, adam, 1000, 0.37, 1);
    update(op, "not_finite_keeps", {3, 11}, adam, 2, 1, 0);
    update(op, "257x301", {257, 301}, adam, 7, 0.5, 1, false, {f, DType::kBF16});
    update(op, "820x830", {820, 830}, adam, 3, 1, 1);
    update(op, "1024x1024", {1024, 1024}, adam, 10, 1, 1, true);
    std::vector<CaseInput> inputs = {normal(f, {4}), given(f, {4}, {nan, inf, 1, -inf}), normal(f, {4}),
                                     uniform(f, {4}, 0, 1)};
    if (op == Op::kAdamw) inputs.push_back(one(3e-4));
    for (double scalar : {5.0, nan, 0.0}) inputs.push_back(one(scalar));
    cases.push_back({.op = op,
                     .name = "nan_gradient_keeps",
                     .inputs = std::move(inputs),
                     .attrs = adam,
                     .dtypes = {f},
                     .gradient = false});
  }
  Attrs no_decay = adam;
  no_decay.set("weight_decay", 0.0);
  update(Op::kAdamDirection, "no_decay", {37}, no_decay, 4, 1, 1);
  const auto ratio = [&](const std::string& name, double params, double updates, Attrs attrs, double clip = -1) {
    std::vector<CaseInput> inputs = {given(DType::kF64, {1}, {params}), given(DType::kF64, {1}, {updates}), one(0.25)};
    if (clip >= 0) inputs.push_back(one(clip));
    cases.push_back({.op = Op::kTrustRatio,
                     .name = name,
                     .inputs = std::move(inputs),
                     .attrs = std::move(attrs),
                     .tolerance = {.relative = 1e-7, .reason = "float64, rounded once to float32"},
                     .dtypes = {f},
                     .gradient = false});
  };
  ratio("lamb", 17.5, 3.25, {});
  ratio("lars", 17.5, 3.25, {{"coefficient", 0.001}, {"weight_decay", 5e-5}, {"eps", 1e-3}}, 0.37);
  ratio("zero_params", 0, 3.25, {});
  ratio("zero_updates", 17.5, 0, {{"coefficient", 0.001}});
  for (const bool nesterov : {false, true}) {
    const Attrs sgd = {{"momentum", 0.9}, {"nesterov", nesterov}, {"weight_decay", 0.1}};
    const std::string of = nesterov ? "nesterov_" : "momentum_";
    update(Op::kSgd, of + "67", {67}, sgd, 2, 0.37, 1);
    update(Op::kSgd, of + "257x301", {257, 301}, sgd, 7, 0.5, 1, false, {f, DType::kBF16});
    update(Op::kSgd, of + "not_finite_keeps", {3, 11}, sgd, 2, 1, 0);
    Attrs inside = sgd;
    inside.set("rate_inside", true);
    update(Op::kSgd, of + "rate_inside_67x5", {67, 5}, inside, 2, 0.37, 1, false, {f, DType::kBF16});
  }
  const Attrs plain = {{"momentum", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}};
  update(Op::kSgd, "plain_257x301", {257, 301}, plain, 1, 0.5, 1, false, {f, DType::kBF16});
  update(Op::kSgd, "plain_not_finite_keeps", {3, 11}, plain, 2, 1, 0);
  update(Op::kSgd, "1024x1024", {1024, 1024}, {{"momentum", 0.9}, {"nesterov", false}, {"weight_decay", 0.1}}, 10, 1, 1,
         true);
  const auto squares = [&](const std::string& name, std::vector<CaseInput> inputs, bool large = false,
                           Attrs attrs = {}) {
    cases.push_back(
        {.op = Op::kSquareSum,
         .name = name,
         .inputs = std::move(inputs),
         .attrs = std::move(attrs),
         .tolerance = {.relative = 1e-5, .reason = "float32 sums of squares in any order over up to 2^20 elements"},
         .dtypes = {f},
         .large = large,
         .gradient = false});
  };
  squares("three", {normal(f, {7, 5}), normal(f, {1}), normal(f, {130})});
  squares("two_large", {normal(f, {257, 301}), normal(f, {70000})});
  squares("many", std::vector<CaseInput>(170, normal(f, {37})));
  squares("squares_overflow", {given(f, {3}, {1e20, -3e20, 5}), normal(f, {40})});
  squares("zero", {given(f, {3}, {0, 0, 0})});
  squares("nan", {normal(f, {3}), given(f, {2}, {nan, 1})});
  squares("infinite", {given(f, {2}, {-inf, 1})});
  const auto counted = [](std::vector<int64_t> list) { return Attrs{{"counted", std::move(list)}}; };
  squares("two_counted", {normal(f, {257, 301}), given(f, {2}, {nan, 1}), normal(f, {130})}, false, counted({0, 2}));
  squares("last_counted", std::vector<CaseInput>(170, normal(f, {37})), false, counted({3, 169}));
  squares("none_counted", {normal(f, {7, 5})}, false, counted({}));
  squares("of_this_stage", {normal(f, {257, 301})}, false, {{"stages", false}});
  squares("1024x1024", {normal(f, {1024, 1024})}, true);
  const auto clip = [&](const std::string& name, double squares_given, double max_norm) {
    cases.push_back({.op = Op::kClipFactor,
                     .name = name,
                     .inputs = {given(DType::kF64, {1}, {squares_given})},
                     .attrs = {{"max_norm", max_norm}},
                     .tolerance = {.reason = "float64, rounded once: equal"},
                     .dtypes = {f},
                     .gradient = false});
  };
  clip("clipped", 171.25, 1.0);
  clip("within_the_limit", 0.0035, 1.0);
  clip("no_limit", 149.0, 0.0);
  clip("beyond_float32", 1e41, 1.0);
  clip("zero", 0, 1.0);
  clip("nan", nan, 1.0);
  clip("infinite", inf, 1.0);
  const auto blend = [&](const std::string& name, Shape shape, double rate, std::vector<CaseInput> scalars) {
    std::vector<CaseInput> inputs = {normal(f, shape), normal(f, shape)};
    inputs.insert(inputs.end(), scalars.begin(), scalars.end());
    cases.push_back({.op = Op::kBlend,
                     .name = name,
                     .inputs = std::move(inputs),
                     .attrs = {{"rate", rate}},
                     .tolerance = {1e-6, 3e-7, "float32: a difference up to 8 that may cancel, rounded"},
                     .dtypes = {f},
                     .gradient = false});
  };
  blend("value", {67}, 0.1, {});
  blend("mean", {5, 7}, 0.1, {one(12), one(1)});
  blend("average_820x830", {820, 830}, 0.001, {absent(), one(1)});
  blend("taken_over", {9}, 1, {one(4)});
  blend("not_finite_keeps", {3, 11}, 0.1, {one(4), one(0)});
  blend("no_count_keeps", {40}, 0.1, {one(0), one(1)});
  cases.push_back({.op = Op::kBlend,
                   .name = "nan_keeps",
                   .inputs = {normal(f, {3}), given(f, {3}, {nan, inf, 1}), one(2), one(0)},
                   .attrs = {{"rate", 0.5}},
                   .dtypes = {f},
                   .gradient = false});
  return cases;
}

}  // namespace octet::cpu
