#include "train/verify_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "exec/logical_states.h"
#include "train/batches.h"
#include "train/preference.h"
#include "train/stepper.h"
#include "weights/adapter_folder.h"
#include "weights/nf4_folder.h"
#include "weights/weights.h"

namespace octet {
namespace {

// Of objective dpo: names in expected_training.json, and outputs of the workload.
constexpr std::pair<const char*, const char*> kPreferenceMetrics[] = {{"rewards_chosen", "rewards_chosen"},
                                                                      {"rewards_rejected", "rewards_rejected"},
                                                                      {"accuracies", "accuracy"},
                                                                      {"margins", "margin"}};

double relative_error(double ours, double theirs) {
  double error = std::abs(ours - theirs) / std::max(std::abs(theirs), 1e-30);
  return std::isnan(error) ? INFINITY : error;
}

double squared_norm(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// What is replayed: a model, or an adapter on a frozen one.
struct Replayed {
  std::string folder, base;  // of the adapter
  bool is_adapter = false;
  std::unique_ptr<WeightSource> weights;
  AdapterSpec adapter = {};
};

// Of the folder, or of the model that `base` of expected_training.json names; of an adapter its base's.
Replayed open_replayed(const std::string& folder, const std::string& base) {
  Replayed all{.folder = folder, .base = base, .is_adapter = is_adapter_folder(folder)};
  if (!all.is_adapter) {
    all.weights = open_weights(trained_model(folder));
    return all;
  }
  if (base.empty()) all.base = adapter_base(folder);
  all.weights = open_weights(all.base);
  Adapter adapter = read_adapter(folder, all.weights->config());
  all.adapter = adapter.spec;
  all.adapter.dropout = 0;
  all.adapter.nf4 = nf4_group_of(all.base).value_or(0);  // the values are the same
  if (adapter.config.method == PeftMethod::kPTuning) {
    const bool lstm = adapter.config.encoder == "LSTM";
    check(!lstm || adapter.config.encoder_dropout == 0, ErrorCode::kUnsupported,
          "{}: encoder_dropout is {} (supported in training: 0)", folder, adapter.config.encoder_dropout);
    check(adapter.find("prompt_encoder.embedding.weight") != nullptr, ErrorCode::kNotFound,
          "{}: P-tuning's encoder is trained, and the folder has no prompt_encoder.safetensors", folder);
    all.adapter.encoder_hidden = adapter.config.encoder_hidden;
    if (lstm) all.adapter.encoder_layers = adapter.config.encoder_layers;
  }
  all.weights = add_adapter(std::move(all.weights), std::move(adapter));
  return all;
}

std::vector<float> gradient_of(Executor& executor, const std::string& param) {
  const LogicalState gradient = find_logical_state(executor.program(), param, StateRole::kGradient);
  std::vector<float> values(static_cast<size_t>(gradient.type.shape.elements()));
  read_logical(executor, gradient, std::as_writable_bytes(std::span(values)));
  return values;
}

// Per tensor of the checkpoint: a stacked one (GPT-2's q, k, v) counts as one, as the framework that wrote it saw it;
// of an adapter per tensor that is trained. The file holds gradients after clipping, as the optimiser saw them: ours
// are multiplied by the same factor.
void compare_gradients(const Replayed& replayed, const ModelConfig& model, double clip, Executor& executor,
                       TrainingReport& report) {
  constexpr const char *kStem = "expected_grads_step0", *kPrefix = "grad.";
  const std::string path = replayed.folder + "/" + kStem + ".safetensors";
  if (!path_exists(path)) return;
  report.has_gradients = true;
  const auto add = [&](const std::string& param, const std::vector<float>& theirs, double& error, double& size) {
    std::vector<float> ours = gradient_of(executor, param);
    size += squared_norm(theirs);
    for (size_t i = 0; i < ours.size(); ++i) ours[i] = static_cast<float>(clip * ours[i]) - theirs[i];
    error += squared_norm(ours);
  };
  const auto judge = [&](const std::string& name, double error, double size) {
    const double relative = relative_error(std::sqrt(error) + std::sqrt(size), std::sqrt(size));
    if (!(relative <= report.max_gradient_error)) report.max_gradient_error = relative, report.worst_gradient = name;
  };
  if (replayed.adapter.virtual_tokens > 0) {
    const auto expected = open_safetensors(path);
    for (const std::string& name : expected->names()) {
      // The table that PEFT trains without an encoder is the prompt itself.
      const std::string own = name.substr(std::string_view(kPrefix).size());
      double error = 0, size = 0;
      add(replayed.adapter.encoder_hidden > 0 ? own : "prompt.weight", floats_of(expected->read(name)), error, size);
      judge(own, error, size);
    }
    return;
  }
  if (replayed.is_adapter) {
    const Adapter expected = read_adapter_tensors(replayed.folder, replayed.weights->config(), kStem, kPrefix);
    for (const auto& [param, theirs] : expected.tensors) {
      double error = 0, size = 0;
      add(param, read_floats(theirs), error, size);
      judge(param, error, size);
    }
    return;
  }
  const auto expected = open_safetensors(path);
  for (const CheckpointTensor& tensor : checkpoint_tensors(model)) {
    if (tensor.part > 0) continue;  // compared with the first
    double error = 0, size = 0;
    for (const std::string& param : tensor.params)
      add(param, read_parameter(*expected, model, param, kPrefix), error, size);
    judge(tensor.name, error, size);
  }
}

// The micro-batches that every step is made on.
struct FixedBatches {
  std::vector<Batch> batches;
  int64_t sequences = 0, length = 0;
  std::optional<PreferenceSettings> preference = {};  // of objective dpo, whose sequences are pairs
};

void check_token(double id, const ModelConfig& model, const std::string& where) {
  check(id >= 0 && id < static_cast<double>(model.vocab_size), ErrorCode::kCorrupt,
        "{}: id {} is outside the vocabulary of {}", where, id, model.vocab_size);
}

// Behind the adapter's virtual tokens, the last of which does not predict the first token here.
TokenSample behind_virtual(TokenSample sample, const AdapterSpec& adapter, const ModelConfig& model) {
  if (adapter.virtual_tokens == 0) return sample;
  if (sample.counts.empty()) sample.counts.assign(sample.tokens.size(), 1);
  sample.counts[0] = 0;
  add_virtual_tokens(sample, adapter, model.vocab_size);
  return sample;
}

// input_ids of expected.safetensors, as one.
FixedBatches read_batch(const std::string& folder, const ModelConfig& model, const AdapterSpec& adapter) {
  auto expected = open_safetensors(folder + "/expected.safetensors");
  TensorView ids = expected->read("input_ids");
  check(ids.type.shape.rank() == 2 && ids.type.shape[1] >= 2, ErrorCode::kCorrupt,
        "{}/expected.safetensors: input_ids is {} (want [sequences, tokens])", folder, to_string(ids.type.shape));
  int64_t sequences = ids.type.shape[0], length = ids.type.shape[1] - 1;
  BatchPacker packer(sequences, length + adapter.virtual_tokens, false);
  for (int64_t s = 0; s < sequences; ++s) {
    TokenSample sample{.segments = {0}};
    for (int64_t t = 0; t <= length; ++t) {
      const double id = load_element(ids.type.dtype, ids.bytes.data(), s * (length + 1) + t);
      check_token(id, model, folder + "/expected.safetensors: input_ids");
      sample.tokens.push_back(static_cast<int32_t>(id));
    }
    packer.add(behind_virtual(std::move(sample), adapter, model));
  }
  return {.batches = {packer.finish()}, .sequences = sequences, .length = length};
}

// Objective sft: the lines {"ids", "mask"} of `examples`, in `micro_batches` by their numbers.
FixedBatches read_examples(const std::string& folder, const nlohmann::json& json, const std::string& where,
                           const ModelConfig& model, const AdapterSpec& adapter) {
  const std::string path = folder + "/" + json_get<std::string>(json, "examples", where);
  std::vector<TokenSample> examples;
  FixedBatches all;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const std::string at = fmt::format("{}:{}", path, examples.size() + 1);
    const nlohmann::json example = parse_json(line, at);
    TokenSample& sample = examples.emplace_back();
    sample.tokens = json_get<std::vector<int32_t>>(example, "ids", at), sample.segments = {0};
    sample.counts = json_get<std::vector<uint8_t>>(example, "mask", at);
    check(sample.tokens.size() >= 2 && sample.counts.size() == sample.tokens.size(), ErrorCode::kCorrupt,
          "{}: {} ids and a mask of {} (want as many, at least 2)", at, sample.tokens.size(), sample.counts.size());
    for (int32_t id : sample.tokens) check_token(id, model, at);
    all.length = std::max(all.length, std::ssize(sample.tokens) - 1);
  }
  const auto groups = json_get<std::vector<std::vector<size_t>>>(json, "micro_batches", where);
  for (const auto& group : groups) all.sequences = std::max(all.sequences, std::ssize(group));
  for (const auto& group : groups) {
    BatchPacker packer(all.sequences, all.length + adapter.virtual_tokens, false);
    for (size_t i : group) {
      check(i < examples.size(), ErrorCode::kCorrupt, "{}: micro_batches names example {} of {}", where, i,
            examples.size());
      packer.add(behind_virtual(examples[i], adapter, model));
    }
    all.batches.push_back(packer.finish());
  }
  check(!all.batches.empty(), ErrorCode::kCorrupt, "{}: micro_batches is empty", where);
  return all;
}

// Objective dpo: the lines {"prompt_ids", "chosen_ids", "rejected_ids"} of `pairs`, as one micro-batch.
std::vector<PreferencePair> read_pairs(const std::string& folder, const nlohmann::json& json, const std::string& where,
                                       const ModelConfig& model) {
  const std::string path = folder + "/" + json_get<std::string>(json, "pairs", where);
  std::vector<PreferencePair> pairs;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const std::string at = fmt::format("{}:{}", path, pairs.size() + 1);
    const nlohmann::json record = parse_json(line, at);
    const auto prompt = json_get<std::vector<int32_t>>(record, "prompt_ids", at);
    PreferencePair& pair = pairs.emplace_back();
    for (const size_t side : {0U, 1U}) {
      const auto answer = json_get<std::vector<int32_t>>(record, side == 0 ? "chosen_ids" : "rejected_ids", at);
      check(!prompt.empty() && !answer.empty(), ErrorCode::kCorrupt, "{}: {} ids of a prompt and {} of an answer", at,
            prompt.size(), answer.size());
      pair.tokens[side] = prompt, pair.counts[side].assign(prompt.size(), 0);
      pair.tokens[side].insert(pair.tokens[side].end(), answer.begin(), answer.end());
      pair.counts[side].resize(pair.tokens[side].size(), 1);
      for (const int32_t id : pair.tokens[side]) check_token(id, model, at);
    }
  }
  check(!pairs.empty(), ErrorCode::kCorrupt, "{}: it has no pairs", path);
  return pairs;
}

PreferenceSettings read_preference(const nlohmann::json& json, const std::string& where) {
  PreferenceSettings settings{.beta = json_get<double>(json, "beta", where)};
  if (json.contains("loss")) settings.loss = json_get<std::string>(json, "loss", where);
  if (json.contains("label_smoothing")) settings.label_smoothing = json_get<double>(json, "label_smoothing", where);
  check(settings.loss == "sigmoid" || settings.loss == "ipo", ErrorCode::kUnsupported,
        "{}: loss is {} (supported: sigmoid, ipo)", where, settings.loss);
  check(settings.beta > 0 && settings.label_smoothing >= 0 && settings.label_smoothing < 0.5, ErrorCode::kCorrupt,
        "{}: beta {} and label_smoothing {} (want above 0, and 0 or more below 0.5)", where, settings.beta,
        settings.label_smoothing);
  validate(settings);
  return settings;
}

void compare_metric(TrainingReport& report, const std::string& name, double ours, double theirs) {
  const double error = std::abs(ours - theirs) / std::max(1.0, std::abs(theirs));
  if (error <= report.max_metric_error) return;
  report.max_metric_error = std::isnan(error) ? INFINITY : error, report.worst_metric = name;
}

// The pairs' batch; their reference is the model without the adapter.
FixedBatches read_preference_batch(const Replayed& replayed, const nlohmann::json& json, const std::string& path,
                                   const ModelConfig& model, const StepperOptions& options, TrainingReport& report) {
  std::vector<PreferencePair> pairs = read_pairs(replayed.folder, json, path, model);
  FixedBatches fixed{.batches = {}, .sequences = std::ssize(pairs), .preference = read_preference(json, path)};
  for (const PreferencePair& pair : pairs) fixed.length = std::max(fixed.length, pair.inputs());
  const auto base = replayed.is_adapter ? open_weights(replayed.base) : nullptr;
  const std::vector<PairLogps> logps = reference_logps(
      base ? *base : *replayed.weights, fixed.sequences, fixed.length, fixed.sequences,
      [&](int64_t i) { return pairs[static_cast<size_t>(i)]; }, options, replayed.adapter.nf4);
  const auto expected = json.contains("reference_logps")
                            ? json_get<std::vector<std::array<double, 2>>>(json, "reference_logps", path)
                            : std::vector<std::array<double, 2>>();
  check(expected.empty() || expected.size() == pairs.size(), ErrorCode::kCorrupt,
        "{}: reference_logps of {} pairs, and there are {}", path, expected.size(), pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    pairs[i].reference = logps[i];
    for (size_t side = 0; side < 2 && !expected.empty(); ++side)
      compare_metric(report, "reference_logps", static_cast<double>(logps[i][side]), expected[i][side]);
  }
  fixed.batches = {pack_pairs(pairs, fixed.sequences, fixed.length, *fixed.preference)};
  return fixed;
}

// AdamW on matrices alone, at a constant rate; clipping of the whole norm.
OptimizerConfig read_optimizer(const nlohmann::json& json, const std::string& where) {
  OptimizerConfig o{
      .lr = 1e-3, .warmup_steps = 0, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
  const auto number = [&](const char* key, double& value) {
    if (json.contains(key)) value = json_get<double>(json, key, where);
  };
  number("lr", o.lr), number("eps", o.eps), number("weight_decay", o.weight_decay), number("clip", o.clip);
  if (json.contains("betas")) {
    const auto betas = json_get<std::vector<double>>(json, "betas", where);
    check(betas.size() == 2, ErrorCode::kCorrupt, "{}: betas has {} numbers (want 2)", where, betas.size());
    o.beta1 = betas[0], o.beta2 = betas[1];
  }
  o.min_lr = o.lr;
  return o;
}

// The steps of `model` with the folder's weights.
TrainingReport replay(const Replayed& replayed, ModelConfig model, const CompileOptions& options, bool interpret) {
  const std::string path = replayed.folder + "/expected_training.json";
  nlohmann::json json = parse_json(read_file(path), path);
  TrainingReport report;
  report.expected_losses = json_get<std::vector<double>>(json, "losses", path);
  report.expected_grad_norms = json_get<std::vector<double>>(json, "grad_norms", path);
  check(!report.expected_losses.empty() && report.expected_losses.size() == report.expected_grad_norms.size(),
        ErrorCode::kCorrupt, "{}: {} losses and {} gradient norms (want as many of both)", path,
        report.expected_losses.size(), report.expected_grad_norms.size());

  const std::string objective = json.contains("objective") ? json_get<std::string>(json, "objective", path) : "";
  check(objective.empty() || objective == "sft" || objective == "dpo", ErrorCode::kUnsupported,
        "{}: objective is {} (supported: none, sft, dpo)", path, objective);
  const OptimizerConfig optimizer = read_optimizer(json, path);
  const StepperOptions stepping{.optimizer = optimizer, .compile = options, .interpret = interpret};
  model.dropout = 0;
  const FixedBatches fixed = objective == "dpo"   ? read_preference_batch(replayed, json, path, model, stepping, report)
                             : objective == "sft" ? read_examples(replayed.folder, json, path, model, replayed.adapter)
                                                  : read_batch(replayed.folder, model, replayed.adapter);
  std::unique_ptr<LanguageModel> workload;
  if (fixed.preference)
    workload =
        std::make_unique<PreferenceModel>(model, fixed.sequences, fixed.length, replayed.adapter, *fixed.preference);
  else
    workload = std::make_unique<LanguageModel>(model, fixed.sequences, fixed.length, false, replayed.adapter);
  Stepper stepper(*workload, stepping);
  load_weights(*replayed.weights, stepper.executor());
  for (size_t i = 0; i < report.expected_losses.size(); ++i) {
    auto step = static_cast<int64_t>(i) + 1;
    const StepResult result = stepper.step({.micro_batches = fixed.batches, .lr = optimizer.lr, .step = step});
    double clip = std::min(1.0, optimizer.clip / (result.grad_norm + 1e-6));
    if (i == 0) compare_gradients(replayed, model, clip, stepper.executor(), report);
    report.losses.push_back(result.loss);
    report.grad_norms.push_back(result.grad_norm);
    report.max_loss_error = std::max(report.max_loss_error, relative_error(result.loss, report.expected_losses[i]));
    report.max_grad_norm_error =
        std::max(report.max_grad_norm_error, relative_error(result.grad_norm, report.expected_grad_norms[i]));
    for (const auto& [name, output] : kPreferenceMetrics) {
      if (!fixed.preference || !json.contains(name)) continue;
      const auto expected = json_get<std::vector<double>>(json, name, path);
      check(expected.size() == report.expected_losses.size(), ErrorCode::kCorrupt, "{}: {} {} and {} losses", path,
            expected.size(), name, report.expected_losses.size());
      compare_metric(report, name, result.sums.at(output) / static_cast<double>(result.targets), expected[i]);
    }
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

std::string trained_model(const std::string& folder) {
  const std::string path = folder + "/expected_training.json";
  if (!path_exists(path)) return folder;
  const nlohmann::json json = parse_json(read_file(path), path);
  return json.contains("base") ? folder + "/" + json_get<std::string>(json, "base", path) : folder;
}

TrainingReport verify_training(const std::string& folder, const CompileOptions& options, bool interpret,
                               const std::string& base) {
  const Replayed replayed = open_replayed(folder, base);
  const ModelConfig& model = replayed.weights->config();
  TrainingReport report = replay(replayed, model, options, interpret);
  if (const auto eager = eager_reference(model)) {
    TrainingReport other = replay(replayed, *eager, options, interpret);
    other.eager_reference = true;
    if (other.max_loss_error < report.max_loss_error) return other;
  }
  return report;
}

std::string relu_inputs_on_other_sides(const std::string& folder, const CompileOptions& options) {
  if (!path_exists(folder + "/expected.safetensors") || is_adapter_folder(folder)) return "";
  const auto weights = open_weights(folder);
  const FixedBatches fixed = read_batch(folder, weights->config(), {});
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
    stepper.evaluate(fixed.batches[0]);
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
