#include "train/encoder_training.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/tokenizer.h"
#include "ir/facts.h"
#include "train/start_checks.h"

namespace octet {
namespace {

// The tensor that holds a parameter; "" where the model has none. Equal names are the same tensor: a next-sentence head
// is no classifier.
std::string tensor_of(const ModelConfig& model, const std::string& param) {
  for (const CheckpointTensor& tensor : checkpoint_tensors(model))
    if (std::ranges::find(tensor.params, param) != tensor.params.end()) return tensor.name;
  return "";
}

// The folder's parameters; those it lacks as `graph` says that they begin.
class CompletedWeights : public WeightSource {
 public:
  CompletedWeights(const std::string& folder, const ModelConfig& model, const Graph& graph, uint64_t seed)
      : folder_(open_weights(folder)) {
    config_ = model;
    uint64_t stream = 0;
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::kParam) continue;
      ++stream;
      if (tensor_of(folder_->config(), node.name) == tensor_of(model, node.name)) continue;
      fresh_[node.name] = initial_values(node, node.results[0].shape.elements(), seed, stream);
    }
  }

  ParamView view(const std::string& param, const Shape& shape) const override {
    const auto fresh = fresh_.find(param);
    if (fresh == fresh_.end()) return folder_->view(param, shape);
    return view_of(DType::kF32, fresh->second.data(), shape[0], shape.elements() / shape[0], param);
  }
  std::vector<std::string> fresh() const {
    std::vector<std::string> names;
    for (const auto& [name, values] : fresh_) names.push_back(name);
    return names;
  }

 private:
  std::unique_ptr<WeightSource> folder_;
  std::map<std::string, std::vector<float>> fresh_;
};

}  // namespace

EncoderTraining::EncoderTraining(ModelConfig model, const RunConfig& config, BatchShape shape)
    : shape_(shape), model_(std::move(model)), from_(config.model_from), seed_(static_cast<uint64_t>(config.seed)) {
  if (!from_.empty() && path_exists(from_ + "/tokenizer_config.json")) tokenizer_folder_ = from_;
}

std::string EncoderTraining::description() const {
  return fmt::format("{} {} layers, {} wide, {} heads, vocabulary {}", model_.architecture, model_.layers,
                     model_.hidden, model_.heads, model_.vocab_size);
}

int64_t EncoderTraining::most_ranks(Axis axis) const {
  return axis == Axis::kPipeline ? 1 : axis == Axis::kTensor ? model_.heads : 1;
}

FileSet EncoderTraining::weight_files(const Program& program, DType dtype, int64_t max_bytes) const {
  return octet::weight_files(program, model_, dtype, max_bytes);
}

void EncoderTraining::write_files(const std::string& folder, DType weights) const {
  if (!tokenizer_folder_.empty()) copy_tokenizer_files(tokenizer_folder_, folder);
  const SpecialTokens special = from_.empty() ? SpecialTokens{} : read_special_tokens(from_);
  write_file(folder + "/config.json",
             to_hugging_face_config(model_, special, weights == DType::kF32 ? "float32" : "bfloat16"));
}

void EncoderTraining::load(const std::string& folder, Executor& executor, const BytesLoaded& loaded) const {
  if (folder != from_) return load_weights(*open_weights(folder), executor, loaded);
  const CompletedWeights weights(folder, model_, loss(GraphRole::kTrain, 0), seed_);
  if (const std::vector<std::string> fresh = weights.fresh(); !fresh.empty())
    log_info("model.from {} lacks {}: they begin with fresh values", folder, fmt::join(fresh, ", "));
  load_weights(weights, executor, loaded);
}

void EncoderTraining::check_same_model(const std::string& checkpoint) const {
  check_same_sizes(model_, checkpoint);
  const ModelConfig before = read_model_config(checkpoint);
  check(before.labels == model_.labels && before.head == model_.head, ErrorCode::kInvalidArgument,
        "{} has {} labels, this run {}: begin a new run with resume=never or another out=", checkpoint, before.labels,
        model_.labels);
}

SequencePacker::SequencePacker(Batch& batch, const BatchShape& shape) : batch_(batch), shape_(shape) {
  for (const char* name : {"ids", "token_types", "positions"})
    batch_.add(name, {DType::kI32, {shape.tokens}}, /*optional=*/name != std::string_view("ids"));
  batch_.add("segments", {DType::kI32, {shape.max_segments + 1}});
  batch_.add("rows", {DType::kI32, {shape.max_segments}}, /*optional=*/true);
}

int64_t SequencePacker::add(std::span<const int32_t> ids, std::span<const int32_t> types) {
  const int64_t count = std::ssize(ids), first = tokens_;
  check(sequences_ < shape_.max_segments && first + count <= shape_.tokens && ids.size() == types.size(),
        ErrorCode::kInternal, "batch: no room for a sequence of {} tokens behind {} in {}", count, first,
        shape_.tokens);
  const auto to = [&](const char* name) { return batch_.ints(name).subspan(static_cast<size_t>(first)); };
  std::ranges::copy(ids, to("ids").begin());
  std::ranges::copy(types, to("token_types").begin());
  const auto positions = to("positions");
  for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  batch_.ints("rows")[static_cast<size_t>(sequences_++)] = static_cast<int32_t>(first);
  tokens_ += count;
  const auto segments = batch_.ints("segments");
  std::fill(segments.begin() + static_cast<ptrdiff_t>(sequences_), segments.end(), static_cast<int32_t>(tokens_));
  return first;
}

void output_likeliest(Builder& b, const std::string& name, Value logits) {
  b.output(name, {b.emit(Op::kTopLogprobs, {logits}, {{"k", 1}}, name), 1});
}

}  // namespace octet
