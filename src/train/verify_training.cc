#include "train/verify_training.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "exec/logical_states.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

double relative_error(double ours, double theirs) {
  double error = std::abs(ours - theirs) / std::max(std::abs(theirs), 1e-30);
  return std::isnan(error) ? INFINITY : error;
}

double squared_norm(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// Per tensor of the checkpoint: a stacked one (GPT-2's q, k, v) counts as one, as the framework that wrote it saw it.
// The file holds gradients after clipping, as the optimiser saw them: ours are multiplied by the same factor.
void compare_gradients(const std::string& folder, const ModelConfig& model, double clip, Executor& executor,
                       TrainingReport& report) {
  std::string path = folder + "/expected_grads_step0.safetensors";
  if (!path_exists(path)) return;
  report.has_gradients = true;
  auto expected = open_safetensors(path);
  for (const CheckpointTensor& tensor : checkpoint_tensors(model)) {
    if (tensor.part > 0) continue;  // compared with the first
    double error = 0, size = 0;
    for (const std::string& param : tensor.params) {
      const LogicalState gradient = find_logical_state(executor.program(), param, StateRole::kGradient);
      std::vector<float> ours(static_cast<size_t>(gradient.type.shape.elements()));
      read_logical(executor, gradient, std::as_writable_bytes(std::span(ours)));
      std::vector<float> theirs = read_parameter(*expected, model, param, "grad.");
      size += squared_norm(theirs);
      for (size_t i = 0; i < ours.size(); ++i) ours[i] = static_cast<float>(clip * ours[i]) - theirs[i];
      error += squared_norm(ours);
    }
    double relative = relative_error(std::sqrt(error) + std::sqrt(size), std::sqrt(size));
    if (!(relative <= report.max_gradient_error))
      report.max_gradient_error = relative, report.worst_gradient = tensor.name;
  }
}

// The batch that every step is made on.
struct FixedBatch {
  Batch batch;
  int64_t sequences = 0, length = 0;
};

FixedBatch read_batch(const std::string& folder, const ModelConfig& model) {
  auto expected = open_safetensors(folder + "/expected.safetensors");
  TensorView ids = expected->read("input_ids");
  check(ids.type.shape.rank() == 2 && ids.type.shape[1] >= 2, ErrorCode::kCorrupt,
        "{}/expected.safetensors: input_ids is {} (want [sequences, tokens])", folder, to_string(ids.type.shape));
  int64_t sequences = ids.type.shape[0], length = ids.type.shape[1] - 1;
  BatchPacker packer(sequences, length, false);
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t <= length; ++t) {
      const double id = load_element(ids.type.dtype, ids.bytes.data(), s * (length + 1) + t);
      check(id >= 0 && id < static_cast<double>(model.vocab_size), ErrorCode::kCorrupt,
            "{}/expected.safetensors: input_ids: id {} is outside the vocabulary of {}", folder, id, model.vocab_size);
      tokens.push_back(static_cast<int32_t>(id));
    }
    packer.add(tokens, {0});
  }
  return {.batch = packer.finish(), .sequences = sequences, .length = length};
}

// Ten steps of `model` with the folder's weights.
TrainingReport replay(const std::string& folder, const WeightSource& weights, ModelConfig model,
                      const CompileOptions& options, bool interpret) {
  std::string path = folder + "/expected_training.json";
  nlohmann::json json = parse_json(read_file(path), path);
  TrainingReport report;
  report.expected_losses = json_get<std::vector<double>>(json, "losses", path);
  report.expected_grad_norms = json_get<std::vector<double>>(json, "grad_norms", path);
  check(!report.expected_losses.empty() && report.expected_losses.size() == report.expected_grad_norms.size(),
        ErrorCode::kCorrupt, "{}: {} losses and {} gradient norms (want as many of both)", path,
        report.expected_losses.size(), report.expected_grad_norms.size());

  const FixedBatch fixed = read_batch(folder, model);

  // The settings expected_training.json names: lr 1e-3 constant, betas (0.9, 0.95), decay 0.1 on matrices, clip 1.
  OptimizerConfig optimizer{.lr = 1e-3,
                            .min_lr = 1e-3,
                            .warmup_steps = 0,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .weight_decay = 0.1,
                            .clip = 1.0};
  model.dropout = 0;
  Stepper stepper(LanguageModel(model, fixed.sequences, fixed.length),
                  {.optimizer = optimizer, .compile = options, .interpret = interpret});
  load_weights(weights, stepper.executor());
  for (size_t i = 0; i < report.expected_losses.size(); ++i) {
    auto step = static_cast<int64_t>(i) + 1;
    const StepResult result = stepper.step({.micro_batches = {&fixed.batch, 1}, .lr = optimizer.lr, .step = step});
    double clip = std::min(1.0, optimizer.clip / (result.grad_norm + 1e-6));
    if (i == 0) compare_gradients(folder, model, clip, stepper.executor(), report);
    report.losses.push_back(result.loss);
    report.grad_norms.push_back(result.grad_norm);
    report.max_loss_error = std::max(report.max_loss_error, relative_error(result.loss, report.expected_losses[i]));
    report.max_grad_norm_error =
        std::max(report.max_grad_norm_error, relative_error(result.grad_norm, report.expected_grad_norms[i]));
  }
  return report;
}

}  // namespace

TrainingTolerance training_tolerance(const Recipe& recipe) {
  if (recipe.name == "fp32") return {};
  if (recipe.tf32) return {.losses = 0.0025, .gradients = 0.0125};
  if (recipe.name == "bf16") return {.losses = 0.01, .gradients = 0.05};
  return {.losses = 0.1, .gradients = 0.5};  // E5M2 gradients: rounded by up to 1/8; wrong ones are 1.4 away
}

TrainingReport verify_training(const std::string& folder, const CompileOptions& options, bool interpret) {
  auto weights = open_weights(folder);
  const ModelConfig& model = weights->config();
  TrainingReport report = replay(folder, *weights, model, options, interpret);
  if (const auto eager = eager_reference(model)) {
    TrainingReport other = replay(folder, *weights, *eager, options, interpret);
    other.eager_reference = true;
    if (other.max_loss_error < report.max_loss_error) return other;
  }
  return report;
}

std::string relu_inputs_on_other_sides(const std::string& folder, const CompileOptions& options) {
  const auto weights = open_weights(folder);
  const FixedBatch fixed = read_batch(folder, weights->config());
  Program program;
  Graph& graph =
      program.add_graph(LanguageModel(weights->config(), fixed.sequences, fixed.length).loss(GraphRole::kEval, 0));
  Builder builder(graph);
  std::vector<std::string> relus;
  for (int32_t i = 0, count = graph.size(); i < count; ++i) {
    const Node node = graph.node(NodeId{i});
    if (node.op != Op::kRelu) continue;
    relus.push_back(node.name);
    builder.output(node.name + ".x", node.inputs[0]);
  }
  if (relus.empty() || options.recipe.compute != DType::kF32) return "";
  const Plan plan = compile(std::move(program), options);
  std::vector<std::unique_ptr<Stepper>> both;
  for (bool interpret : {false, true}) {
    Stepper& stepper =
        *both.emplace_back(std::make_unique<Stepper>(plan, StepperOptions{.compile = options, .interpret = interpret}));
    load_weights(*weights, stepper.executor());
    stepper.evaluate(fixed.batch);
  }
  constexpr int64_t kShown = 4;
  std::string words;
  int64_t found = 0;
  for (const std::string& relu : relus) {
    const auto ours = output_as<float>(both[0]->executor(), graph_name(GraphRole::kEval), relu + ".x");
    const auto exact = output_as<float>(both[1]->executor(), graph_name(GraphRole::kEval), relu + ".x");
    for (size_t i = 0; i < ours.size(); ++i) {
      if ((ours[i] > 0) == (exact[i] > 0) || ++found > kShown) continue;
      words += fmt::format("{}element {} of {}'s input is {:.2g}, exactly {:.2g}", found > 1 ? "; " : "", i, relu,
                           ours[i], exact[i]);
    }
  }
  if (found > kShown) words += fmt::format("; and {} more", found - kShown);
  return words;
}

}  // namespace octet
