// Sizes of real models: matrices of a layer, a whole table, a vector; gradients of several layers.
#include "kernels/cuda/bench_cases.h"
#include "kernels/cuda/optimiser/group_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> optimiser_bench_cases() {
  using namespace cpu;
  std::vector<Case> cases;
  const DType f = DType::kF32;
  struct Size {
    const char* name;
    Shape shape;
  };
  for (const Size& s : {Size{"vector", {4096}}, Size{"4096x4096", {4096, 4096}}, Size{"16384x4096", {16384, 4096}},
                        Size{"table", {51200, 4096}}}) {
    for (Op op : {Op::kAdamw, Op::kAdamDirection}) {
      std::vector<CaseInput> inputs = {normal(f, s.shape), x(s.shape), normal(f, s.shape), normal(f, s.shape)};
      if (op == Op::kAdamw) inputs.push_back(given(f, {1}, {3e-4}));
      for (double scalar : {1000.0, 0.5, 1.0}) inputs.push_back(given(f, {1}, {scalar}));
      cases.push_back({.op = op,
                       .name = s.name,
                       .inputs = std::move(inputs),
                       .attrs = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}});
    }
    cases.push_back({.op = Op::kSgd,
                     .name = s.name,
                     .inputs = {normal(f, s.shape), x(s.shape), given(f, {1}, {3e-4}), given(f, {1}, {1000}),
                                given(f, {1}, {0.5}), given(f, {1}, {1}), normal(f, s.shape)},
                     .attrs = {{"momentum", 0.9}, {"nesterov", false}, {"weight_decay", 0.1}}});
  }
  std::vector<CaseInput> one, layers;
  one.push_back(x({16384, 4096}));
  for (int layer = 0; layer < 8; ++layer) {
    for (Shape shape : {Shape{12288, 4096}, Shape{4096, 4096}, Shape{4096, 4096}, Shape{4096}, Shape{4096}})
      layers.push_back(x(std::move(shape)));
  }
  cases.push_back({.op = Op::kSquareSum, .name = "16384x4096", .inputs = one});
  cases.push_back({.op = Op::kSquareSum, .name = "8_layers", .inputs = layers});
  std::vector<Shape> shapes;
  for (int layer = 0; layer < 4; ++layer) {
    for (Shape shape : {Shape{12288, 4096}, Shape{4096, 4096}, Shape{4096}}) shapes.push_back(std::move(shape));
  }
  for (Op op : {Op::kAdamw, Op::kSgd, Op::kAdamDirection}) cases.push_back(update_group_case(op, shapes, 1));
  cases.push_back(update_group_case(Op::kAdamw, std::vector<Shape>(32, Shape{4096}), 1));
  return cases;
}

}  // namespace octet::cuda
