// The case list: small and a few large instances of every op, for four uses: conformance of every kernel row with the
// reference, gradient rules against finite differences, benchmarks, and the support table (docs/support.md).
//
// Adding a case is one entry in <family>/cases.cc:
//   {.op = Op::kMatmul, .name = "3x5x7", .inputs = {x({3, 5}), x({5, 7})}, .tolerance = accumulated(5)}
// x(...) takes the variant's float type, so that one entry covers every type of `dtypes`. Tolerances are defined only
// here, with their reason; integer and FP8 results must always be equal.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/reference.h"

namespace octet::cpu {

// |actual - expected| <= absolute + relative |expected|, plus one unit in the last place for results of 16 bits (a
// float32 result near a rounding boundary may round either way).
struct Tolerance {
  double relative = 0, absolute = 0;
  const char* reason = "copies, or one float32 operation on float32 values: equal";
};

using Fill = std::function<void(Philox&, std::vector<double>&)>;
struct CaseInput {
  std::optional<DType> dtype;  // none: the variant's
  Shape shape;
  Fill fill = {};
  bool absent = false;
  bool constant = false;  // a param, which kernels may read before those ahead of them have ended
};

struct Case {
  Op op = Op::kAdd;
  std::string name;  // unique per op
  std::vector<CaseInput> inputs;
  Attrs attrs = {};
  Tolerance tolerance = {};
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  // Computes inputs that depend on others (attention_grad's out and lse), after all are filled.
  std::function<void(const Node& node, std::vector<RefTensor>& inputs)> prepare = {};
  // Fusion only: the body for these input types.
  std::function<Graph(const std::vector<TensorType>& inputs)> body = {};
  bool large = false;    // speed only: too slow for the reference
  bool gradient = true;  // smooth at its inputs: checked against finite differences if the op has a gradient rule
};

const std::vector<Case>& all_cases();

// A graph of input leaves "in0".. and the case's node, whose results are outputs "out0"..; and the input values.
struct BuiltCase {
  Graph graph;
  NodeId id = NodeId::kNone;
  std::vector<RefTensor> inputs;  // absent ones empty
  const Node& node() const { return graph.node(id); }
  std::vector<const RefTensor*> in() const;
};
BuiltCase build_case(const Case& c, DType dtype, bool fill = true);  // without values: for accepts() only
std::string case_name(const Case& c, DType dtype);                   // "matmul/3x5x7/bf16"

// --- input generators
CaseInput x(Shape shape, double std = 1.0);                    // normal, of the variant's type
CaseInput normal(DType dtype, Shape shape, double std = 1.0);  // normal, of a fixed type
CaseInput uniform(DType dtype, Shape shape, double low, double high);
CaseInput integers(DType dtype, Shape shape, int64_t low, int64_t high);  // low .. high-1
CaseInput given(DType dtype, Shape shape, std::vector<double> values);
CaseInput given_x(Shape shape, std::vector<double> values);  // of the variant's type
CaseInput rng_state();                                       // i64[3]: seed, step, micro-batch
CaseInput codes(DType format, Shape shape);                  // finite codes over the whole range
CaseInput absent();

// --- tolerances
Tolerance exact();
Tolerance transcendental();        // exp, erf, tanh in float32
Tolerance accumulated(int64_t n);  // a float32 sum of n products of standard normal values

// Per family.
std::vector<Case> elementwise_cases();
std::vector<Case> matmul_cases();
std::vector<Case> norm_cases();
std::vector<Case> attention_cases();
std::vector<Case> position_cases();
std::vector<Case> embedding_cases();
std::vector<Case> loss_cases();
std::vector<Case> shape_cases();
std::vector<Case> precision_cases();
std::vector<Case> optimiser_cases();
std::vector<Case> inference_cases();
std::vector<Case> sampling_cases();
std::vector<Case> experts_cases();

}  // namespace octet::cpu
