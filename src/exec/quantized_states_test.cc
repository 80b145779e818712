#include "exec/logical_states.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "ir/builder.h"

namespace octet {
namespace {

// Quantizing on the host gives the bits of op quantize: what is loaded is what a program would make.
TEST(QuantizedStates, HostAndOpMakeTheSameBits) {
  constexpr int64_t kRows = 150, kCols = 300;
  std::vector<float> values(kRows * kCols);
  Philox random(5, 1);
  for (float& value : values) value = static_cast<float>(random.normal());
  std::fill_n(values.begin() + 7 * kCols, kCols, 0.0f);  // a row of zeros has scale 1
  values[3] = 1e-30f, values[kCols] = 3e4f;
  for (ScaleLayout layout : {ScaleLayout::kTensor, ScaleLayout::kRow, ScaleLayout::kRow128, ScaleLayout::kTile128}) {
    for (bool power_of_two : {false, true}) {
      const QuantizedMatrix matrix =
          quantize_matrix(values, kRows, kCols, {.layout = layout, .margin = 1, .power_of_two = power_of_two});
      Graph graph("quantize");
      Builder builder(graph);
      const Value x = builder.input("x", {DType::kF32, {kRows, kCols}});
      Attrs attrs = {{"format", std::string("e4m3")}, {"margin", int64_t{1}}, {"pow2", power_of_two}};
      std::vector<Value> inputs = {x};
      if (layout == ScaleLayout::kTensor) {
        const NodeId amax =
            builder.emit(Op::kReduce, {x}, {{"reduction", std::string("amax")}, {"axis", std::string("all")}}, "amax");
        inputs.push_back({builder.emit(Op::kComputeScale, {{amax, 0}}, attrs, "scale"), 0});
      }
      attrs.set("scaling", std::string(scale_layout_name(layout)));
      const NodeId node = builder.emit(Op::kQuantize, inputs, attrs, "quantize");
      builder.output("codes", {node, 0});
      builder.output("scale_inv", {node, 1});
      Program program;
      program.add_graph(std::move(graph));
      auto executor = make_interpreter(std::move(program));
      std::memcpy(executor->input("quantize", "x").data(), values.data(), values.size() * sizeof(float));
      executor->run("quantize");
      const auto codes = executor->output("quantize", "codes");
      EXPECT_TRUE(std::equal(codes.begin(), codes.end(), matrix.codes.begin(), matrix.codes.end()))
          << scale_layout_name(layout) << " " << power_of_two;
      const auto scales = output_as<float>(*executor, "quantize", "scale_inv");
      EXPECT_EQ(std::vector<float>(scales.begin(), scales.end()), matrix.scale_inv) << scale_layout_name(layout);
    }
  }
}

TEST(QuantizedStates, DequantizingUndoesWhatFits) {
  const std::vector<float> values = {1, -2, 0.5f, 448, 7, 0, -3.5f, 28};
  const QuantizedMatrix matrix = quantize_matrix(values, 2, 4, {.layout = ScaleLayout::kRow, .power_of_two = true});
  std::vector<float> back(values.size());
  convert(DType::kE4M3, matrix.codes.data(), DType::kF32, back.data(), 8);
  apply_scales(back, matrix.scale_inv, 0, 2, 2, 4, ScaleLayout::kRow);
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace octet
