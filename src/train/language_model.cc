#include "train/language_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/chat_template_file.h"
#include "io/corpus.h"
#include "io/tokenizer.h"
#include "ir/builder.h"
#include "ir/rewrite.h"
#include "passes/adapt.h"
#include "train/adapter_weights.h"
#include "train/batches.h"
#include "train/start_checks.h"
#include "weights/fingerprint.h"

namespace octet {

const WorkloadRow kLanguageModelling = {.open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
                                          return std::make_unique<LanguageModel>(config);
                                        },
                                        .plan = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
                                          return std::make_unique<LanguageModel>(resolve_model(config, 0), config);
                                        }};

Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape) {
  Graph graph(role);
  Builder builder(graph);
  build_loss(builder, model, shape);
  return graph;
}

namespace {

// Output kLikeliestOutput of the logits that the loss is of.
void add_likeliest(Graph& graph) {
  for (int32_t i = 0; i < graph.size(); ++i)
    if (const Node& node = graph.node(NodeId{i}); node.op == Op::kCrossEntropy) {
      const Value logits = node.inputs[0];
      Builder builder(graph);
      return builder.output(kLikeliestOutput, {builder.emit(Op::kTopLogprobs, {logits}, {{"k", int64_t{1}}}), 1});
    }
}

// Output "loss" of losses that input "target_weights" f32[T] weighs.
Graph with_weights(const Graph& graph) {
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    Node copy = rewriter.mapped(NodeId{i});
    if (node.op == Op::kReduce && graph.node(node.inputs[0]).op == Op::kCrossEntropy && node.inputs[0].result == 0) {
      Builder& b = rewriter.builder();
      const Value weights = b.input("target_weights", graph.type(node.inputs[0]), {{"rows", "batch"}});
      copy.inputs[0] = b.mul(copy.inputs[0], weights);
    }
    rewriter.replace(NodeId{i}, std::move(copy));
  }
  return rewriter.finish();
}

}  // namespace

LanguageModel::LanguageModel(ModelConfig model, int64_t sequences, int64_t length, bool separate_documents,
                             AdapterSpec adapter)
    : model_(std::move(model)),
      adapter_(std::move(adapter)),
      sequences_(sequences),
      length_(length),
      separate_documents_(separate_documents) {}

LanguageModel::LanguageModel(ModelConfig model, const RunConfig& config)
    : LanguageModel(std::move(model), config.micro_batch, config.sequence_length, config.separate_documents) {
  set_adapter(config);
  scores_tokens_ = !config.eval_tasks.empty();
}

void LanguageModel::set_adapter(const RunConfig& config) {
  base_ = config.model_from, seed_ = static_cast<uint64_t>(config.seed);
  if (!config.adapter.is_on()) return;
  adapter_ = adapter_spec(config.adapter, model_);
  adapter_.nf4 = nf4_of(config.adapter, base_);
  if (adapter_.virtual_tokens == 0) return;
  check(!separate_documents_, ErrorCode::kUnsupported,
        "adapter.method={}: virtual tokens stand in front of whole sequences: leave data.separate_documents off",
        config.adapter.method);
  check(model_.length_limit() == 0 || whole_length() <= model_.length_limit(), ErrorCode::kInvalidArgument,
        "data.sequence_length {} and adapter.virtual_tokens {} exceed the {} positions of the model: lower one of them",
        length_, adapter_.virtual_tokens, model_.length_limit());
}

LanguageModel::LanguageModel(const RunConfig& config)
    : LanguageModel(ModelConfig{}, config.micro_batch, config.sequence_length, config.separate_documents) {
  train_data_ = config.train_data, validation_data_ = config.validation_data;
  check(!train_data_.empty(), ErrorCode::kInvalidArgument,
        "data.train is not set: make a corpus with `octet data FILES --out PREFIX` and give its PREFIX");
  check(!config.adapter.is_on() || !config.model_from.empty(), ErrorCode::kInvalidArgument,
        "adapter.method={}: an adapter is trained on a finished model: set model.from to its folder",
        config.adapter.method);
  const std::optional<DatasetInfo> info = find_dataset_info(train_data_);
  const bool pairs = config.objective == "dpo";
  for (const std::string& prefix : {train_data_, validation_data_}) {
    const auto found = prefix.empty() ? std::nullopt : find_dataset_info(prefix);
    if (prefix.empty()) continue;
    check(!pairs || (found && found->pairs), ErrorCode::kInvalidArgument,
          "train.objective=dpo learns from pairs of answers, and {} has none: make them with `octet data --chat auto "
          "--pairs`",
          prefix);
    check(pairs || !found || !found->pairs, ErrorCode::kInvalidArgument,
          "{} has pairs of answers, chosen and rejected: set train.objective=dpo", prefix);
  }
  if (info) {
    special_.bos = info->begin_id.value_or(-1) >= 0 ? *info->begin_id : info->eos_id;
    if (info->eos_id >= 0) special_.eos = {info->eos_id};
    check(info->row_length == 0 || separate_documents_ || pairs, ErrorCode::kInvalidArgument,
          "data.train {} has rows of whole conversations, which would see each other: set "
          "data.separate_documents=true",
          train_data_);
    if (path_exists(info->tokenizer_path)) tokenizer_folder_ = info->tokenizer_path;
  }
  if (!config.model_from.empty()) {  // its own ends and beginnings; its vocabulary where the data has none
    const SpecialTokens own = read_special_tokens(config.model_from);
    if (own.bos >= 0 || !own.eos.empty()) special_ = own;
    chat_folder_ = config.model_from;
    if (tokenizer_folder_.empty()) tokenizer_folder_ = config.model_from;
  }
  if (info && info->answer_end >= 0) special_.add_ends({info->answer_end});  // the model learns to end answers with it
  if (const auto other = validation_data_.empty() ? std::nullopt : find_dataset_info(validation_data_); info && other)
    check(info->tokenizer_fingerprint == other->tokenizer_fingerprint, ErrorCode::kInvalidArgument,
          "data.validation {} was made with the vocabulary {}, data.train {} with {}: make both with one tokenizer",
          validation_data_, other->tokenizer_fingerprint, train_data_, info->tokenizer_fingerprint);
  model_ = resolve_model(config, info ? info->vocab_size : 0);
  set_adapter(config);
  scores_tokens_ = !config.eval_tasks.empty();
  const auto train = open_prepared_set(train_data_, model_.vocab_size);
  const auto validation = validation_data_.empty() ? nullptr : open_prepared_set(validation_data_, model_.vocab_size);
  weighed_ = train->has_weights() || (validation && validation->has_weights());
  check(!weighed_ || !pairs, ErrorCode::kUnsupported,
        "train.objective=dpo: {} has weights of targets, and pairs are learnt without: prepare it again without them",
        train->has_weights() ? train_data_ : validation_data_);
  const SampleOrder order = config.sampling == "random" ? SampleOrder::kRandomOffset : SampleOrder::kShuffled;
  training_ = std::make_unique<TokenSampler>(
      train, SampleOptions{.length = length_, .order = order, .seed = static_cast<uint64_t>(config.seed)});
  record_ = {.data = fmt::format("{} tokens {} documents length {} sampling {} seed {} batch {}", train->tokens(),
                                 train->documents(), length_, config.sampling, config.seed,
                                 config.accumulation() * sequences_)};
  if (train->is_packed()) record_.data += fmt::format(" rows {}", train->rows());
  if (!adapter_.empty()) record_.frozen = "base " + weights_fingerprint(*open_weights(base_));
  if (!validation) return;
  validation_ =
      std::make_unique<TokenSampler>(validation, SampleOptions{.length = length_, .order = SampleOrder::kSequential});
  validation_cut_ = fmt::format("length {} separate {} of them {}", length_, separate_documents_, config.eval_tokens);
}

int64_t LanguageModel::units_of(DataSplit split) const {
  const auto& sampler = split == DataSplit::kTraining ? training_ : validation_;
  return sampler ? sampler->dataset().tokens() : 0;
}

DataRecord LanguageModel::data() const {
  DataRecord record = record_;
  if (training_) record.checksum = fmt::format("{:08x}", training_->dataset().checksum());
  if (!validation_) return record;
  const TokenDataset& set = validation_->dataset();
  record.validation = fmt::format("{} tokens {} documents checksum {:08x} {}", set.tokens(), set.documents(),
                                  set.checksum(), validation_cut_);
  return record;
}

Graph LanguageModel::loss(GraphRole role, int64_t) const {
  const bool training = role == GraphRole::kTrain;
  Graph graph = loss_graph(role, model_, batch_shape(sequences_, whole_length(), separate_documents_, training));
  if (weighed_) graph = with_weights(graph);
  if (!training && scores_tokens_) add_likeliest(graph);
  return adapter_.empty() ? graph : adapt(graph, adapter_);
}

std::string LanguageModel::description() const {
  return fmt::format("{} {} layers, {} wide, {} heads ({} key/value), vocabulary {}", model_.architecture,
                     model_.layers, model_.hidden, model_.heads, model_.kv_head_count(), model_.vocab_size);
}

int64_t LanguageModel::most_ranks(Axis axis) const {
  return axis == Axis::kPipeline ? model_.layers : axis == Axis::kTensor ? model_.heads : 1;
}

std::unique_ptr<TrainingWorkload> LanguageModel::with_settings(const RunConfig& config) const {
  return std::make_unique<LanguageModel>(model_, config);
}

void add_virtual_tokens(TokenSample& sample, const AdapterSpec& adapter, int64_t vocab_size) {
  const int64_t count = adapter.virtual_tokens;
  if (count == 0) return;
  sample.counts.resize(sample.tokens.size(), 1);  // where none says, all count
  sample.counts.insert(sample.counts.begin(), static_cast<size_t>(count), 0);
  if (!sample.weights.empty()) sample.weights.insert(sample.weights.begin(), static_cast<size_t>(count), 1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), static_cast<int32_t>(vocab_size));
  sample.tokens.insert(sample.tokens.begin(), ids.begin(), ids.end());
}

Batch LanguageModel::batch_of(std::span<const TokenSample> rows) const {
  BatchPacker packer(sequences_, whole_length(), separate_documents_, weighed_);
  for (TokenSample row : rows) {
    add_virtual_tokens(row, adapter_, model_.vocab_size);
    packer.add(row);
  }
  return packer.finish();
}

Batch LanguageModel::batch(DataSplit split, int64_t index) const {
  const TokenSampler& sampler = split == DataSplit::kTraining ? *training_ : *validation_;
  const int64_t first = index * sequences_;
  const int64_t end =
      split == DataSplit::kTraining ? first + sequences_ : std::min(first + sequences_, sampler.samples_per_epoch());
  BatchPacker packer(sequences_, whole_length(), separate_documents_, weighed_);
  TokenSample sample;
  for (int64_t i = first; i < end; ++i) {
    sampler.get(i, sample);
    add_virtual_tokens(sample, adapter_, model_.vocab_size);
    packer.add(sample);
  }
  return packer.finish();
}

Batch LanguageModel::made_up_batch() const {
  TokenSample row{.tokens = std::vector<int32_t>(static_cast<size_t>(length_ + 1)), .segments = {0}};
  for (size_t i = 0; i < row.tokens.size(); ++i)
    row.tokens[i] = static_cast<int32_t>(static_cast<int64_t>(i) * 7919 % model_.vocab_size);
  return batch_of(std::vector<TokenSample>(static_cast<size_t>(sequences_), row));
}

int64_t LanguageModel::validation_batches() const {
  return validation_ ? (validation_->samples_per_epoch() + sequences_ - 1) / sequences_ : 0;
}

std::vector<Metric> LanguageModel::metrics() const {
  return {{.name = "loss"}, {.name = "perplexity", .shown = [](double loss) { return std::exp(loss); }, .digits = 2}};
}

FileSet LanguageModel::weight_files(const Program& program, DType dtype, int64_t max_bytes) const {
  const auto is_master = [](StateRole role) { return role == StateRole::kMaster; };
  if (!adapter_.empty()) return state_files(program, is_master, kTrainedFile, max_bytes, dtype);
  return octet::weight_files(program, model_, dtype, max_bytes);
}

void LanguageModel::write_files(const std::string& folder, DType weights) const {
  if (!tokenizer_folder_.empty()) copy_tokenizer_files(tokenizer_folder_, folder);
  write_chat_template(folder);
  if (!adapter_.empty()) return write_peft_files(folder, adapter_, model_, base_, weights);
  const char* dtype = weights == DType::kF32 ? "float32" : "bfloat16";
  write_file(folder + "/config.json", to_hugging_face_config(model_, special_, dtype));
}

// That of the training data's conversations, where the tokenizer has none.
void LanguageModel::write_chat_template(const std::string& folder) const {
  std::string path;
  if (chat_folder_.empty() || !find_chat_template(folder, "default", path).empty()) return;
  const std::string source = find_chat_template(chat_folder_, "default", path);
  if (!source.empty()) write_file(folder + "/chat_template.jinja", source);
}

void LanguageModel::load(const std::string& folder, Executor& executor, const BytesLoaded& loaded) const {
  if (adapter_.empty()) return load_weights(*open_weights(folder), executor, loaded);
  load_adapted(*open_weights(base_), adapter_, folder == base_ ? "" : folder, seed_, executor, loaded);
}

void LanguageModel::check_same_model(const std::string& checkpoint) const {
  if (adapter_.empty()) return check_same_sizes(model_, checkpoint);
  check_same_adapter(checkpoint, loss(GraphRole::kTrain, 0));
}

void LanguageModel::check_start(const std::string& folder) const {
  for (const std::string& prefix : {train_data_, validation_data_}) {
    const std::optional<DatasetInfo> info = prefix.empty() ? std::nullopt : find_dataset_info(prefix);
    if (!info) continue;
    check_vocabulary(folder, prefix, *info);
    break;  // both were made with one tokenizer
  }
  TrainingWorkload::check_start(folder);
  if (const int64_t known = read_model_config(folder).max_positions; known < model_.max_positions)
    log_warning(
        "model.from {} was made for sequences of at most {} tokens: this run trains on {} and writes {} into the "
        "config.json of its checkpoints",
        folder, known, length_, model_.max_positions);
}

}  // namespace octet
