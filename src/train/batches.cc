#include "train/batches.h"

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

BatchPacker::BatchPacker(int64_t sequences, int64_t length, bool separate_documents)
    : sequences_(sequences), length_(length), separate_(separate_documents) {
  clear();
}

void BatchPacker::clear() {
  batch_.ids.clear();
  batch_.positions.clear();
  batch_.targets.clear();
  batch_.segments.clear();
  batch_.valid_tokens = 0;
}

void BatchPacker::add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& documents, int64_t ignored) {
  auto inputs = static_cast<int64_t>(tokens.size()) - 1;
  check(inputs >= 1 && inputs <= length_, ErrorCode::kInternal, "batch: {} tokens for sequences of {}", tokens.size(),
        length_);
  auto begin = static_cast<int32_t>(batch_.ids.size());
  check(begin + length_ <= sequences_ * length_, ErrorCode::kInternal, "batch: more than {} sequences", sequences_);
  size_t next_document = 0;
  int64_t document_start = 0;
  for (int64_t i = 0; i < length_; ++i) {
    bool real = i < inputs;
    auto at = static_cast<size_t>(i);
    bool starts = i == 0;
    if (separate_ && real && next_document < documents.size() && documents[next_document] == i) {
      starts = true;
      ++next_document;
      document_start = i;
    }
    if (starts) batch_.segments.push_back(begin + static_cast<int32_t>(i));
    // The last input of a document predicts the next document's first token: not asked for when they are separate.
    bool crosses = separate_ && next_document < documents.size() && documents[next_document] == i + 1;
    bool counts = real && i >= ignored && !crosses;
    batch_.ids.push_back(real ? tokens[at] : 0);
    batch_.positions.push_back(static_cast<int32_t>(separate_ ? i - document_start : i));
    batch_.targets.push_back(counts ? tokens[at + 1] : -1);
    batch_.valid_tokens += counts;
  }
}

const HostBatch& BatchPacker::finish() {
  auto full = static_cast<size_t>(sequences_ * length_);
  while (batch_.ids.size() < full) {  // whole sequences of padding keep equal lengths equal
    auto begin = static_cast<int32_t>(batch_.ids.size());
    batch_.segments.push_back(begin);
    batch_.ids.resize(batch_.ids.size() + static_cast<size_t>(length_), 0);
    batch_.targets.resize(batch_.ids.size(), -1);
    for (int64_t i = 0; i < length_; ++i) batch_.positions.push_back(static_cast<int32_t>(i));
  }
  size_t segments = static_cast<size_t>(separate_ ? sequences_ * length_ : sequences_) + 1;
  batch_.segments.resize(segments, static_cast<int32_t>(full));
  return batch_;
}

TrainingBatches::TrainingBatches(std::shared_ptr<const TokenDataset> data, SampleOptions sampling, int64_t sequences,
                                 bool separate_documents)
    : sampler_(std::move(data), sampling), sequences_(sequences), separate_(separate_documents) {}

void TrainingBatches::get(int64_t micro_batch_index, HostBatch& out) const {
  BatchPacker packer(sequences_, sampler_.options().length, separate_);
  TokenSample sample;
  for (int64_t i = 0; i < sequences_; ++i) {
    sampler_.get(micro_batch_index * sequences_ + i, sample);
    packer.add(sample.tokens, sample.segments);
  }
  out = packer.finish();
}

}  // namespace octet
