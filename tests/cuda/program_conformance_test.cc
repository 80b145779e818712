// CUDA rows on the nodes and values of whole training programs under every recipe, as exec/program_conformance_test.cc
// has it for the CPU.
#include "exec/testing/program_conformance.h"

#include <gtest/gtest.h>

#include "exec/graph_binding.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet {
namespace {

using conformance::Setting;

// A product under tf32, alone or in a fusion: the largest sum of |a| |b| over the contraction that the 2-norms of its
// rows and columns allow, which is what relative errors of the operands count from. 0: not such a product.
double tf32_terms(const conformance::Visit& v) {
  const Graph& g = v.node.op == Op::kFusion ? *v.node.body : v.graph;
  const Node* product = v.node.op == Op::kMatmul ? &v.node : nullptr;
  std::vector<int32_t> leaves;  // of the body, in the order of the fusion's inputs
  for (int32_t i = 0; v.node.op == Op::kFusion && i < g.size(); ++i) {
    if (g.node(NodeId{i}).op == Op::kInput) leaves.push_back(i);
    if (g.node(NodeId{i}).op == Op::kMatmul) product = &g.node(NodeId{i});
  }
  if (product == nullptr || !product->attrs.get_or("tf32", false)) return 0;
  const auto norm = [&](size_t side, bool contracts_rows) {  // the largest of one side's vectors
    const auto leaf = std::find(leaves.begin(), leaves.end(), index(product->inputs[side].node));
    const cpu::RefTensor& x = v.inputs[leaves.empty() ? side : static_cast<size_t>(leaf - leaves.begin())];
    const int64_t rows = x.type.shape.rows(), cols = x.type.shape.cols();
    std::vector<double> squares(static_cast<size_t>(contracts_rows ? cols : rows));
    for (int64_t i = 0; i < rows * cols; ++i) {
      const double value = x.values[static_cast<size_t>(i)];
      squares[static_cast<size_t>(contracts_rows ? i % cols : i / cols)] += value * value;
    }
    return std::sqrt(*std::max_element(squares.begin(), squares.end()));
  };
  return norm(0, product->attrs.get_or("trans_a", false)) * norm(1, !product->attrs.get_or("trans_b", false));
}

// What tensor cores add to the tolerance of float32 kernels.
bool is_fused_product(const Node& node) {
  return node.op == Op::kFusion && fusion_producer(*node.body) == Producer::kProduct;
}

cpu::Tolerance device_tolerance(const conformance::Visit& v) {
  if (const double terms = tf32_terms(v); terms > 0) {
    return {.relative = v.tolerance.relative,
            .absolute = v.tolerance.absolute + 0x1p-9 * terms,
            .reason = "TF32: either operand cut to 10 bits of mantissa, 2^-10 of itself at most"};
  }
  bool fp8_product = v.node.op == Op::kScaledMatmul || v.node.op == Op::kScaledGroupedMatmul;
  if (v.node.op == Op::kFusion) {
    for (const Node& member : v.node.body->nodes()) fp8_product |= member.op == Op::kScaledMatmul;
  }
  // cuBLASLt rounds a product to bf16 before it adds a bf16 addend in place (docs/numerics.md): half a unit of a
  // product that is at most |result| + |addend|.
  double rounding = 0;
  const bool product = v.node.op == Op::kMatmul || v.node.op == Op::kScaledMatmul;
  const size_t addend = v.node.op == Op::kMatmul ? 2 : 4;
  if (product && v.node.inputs.size() > addend && v.inputs[addend].type.dtype == DType::kBF16) {
    rounding = 0x1p-9 * (conformance::largest(v.results) + conformance::largest({v.inputs[addend]}));
  }
  if (fp8_product) {
    return {.relative = 0x1p-11,
            .absolute = 0x1p-11 * v.scale + rounding,
            .reason = "FP8 tensor cores add products cut to 13 bits below the largest"};
  }
  if (rounding > 0) {
    return {.relative = v.tolerance.relative,
            .absolute = v.tolerance.absolute + rounding,
            .reason = "a product rounded to bf16 before its addend in place"};
  }
  if (is_fused_product(v.node) && conformance::has_16_bits(*v.node.body)) {
    return {.relative = 0x1p-8, .absolute = 0x1p-8 * v.scale, .reason = "the product is not rounded before its bias"};
  }
  const bool attention = v.node.op == Op::kAttention || v.node.op == Op::kAttentionGrad;
  if (attention && v.inputs[0].type.dtype != DType::kF32) {
    return {.relative = 0x1p-7, .absolute = 0x1p-7 * v.scale, .reason = "probabilities rounded to bf16"};
  }
  return v.tolerance;
}

class CudaProgramConformanceOf : public testing::TestWithParam<Setting> {};

TEST_P(CudaProgramConformanceOf, EveryRowAgreesOnEveryNode) {
  std::string why;
  cuda::DeviceContext* context = cuda::test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  const cpu::NodeRunner run = [&](const Graph& graph, const Node& node, const std::vector<cpu::RefTensor>& inputs) {
    return cuda::run_node(*context, graph, node, inputs);
  };
  std::map<std::string, int> checked;  // by row, and by "fallback_for_row" where that ran
  conformance::visit_step(conformance::compiled_plan(GetParam(), cuda_target()).program,
                          [&](const conformance::Visit& v) {
                            if (is_named_leaf(v.node.op)) return;
                            SCOPED_TRACE(v.where);
                            int rows = 0;
                            for (const cuda::KernelEntry& row : cuda::kernel_entries(v.node.op)) {
                              if (!row.takes(v.graph, v.node)) continue;
                              std::string ran;
                              const auto kernel = cuda::on_device(*context, row, v.graph, v.node, &ran);
                              const auto failures = cpu::check_kernel(row.name, kernel, v.graph, v.node, v.inputs,
                                                                      v.results, device_tolerance(v), v.neighbours);
                              for (const std::string& failure : failures) ADD_FAILURE() << failure;
                              ++checked[ran == row.name ? ran : fmt::format("{}_for_{}", ran, row.name)];
                              ++rows;
                            }
                            EXPECT_GT(rows, 0) << "no row takes this node";
                            if (v.node.op != Op::kFusion || is_fused_product(v.node))
                              return;  // not bit for bit, by its rule
                            // A bias gradient fused with a norm's gradient has another summation order
                            // (docs/numerics.md).
                            const auto chain = read_chain(*v.node.body);
                            const bool own_order = chain && chain->producer == Producer::kNormGrad;
                            for (const std::string& failure : cpu::check_fusion(v.graph, v.node, v.inputs, run)) {
                              if (!own_order || !failure.starts_with("bias_grad.0")) ADD_FAILURE() << failure;
                            }
                          });
  for (const auto& [row, count] : checked) RecordProperty(row, count);
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaProgramConformanceOf, testing::ValuesIn(conformance::settings()),
                         [](const auto& info) { return conformance::setting_name(info.param); });

}  // namespace
}  // namespace octet
