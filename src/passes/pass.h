// What a pass is, and the pipeline that runs them: verify, time, dump, disable by name, name the guilty.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/plan.h"
#include "ir/program.h"
#include "ir/target.h"
#include "precision/recipe.h"

namespace octet {

enum class Recompute : uint8_t { kNone, kLight, kSelective, kFull };
// none | light | selective | full; auto: light on GPUs, none on CPUs, where an activation costs more than its bytes.
Recompute parse_recompute(const std::string& name, const Target& target);

std::vector<int64_t> divisors(int64_t count);  // ascending: what would do where `count` does not divide

// What a sharded optimiser cuts over the data ranks, each with what stands before it: ZeRO 0 to 3.
enum class ShardLevel : uint8_t { kNone, kOptimizer, kGradients, kParameters };

ShardLevel parse_shard_level(const std::string& name);  // "none", "optimizer", "gradients", "parameters"

// How a program is spread over ranks; one rank: not at all.
struct Parallel {
  Mesh mesh = {};
  bool sequence = false;  // tp cuts the rows of the residual stream
  bool overlap = true;    // collectives run beside kernels
  ShardLevel level = ShardLevel::kNone;
  int32_t chunks = 1;             // pieces of the model on a stage of the mesh's pipeline
  int32_t stage = 0;              // whose program this is
  int32_t micro_batches = 1;      // of a step, of each data rank: how many are in flight follows from it
  std::vector<int32_t> cut = {};  // by layer its piece; empty: as cut_layers() balances them
};

struct CompileOptions {
  Target target = {};
  Parallel parallel = {};
  Recipe recipe = {};
  Recompute recompute = Recompute::kNone;
  std::set<std::string> disabled = {};  // passes and steps (--disable); an unknown one throws with the nearest
  std::string dump_dir = {};            // --dump-ir: NN_<pass>.txt after every pass that changed something
  bool verify = true;
};

struct PassReport {
  std::string name;
  bool changed = false;
  double seconds = 0;
  int64_t nodes = 0;  // in the program afterwards
};

// A part of a pass with a name of its own, by which it is left out, or run alone. Returns whether it changed something.
struct Step {
  const char* name;
  bool (*run)(Program&, const CompileOptions&);
};
// The steps that are not disabled, in order; errors begin with the step's name.
bool run_steps(std::span<const Step> steps, Program& program, const CompileOptions& options);
// The step or pass that changes graphs one by one, by kChange(graph) or kChange(graph, options).
template <auto kChange>
bool on_graphs(Program& program, const CompileOptions& options) {
  bool changed = false;
  for (Graph& graph : program.graphs()) {
    if constexpr (requires { kChange(graph); }) {
      changed |= kChange(graph);
    } else {
      changed |= kChange(graph, options);
    }
  }
  return changed;
}

// A pass over a program: returns whether it changed something. `stage` is what the graphs are afterwards at least,
// whether or not it found something to do or was disabled: the verifier's legality tables grow from stage to stage.
struct Pass {
  std::string name;
  std::function<bool(Program&, const CompileOptions&)> run;
  Stage stage = Stage::kModel;
  std::span<const Step> steps = {};  // what `run` runs by run_steps, if it is made of such
};

// Runs the pass unless it is disabled, raises the stages and verifies the program and what the pass says of itself: one
// that changed something and says it did not, or the other way round, is an error. Errors begin "pass <name>: ".
bool run_pass(const Pass& pass, Program& program, const CompileOptions& options);

// Throws kInvalidArgument with the nearest name when one of these is neither a pass nor a step.
void check_disabled(const std::set<std::string>& names);

// The readable list: autodiff .. pack. (plan_memory comes last and makes the Plan.)
const std::vector<Pass>& pipeline_passes();

// Runs the pipeline on a program whose graphs are at stage kModel and plans its memory.
Plan compile(Program program, const CompileOptions& options, std::vector<PassReport>* reports = nullptr);

// compile() in two, for those who plan several stages of a pipeline: what all stages share, from which the pass
// `stages` takes options.parallel.stage, and the Plan of that stage.
Program compile_whole(Program program, const CompileOptions& options, std::vector<PassReport>* reports = nullptr);
Plan compile_stage(Program whole, const CompileOptions& options, std::vector<PassReport>* reports = nullptr);

// What must not be left after a pass: checked by the pipeline in verify mode, beside the verifier's legality table.
// Throws kInternal naming graph, node and rule. Rules of disabled passes and steps do not hold.
void check_stage_rules(std::string_view pass, const Program& program, const CompileOptions& options);

}  // namespace octet
