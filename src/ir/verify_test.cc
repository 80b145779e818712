// The verifier finds planted faults and names graph, node and rule.
#include "ir/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "ir/testing/random_graph.h"
#include "ir/text.h"

namespace octet {
namespace {

struct Fault {
  const char* name;
  std::function<void(Graph&)> plant;
  const char* message;  // part of it
};

// x [4,8] -> norm -> relu -> y, and a state that is read.
Graph small_graph() {
  Graph graph("main");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4, 8}});
  Value w = b.param("w", {8});
  Value cache = b.state("cache", {DType::kF32, {6, 8}});
  Value y = b.relu(b.rms_norm(x, w, 1e-5).y);
  b.output("y", y);
  Value slots = b.input("slots", {DType::kI32, {4}});
  b.update("cache", {b.emit(Op::kScatterRows, {cache, y, slots}), 0});
  return graph;
}

std::string verify_message(const Graph& graph) {
  try {
    verify(graph);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.message();
  }
  return "";
}

Node& node_of(Graph& graph, Op op) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (graph.node(NodeId{i}).op == op) return graph.mutable_node(NodeId{i});
  }
  throw std::runtime_error("no such op");
}

TEST(Verify, GoodGraphsPass) {
  EXPECT_EQ(verify_message(small_graph()), "");
  EXPECT_EQ(verify_message(testing::transformer_graph({.dropout = 0.1})), "");
}

TEST(Verify, CatchesPlantedFaults) {
  const std::vector<Fault> faults = {
      {"reads a later node",
       [](Graph& g) {
         node_of(g, Op::kRmsNorm).inputs[0] = {NodeId{4}, 0};
       },
       "node rms_norm (rms_norm, #3): input 0 is #4, which comes later"},
      {"reads nothing", [](Graph& g) { node_of(g, Op::kRelu).inputs[0] = Value::none(); }, "which does not exist"},
      {"reads a result that is not there", [](Graph& g) { node_of(g, Op::kRelu).inputs[0].result = 2; },
       "input 0 is #3.2, which does not exist"},
      {"too many inputs",
       [](Graph& g) {
         node_of(g, Op::kRelu).inputs.push_back({NodeId{0}, 0});
       },
       "2 inputs"},
      {"wrong result type", [](Graph& g) { node_of(g, Op::kRelu).results[0].dtype = DType::kBF16; },
       "result 0 is declared bf16[4,8] and inferred f32[4,8]"},
      {"lost attribute", [](Graph& g) { node_of(g, Op::kRmsNorm).attrs.erase("eps"); }, "attribute eps is missing"},
      {"misspelled attribute", [](Graph& g) { node_of(g, Op::kRmsNorm).attrs.set("epz", 1e-5); },
       "rms_norm: no attribute is named epz (nearest: eps); there are: eps in node rms_norm"},
      {"attribute of another type", [](Graph& g) { node_of(g, Op::kRmsNorm).attrs.set("eps", int64_t{1}); },
       "attribute eps is 1, an int (want float >= 0)"},
      {"attribute out of range", [](Graph& g) { node_of(g, Op::kRmsNorm).attrs.set("eps", -1.0); },
       "attribute eps is -1.0 (want float >= 0)"},
      {"renamed leaf", [](Graph& g) { node_of(g, Op::kParam).name = "v"; }, "the leaf is not found by its name"},
      {"illegal at this stage", [](Graph& g) { node_of(g, Op::kRelu).op = Op::kQuantize; },
       "quantize may not stand in a graph of stage model"},
      {"output given twice", [](Graph& g) { g.outputs().push_back(g.outputs()[0]); }, "output y is given twice"},
      {"update given twice", [](Graph& g) { g.updates().push_back(g.updates()[0]); }, "update cache is given twice"},
      {"output of nothing", [](Graph& g) { g.outputs()[0].value.node = NodeId{77}; }, "which does not exist"},
      {"update of another type",
       [](Graph& g) {
         g.updates().push_back({"w", g.outputs()[0].value});
       },
       "updates w, which is f32[8], with f32[4,8]"},
      {"overwritten value as output",
       [](Graph& g) {
         g.outputs().push_back({"old", {NodeId{2}, 0}});
       },
       "has overwritten"},
      {"forward reads backward", [](Graph& g) { node_of(g, Op::kRmsNorm).phase = Phase::kBackward; },
       "a forward node reads #3 of phase backward"},
      {"body without a fusion",
       [](Graph& g) { node_of(g, Op::kRelu).body = std::make_shared<const Graph>(small_graph()); },
       "only a fusion has a body"},
  };
  for (const Fault& fault : faults) {
    Graph graph = small_graph();
    fault.plant(graph);
    std::string message = verify_message(graph);
    EXPECT_NE(message.find("graph main"), std::string::npos) << fault.name << ": " << message;
    EXPECT_NE(message.find(fault.message), std::string::npos) << fault.name << ": " << message;
  }
}

// A fusion of two appends, with faults planted in the text.
std::string fused_appends(const std::string& operands, const std::string& outputs, const std::string& after) {
  return verify_message(parse_graph(R"(graph @main stage fused
  %s = input : i32[2] @s
  %x = input : bf16[2,8] @x
  %k = state : bf16[4,8] @k
  %v = state : bf16[4,8] @v
  %f = fusion )" + operands + R"( body
    graph @scatter_rows_pair stage fused
      %0 = input : bf16[4,8] @append_k.0
      %1 = input : bf16[2,8] @append_k.1
      %2 = input : i32[2] @append_k.2
      %3 = input : bf16[4,8] @append_v.0
      %4 = scatter_rows %0, %1, %2 @append_k
      %5 = scatter_rows %3, %1, %2 @append_v
)" + outputs + " end\n" + after + "\nend\n"));
}

TEST(Verify, FusionsOverwriteWhatTheirMembersDo) {
  const std::string both = "output @append_k.0 %4 output @append_v.0 %5";
  const std::string updates = "update @k %f update @v %f.1";
  EXPECT_EQ(fused_appends("%k, %x, %s, %v", both, updates), "");
  // of two results one may be overwritten again while the other is read
  EXPECT_EQ(fused_appends("%k, %x, %s, %v", both, "%6 = scatter_rows %f, %x, %s update @k %6 update @v %f.1"), "");
  EXPECT_NE(fused_appends("%k, %x, %s, %v", both, updates + " output @old %v").find("has overwritten"),
            std::string::npos);
  EXPECT_NE(fused_appends("%k, %x, %s, %v", both, updates + " %6 = silu %k output @y %6").find("has overwritten"),
            std::string::npos);
  EXPECT_NE(fused_appends("%k, %x, %s, %k", both, "update @k %f").find("reads input 0, which it overwrites, 2 times"),
            std::string::npos);
  EXPECT_NE(fused_appends("%k, %x, %s, %v", "output @append_k.0 %4", "update @k %f")
                .find("overwrites input 3, and 0 results stand in its place (want 1)"),
            std::string::npos);
  EXPECT_NE(fused_appends("%k, %x, %s, %v", both + " output @again %5", updates)
                .find("overwrites input 3, and 2 results stand in its place (want 1)"),
            std::string::npos);
  EXPECT_NE(fused_appends("%k, %x, %s, %v", both + " output @old %3", updates).find("has overwritten"),
            std::string::npos);
}

// A kernel may not read rows of what it writes.
TEST(Verify, AppendsReadTheirCacheOnce) {
  Graph graph = small_graph();
  Node& append = node_of(graph, Op::kScatterRows);
  append.inputs[1] = append.inputs[0];
  graph.mutable_node(append.inputs[2].node).results[0].shape = {6};
  EXPECT_NE(verify_message(graph).find("reads input 0, which it overwrites, 2 times"), std::string::npos);
}

TEST(Verify, StagesGrow) {
  for (const OpInfo& info : all_ops()) {
    EXPECT_TRUE(op_is_legal(info.op, Stage::kPacked)) << info.name;
    for (int s = 0; s < static_cast<int>(Stage::kPacked); ++s) {
      EXPECT_LE(op_is_legal(info.op, static_cast<Stage>(s)), op_is_legal(info.op, static_cast<Stage>(s + 1)));
    }
  }
  EXPECT_FALSE(op_is_legal(Op::kGeluGrad, Stage::kModel));
  EXPECT_FALSE(op_is_legal(Op::kFusion, Stage::kPrecise));
}

TEST(Verify, ProgramsAgreeWithTheirStateTable) {
  auto message = [](const Program& program) -> std::string {
    try {
      verify(program);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  Program program;
  program.add_graph(small_graph());
  EXPECT_NE(message(program).find("graph main uses w, which the state table lacks"), std::string::npos);
  collect_state(program);
  EXPECT_EQ(message(program), "");
  EXPECT_EQ(program.find_state("w")->role, StateRole::kMaster);
  EXPECT_EQ(program.find_state("cache")->role, StateRole::kBuffer);
  EXPECT_EQ(program.state_bytes({StateRole::kBuffer}), 6 * 8 * 4);
  program.states()[0].type.dtype = DType::kBF16;
  EXPECT_NE(message(program).find("has w as f32[8], the state table as bf16[8]"), std::string::npos);
}

}  // namespace
}  // namespace octet
