#include "train/bert.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/integers.h"
#include "io/dataset.h"

namespace octet {
namespace {

// Masked tokens of a row, where no setting says: 15 % of its tokens, a sequence's share rounded up.
int64_t predictions_of(const RunConfig& c) {
  return c.predictions > 0 ? c.predictions : round_up(c.sequence_length * 15 / 100 + 2, 8);
}

BatchShape shape_of(const RunConfig& c) {
  return {.tokens = c.micro_batch * c.sequence_length,
          .max_segments = c.micro_batch * c.row_sequences,
          .max_length = c.sequence_length,
          .training = true,
          .predictions = c.micro_batch * predictions_of(c)};
}

BertSet open_set(const std::string& setting, const std::string& prefix) {
  check(!prefix.empty(), ErrorCode::kInvalidArgument,
        "{} is not set: workload=bert is trained on a set of masked sequences: give its PREFIX", setting);
  return BertSet(prefix);
}

enum Number { kMaskedLoss, kMasked, kMaskedRight, kNextLoss, kNext, kNextRight, kNumbers };

}  // namespace

const WorkloadRow kBertPretraining = {
    .optimizer = {.name = "lamb", .lr = 1e-3, .min_lr = 0, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01},
    .open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
      return std::make_unique<BertPretraining>(config);
    },
    .plan = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
      return std::make_unique<BertPretraining>(pretraining_model(config, 0), config);
    },
    .set_defaults =
        [](RunConfig& config) { config.model_size = "bert-base", config.sequence_length = 512, config.dropout = 0.1; }};

ModelConfig pretraining_model(const RunConfig& config, int64_t data_vocab_size) {
  ModelConfig model = resolve_model(config, data_vocab_size);
  check(model.architecture == "bert", ErrorCode::kUnsupported,
        "workload=bert trains models of family bert, and {} is of family {}: set model.size to bert-base or bert-large",
        config.model_from.empty() ? "model.size=" + config.model_size : config.model_from, model.architecture);
  model.head = Head::kMaskedLm, model.pooler = true, model.labels = 2, model.bias.head = true;
  return model;
}

BertPretraining::BertPretraining(ModelConfig model, const RunConfig& config)
    : EncoderTraining(std::move(model), config, shape_of(config)),
      rows_(config.micro_batch),
      seed_(static_cast<uint64_t>(config.seed)) {
  check(config.pipeline == 1, ErrorCode::kUnsupported,
        "parallel.pipeline={}: workload=bert has no stages: set it to 1, and parallel.data to the ranks",
        config.pipeline);
  check(!config.adapter.is_on(), ErrorCode::kUnsupported,
        "adapter.method={}: adapters are trained by workload=language alone", config.adapter.method);
}

BertPretraining::BertPretraining(const RunConfig& config)
    : BertPretraining(pretraining_model(config, open_set("data.train", config.train_data).info().vocab_size), config) {
  train_ = open_split("data.train", config.train_data, config);
  set_tokenizer(train_->set->info().tokenizer_path);
  record_ = {.data =
                 fmt::format("{} sequences in {} rows of {} tokens, {} sequences and {} predictions, seed {} batch {}",
                             train_->set->sequences(), train_->rows.size(), shape_.max_length, config.row_sequences,
                             predictions_of(config), config.seed, config.accumulation() * rows_)};
  eval_tokens_ = config.eval_tokens;
  if (!config.validation_data.empty()) validation_ = open_split("data.validation", config.validation_data, config);
}

int64_t BertPretraining::units_of(DataSplit split) const {
  const auto& of = split == DataSplit::kTraining ? train_ : validation_;
  return of ? of->set->sequences() : 0;
}

DataRecord BertPretraining::data() const {
  DataRecord record = record_;
  if (train_) record.checksum = fmt::format("{:08x}", train_->set->checksum());
  if (validation_)
    record.validation = fmt::format("{} sequences checksum {:08x}, {} of them", validation_->set->sequences(),
                                    validation_->set->checksum(), eval_tokens_);
  return record;
}

std::unique_ptr<const BertPretraining::Split> BertPretraining::open_split(const std::string& setting,
                                                                          const std::string& prefix,
                                                                          const RunConfig& config) const {
  auto split = std::make_unique<Split>();
  split->set = std::make_unique<BertSet>(open_set(setting, prefix));
  check(split->set->info().vocab_size <= model().vocab_size, ErrorCode::kInvalidArgument,
        "{} {} was made with a vocabulary of {} tokens, the model's has {}: make it with the model's tokenizer",
        setting, prefix, split->set->info().vocab_size, model().vocab_size);
  std::vector<BertSet::Sizes> sizes(static_cast<size_t>(split->set->sequences()));
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = split->set->sizes(static_cast<int64_t>(i));
  split->rows = pack_rows(sizes, {config.sequence_length, config.row_sequences, predictions_of(config)}, prefix);
  return split;
}

Graph BertPretraining::loss(GraphRole role, int64_t) const {
  Graph graph(role);
  Builder b(graph);
  BatchShape shape = shape_;
  shape.training = role == GraphRole::kTrain;
  const ModelOutputs outputs = build_outputs(b, model(), shape);
  const auto term = [&](const std::string& name, Value logits, int64_t rows) {
    const Value targets = b.input(name + "_targets", {DType::kI32, {rows}}, {{"pad", -1}});
    if (role == GraphRole::kEval) output_likeliest(b, name + "_likeliest", logits);
    return LossTerm{name, b.reduce(b.cross_entropy(logits, targets).per_token, "sum", "all")};
  };
  const LossTerm masked = term("masked", outputs.logits, shape.predictions);
  output_losses(b, role, {masked, term("next", outputs.classes, shape.max_segments)});
  for (int32_t i = 0; i < graph.size(); ++i) {
    Node& node = graph.mutable_node(NodeId{i});
    if (node.op == Op::kParam && node.attr<std::string>("init") == "normal") node.attrs.set("init", "truncated_normal");
  }
  return graph;
}

std::unique_ptr<TrainingWorkload> BertPretraining::with_settings(const RunConfig& config) const {
  return std::make_unique<BertPretraining>(model(), config);
}

Batch BertPretraining::pack(std::span<const BertSequence> sequences) const {
  Batch batch;
  SequencePacker packer(batch, shape_);
  batch.add("masked_rows", {DType::kI32, {shape_.predictions}});
  for (const auto& [name, rows] :
       {std::pair("masked_targets", shape_.predictions), std::pair("next_targets", shape_.max_segments)})
    std::ranges::fill(batch.add(name, {DType::kI32, {rows}}).values<int32_t>(), -1);
  const auto masked_rows = batch.ints("masked_rows"), masked = batch.ints("masked_targets"),
             next = batch.ints("next_targets");
  size_t predictions = 0;
  for (const BertSequence& s : sequences) {
    check(std::ssize(s.ids) <= shape_.max_length && predictions + s.labels.size() <= masked.size(),
          ErrorCode::kInvalidArgument,
          "a sequence of {} tokens and {} masked ones does not fit a batch of {} tokens a sequence and {} masked ones",
          s.ids.size(), s.labels.size(), shape_.max_length, shape_.predictions);
    const int64_t first = packer.add(s.ids, s.types);
    for (size_t i = 0; i < s.labels.size(); ++i, ++predictions) {
      masked_rows[predictions] = static_cast<int32_t>(first) + s.positions[i];
      masked[predictions] = s.labels[i];
    }
    next[static_cast<size_t>(packer.sequences() - 1)] = s.is_next ? 0 : 1;
  }
  batch.target_count = packer.sequences();
  batch.loss_counts = {{"masked", static_cast<int64_t>(predictions)}, {"next", packer.sequences()}};
  return batch;
}

// Training row i of epoch e is row permutation(i) of the set, the permutation drawn by the seed and e.
Batch BertPretraining::batch(DataSplit split, int64_t index) const {
  const bool training = split == DataSplit::kTraining;
  const Split& from = training ? *train_ : *validation_;
  const int64_t all = from.rows.size();
  std::vector<BertSequence> sequences;
  for (int64_t i = index * rows_; i < (index + 1) * rows_ && (training || i < all); ++i) {
    const int64_t row = training ? IndexPermutation(all, seed_, static_cast<uint64_t>(i / all))(i % all) : i;
    const auto at = static_cast<size_t>(row);
    for (int64_t s = from.rows.begins[at]; s < from.rows.begins[at + 1]; ++s)
      from.set->get(from.rows.order[static_cast<size_t>(s)], sequences.emplace_back());
  }
  return pack(sequences);
}

// As many sequences as a batch has room for, each of its share of a row.
Batch BertPretraining::made_up_batch() const {
  const int64_t sequences = shape_.max_segments, length = std::max<int64_t>(2, shape_.tokens / sequences),
                masked = std::min(length, shape_.predictions / sequences);
  BertSequence one;
  for (int64_t i = 0; i < length; ++i) {
    one.ids.push_back(static_cast<int32_t>(i * 7919 % model().vocab_size));
    one.types.push_back(2 * i >= length);
    if (i >= masked) continue;
    one.positions.push_back(static_cast<int32_t>(i));
    one.labels.push_back(one.ids.back());
  }
  return pack(std::vector<BertSequence>(static_cast<size_t>(std::min(sequences, shape_.tokens / length)), one));
}

int64_t BertPretraining::validation_batches() const {
  return validation_ ? ceil_div(validation_->rows.size(), rows_) : 0;
}

std::vector<Metric> BertPretraining::metrics() const {
  return {{.name = "masked_accuracy", .higher_is_better = true},
          {.name = "loss"},
          {.name = "masked_loss", .output = "masked_loss", .how = Metric::Join::kSum},
          {.name = "next_loss", .output = "next_loss", .how = Metric::Join::kSum},
          {.name = "next_accuracy", .higher_is_better = true}};
}

std::vector<double> BertPretraining::measure(const Batch& batch, const EvalOutputs& outputs) const {
  std::vector<double> numbers(kNumbers);
  const auto add = [&](const std::string& name, Number loss, Number count, Number right) {
    const std::vector<int32_t> likeliest = outputs.ints(name + "_likeliest");
    const std::span<const int32_t> targets = batch.ints(name + "_targets");
    numbers[loss] = outputs.scalar(name + "_loss");
    numbers[count] = static_cast<double>(batch.loss_counts.at(name));
    for (size_t i = 0; i < targets.size(); ++i) numbers[right] += targets[i] >= 0 && targets[i] == likeliest[i];
  };
  add("masked", kMaskedLoss, kMasked, kMaskedRight);
  add("next", kNextLoss, kNext, kNextRight);
  return numbers;
}

std::vector<double> BertPretraining::join(const std::vector<std::vector<double>>& numbers, double) const {
  double sum[kNumbers] = {};
  for (size_t n = 0; n < numbers.size(); ++n) sum[n] = std::reduce(numbers[n].begin(), numbers[n].end());
  const double masked = sum[kMaskedLoss] / sum[kMasked], next = sum[kNextLoss] / sum[kNext];
  return {sum[kMaskedRight] / sum[kMasked], masked + next, masked, next, sum[kNextRight] / sum[kNext]};
}

}  // namespace octet
