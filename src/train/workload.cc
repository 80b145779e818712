#include "train/workload.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "exec/logical_states.h"
#include "train/language_model.h"
#include "train/start_checks.h"

namespace octet {
namespace {

// Parameters under their own names.
class OwnNames : public WeightSource {
 public:
  explicit OwnNames(const std::string& folder) : folder_(folder), file_(open_safetensors(folder)) {}

  ParamView view(const std::string& param, const Shape& shape) const override {
    const TensorType* type = file_->find_type(param);
    check(type != nullptr && type->shape == shape, ErrorCode::kInvalidArgument,
          "{}: {} {}, this run's model wants {}: set the sizes of the checkpoint, or start a new run in another out=",
          folder_, param, type == nullptr ? "is not in it" : "is " + to_string(*type), to_string(shape));
    const int64_t rows = shape[0];
    return view_of(type->dtype, file_->read(param).bytes.data(), rows, shape.elements() / rows, folder_ + ": " + param);
  }

 private:
  std::string folder_;
  std::unique_ptr<TensorSource> file_;
};

}  // namespace

double Metric::join(std::span<const double> parts, double targets) const {
  if (targets == 0) return std::nan("");
  double joined = how == Join::kMax ? -INFINITY : 0;
  for (const double part : parts) joined = how == Join::kMax ? std::max(joined, part) : joined + part;
  if (how == Join::kMean) joined /= targets;
  return shown != nullptr ? shown(joined) : joined;
}

Batch TrainingWorkload::made_up_batch() const {
  fail(ErrorCode::kUnsupported, "{}: this workload has no made-up batches to warm up on", description());
}

std::vector<double> TrainingWorkload::measure(const Batch&, const EvalOutputs& outputs) const {
  std::vector<double> numbers;
  for (const Metric& metric : metrics()) numbers.push_back(outputs.scalar(metric.output));
  return numbers;
}

std::vector<double> TrainingWorkload::join(const std::vector<std::vector<double>>& numbers, double targets) const {
  const std::vector<Metric> all = metrics();
  std::vector<double> values;
  for (size_t m = 0; m < all.size(); ++m)
    values.push_back(all[m].join(m < numbers.size() ? numbers[m] : std::vector<double>(), targets));
  return values;
}

void output_losses(Builder& b, GraphRole role, const std::vector<LossTerm>& terms) {
  Value loss;
  for (const LossTerm& term : terms) {
    Value part = term.sum;
    if (role == GraphRole::kTrain)  // without a step around it, 1
      part = b.mul(part, b.input("loss_scale." + term.name, {DType::kF32, {1}}, {{"optional", true}, {"pad", 1}}));
    b.output(term.name + "_loss", part);
    loss = loss.exists() ? b.add(loss, part) : part;
  }
  b.output("loss", loss);
}

FileSet TrainingWorkload::weight_files(const Program& program, DType dtype, int64_t max_bytes) const {
  return state_files(
      program, [](StateRole role) { return role == StateRole::kMaster; }, "model", max_bytes, dtype);
}

void TrainingWorkload::load(const std::string& folder, Executor& executor, const BytesLoaded& loaded) const {
  load_weights(OwnNames(folder), executor, loaded);
}

void TrainingWorkload::check_same_model(const std::string& checkpoint) const {
  const OwnNames weights(checkpoint);
  const Graph graph = loss(GraphRole::kTrain, 0);
  for (const Node& node : graph.nodes())
    if (node.op == Op::kParam && !is_frozen(node)) weights.view(node.name, node.results[0].shape);
}

void TrainingWorkload::check_start(const std::string& folder) const { check_whole(folder); }

}  // namespace octet
