// Cases of the norms and their gradients; the statistics the gradients read come from the reference forward. And of a
// residual with the dropout of a part before a norm, as one fusion.
#include "kernels/cpu/testing/cases.h"
#include "ir/builder.h"

namespace octet::cpu {
namespace {

const Tolerance kNorm{.relative = 4e-6,
                      .absolute = 4e-6,
                      .reason = "float32 mean, variance and 1/sqrt of a row, each within a few ulp of values near 1"};
// dweight, dbias sum over the rows as well.
const Tolerance kNormGrad{.relative = 1e-5,
                          .absolute = 2e-5,
                          .reason = "float32 row sums of g h and column sums over up to 300 rows of values near 1"};

void statistics(const Node& node, std::vector<RefTensor>& inputs) {
  const int64_t cols = inputs[0].type.shape.cols();
  const bool layer = node.op == Op::kLayerNormGrad;
  for (int64_t r = 0; r < inputs[0].type.shape.rows(); ++r) {
    const double* row = inputs[0].values.data() + r * cols;
    double mean = 0, squares = 0;
    for (int64_t c = 0; layer && c < cols; ++c) mean += row[c] / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean);
    if (layer) inputs[2].values[static_cast<size_t>(r)] = mean;
    inputs[layer ? 3 : 2].values[static_cast<size_t>(r)] = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
  }
}

// x, residual, rng, weight -> sum, norm
Graph dropped_residual(const std::vector<TensorType>& inputs) {
  Graph body("body");
  Builder b(body);
  std::vector<Value> in;
  for (const TensorType& type : inputs) in.push_back(b.input(fmt::format("in.{}", in.size()), type));
  const NodeId dropped = b.emit(Op::kDropout, {in[0], in[2]},
                                {{"p", 0.25}, {"key", int64_t{5}}, {"origin", std::vector<int64_t>{2, 66, 198}}});
  const Value sum = b.add(in[1], {dropped, 0});
  b.output("sum", sum);
  b.output("norm", b.rms_norm(sum, in[3], 1e-5).y);
  return body;
}

}  // namespace

std::vector<Case> norm_cases() {
  std::vector<Case> cases;
  struct Size {
    int64_t rows, cols;
    bool large;
  };
  for (const Size& s : {Size{1, 1, false}, Size{3, 7, false}, Size{5, 64, false}, Size{70, 33, false},
                        Size{2, 1025, false}, Size{300, 260, false}, Size{9, 768, false}, Size{37, 2560, false},
                        Size{6, 8192, false}, Size{3, 12296, false}, Size{2, 40000, false}, Size{512, 1024, true}}) {
    const std::string name = fmt::format("{}x{}", s.rows, s.cols);
    const Shape shape{s.rows, s.cols}, row{s.cols}, statistic{s.rows};
    // Weights and biases are f32 with bf16 activations.
    const CaseInput weight = normal(DType::kF32, row), statistics_in = normal(DType::kF32, statistic);
    const bool smooth = s.cols > 1 && s.cols < 100;
    cases.push_back({.op = Op::kLayerNorm,
                     .name = name,
                     .inputs = {x(shape), weight, weight},
                     .attrs = {{"eps", 1e-5}},
                     .tolerance = kNorm,
                     .large = s.large,
                     .gradient = smooth});
    cases.push_back({.op = Op::kRmsNorm,
                     .name = name,
                     .inputs = {x(shape), weight},
                     .attrs = {{"eps", 1e-5}},
                     .tolerance = kNorm,
                     .large = s.large,
                     .gradient = smooth});
    if (s.cols == 1) continue;  // 1/sqrt(eps) amplifies the rounding of a zero variance without bound
    cases.push_back({.op = Op::kLayerNormGrad,
                     .name = name,
                     .inputs = {x(shape), weight, statistics_in, statistics_in, x(shape)},
                     .tolerance = kNormGrad,
                     .prepare = statistics,
                     .large = s.large});
    cases.push_back({.op = Op::kRmsNormGrad,
                     .name = name,
                     .inputs = {x(shape), weight, statistics_in, x(shape)},
                     .tolerance = kNormGrad,
                     .prepare = statistics,
                     .large = s.large});
  }
  cases.push_back({.op = Op::kFusion,
                   .name = "dropout_of_a_part_residual_norm",
                   .inputs = {x({37, 66}), x({37, 66}), rng_state(), normal(DType::kF32, {66})},
                   .tolerance = kNorm,
                   .body = dropped_residual,
                   .gradient = false});
  return cases;
}

}  // namespace octet::cpu
