#include "train/preference.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/integers.h"
#include "base/log.h"
#include "base/progress.h"
#include "dist/communicator.h"
#include "exec/logical_states.h"
#include "io/corpus.h"
#include "io/safetensors.h"
#include "ir/builder.h"
#include "passes/adapt.h"
#include "weights/fingerprint.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr const char *kTraining = "training", *kValidation = "validation";

BatchShape pair_shape(int64_t pairs, int64_t length, bool training) {
  return {.tokens = pairs * length, .max_segments = 2 * pairs, .max_length = length, .training = training};
}

// [pairs]: log-probabilities of the answers of a side.
Value answer_logps(Builder& b, Value losses, const char* side, int64_t pairs, int64_t length) {
  const Value mask = b.input(side, {DType::kF32, {pairs * length}}, {{"rows", "batch"}});
  const Value rows = b.reshape(b.mul(losses, mask), {pairs, length});
  return b.scale(b.reduce(b.transpose(rows), "sum", "rows"), -1);
}

Graph reference_graph(const ModelSpec& model, int64_t pairs, int64_t length, int64_t nf4) {
  Graph graph(GraphRole::kEval);
  Builder b(graph);
  const Value losses = build_token_losses(b, model, pair_shape(pairs, length, false));
  for (const char* side : {"chosen", "rejected"}) b.output(side, answer_logps(b, losses, side, pairs, length));
  return adapt(graph, {.nf4 = nf4});  // all frozen
}

// A scale that decides by an earlier step's history is there in training alone.
StepperOptions reference_options(StepperOptions options) {
  Recipe& recipe = options.compile.recipe;
  if (recipe.name == "fp8-delayed") recipe = parse_recipe("fp8-current");
  if (recipe.name == "auto") recipe = parse_recipe("bf16");
  options.compile.dump_dir.clear();
  return options;
}

std::optional<std::vector<PairLogps>> read_logps(const TensorSource& file, const char* name, int64_t count) {
  const TensorType* type = file.find_type(name);
  if (type == nullptr || *type != TensorType{DType::kF32, {std::max<int64_t>(count, 1), 2}}) return std::nullopt;
  std::vector<PairLogps> logps(static_cast<size_t>(count));
  if (count > 0) std::memcpy(logps.data(), file.read(name).bytes.data(), logps.size() * sizeof(PairLogps));
  return logps;
}

}  // namespace

const WorkloadRow kPreferenceLearning = {.open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
                                           return std::make_unique<PreferenceModel>(config);
                                         },
                                         .plan = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
                                           return std::make_unique<PreferenceModel>(resolve_model(config, 0), config);
                                         }};

PreferenceModel::PreferenceModel(ModelConfig model, const RunConfig& config)
    : LanguageModel(std::move(model), config), settings_(config.dpo) {}

PreferenceModel::PreferenceModel(ModelConfig model, int64_t pairs, int64_t length, AdapterSpec adapter,
                                 PreferenceSettings settings)
    : LanguageModel(std::move(model), pairs, length, false, std::move(adapter)), settings_(std::move(settings)) {}

PreferenceModel::PreferenceModel(const RunConfig& config)
    : LanguageModel(config), settings_(config.dpo), reference_(config.dpo.reference) {
  if (reference_.empty()) reference_ = config.model_from;
  check(!reference_.empty(), ErrorCode::kInvalidArgument,
        "train.objective=dpo compares answers with a frozen model: set model.from to the folder of the model that is "
        "trained, or dpo.reference to another's");
  const auto weights = open_weights(reference_);
  check(weights->config().vocab_size >= model_.vocab_size, ErrorCode::kInvalidArgument,
        "dpo.reference {} has a vocabulary of {}, the model one of {}: want a model of the same tokenizer", reference_,
        weights->config().vocab_size, model_.vocab_size);
  reference_fingerprint_ = weights_fingerprint(*weights);
  reference_nf4_ = nf4_of(config.adapter, reference_);
}

Graph PreferenceModel::loss(GraphRole role, int64_t) const {
  const int64_t pairs = sequences_, length = length_;
  Graph graph(role);
  Builder b(graph);
  const Value losses = build_token_losses(b, model_, pair_shape(pairs, length, role == GraphRole::kTrain));
  const auto of_pairs = [&](const std::string& name) { return b.input(name, {DType::kF32, {pairs}}); };
  const auto sum = [&](Value x) { return b.reduce(x, "sum", "all"); };
  const Value chosen = b.sub(answer_logps(b, losses, "chosen", pairs, length), of_pairs("reference_chosen"));
  const Value rejected = b.sub(answer_logps(b, losses, "rejected", pairs, length), of_pairs("reference_rejected"));
  const Value margin = b.scale(b.sub(chosen, rejected), settings_.beta);
  Value loss;
  if (settings_.loss == "ipo") {
    const Value means = b.sub(b.mul(chosen, of_pairs("chosen_share")), b.mul(rejected, of_pairs("rejected_share")));
    const Value error = b.sub(means, of_pairs("goal"));
    loss = sum(b.mul(error, error));
  } else {
    // -log sigmoid(z) is the cross-entropy of logits z / 2 and -z / 2, and -log sigmoid(-z) is z more.
    const Value column = b.reshape(margin, {pairs, 1});
    const Value logits = b.concat({b.scale(column, 0.5), b.scale(column, -0.5)}, 1);
    loss = sum(b.cross_entropy(logits, b.input("pair_targets", {DType::kI32, {pairs}})).per_token);
    if (settings_.label_smoothing > 0) loss = b.add(loss, b.scale(sum(margin), settings_.label_smoothing));
  }
  b.output("loss", loss);
  b.output("rewards_chosen", b.scale(sum(chosen), settings_.beta));
  b.output("rewards_rejected", b.scale(sum(rejected), settings_.beta));
  b.output("margin", sum(margin));
  b.output("accuracy", sum(b.tanh(b.relu(b.scale(margin, 1e20)))));  // 1 above 0
  return adapter_.empty() ? graph : adapt(graph, adapter_);
}

std::unique_ptr<TrainingWorkload> PreferenceModel::with_settings(const RunConfig& config) const {
  return std::make_unique<PreferenceModel>(model_, config);
}

PreferencePair PreferenceModel::pair(const TokenSampler& sampler, int64_t index) const {
  TokenSample row;
  sampler.get(index, row);
  PreferencePair pair = pair_of(row, sampler.dataset().prefix());
  const std::vector<PairLogps>& logps = &sampler == training_.get() ? training_logps_ : validation_logps_;
  if (!logps.empty()) pair.reference = logps[static_cast<size_t>(row.row)];
  return pair;
}

Batch PreferenceModel::batch(DataSplit split, int64_t index) const {
  const bool training = split == DataSplit::kTraining;
  const TokenSampler& sampler = training ? *training_ : *validation_;
  const int64_t first = index * sequences_, end = first + sequences_;
  std::vector<PreferencePair> pairs;
  for (int64_t i = first; i < (training ? end : std::min(end, sampler.samples_per_epoch())); ++i)
    pairs.push_back(pair(sampler, i));
  return pack_pairs(pairs, sequences_, length_, settings_);
}

DataRecord PreferenceModel::data() const {
  DataRecord record = LanguageModel::data();
  record.frozen += fmt::format("{}reference {}", record.frozen.empty() ? "" : " ", reference_fingerprint_);
  return record;
}

std::vector<Metric> PreferenceModel::metrics() const {
  return {{.name = "loss"},
          {.name = "accuracy", .output = "accuracy", .higher_is_better = true, .digits = 3},
          {.name = "margin", .output = "margin", .higher_is_better = true},
          {.name = "rewards_chosen", .output = "rewards_chosen", .higher_is_better = true},
          {.name = "rewards_rejected", .output = "rewards_rejected"}};
}

std::vector<PairLogps> PreferenceModel::reference_of(const TokenSampler& sampler, const StepperOptions& options) const {
  const TokenSampler in_order(open_prepared_set(sampler.dataset().prefix(), model_.vocab_size),
                              {.length = length_, .order = SampleOrder::kSequential});
  std::optional<Progress> bar;
  if (options.ranks == nullptr || options.ranks->rank() == 0)
    bar.emplace(ProgressOptions{.title = "reference", .unit = "pair", .total = in_order.samples_per_epoch()});
  return reference_logps(
      *open_weights(reference_), sequences_, length_, in_order.samples_per_epoch(),
      [&](int64_t row) { return pair(in_order, row); }, options, reference_nf4_,
      [&](int64_t done) {
        if (bar) bar->update(done);
      });
}

void PreferenceModel::prepare(const StepperOptions& options, const std::string& out) {
  const StepperOptions own = reference_options(options);
  Communicator* ranks = options.ranks;
  const bool first = ranks == nullptr || ranks->rank() == 0;
  const int64_t rows = training_->dataset().rows(), others = validation_ ? validation_->dataset().rows() : 0;
  const std::string key = fmt::format(
      "{}{} data {} {:08x} length {} recipe {}{}", reference_fingerprint_, reference_nf4_ > 0 ? " in nf4" : "", rows,
      training_->dataset().checksum(), length_, own.compile.recipe.name,
      validation_ ? fmt::format(" validation {:08x}", validation_->dataset().checksum()) : "");
  const std::string path = fmt::format("{}/reference_{:08x}.safetensors", out, crc32c(key.data(), std::ssize(key)));
  bool missing = true;
  if (path_exists(path)) {
    try {
      const TensorSource file(path);
      auto training = read_logps(file, kTraining, rows), validation = read_logps(file, kValidation, others);
      const auto of = file.metadata().find("reference");
      missing = !training || !validation || of == file.metadata().end() || of->second != key;
      if (!missing) training_logps_ = std::move(*training), validation_logps_ = std::move(*validation);
    } catch (const Error& error) {
      log_warning("{}: the reference's log-probabilities are computed again", error.message());
    }
  }
  if (ranks != nullptr ? !any_of(*ranks, missing) : !missing) return;
  if (first) log_info("log-probabilities of the reference {}: {} pairs", reference_, rows + others);
  training_logps_.clear(), validation_logps_.clear();
  std::vector<PairLogps> training = reference_of(*training_, own), validation;
  if (validation_) validation = reference_of(*validation_, own);
  training_logps_ = std::move(training), validation_logps_ = std::move(validation);
  do_together(ranks, [&] {
    if (!first) return "";
    make_folders(out);
    SafetensorsWriter writer(
        path, {{kTraining, {DType::kF32, {rows, 2}}}, {kValidation, {DType::kF32, {std::max<int64_t>(others, 1), 2}}}},
        {{"reference", key}});
    for (const auto& [name, type] : writer.tensors()) {
      std::vector<PairLogps> logps = name == kTraining ? training_logps_ : validation_logps_;
      logps.resize(static_cast<size_t>(type.shape[0]));
      writer.write(name, std::as_bytes(std::span(logps)));
    }
    writer.finish();
    return "";
  });
}

std::vector<PairLogps> reference_logps(const WeightSource& weights, int64_t pairs, int64_t length, int64_t count,
                                       const std::function<PreferencePair(int64_t)>& pair,
                                       const StepperOptions& options, int64_t nf4,
                                       const std::function<void(int64_t done)>& progress) {
  ModelConfig model = weights.config();
  model.dropout = 0;
  model.max_positions = std::max(model.max_positions, model.length_limit() > 0 ? 0 : length);
  Program program;
  program.name = "reference";
  program.add_graph(reference_graph(model, pairs, length, nf4));
  // With a moment it is a program of training, whose products round as the run's do.
  program.add_state({.name = "none", .type = {DType::kF32, {1}}, .role = StateRole::kMoment});
  Stepper stepper(compile(std::move(program), options.compile), options);
  load_weights(weights, stepper.executor());
  const int64_t batches = ceil_div(count, pairs), own = stepper.data_rank(), ranks = stepper.data_ranks();
  std::vector<std::vector<double>> parts(static_cast<size_t>(2 * pairs));  // of every place of a batch
  Batch batch;
  for (int64_t i = own; i < round_up(batches, ranks); i += ranks) {  // of all ranks as many
    std::vector<PreferencePair> given;
    for (int64_t p = i * pairs; p < std::min((i + 1) * pairs, count); ++p) given.push_back(pair(p));
    stepper.evaluate(pack_pairs(given, pairs, length, {}), {});
    size_t place = 0;
    for (const char* side : {"chosen", "rejected"})
      for (const float logp : output_as<float>(stepper.executor(), graph_name(GraphRole::kEval), side)) {
        if (i < batches) parts[place].push_back(static_cast<double>(logp));
        ++place;
      }
    if (progress) progress(std::min((i + 1) * pairs, count));
  }
  std::vector<PairLogps> logps(static_cast<size_t>(count));
  for (int64_t place = 0; place < 2 * pairs; ++place) {
    const std::vector<double> all = stepper.join_parts(parts[static_cast<size_t>(place)], batches);
    for (int64_t i = 0; i < batches; ++i)
      if (const int64_t p = i * pairs + place % pairs; p < count)
        logps[static_cast<size_t>(p)][static_cast<size_t>(place / pairs)] =
            static_cast<float>(all[static_cast<size_t>(i)]);
  }
  return logps;
}

}  // namespace octet
