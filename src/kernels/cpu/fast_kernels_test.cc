// What the case list cannot show: the functions of simd.h over whole ranges, random words against base/rng, results
// that do not depend on the number of threads, fusions equal to their unfused members, and refused indices.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/codec.h"
#include "base/threads.h"
#include "ir/builder.h"
#include "kernels/common/keep_rule.h"
#include "kernels/cpu/random_words.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/testing/conformance.h"

namespace octet::cpu {
namespace {

using simd::Floats;

// Largest error of fn against want over [low, high], in units of the last place of the wanted value (at least of
// 1e-30).
template <typename Fn, typename Want>
double worst_ulps(float low, float high, Fn fn, Want want) {
  constexpr int kSteps = 200000;
  double worst = 0;
  for (int i = 0; i < kSteps; i += simd::kLanes) {
    Floats x{};
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      x[lane] = low + (high - low) * static_cast<float>(i + lane) / static_cast<float>(kSteps);
    }
    const Floats y = fn(x);
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      const double wanted = want(static_cast<double>(x[lane]));
      const double unit = std::fmax(std::fabs(wanted), 1e-30) * 0x1p-24;
      worst = std::fmax(worst, std::fabs(static_cast<double>(y[lane]) - wanted) / unit);
    }
  }
  return worst;
}

TEST(Simd, FunctionsAreAccurate) {
  EXPECT_LT(worst_ulps(
                -60, 80, [](Floats x) { return simd::exp(x); }, [](double x) { return std::exp(x); }),
            3);
  EXPECT_LT(worst_ulps(
                -30, 30, [](Floats x) { return simd::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }),
            4);
  EXPECT_LT(worst_ulps(
                -4, 8, [](Floats x) { return simd::erfc(x); }, [](double x) { return std::erfc(x); }),
            8);
}

TEST(Simd, SpecialValues) {
  const auto exp_of = [](float x) { return simd::exp(simd::broadcast(x))[0]; };
  EXPECT_EQ(exp_of(INFINITY), INFINITY);
  EXPECT_EQ(exp_of(100), INFINITY);
  EXPECT_EQ(exp_of(-INFINITY), 0);
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_TRUE(std::isnan(exp_of(NAN)));
  Floats v = simd::broadcast(1);
  v[simd::kLanes / 2] = NAN;
  EXPECT_TRUE(std::isnan(simd::largest(v)));
  EXPECT_TRUE(std::isnan(simd::maximum(simd::broadcast(2), v)[simd::kLanes / 2]));
}

TEST(Simd, Bf16RoundsAsTheCodec) {
  Philox random(5);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t bits = i < 70000 ? random.next_u32() : (random.next_u32() & 0xffff0000u) | 0x8000u;
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(simd::narrow(simd::broadcast(value))[0], codec::encode_bf16(value)) << bits;
  }
}

TEST(RandomWords, AreThoseOfTheGraphCounter) {
  const int64_t rng[3] = {1234567890123, 7, 3};
  const RandomStream stream = RandomStream::of(rng, 11);
  for (uint64_t first : {uint64_t{0}, uint64_t{3}, uint64_t{4 * 0xffffffffull - 5}, uint64_t{77}}) {
    constexpr int64_t kCount = 133;
    std::vector<uint32_t> buffer(static_cast<size_t>(random_buffer_words(kCount)));
    const uint32_t* words = random_words(stream, first, kCount, buffer.data());
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(words[i], graph_random(1234567890123, 7, 3, 11, (first + i) / 4)[(first + i) % 4]) << first << "+" << i;
    }
  }
  EXPECT_EQ(keep_threshold(0.5), 1u << 23);
}

TEST(FastKernels, ResultsDoNotDependOnTheThreadCount) {
  for (const Case& c : all_cases()) {
    const bool tiles = c.name.starts_with("tiles");
    const bool sums = c.op == Op::kLayerNormGrad || c.op == Op::kRmsNormGrad || c.op == Op::kEmbeddingGrad ||
                      c.op == Op::kReduce || c.op == Op::kSquareSum || c.op == Op::kDropout;
    if (!tiles && (!sums || (c.large && c.op == Op::kEmbeddingGrad))) continue;
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(case_name(c, dtype));
      const BuiltCase built = build_case(c, dtype);
      std::vector<std::vector<std::byte>> first;
      for (int threads : {1, 2, 5, 16}) {
        set_thread_count(threads);
        auto results = run_node(built.graph, built.node(), built.inputs);
        if (first.empty()) first = results;
        EXPECT_EQ(results, first) << threads << " threads";
      }
    }
  }
  set_thread_count(0);
}

// The share of many threads in the workspace may be too small for one of them: fewer run, and the sums are the same.
// Without room for it, attention_grad keeps no product of the rows of out and dout.
TEST(FastKernels, RunOnAsManyThreadsAsHaveScratch) {
  for (const Case& c : all_cases()) {
    const bool attends = c.op == Op::kAttention || c.op == Op::kAttentionGrad || c.op == Op::kPagedAttention;
    const bool shares =
        c.op == Op::kScaledMatmul || c.op == Op::kSample || c.op == Op::kTopLogprobs || c.op == Op::kRmsNorm;
    if (c.large || (!shares && !(attends && c.name.starts_with("tiles")))) continue;
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(case_name(c, dtype));
      const BuiltCase built = build_case(c, dtype);
      set_thread_count(1);
      const auto expected = run_node(built.graph, built.node(), built.inputs);
      set_thread_count(64);
      EXPECT_EQ(run_node_within(9 << 18, built.graph, built.node(), built.inputs), expected);
    }
  }
  set_thread_count(0);
}

TEST(FastKernels, ScratchGrowsWithThreads) {
  for (int threads : {1, 15, 256, 4096}) {
    set_thread_count(threads);
    EXPECT_GE(workspace_bytes(), kLeastWorkspace);
    EXPECT_EQ(threads_with_room("op", workspace_bytes(), kWorkspacePerThread), threads);
  }
  EXPECT_EQ(threads_with_room("op", 1000, 300), 3);
  EXPECT_EQ(threads_with_room("op", 0, 0), 4096);
  EXPECT_THROW(threads_with_room("op", 299, 300), Error);
  set_thread_count(0);
}

// Rows [0, rows) of a product [8 or more, n]: what select_kernel's row makes of them alone.
std::vector<std::byte> product_rows(DType a_type, DType b_type, int64_t rows, int64_t of_rows) {
  constexpr int64_t kN = 131, kK = 1100;
  const bool codes = is_code(a_type);
  Philox random(3);
  auto filled = [&](DType dtype, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random.normal()) * (codes ? 40.0f : 1.0f);
    std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
    convert(DType::kF32, values.data(), dtype, bytes.data(), count);
    return bytes;
  };
  std::vector<std::byte> a = filled(a_type, of_rows * kK), b = filled(b_type, kN * kK);
  std::vector<float> a_scales(static_cast<size_t>(rows), 0.37f), b_scales(kN, 1.3f);
  Graph graph;
  Builder builder(graph);
  const TensorType a_tensor{a_type, {rows, kK}}, b_tensor{b_type, {kN, kK}};
  const TensorType scale_a{DType::kF32, {rows}}, scale_b{DType::kF32, {kN}}, out{DType::kBF16, {rows, kN}};
  const Attrs attrs = {{"trans_a", false},
                       {"trans_b", true},
                       {"scaling_a", std::string("row")},
                       {"scaling_b", std::string("row")},
                       {"to", std::string("bf16")}};
  const Value left = builder.input("a", a_tensor), right = builder.input("b", b_tensor);
  std::vector<Tensor> in = {{a.data(), &a_tensor}, {b.data(), &b_tensor}};
  NodeId node{};
  if (codes) {
    node = builder.emit(Op::kScaledMatmul, {left, builder.input("sa", scale_a), right, builder.input("sb", scale_b)},
                        attrs);
    in.insert(in.begin() + 1, {a_scales.data(), &scale_a});
    in.push_back({b_scales.data(), &scale_b});
  } else {
    node = builder.emit(Op::kMatmul, {left, right}, {{"trans_b", true}, {"to", std::string("bf16")}});
  }
  std::vector<std::byte> result(static_cast<size_t>(out.bytes())), workspace(static_cast<size_t>(workspace_bytes()));
  const std::vector<Tensor> results = {{result.data(), &out}};
  select_kernel(graph, graph.node(node)).run({in, results, workspace});
  return result;
}

// What serving promises of products of few rows: a row's bits do not depend on how many rows there are.
TEST(FastKernels, RowsOfAProductDoNotDependOnTheirNumber) {
  struct Types {
    DType a, b;
    std::vector<int64_t> rows;
  };
  const std::vector<int64_t> few = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<int64_t> any = few;
  any.insert(any.end(), {9, 40, 130});  // integer sums: the product of many rows agrees too
  for (const Types& types : {Types{DType::kBF16, DType::kBF16, few}, Types{DType::kF32, DType::kBF16, few},
                             Types{DType::kI8, DType::kI8, any}}) {
    const int64_t most = types.rows.back();
    const std::vector<std::byte> all = product_rows(types.a, types.b, most, most);
    for (int64_t rows : types.rows) {
      const std::vector<std::byte> part = product_rows(types.a, types.b, rows, most);
      EXPECT_EQ(std::memcmp(part.data(), all.data(), part.size()), 0) << dtype_name(types.a) << ", " << rows << " rows";
    }
  }
}

TEST(FastKernels, IndicesOutsideAreRefused) {
  Graph graph;
  Builder b(graph);
  const Value ids = b.input("ids", {DType::kI32, {2}}), table = b.input("table", {DType::kF32, {3, 4}});
  const Value y = b.embedding(ids, table);
  const std::vector<RefTensor> inputs = {{graph.type(ids), {0, 3}}, {graph.type(table), std::vector<double>(12, 1.0)}};
  EXPECT_THROW(run_node(graph, graph.node(y), inputs), Error);
}

// A body of `make` over inputs of these types; its results against those of the members run one by one.
void expect_fused_equals_unfused(const std::vector<TensorType>& types,
                                 const std::function<std::vector<Value>(Builder&, const std::vector<Value>&)>& make) {
  auto body = std::make_shared<Graph>("body");
  Builder b(*body);
  std::vector<Value> leaves;
  std::vector<RefTensor> inputs;
  Philox random(3);
  for (size_t i = 0; i < types.size(); ++i) {
    leaves.push_back(b.input(fmt::format("in.{}", i), types[i]));
    RefTensor tensor{types[i], std::vector<double>(static_cast<size_t>(types[i].shape.elements()))};
    for (double& value : tensor.values) value = round_to(types[i].dtype, random.normal());
    if (types[i].shape.elements() == 1) tensor.values[0] = 16;
    inputs.push_back(std::move(tensor));
  }
  const std::vector<Value> results = make(b, leaves);
  for (size_t i = 0; i < results.size(); ++i) b.output(fmt::format("out.{}", i), results[i]);
  Graph graph;
  Node fusion{.op = Op::kFusion, .name = "fused", .body = body};
  for (size_t i = 0; i < types.size(); ++i) {
    fusion.inputs.push_back({graph.add({.op = Op::kInput, .results = {types[i]}, .name = fmt::format("in.{}", i)}), 0});
  }
  const NodeId id = graph.add(fusion);
  const Node& node = graph.node(id);
  EXPECT_STREQ(select_kernel(graph, node).name, "fusion_rows");
  for (const std::string& failure : check_fusion(graph, node, inputs)) ADD_FAILURE() << failure;
}

NodeId quantize(Builder& b, Value x, Value scale, const std::string& scaling, const std::string& format = "e4m3") {
  return b.emit(Op::kQuantize, {x, scale},
                {{"format", format}, {"scaling", scaling}, {"pow2", scaling.ends_with("128")}});
}

TEST(Fusion, EqualsItsMembers) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const TensorType x{dtype, {300, 200}}, row{DType::kF32, {200}}, scalar{DType::kF32, {1}}, bias{dtype, {200}};
    using Values = std::vector<Value>;
    expect_fused_equals_unfused({x, x, row, row}, [](Builder& b, const Values& in) {
      const Value sum = b.add(in[0], in[1]);
      const auto norm = b.layer_norm(sum, in[2], in[3], 1e-5);
      return Values{sum, norm.y, norm.mean, norm.rstd};
    });
    expect_fused_equals_unfused({x, row, scalar}, [](Builder& b, const Values& in) {
      const NodeId q = quantize(b, b.rms_norm(in[0], in[1], 1e-6).y, in[2], "tensor");
      return Values{{q, 0}, {q, 1}, {q, 2}, {q, 4}};
    });
    expect_fused_equals_unfused({x, x}, [](Builder& b, const Values& in) {
      const NodeId q = quantize(b, b.mul(b.silu(in[0]), in[1]), Value::none(), "1x128");
      return Values{{q, 0}, {q, 1}, {q, 2}, {q, 3}};
    });
    for (const char* format : {"e4m3", "i8"}) {  // activations of served tokens
      expect_fused_equals_unfused({x, x, row}, [format](Builder& b, const Values& in) {
        const Value sum = b.add(in[0], in[1]);
        const NodeId q = quantize(b, b.rms_norm(sum, in[2], 1e-6).y, Value::none(), "row", format);
        return Values{sum, {q, 0}, {q, 1}, {q, 4}};
      });
    }
    expect_fused_equals_unfused({x, bias, scalar}, [](Builder& b, const Values& in) {
      const Value y = b.gelu(b.add(in[0], in[1]), true);
      return Values{{quantize(b, y, in[2], "tensor"), 0}, b.reduce(y, "amax", "all")};
    });
    expect_fused_equals_unfused({x, x}, [](Builder& b, const Values& in) {
      const Value dx{b.emit(Op::kGeluGrad, {in[0], in[1]}, {{"approximate", true}}), 0};
      return Values{dx, b.reduce(dx, "sum", "rows")};
    });
    expect_fused_equals_unfused({x, x, row, scalar}, [](Builder& b, const Values& in) {
      const Value sum = b.add(in[0], in[1]);
      const NodeId q = quantize(b, b.rms_norm(sum, in[2], 1e-6).y, in[3], "tensor");
      return Values{sum, {q, 0}, {q, 2}, {q, 4}};
    });
    expect_fused_equals_unfused({x, x, row}, [](Builder& b, const Values& in) {
      const auto norm = b.rms_norm(b.add(in[0], in[1]), in[2], 1e-6);
      return Values{norm.rstd, b.reduce(norm.y, "amax", "all"), norm.y};
    });
    expect_fused_equals_unfused({x, x}, [](Builder& b, const Values& in) {
      const Value y = b.mul(b.silu(in[0]), in[1]);
      return Values{y, b.reduce(y, "amax", "all")};
    });
    // dy, up, gate
    expect_fused_equals_unfused({x, x, x}, [](Builder& b, const Values& in) {
      const Value dgate{b.emit(Op::kSiluGrad, {in[2], b.mul(in[0], in[1])}), 0};
      return Values{dgate, b.mul(in[0], b.silu(in[2]))};
    });
    const TensorType column{DType::kF32, {300}};
    expect_fused_equals_unfused({x, row, column, x, x}, [](Builder& b, const Values& in) {
      const NodeId grad = b.emit(Op::kRmsNormGrad, {in[0], in[1], in[2], in[3]});
      return Values{b.add({grad, 0}, in[4]), {grad, 1}};
    });
    expect_fused_equals_unfused({x, row, column, column, x, x}, [](Builder& b, const Values& in) {
      const NodeId grad = b.emit(Op::kLayerNormGrad, {in[0], in[1], in[2], in[3], in[4]});
      return Values{b.add(in[5], {grad, 0}), {grad, 1}, {grad, 2}};
    });
  }
}

}  // namespace
}  // namespace octet::cpu
