#include "train/batches.h"

#include <algorithm>

#include "base/error.h"

namespace octet {

BatchShape batch_shape(int64_t sequences, int64_t length, bool separate_documents, bool training) {
  int64_t tokens = sequences * length;
  return {.tokens = tokens,
          .max_segments = separate_documents ? tokens : sequences,
          .max_length = length,
          .equal_length = separate_documents ? 0 : length,
          .training = training};
}

double weight_of_targets(const Batch& batch) {
  const HostTensor* weights = batch.find("target_weights");
  if (weights == nullptr) return static_cast<double>(batch.target_count);
  const std::span<const float> values = weights->values<float>();
  const std::span<const int32_t> targets = batch.ints("targets");
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i)
    if (targets[i] >= 0) sum += static_cast<double>(values[i]);
  return sum;
}

BatchPacker::BatchPacker(int64_t sequences, int64_t length, bool separate_documents, bool weighed)
    : sequences_(sequences), length_(length), separate_(separate_documents), weighed_(weighed) {
  clear();
}

void BatchPacker::clear() {
  batch_ = token_batch(sequences_, length_, /*targets=*/true);
  if (separate_) batch_.add("segments", {DType::kI32, {sequences_ * length_ + 1}});
  if (weighed_)
    std::ranges::fill(batch_.add("target_weights", {DType::kF32, {sequences_ * length_}}).values<float>(), 1.0f);
  tokens_ = segments_ = 0;
}

void BatchPacker::add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& documents,
                      std::span<const uint8_t> counts, std::span<const float> weights) {
  auto inputs = static_cast<int64_t>(tokens.size()) - 1;
  check(inputs >= 1 && inputs <= length_, ErrorCode::kInternal, "batch: {} tokens for sequences of {}", tokens.size(),
        length_);
  check(counts.empty() || counts.size() == tokens.size(), ErrorCode::kInternal, "batch: a mask of {} for {} tokens",
        counts.size(), tokens.size());
  check(weights.empty() || (weighed_ && weights.size() == tokens.size()), ErrorCode::kInternal,
        "batch: weights of {} for {} tokens", weights.size(), tokens.size());
  check(tokens_ + length_ <= sequences_ * length_, ErrorCode::kInternal, "batch: more than {} sequences", sequences_);
  const auto ids = batch_.ints("ids"), positions = batch_.ints("positions"), targets = batch_.ints("targets"),
             segments = batch_.ints("segments");
  const auto to_weights = weighed_ ? batch_.tensors.at("target_weights").values<float>() : std::span<float>();
  size_t next_document = 0;
  int64_t document_start = 0;
  for (int64_t i = 0; i < length_; ++i) {
    bool real = i < inputs;
    auto at = static_cast<size_t>(i), to = static_cast<size_t>(tokens_ + i);
    bool starts = i == 0;
    if (separate_ && real && next_document < documents.size() && documents[next_document] == i) {
      starts = true;
      ++next_document;
      document_start = i;
    }
    if (starts) segments[static_cast<size_t>(segments_++)] = static_cast<int32_t>(tokens_ + i);
    // The last input of a document predicts the next document's first token: not asked for when they are separate.
    bool crosses = separate_ && next_document < documents.size() && documents[next_document] == i + 1;
    bool counted = real && !crosses && (counts.empty() || counts[at + 1] != 0);
    if (real) ids[to] = tokens[at];
    positions[to] = static_cast<int32_t>(separate_ ? i - document_start : i);
    if (counted && !weights.empty()) counted = weights[at + 1] > 0;
    if (counted) targets[to] = tokens[at + 1];
    if (counted && !weights.empty()) to_weights[to] = weights[at + 1];
    batch_.target_count += counted;
  }
  tokens_ += length_;
}

const Batch& BatchPacker::finish() {
  const auto segments = batch_.ints("segments");
  // Whole sequences of padding keep equal lengths equal.
  for (; tokens_ < sequences_ * length_; tokens_ += length_)
    segments[static_cast<size_t>(segments_++)] = static_cast<int32_t>(tokens_);
  std::fill(segments.begin() + segments_, segments.end(), static_cast<int32_t>(tokens_));
  return batch_;
}

}  // namespace octet
