// What a run learns, as one value: graphs of the loss, batches, metrics, the unit that is counted, tensors in files.
//
// Trainer, evaluation, plans, diagnosis, recipe auto and checkpoints take a TrainingWorkload and know nothing else of
// it; language modelling is one (train/language_model.h). It must not know devices, ranks, recipes or optimiser steps.
// A new workload is a class in a header and a source of its own, with a WorkloadRow in workloads.cc, and a test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/batch.h"
#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/layout.h"
#include "train/optimizer.h"
#include "train/run_config.h"
#include "train/tensor_files.h"
#include "weights/weights.h"

namespace octet {

struct StepperOptions;

// Of eval graphs whose tokens are scored one by one: i32[T, 1].
constexpr const char* kLikeliestOutput = "likeliest";

enum class DataSplit { kTraining, kValidation };

// What a workload counts: "tokens" and "tokens_per_second" in logs and plans, "tok/s" in progress lines.
struct CountedUnit {
  std::string one = "token", brief = "tok";
  std::string many() const { return one + "s"; }
};

// A number of an evaluation, made of an output f32[1] of evaluation graphs, of which every batch gives a part.
struct Metric {
  enum class Join {
    kMean,  // the sum of the parts over the targets that count
    kSum,
    kMax,
  };
  std::string name = "loss";          // in log.jsonl and progress lines; "eval/NAME" in TensorBoard
  std::string output = "loss";        // of the graphs
  Join how = Join::kMean;             // parts join
  double (*shown)(double) = nullptr;  // of the joined value; null: itself
  bool higher_is_better = false;
  int digits = 4;  // after the decimal point, in progress lines

  double join(std::span<const double> parts, double targets) const;  // by their weights; NaN where none counts
  bool is_better(double value, double than) const { return higher_is_better ? value > than : value < than; }
};

// What checkpoints keep of the data: a resume on other data is refused.
struct DataRecord {
  std::string data;         // sizes and order of the training split
  std::string checksum;     // of its contents
  std::string validation;   // the validation split and how it is cut; metrics of another do not compare
  std::string frozen = {};  // fingerprints of models that are read and not trained: an adapter's base, a reference
};

// Outputs of an evaluation graph that has just run.
struct EvalOutputs {
  std::function<double(const std::string& name)> scalar;              // f32[1]
  std::function<std::vector<int32_t>(const std::string& name)> ints;  // of any shape; not in a pipeline
};

class TrainingWorkload {
 public:
  virtual ~TrainingWorkload() = default;

  // --- The model.

  // Of role kTrain or kEval, for batches of a static shape (Batch::shape), of which there are shapes(role). Reads the
  // batches' tensors by name; outputs "loss" (f32[1], the sum over the targets that count) and what metrics() name.
  // Graphs of one shape read the same batches, whatever their role. Of several losses "loss" is what output_losses()
  // makes of them, and every batch counts the targets of each (Batch::loss_counts).
  virtual Graph loss(GraphRole role, int64_t shape) const = 0;
  virtual int64_t shapes(GraphRole) const { return 1; }
  virtual int64_t units() const = 0;            // of a training micro-batch, padding included
  virtual std::string description() const = 0;  // "gpt2 12 layers, 768 wide"
  // The most ranks of an axis that diagnosis may propose: layers by kPipeline, heads by kTensor.
  virtual int64_t most_ranks(Axis) const { return 1; }
  // The same model under other settings, without batches: for plans.
  virtual std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const = 0;

  // --- Batches: thread safe. What is random is drawn by the index: the same index gives the same batch, whatever was
  // made before it and on whichever rank.

  // Training has an endless order of micro-batches, validation as many batches as it says (0: there is no evaluation).
  virtual Batch batch(DataSplit split, int64_t index) const = 0;
  virtual int64_t validation_batches() const { return 0; }
  // Sequences, or what train.micro_batch counts, of one pass over the training split; 0: its order has no end of one.
  virtual int64_t samples_per_epoch() const { return 0; }
  virtual int64_t units_of(DataSplit) const { return 0; }  // of the whole split; 0: not known
  // A micro-batch of the training split's shape that no data was read for, for runs whose results nobody keeps. Throws
  // kUnsupported where the workload has none.
  virtual Batch made_up_batch() const;
  virtual DataRecord data() const = 0;  // may read samples of the data, which opening a workload does not
  virtual std::vector<Metric> metrics() const { return {{}}; }  // the first decides which checkpoint is the best
  // What a batch of an evaluation adds to, in any order of one's own, from the outputs of its graph; and the metrics of
  // all batches' numbers, numbers[i] being the i-th of each. By default the outputs of metrics(), joined as they say.
  virtual std::vector<double> measure(const Batch& batch, const EvalOutputs& outputs) const;
  virtual std::vector<double> join(const std::vector<std::vector<double>>& numbers, double targets) const;
  virtual CountedUnit unit() const { return {}; }

  // What is computed once, before the first step and before the run's own program is on the device; `out` keeps it for
  // resumes. All ranks call it together.
  virtual void prepare(const StepperOptions& options, const std::string& out) {}

  // --- Files. By default model*.safetensors has every parameter under its own name, and nothing lies beside it.

  virtual FileSet weight_files(const Program& program, DType dtype, int64_t max_bytes) const;
  virtual void write_files(const std::string& folder, DType weights) const {}  // beside them: config.json, a tokenizer
  // Fills the masters from a checkpoint or from the folder of model.from, then prepares.
  virtual void load(const std::string& folder, Executor& executor, const BytesLoaded& loaded) const;
  // Before anything is compiled. They throw kInvalidArgument where the checkpoint is of another model, and where a run
  // cannot begin from the folder of model.from.
  virtual void check_same_model(const std::string& checkpoint) const;
  virtual void check_start(const std::string& folder) const;
};

// Output "loss" of several losses, each the sum over its own targets. In training it is the sum of sum x scale over
// them, where input "loss_scale.NAME" f32[1] is 1 / (the targets of all micro-batches and ranks of a step), 0 where
// there are none: a step's loss and gradients do not depend on how it is cut. In evaluation, of which nobody knows the
// counts beforehand, the sums are outputs of their own, "NAME_loss"; so are in training the addends of the loss, which
// are means (0 of a loss without targets) and join by Metric::Join::kSum.
struct LossTerm {
  std::string name;
  Value sum;  // f32[1]
};
void output_losses(Builder& b, GraphRole role, const std::vector<LossTerm>& terms);

// A workload as settings choose it.
struct WorkloadRow {
  OptimizerConfig optimizer = {};  // defaults of optimiser and schedule: of RunConfig::optimizer before it is set
  std::unique_ptr<TrainingWorkload> (*open)(
      const RunConfig& config);  // with its data; throws what is wrong with either
  std::unique_ptr<TrainingWorkload> (*plan)(const RunConfig& config) = nullptr;  // graphs alone, without its data
  void (*set_defaults)(RunConfig& config) = nullptr;                             // of other settings
};

std::vector<std::string> workload_names();
const WorkloadRow& workload_row(const std::string& name);  // of setting `workload`
const WorkloadRow& workload_row(const RunConfig& config);  // of `workload` and train.objective
RunConfig default_settings(const std::string& workload);   // before any is set

}  // namespace octet
