// A table whose gradient is (ids, rows), in the text form: the rows are those of the dense gradient, the optimiser
// changes them alone, and ranks together do what one does.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/testing/test_error.h"
#include "exec/testing/stepped_program.h"

namespace octet {
namespace {

using stepped::States, stepped::Steps, stepped::Way;

constexpr int64_t kTokens = 8, kRows = 40, kWidth = 4;
constexpr double kClip = 0.05, kDecay = 0.1, kLr = 0.02;

// Two lookups of the table in a micro-batch; `update` of the table, C rows of its gradient.
std::string train_text(const std::string& update, int64_t capacity) {
  const bool rows = update == "rows";
  std::string text = "program @tables\n";
  text += fmt::format("state @table : f32[40,4] role master of @table{}\n", rows ? " update rows" : "");
  text += "state @w : f32[8,4] role master of @w\nstate @grad.w : f32[8,4] role gradient of @w\n";
  text += rows ? fmt::format(
                     "state @grad.table : f32[{0},4] role gradient of @table update rows\nstate "
                     "@grad_ids.table : i32[{0}] role gradient index 1 of @table update rows\n",
                     capacity)
               : "state @grad.table : f32[40,4] role gradient of @table\n";
  for (const char* param : {"table", "w"})
    for (int i = 0; i < 2; ++i)
      text += fmt::format("state @moment{0}.{1} : f32[{2},4] role moment index {0} of @{1}\n", i, param,
                          param == std::string("w") ? 8 : 40);
  return text + fmt::format(R"(
graph @train stage model
  %ids = input {{rows="batch"}} : i32[8] @ids
  %more = input {{rows="batch"}} : i32[8] @more
  %targets = input {{rows="batch", pad=-1}} : i32[8] @targets
  %table = param {{update="{}", split="vocab"}} : f32[40,4] @table
  %x = embedding %ids, %table @x
  %y = embedding %more, %table @y
  %h = mul %x, %y @h
  %w = param {{split="column"}} : f32[8,4] @w
  %z = matmul %h, %w {{gemm="w", role="fprop", trans_b=true}} @w
  %l = cross_entropy %z, %targets @loss
  %loss = reduce %l {{reduction="sum", axis="all"}} @loss
  output @loss %loss
end
)",
                            update);
}

// Both parameters by the optimiser; of the table the rows alone.
std::string apply_text(const std::string& optimiser, bool rows, int64_t capacity) {
  const bool adam = optimiser == "adamw";
  std::string text = "graph @apply stage model\n";
  for (const char* input : {"lr", "step"}) text += fmt::format("  %{0} = input : f32[1] @{0} phase optimizer\n", input);
  for (const char* param : {"table", "w"}) {
    const bool table = param == std::string("table");
    const std::string shape = table ? "40,4" : "8,4";
    text += fmt::format("  %{0} = param{2} : f32[{1}] @{0} phase optimizer\n", param, shape,
                        table && rows ? " {update=\"rows\"}" : "");
    for (int i = 0; i < (adam ? 2 : 0); ++i)
      text += fmt::format("  %m{0}{1} = state : f32[{2}] @moment{0}.{1} phase optimizer\n", i, param, shape);
    text += fmt::format("  %g{0} = state : f32[{1}] @grad.{0} phase optimizer\n", param,
                        table && rows ? fmt::format("{},4", capacity) : shape);
  }
  if (rows) text += fmt::format("  %ids = state : i32[{}] @grad_ids.table phase optimizer\n", capacity);
  text += "  %squares = square_sum %gtable, %gw phase optimizer\n";
  text += fmt::format("  %c = clip_factor %squares {{max_norm={}}} phase optimizer\n",
                      adam ? fmt::format("{}", kClip) : "0.0");
  for (const char* param : {"table", "w"}) {
    const bool list = param == std::string("table") && rows;
    const auto operand = [&](const std::string& name) {
      if (!list) return "%" + name;
      text += fmt::format("  %{0}_rows = select_rows %{0}, %ids phase optimizer\n", name);
      return fmt::format("%{}_rows", name);
    };
    const std::string p = operand(param);
    const std::string m = adam ? operand("m0" + std::string(param)) : "",
                      v = adam ? operand("m1" + std::string(param)) : "";
    text += adam ? fmt::format(
                       "  %new{0} = adamw {1}, %g{0}, {2}, {3}, %lr, %step, %c.1, %c.2 {{beta1=0.9, beta2=0.95, "
                       "eps=1e-8, weight_decay={4}}} phase optimizer\n",
                       param, p, m, v, kDecay)
                 : fmt::format(
                       "  %new{0} = sgd {1}, %g{0}, %lr, %step, %c.1, %c.2 {{momentum=0.0, weight_decay=0.0}} "
                       "phase optimizer\n",
                       param, p);
    const std::string tables[] = {param, fmt::format("m0{}", param), fmt::format("m1{}", param)};
    for (int i = 0; i < (adam ? 3 : 1); ++i) {
      std::string value = fmt::format("%new{}.{}", param, i);
      if (list) {
        text += fmt::format("  %put{0} = scatter_rows %{1}, {2}, %ids phase optimizer\n", i, tables[i], value);
        value = fmt::format("%put{}", i);
      }
      text += fmt::format("  update @{} {}\n", i == 0 ? param : fmt::format("moment{}.{}", i - 1, param), value);
    }
  }
  return text + "  output @norm %c\nend\n";
}

std::string program_text(const std::string& optimiser, bool rows, int64_t capacity = kRows) {
  std::string text = train_text(rows ? "rows" : "dense", capacity) + apply_text(optimiser, rows, capacity);
  if (optimiser == "sgd")  // without moments
    for (size_t at; (at = text.find("state @moment")) != std::string::npos;)
      text.erase(at, text.find('\n', at) - at + 1);
  return text;
}

// Ids of few rows, some often.
Batch batch_of(int index) {
  Batch batch;
  Philox random(3, static_cast<uint64_t>(index));
  for (const char* name : {"ids", "more", "targets"})
    for (int32_t& id : batch.add(name, {DType::kI32, {kTokens}}).values<int32_t>())
      id = static_cast<int32_t>(name[0] == 't' ? random.below(8) : 3 * random.below(5) + (index % 4 == 0 ? 1 : 0));
  return batch;
}

void set_rate(Executor& executor, int step) {
  input_as<float>(executor, "apply", "lr")[0] = static_cast<float>(kLr);
  input_as<float>(executor, "apply", "step")[0] = static_cast<float>(step + 1);
}

Steps steps_of(int count) { return {.steps = count, .batch = batch_of, .inputs_of_apply = set_rate}; }

std::set<int64_t> looked_up(int step, int micro_batches) {
  std::set<int64_t> rows;
  for (int i = 0; i < micro_batches; ++i) {
    Batch batch = batch_of(step * micro_batches + i);
    for (const char* name : {"ids", "more"})
      for (const int32_t id : batch.ints(name)) rows.insert(id);
  }
  return rows;
}

// What adamw makes of the dense gradient, for the rows that were looked up: torch.optim.SparseAdam with the decay of
// AdamW. The first step begins at moments of 0.
TEST(RowGradients, OnlyTheRowsLookedUpChange) {
  const States before = stepped::run(program_text("adamw", true), {}, steps_of(0));
  const States dense = stepped::run(program_text("adamw", false), {}, steps_of(1), "fp32", {"grad.table", "grad.w"});
  const States lazy =
      stepped::run(program_text("adamw", true), {}, steps_of(1), "fp32", {"grad.table", "grad_ids.table"});
  const std::set<int64_t> rows = looked_up(0, 4);
  ASSERT_LT(std::ssize(rows), kRows - 10);
  double squares = 0;
  for (const char* name : {"grad.table", "grad.w"})
    for (const double g : dense.at(name)) squares += g * g;
  const double clip = std::min(1.0, kClip / (std::sqrt(squares) + 1e-6));
  ASSERT_LT(clip, 1);
  size_t place = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const bool changes = rows.contains(row);
    if (changes) {
      EXPECT_EQ(lazy.at("grad_ids.table")[place], row);
    }
    for (int64_t c = 0; c < kWidth; ++c) {
      const auto i = static_cast<size_t>(row * kWidth + c);
      const double p = before.at("table")[i], g = dense.at("grad.table")[i] * clip;
      if (changes) {
        EXPECT_NEAR(lazy.at("grad.table")[place * kWidth + static_cast<size_t>(c)], g / clip, 1e-12);
      }
      const double lr = static_cast<float>(kLr), m = 0.1 * g, v = 0.05 * g * g;
      const double step = lr * (m / 0.1) / (std::sqrt(v / 0.05) + 1e-8);
      EXPECT_NEAR(lazy.at("table")[i], changes ? p * (1 - lr * kDecay) - step : p, 1e-9) << row;
      EXPECT_NEAR(lazy.at("moment0.table")[i], changes ? m : 0, 1e-12);
      EXPECT_NEAR(lazy.at("moment1.table")[i], changes ? v : 0, 1e-12);
      EXPECT_TRUE(changes || g == 0);
    }
    place += changes ? 1 : 0;
  }
  for (; place < lazy.at("grad_ids.table").size(); ++place) EXPECT_EQ(lazy.at("grad_ids.table")[place], -1);
  EXPECT_NE(lazy.at("w"), before.at("w"));
}

// Rows are added in the order in which the dense gradient adds them.
TEST(RowGradients, SgdGivesTheBitsOfTheDenseGradient) {
  const Way cpu{.name = "cpu", .cpu = true};
  for (const char* recipe : {"fp32", "bf16"})
    EXPECT_EQ(stepped::run(program_text("sgd", true), cpu, steps_of(3), recipe),
              stepped::run(program_text("sgd", false), cpu, steps_of(3), recipe))
        << recipe;
}

// Where it holds all rows that a step can look up, and where the table has fewer.
TEST(RowGradients, RanksTogetherDoWhatOneDoes) {
  const States one = stepped::run(program_text("adamw", true), {}, steps_of(3));
  const Way ways[] = {{"dp2", {{1, 2, 1, 1}}},
                      {"dp4", {{1, 4, 1, 1}}},
                      {"dp2 parameters", {{1, 2, 1, 1}}, ShardLevel::kParameters},
                      {"cp2", {{1, 1, 2, 1}}},
                      {"tp2", {{1, 1, 1, 2}}},
                      {"dp2 cp2 gradients", {{1, 2, 2, 1}}, ShardLevel::kGradients},
                      {"dp2 tp2 optimizer", {{1, 2, 1, 2}}, ShardLevel::kOptimizer}};
  for (const Way& way : ways)
    stepped::expect_near(stepped::run(program_text("adamw", true), way, steps_of(3)), one, 1e-10, way.name);
  const Way cpu[] = {{"cpu", {}, ShardLevel::kNone, true}, {"cpu dp2", {{1, 2, 1, 1}}, ShardLevel::kNone, true}};
  for (const Way& way : cpu)
    stepped::expect_near(stepped::run(program_text("adamw", true), way, steps_of(3)), one, 2e-5, way.name);
}

TEST(RowGradients, HaveRoomForWhatAStepLooksUp) {
  Steps few = steps_of(1);
  few.micro_batches = 1;
  const States first = stepped::run(program_text("adamw", true, 2 * kTokens), {}, few, "fp32", {"grad_ids.table"});
  EXPECT_EQ(first.at("grad_ids.table").size(), 2 * kTokens);
  // More micro-batches than the program was compiled for.
  Program program = parse_program(program_text("adamw", true, 2 * kTokens));
  const auto executor = make_interpreter(compile(std::move(program), {}).program);
  Batch scale;
  scale.add("loss_scale", {DType::kF32, {1}});
  EXPECT_NE(error_of([&] {
              for (int i = 0; i < 4; ++i) {
                Batch batch = batch_of(i);
                for (int32_t& id : batch.ints("ids")) id = 8 * i + static_cast<int32_t>(&id - batch.ints("ids").data());
                write_inputs(*executor, i == 0 ? "train" : "accumulate", batch, scale);
                executor->run(i == 0 ? "train" : "accumulate");
              }
            }).find("a step has more micro-batches than the program was compiled for"),
            std::string::npos);
}

TEST(RowGradients, ATableThatAProductReadsIsRefused) {
  const std::string text = R"(program @tied
graph @train stage model
  %ids = input {rows="batch"} : i32[8] @ids
  %table = param {update="rows"} : f32[40,4] @table
  %x = embedding %ids, %table @x
  %y = matmul %x, %table {head=true, trans_b=true} @head
  %loss = reduce %y {reduction="sum", axis="all"} @loss
  output @loss %loss
end
)";
  const std::string error = error_of([&] { compile(parse_program(text), {}); });
  EXPECT_NE(error.find("table: node head (matmul"), std::string::npos) << error;
  EXPECT_NE(error.find("one that the output head shares has a dense gradient"), std::string::npos) << error;
}

}  // namespace
}  // namespace octet
