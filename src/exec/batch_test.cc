// write_inputs: every input gets its tensor's bytes; what does not fit is refused with the names and both types.
#include "exec/batch.h"

#include <gtest/gtest.h>

#include "base/testing/test_error.h"
#include "exec/testing/tiny_program.h"

namespace octet {
namespace {

struct Inputs : testing::Test {
  std::unique_ptr<Executor> executor = make_interpreter(tiny::training_program("llama"));
  Batch batch = token_batch(tiny::kTokens / tiny::kLength, tiny::kLength, /*targets=*/true);
  Batch scale;
  Inputs() { scale.add("loss_scale", {DType::kF32, {1}}).values<float>()[0] = 0.5f; }
  std::string error(const std::string& graph) {
    return error_of([&] { write_inputs(*executor, graph, batch, scale); });
  }
};

TEST_F(Inputs, AreWrittenByName) {
  batch.ints("ids")[3] = 7;
  write_inputs(*executor, "train", batch, scale);
  const auto written = [&](const char* name) { return input_as<int32_t>(*executor, "train", name); };
  EXPECT_EQ(written("ids")[3], 7);
  EXPECT_EQ(written("positions")[tiny::kLength + 1], 1);
  EXPECT_EQ(written("segments")[1], tiny::kLength);
  EXPECT_EQ(written("segments")[2], tiny::kTokens);
  EXPECT_EQ(written("targets")[tiny::kTokens - 1], -1);
  EXPECT_EQ(input_as<float>(*executor, "train", "loss_scale")[0], 0.5f);
}

TEST_F(Inputs, MissingAndMisshapenTensorsAreRefused) {
  batch.tensors.erase("targets");
  EXPECT_NE(error("train").find("graph 'train': input 'targets' is i32[32], the batch has none"), std::string::npos);
  batch.add("targets", {DType::kI32, {31}});
  EXPECT_NE(error("train").find("graph 'train': input 'targets' is i32[32], the batch's is i32[31]"),
            std::string::npos);
  batch.add("targets", {DType::kF32, {32}});
  EXPECT_NE(error("train").find("the batch's is f32[32]"), std::string::npos);
}

TEST_F(Inputs, TensorsWithoutAnInputAreRefusedUnlessOptional) {
  EXPECT_NE(error("eval").find("graph 'eval' has no input 'loss_scale' for the batch's f32[1]"), std::string::npos);
  scale.tensors.at("loss_scale").optional = true;
  write_inputs(*executor, "eval", batch, scale);
}

// Behind the values given stands what the input says.
TEST(InputValues, AreCompletedAsTheInputSays) {
  Graph graph("main");
  Builder b(graph);
  const TensorType ints{DType::kI32, {4}};
  for (const auto& [name, options] :
       std::initializer_list<std::pair<const char*, Attrs>>{{"zeros", {}},
                                                            {"none", {{"pad", -1}}},
                                                            {"ends", {{"rest", "last"}}},
                                                            {"any", {{"rest", "any"}}},
                                                            {"left", {{"pad", 5}, {"optional", true}}}})
    b.output(name, b.reshape(b.input(name, ints, options), {4, 1}));
  b.output("ones", b.scale(b.input("ones", {DType::kF32, {4}}, {{"pad", 1}}), 1));
  Program program;
  program.add_graph(std::move(graph));
  const auto executor = make_interpreter(std::move(program));
  const auto written = [&](const char* name) {
    const auto values = input_as<int32_t>(*executor, "main", name);
    return std::vector<int32_t>(values.begin(), values.end());
  };
  using Ints = std::vector<int32_t>;
  const Ints given = {7, 8}, all = {1, 2, 3, 4}, more = {1, 2, 3, 4, 5};
  const std::vector<float> half = {0.5f};
  std::vector<InputValues> values = {{"zeros", given}, {"none", given}, {"ends", given}, {"any", all}, {"ones", half}};
  write_inputs(*executor, "main", values);
  EXPECT_EQ(written("zeros"), (Ints{7, 8, 0, 0}));
  EXPECT_EQ(written("none"), (Ints{7, 8, -1, -1}));
  EXPECT_EQ(written("ends"), (Ints{7, 8, 8, 8}));
  EXPECT_EQ(written("left"), (Ints{5, 5, 5, 5}));
  EXPECT_EQ(input_as<float>(*executor, "main", "ones")[0], 0.5f);
  EXPECT_EQ(input_as<float>(*executor, "main", "ones")[3], 1.0f);
  values[3] = {"any", given};
  write_inputs(*executor, "main", values);
  EXPECT_EQ(written("any"), (Ints{7, 8, 3, 4}));
  pad_inputs(*executor, "main");
  EXPECT_EQ(written("none"), (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(written("ends"), (Ints{0, 0, 0, 0}));
  values[3] = {"any", more};
  EXPECT_NE(error_of([&] {
              write_inputs(*executor, "main", values);
            }).find("graph 'main': input 'any' is i32[4], of 16 bytes, and 20 are given"),
            std::string::npos);
  values.pop_back();
  values[3] = {"any", all};
  EXPECT_NE(
      error_of([&] { write_inputs(*executor, "main", values); }).find("input 'ones' is f32[4], the batch has none"),
      std::string::npos);
}

}  // namespace
}  // namespace octet
