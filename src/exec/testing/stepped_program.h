// For tests only: steps of a program in text form, whose graphs are train and apply, on the ranks of a mesh.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "dist/communicator.h"
#include "exec/batch.h"
#include "exec/executor.h"
#include "exec/parts.h"
#include "ir/text.h"
#include "passes/pass.h"

namespace octet::stepped {

struct Way {
  const char* name = "one";
  Mesh mesh = {};
  ShardLevel level = ShardLevel::kNone;
  bool cpu = false;  // the CPU executor; else the interpreter in float64
};

using States = std::map<std::string, std::vector<double>>;  // whole, by name

struct Steps {
  int steps = 1, micro_batches = 4;  // of a step, of all data ranks
  // Of micro-batch `index`, counted from the first step; loss_scale besides.
  std::function<Batch(int index)> batch;
  std::function<void(Executor&, int step)> inputs_of_apply;
  double loss_scale = 0.25;
};

inline CompileOptions options_of(const Way& way, const Steps& steps, const std::string& recipe = "fp32") {
  CompileOptions options;
  options.recipe = parse_recipe(recipe);
  options.parallel = {
      .mesh = way.mesh, .level = way.level, .micro_batches = steps.micro_batches / way.mesh[Axis::kData]};
  if (way.cpu) options.target = cpu_target();
  return options;
}

// Of parameters by name.
inline std::vector<float> first_values(const std::string& name, const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  Philox random(7, std::hash<std::string>()(name));
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

inline std::vector<double> values_of(Executor& executor, const StateEntry& entry, bool cpu) {
  if (!cpu) return interpreted_state(executor, entry.name);
  std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
  executor.read_state(entry.name, bytes);
  std::vector<double> values(static_cast<size_t>(entry.type.shape.elements()));
  convert(entry.type.dtype, bytes.data(), DType::kF64, values.data(), entry.type.shape.elements());
  return values;
}

// The states that are saved, and `also`, after the steps: those that are copies must be the same on every rank.
inline States run(const std::string& text, const Way& way, const Steps& steps, const std::string& recipe = "fp32",
                  const std::vector<std::string>& also = {}) {
  const Plan plan = compile(parse_program(text), options_of(way, steps, recipe));
  const Program& program = plan.program;
  std::map<std::string, std::map<int64_t, double>> elements;
  std::mutex mutex;
  run_thread_ranks(way.mesh, [&](Communicator& rank) {
    const auto executor =
        way.cpu ? make_cpu_executor(plan, &rank) : make_interpreter(program, InterpretMode::kFloat64, &rank);
    const Coordinate at = rank.coordinate();
    for (const StateEntry& entry : program.states()) {
      if (entry.role != StateRole::kMaster) continue;
      const Shape whole = whole_shape(entry.type.shape, entry.layout, way.mesh);
      const std::vector<float> values = first_values(entry.name, whole);
      std::vector<std::byte> part(static_cast<size_t>(entry.type.bytes()));
      copy_part(std::as_bytes(std::span(values)), entry.type, entry.layout, way.mesh, at, part);
      executor->write_state(entry.name, part);
    }
    executor->prepare();
    const int ranks = way.mesh[Axis::kData];
    for (int step = 0; step < steps.steps; ++step) {
      for (int i = at[Axis::kData]; i < steps.micro_batches; i += ranks) {
        Batch scale;
        scale.add("loss_scale", {DType::kF32, {1}}).values<float>()[0] = static_cast<float>(steps.loss_scale);
        const char* graph = i < ranks ? "train" : "accumulate";
        write_inputs(*executor, graph, steps.batch(step * steps.micro_batches + i), scale);
        executor->run(graph);
      }
      if (steps.inputs_of_apply) steps.inputs_of_apply(*executor, step);
      executor->run("apply");
    }
    const std::lock_guard lock(mutex);
    for (const StateEntry& entry : program.states()) {
      if (!is_saved(entry.role) && std::ranges::count(also, entry.name) == 0) continue;
      const std::vector<double> values = values_of(*executor, entry, way.cpu);
      for_each_element(entry.type.shape, entry.layout, way.mesh, at, [&](int64_t to, int64_t from) {
        const double value = values[static_cast<size_t>(from)];
        const auto [found, added] = elements[entry.name].emplace(to, value);
        EXPECT_TRUE(added || found->second == value) << way.name << ": copies of " << entry.name << " differ";
      });
    }
  });
  States states;
  for (const auto& [name, of] : elements)
    for (const auto& [element, value] : of) states[name].push_back(value);
  return states;
}

inline void expect_near(const States& got, const States& want, double tolerance, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (const auto& [name, values] : want) {
    ASSERT_EQ(got.at(name).size(), values.size()) << where << ": " << name;
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(got.at(name)[i], values[i], tolerance) << where << ": " << name << " " << i;
  }
}

}  // namespace octet::stepped
