#include "train/verify_golden.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "exec/logical_states.h"
#include "train/bert.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

using Json = nlohmann::json;

// Largest absolute difference; NaN is infinite.
void compare(std::span<const float> ours, std::span<const float> theirs, double& largest, std::string* worst = nullptr,
             const std::string& name = {}) {
  check(ours.size() == theirs.size(), ErrorCode::kCorrupt, "{}: {} values, {} are expected", name, ours.size(),
        theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    const double error = std::abs(static_cast<double>(ours[i]) - theirs[i]);
    if (error <= largest) continue;
    largest = std::isnan(error) ? INFINITY : error;
    if (worst != nullptr) *worst = name;
  }
}

// Tensors behind a prefix of the file's names, as parameters of a model.
class GoldenWeights : public WeightSource {
 public:
  GoldenWeights(const TensorSource& file, ModelConfig config, const std::string& prefix) {
    config_ = std::move(config);
    for (const auto& [param, shape] : param_shapes(config_))
      values_[param] = read_parameter(file, config_, param, prefix);
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    return view_of(DType::kF32, values_.at(param).data(), shape[0], shape.elements() / shape[0], param);
  }
  const std::map<std::string, std::vector<float>>& values() const { return values_; }

 private:
  std::map<std::string, std::vector<float>> values_;
};

// What is replayed, of any workload.
struct Golden {
  std::unique_ptr<TrainingWorkload> workload;
  ModelConfig model;
  Batch batch;
  std::function<void(const WeightSource& weights, const CompileOptions& options, GoldenReport& report)> compare_logits;
};

std::vector<int64_t> integers_of(const TensorSource& file, const std::string& name) {
  const TensorView view = file.read(name);
  check(view.type.dtype == DType::kI64, ErrorCode::kCorrupt, "{} is {} (want i64)", name, to_string(view.type));
  const auto* values = reinterpret_cast<const int64_t*>(view.bytes.data());
  return {values, values + view.type.shape.elements()};
}

// ids, mask (1 in front, 0 behind), token_types and labels (-100: not masked) of rows; nsp of each.
std::vector<BertSequence> bert_sequences(const TensorSource& file, int64_t vocab_size, const std::string& path) {
  const auto ids = integers_of(file, "ids"), types = integers_of(file, "token_types"), mask = integers_of(file, "mask"),
             labels = integers_of(file, "labels"), next = integers_of(file, "nsp");
  const Shape& shape = file.read("ids").type.shape;
  check(shape.rank() == 2 && types.size() == ids.size() && mask.size() == ids.size() && labels.size() == ids.size() &&
            std::ssize(next) == shape[0],
        ErrorCode::kCorrupt, "{}: ids, token_types, mask, labels [rows, length] and nsp [rows] disagree in size", path);
  std::vector<BertSequence> sequences;
  for (int64_t row = 0; row < shape[0]; ++row) {
    BertSequence& s = sequences.emplace_back();
    s.is_next = next[static_cast<size_t>(row)] == 0;
    for (int64_t t = 0; t < shape[1]; ++t) {
      const auto at = static_cast<size_t>(row * shape[1] + t);
      if (mask[at] == 0) continue;
      check(std::ssize(s.ids) == t, ErrorCode::kCorrupt, "{}: row {} has a gap in its mask in front of token {}", path,
            row, t);
      if (labels[at] >= 0) {
        s.positions.push_back(static_cast<int32_t>(t));
        s.labels.push_back(static_cast<int32_t>(labels[at]));
      }
      s.ids.push_back(static_cast<int32_t>(ids[at]));
      s.types.push_back(static_cast<int32_t>(types[at]));
    }
    check_sequence(s, vocab_size, fmt::format("{}: row {}", path, row));
  }
  return sequences;
}

// Logits of all tokens, where training makes those of masked ones.
void compare_bert_logits(const TensorSource& file, const std::vector<BertSequence>& sequences, const ModelConfig& model,
                         int64_t length, const WeightSource& weights, const CompileOptions& options,
                         GoldenReport& report) {
  const auto rows = std::ssize(sequences);
  const BatchShape shape{.tokens = rows * length, .max_segments = rows, .max_length = length};
  Graph graph("logits", GraphRole::kForward);
  Builder b(graph);
  const ModelOutputs outputs = build_outputs(b, model, shape);
  for (const auto& [name, value] : {std::pair("logits", outputs.logits), std::pair("classes", outputs.classes)})
    b.output(name, graph.dtype(value) == DType::kF32 ? value : b.cast(value, DType::kF32));
  const std::unique_ptr<Executor> executor = load_graph(std::move(graph), options, weights);
  Batch batch;
  SequencePacker packer(batch, shape);
  for (const BertSequence& s : sequences) packer.add(s.ids, s.types);
  write_inputs(*executor, "logits", batch);
  executor->run("logits");
  const auto logits = output_as<float>(*executor, "logits", "logits");
  const std::vector<float> expected = floats_of(file.read("mlm_logits")), next = floats_of(file.read("nsp_logits"));
  const auto width = static_cast<size_t>(model.vocab_size);
  size_t from = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t count = sequences[static_cast<size_t>(row)].ids.size() * width;
    const auto theirs = std::span(expected).subspan(static_cast<size_t>(row * length) * width, count);
    compare(logits.subspan(from, count), theirs, report.max_logit_error);
    from += count;
  }
  compare(output_as<float>(*executor, "logits", "classes"), next, report.max_logit_error);
  report.logits = static_cast<int64_t>(from + next.size());
}

Golden open_bert(const std::string& path, const TensorSource& file, const Json& about) {
  Json json = about.at("config");
  json["model_type"] = "bert", json["architectures"] = {"BertForPreTraining"};
  Golden golden{.model = parse_hugging_face_config(json.dump(), path + ": about")};
  const std::vector<BertSequence> sequences = bert_sequences(file, golden.model.vocab_size, path);
  const int64_t length = file.read("ids").type.shape[1];
  RunConfig config = default_settings("bert");
  config.micro_batch = std::ssize(sequences), config.sequence_length = length, config.row_sequences = 1;
  for (const BertSequence& s : sequences) config.predictions = std::max(config.predictions, std::ssize(s.labels));
  auto bert = std::make_unique<BertPretraining>(golden.model, config);
  golden.batch = bert->pack(sequences);
  golden.workload = std::move(bert);
  golden.compare_logits = [&file, sequences, model = golden.model, length](
                              const WeightSource& weights, const CompileOptions& options, GoldenReport& report) {
    compare_bert_logits(file, sequences, model, length, weights, options, report);
  };
  return golden;
}

struct Opener {
  const char* model;
  Golden (*open)(const std::string& path, const TensorSource& file, const Json& about);
};
constexpr Opener kOpeners[] = {{"bert", open_bert}};

OptimizerConfig optimizer_of(const Json& json, const std::string& where) {
  OptimizerConfig o{
      .name = json_get<std::string>(json, "name", where), .lr = json_get<double>(json, "lr", where), .clip = 0};
  o.min_lr = o.lr, o.warmup_steps = 0, o.weight_decay = 0;
  if (json.contains("betas")) o.beta1 = json["betas"].at(0), o.beta2 = json["betas"].at(1);
  if (json.contains("eps")) o.eps = json_get<double>(json, "eps", where);
  if (json.contains("weight_decay")) o.weight_decay = json_get<double>(json, "weight_decay", where);
  if (json.contains("momentum")) o.momentum = json_get<double>(json, "momentum", where);
  validate(o);
  return o;
}

void compare_states(Executor& executor, StateRole role, const GoldenWeights& expected, double& largest,
                    std::string& worst) {
  for (const auto& [param, theirs] : expected.values()) {
    const LogicalState state = find_logical_state(executor.program(), param, role);
    std::vector<float> ours(theirs.size());
    read_logical(executor, state, std::as_writable_bytes(std::span(ours)));
    compare(ours, theirs, largest, &worst, param);
  }
}

}  // namespace

GoldenTolerance golden_tolerance(const Recipe& recipe) {
  if (recipe.name == "fp32") return {};
  const double rounding = recipe.scaling == Scaling::kNone ? 0.05 : 0.3;  // of 8 and of 3 or 4 bits, logits of about 1
  return {rounding, rounding, rounding, rounding};
}

GoldenReport verify_golden(const std::string& path, const CompileOptions& options) {
  const std::unique_ptr<TensorSource> file = open_safetensors(path);
  const auto text = file->metadata().find("about");
  check(text != file->metadata().end(), ErrorCode::kInvalidArgument,
        "{}: its metadata has no key `about`, which says what is replayed", path);
  const std::string where = path + ": about";
  const Json about = parse_json(text->second, where);
  GoldenReport report{.model = json_get<std::string>(about, "model", where)};
  const auto opener = std::ranges::find(kOpeners, report.model, &Opener::model);
  if (opener == std::end(kOpeners)) {
    std::vector<std::string> known;
    for (const Opener& each : kOpeners) known.emplace_back(each.model);
    fail(ErrorCode::kUnsupported, "{}: model \"{}\" (replayed: {})", where, report.model, fmt::join(known, ", "));
  }
  check(about.contains("config") && about.contains("optimizer"), ErrorCode::kCorrupt, "{}: has no config or optimizer",
        where);
  const Golden golden = opener->open(path, *file, about);
  const GoldenWeights weights(*file, golden.model, "w.");
  golden.compare_logits(weights, options, report);

  const auto steps = json_get<int64_t>(about, "steps", where);
  const StepperOptions stepping{.optimizer = optimizer_of(about["optimizer"], where), .compile = options};
  Stepper stepper(*golden.workload, stepping);
  load_weights(weights, stepper.executor());
  for (const float loss : floats_of(file->read("lamb_losses"))) report.expected_losses.push_back(loss);
  check(std::ssize(report.expected_losses) == steps, ErrorCode::kCorrupt, "{}: {} steps, and losses of {}", path, steps,
        report.expected_losses.size());
  for (int64_t step = 1; step <= steps; ++step) {
    const StepResult result =
        stepper.step({.micro_batches = {&golden.batch, 1}, .lr = stepping.optimizer.lr, .step = step});
    report.losses.push_back(result.loss);
    const double error = std::abs(result.loss - report.expected_losses[static_cast<size_t>(step - 1)]);
    report.max_loss_error = std::isnan(error) ? INFINITY : std::max(report.max_loss_error, error);
    if (step == 1)
      compare_states(stepper.executor(), StateRole::kGradient, GoldenWeights(*file, golden.model, "grad."),
                     report.max_gradient_error, report.worst_gradient);
  }
  compare_states(stepper.executor(), StateRole::kMaster,
                 GoldenWeights(*file, golden.model, fmt::format("after{}.", steps)), report.max_weight_error,
                 report.worst_weight);
  return report;
}

}  // namespace octet
