// The verifier finds planted faults and names graph, node and rule.
#include "ir/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "ir/random_graph.h"

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
  b.update("cache", {b.emit(Op::kKvAppend, {cache, y, slots}), 0});
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
  EXPECT_EQ(program.find_state("w")->kind, StateKind::kParam);
  EXPECT_EQ(program.find_state("cache")->kind, StateKind::kKvCache);
  EXPECT_EQ(program.state_bytes(StateKind::kKvCache), 6 * 8 * 4);
  program.states()[0].type.dtype = DType::kBF16;
  EXPECT_NE(message(program).find("has w as f32[8], the state table as bf16[8]"), std::string::npos);
}

}  // namespace
}  // namespace octet
