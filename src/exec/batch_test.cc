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

}  // namespace
}  // namespace octet
