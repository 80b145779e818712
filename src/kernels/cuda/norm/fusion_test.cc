// Norm fusions on the device against their members, bit for bit: norms alone on the device, the rest as the CPU has it.
#include <gtest/gtest.h>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/norm/fusion_cases.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

class NormFusions : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  void expect_equal_to_members(const NormFusion& fusion, const std::vector<DType>& dtypes = {}) {
    const cpu::Case c = norm_fusion_case(fusion);
    for (DType dtype : dtypes.empty() ? c.dtypes : dtypes) {
      SCOPED_TRACE(cpu::case_name(c, dtype));
      const cpu::BuiltCase built = cpu::build_case(c, dtype);
      EXPECT_NE(std::string(select_kernel(built.graph, built.node()).name), "fusion_members");
      const auto run = [&](const Graph& graph, const Node& node, const std::vector<cpu::RefTensor>& inputs) {
        if (node.op != Op::kFusion && !is_norm(node.op) && !is_norm_grad(node.op))
          return cpu::run_node(graph, node, inputs);
        return run_node(*context_, graph, node, inputs);
      };
      for (const std::string& failure : cpu::check_fusion(built.graph, built.node(), built.inputs, run)) {
        ADD_FAILURE() << failure;
      }
    }
  }
  DeviceContext* context_ = nullptr;
};

struct Size {
  int64_t rows, cols;
};
// A warp a row, a block a row with every number of groups, edge tiles of codes, rows that are no multiple of four.
constexpr Size kSizes[] = {{1, 8},      {5, 264},    {130, 520},  {300, 1024},
                           {257, 1544}, {129, 4096}, {33, 12288}, {300, 2056}};

TEST_F(NormFusions, WithAmax) {
  for (const Size& s : kSizes) {
    for (bool layer : {false, true}) {
      const std::string rstd = layer ? "norm.2" : "norm.1";
      expect_equal_to_members({"add_norm", layer, s.rows, s.cols, "", {}, {"add.0", "norm.0", rstd}});
      expect_equal_to_members({"add_norm", layer, s.rows, s.cols, "", {}, {"norm.0"}});
      expect_equal_to_members({"norm_amax", layer, s.rows, s.cols, "", {}, {"norm.0", rstd, "amax.0"}});
      expect_equal_to_members({"add_norm_amax", layer, s.rows, s.cols, "", {}, {"add.0", "norm.0", rstd, "amax.0"}});
      expect_equal_to_members({"add_norm_amax", layer, s.rows, s.cols, "", {}, {"amax.0"}});
    }
  }
}

TEST_F(NormFusions, WithCodes) {
  for (const Size& s : kSizes) {
    for (const char* scaling : {"tensor", "1x128", "row"}) {
      for (DType format : {DType::kE4M3, DType::kE5M2}) {
        const bool layer = format == DType::kE4M3;
        const std::string rstd = layer ? "norm.2" : "norm.1";
        std::vector<std::string> all = {"add.0", "norm.0", rstd, "quantize.0", "quantize.1", "quantize.4"};
        std::vector<std::string> codes = {rstd, "quantize.0", "quantize.1"};
        if (std::string(scaling) != "row") {
          for (auto* list : {&all, &codes}) list->push_back("quantize.2"), list->push_back("quantize.3");
          expect_equal_to_members({"norm_quantize", layer, s.rows, s.cols, scaling, format, {"quantize.2"}});
          expect_equal_to_members({"add_norm_quantize", layer, s.rows, s.cols, scaling, format, {"quantize.3"}});
        }
        expect_equal_to_members({"add_norm_quantize", layer, s.rows, s.cols, scaling, format, all});
        expect_equal_to_members({"norm_quantize", layer, s.rows, s.cols, scaling, format, codes});
        expect_equal_to_members({"norm_quantize", layer, s.rows, s.cols, scaling, format, {"quantize.0"}});
      }
    }
  }
}

TEST_F(NormFusions, WithInt8CodesARow) {
  for (const Size& s : kSizes) {
    for (const bool layer : {false, true}) {
      const std::vector<std::string> codes = {"quantize.0", "quantize.1"};
      expect_equal_to_members({"norm_quantize", layer, s.rows, s.cols, "row", DType::kI8, codes});
      expect_equal_to_members({"add_norm_quantize", layer, s.rows, s.cols, "row", DType::kI8, {"add.0", "quantize.0"}});
    }
  }
}

// Codes of both directions under one scale, of many rows, edges in rows and columns; again and again the same bits, and
// every count at 0 after.
TEST_F(NormFusions, CodesOfManyRows) {
  const std::vector<std::string> codes = {"quantize.0", "quantize.1", "quantize.2", "quantize.3"};
  const auto with = [&](std::vector<std::string> results) {
    results.insert(results.end(), codes.begin(), codes.end());
    return results;
  };
  const NormFusion fusions[] = {
      {"add_norm_quantize", true, 12705, 520, "tensor", DType::kE5M2, with({"add.0", "norm.1", "norm.2"})},
      {"norm_quantize", false, 6352, 1544, "tensor", DType::kE4M3, with({"norm.0", "norm.1", "quantize.4"})},
      {"add_norm_quantize", false, 3985, 2056, "tensor", DType::kE4M3, with({"add.0", "norm.1", "quantize.4"})},
      {"add_norm_quantize", true, 2976, 4096, "tensor", DType::kE4M3, with({"norm.0", "norm.2", "add.0"})},
      {"norm_quantize", true, 901, 12288, "tensor", DType::kE5M2, with({"norm.1", "norm.2"})},
      {"norm_quantize", false, 704, 16376, "tensor", DType::kE5M2, with({"norm.1"})}};
  for (const NormFusion& fusion : fusions) {
    const cpu::BuiltCase built = cpu::build_case(norm_fusion_case(fusion), DType::kBF16);
    SCOPED_TRACE(norm_fusion_case(fusion).name);
    expect_equal_to_members(fusion, {DType::kBF16});
    const auto first = run_node(*context_, built.graph, built.node(), built.inputs);
    for (int run = 0; run < 5; ++run) {
      EXPECT_EQ(run_node(*context_, built.graph, built.node(), built.inputs), first) << "run " << run;
    }
  }
  std::vector<uint32_t> counts(DeviceContext::kCounters, 1);
  check_cuda(cudaMemcpy(counts.data(), context_->counters(), counts.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost),
             "reading counters");
  EXPECT_EQ(counts, std::vector<uint32_t>(counts.size()));
}

// Many rows run in blocks that stay, few in a block each with other shares of the row a thread: a row's bits must not
// depend on how many others there are. Rows enough for a device of 132 multiprocessors: a warp a row with and without
// groups past the end, a group a thread, three and four groups a thread; gradients whose last rows come when the ring
// has gone round. The few are the last of the many.
TEST_F(NormFusions, ARowHasTheSameBitsAmongFewAndAmongMany) {
  const NormFusion many_rows[] = {
      {"add_norm_quantize", false, 17001, 520, "tensor", DType::kE4M3, {"add.0", "norm.0", "norm.1", "quantize.0"}},
      {"norm_quantize", true, 17001, 768, "row", DType::kE4M3, {"norm.1", "norm.2", "quantize.0", "quantize.1"}},
      {"add_norm_quantize", false, 12800, 1032, "1x128", DType::kE4M3, {"norm.1", "quantize.0", "quantize.1"}},
      {"add_norm_quantize", true, 8500, 1544, "row", DType::kE4M3, {"norm.1", "norm.2", "quantize.0", "quantize.1"}},
      {"norm_quantize", true, 2701, 4096, "1x128", DType::kE4M3, {"norm.1", "norm.2", "quantize.0", "quantize.1"}},
      {"norm_quantize", false, 2200, 4104, "row", DType::kE4M3, {"norm.1", "quantize.0", "quantize.1"}},
      {"norm_quantize", true, 3200, 4800, "tensor", DType::kE4M3, {"norm.0", "norm.1", "norm.2", "quantize.0"}},
      {"norm_grad_add", true, 1300, 4096, "", {}, {"norm_grad.0", "add.0"}}};
  for (const NormFusion& fusion : many_rows) {
    const cpu::BuiltCase many = cpu::build_case(norm_fusion_case(fusion), DType::kBF16);
    const auto of_many = run_node(*context_, many.graph, many.node(), many.inputs);
    for (const int64_t rows : {1, 300}) {
      NormFusion of_few = fusion;
      of_few.rows = rows;
      SCOPED_TRACE(norm_fusion_case(of_few).name);
      const cpu::BuiltCase few = cpu::build_case(norm_fusion_case(of_few), DType::kBF16, false);
      std::vector<cpu::RefTensor> inputs;
      for (size_t i = 0; i < few.node().inputs.size(); ++i) {
        const TensorType& type = few.graph.type(few.node().inputs[i]);
        const auto& values = many.inputs[i].values;
        inputs.push_back({type, {values.end() - type.shape.elements(), values.end()}});
      }
      const auto results = run_node(*context_, few.graph, few.node(), inputs);
      for (size_t r = 0; r < results.size(); ++r) {
        // The last rows end a result; 1x128 scales are a piece for every 128 columns, with all rows in it.
        const bool scales = fusion.results[r] == "quantize.1" && fusion.scaling == "1x128";
        const auto pieces = static_cast<std::ptrdiff_t>(scales ? few.node().results[r].shape[0] : 1);
        const auto of_few_bytes = static_cast<std::ptrdiff_t>(results[r].size()) / pieces,
                   of_many_bytes = static_cast<std::ptrdiff_t>(of_many[r].size()) / pieces;
        for (std::ptrdiff_t piece = 0; piece < pieces; ++piece) {
          const auto begin = results[r].begin() + piece * of_few_bytes;
          const auto last = of_many[r].begin() + (piece + 1) * of_many_bytes - of_few_bytes;
          EXPECT_TRUE(std::equal(begin, begin + of_few_bytes, last)) << fusion.results[r] << " piece " << piece;
        }
      }
    }
  }
}

TEST_F(NormFusions, Gradients) {
  for (const Size& s : kSizes) {
    for (bool layer : {false, true}) {
      std::vector<std::string> results = {"norm_grad.0", "norm_grad.1", "add.0"};
      if (layer) results.push_back("norm_grad.2");
      expect_equal_to_members({"norm_grad_add", layer, s.rows, s.cols, "", {}, results});
      expect_equal_to_members({"norm_grad_add", layer, s.rows, s.cols, "", {}, {"add.0", "norm_grad.1"}});
      expect_equal_to_members({"norm_grad_add", layer, s.rows, s.cols, "", {}, {"add.0"}});
      results.push_back("amax.0");
      expect_equal_to_members({"norm_grad_add_amax", layer, s.rows, s.cols, "", {}, results});
      expect_equal_to_members({"norm_grad_add_amax", layer, s.rows, s.cols, "", {}, {"amax.0"}});
    }
  }
}

// A bias gradient sums its rows in the kernel's order: not the bits of a reduce, but close. 900 rows: several turns of
// two rows a block, a last one of one row, and a ring that goes round.
TEST_F(NormFusions, BiasGradients) {
  const cpu::Tolerance sums{.relative = 1e-5, .absolute = 2e-5, .reason = "float32 sums over up to 900 rows near 1"};
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back({900, 4096});
  for (const Size& s : sizes) {
    for (bool layer : {false, true}) {
      const cpu::Case c = norm_fusion_case({"norm_grad_add_bias_amax",
                                            layer,
                                            s.rows,
                                            s.cols,
                                            "",
                                            {},
                                            {"norm_grad.1", "add.0", "bias_grad.0", "amax.0"}});
      SCOPED_TRACE(c.name);
      const cpu::BuiltCase built = cpu::build_case(c, DType::kF32);
      const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), true);
      const KernelEntry& row = select_kernel(built.graph, built.node());
      for (const std::string& failure :
           cpu::check_kernel(row.name, on_device(*context_, row, built.graph, built.node()), built.graph, built.node(),
                             built.inputs, expected, sums)) {
        ADD_FAILURE() << failure;
      }
    }
  }
}

}  // namespace
}  // namespace octet::cuda
