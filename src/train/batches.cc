#include "train/batches.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

// Keys the draws of masks apart from those of sampling orders, which use the seed itself.
constexpr uint64_t kMaskKey = 0x6d61736b;

}  // namespace

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
  batch_ = token_batch(sequences_, length_, /*targets=*/true);
  if (separate_) batch_.add("segments", {DType::kI32, {sequences_ * length_ + 1}});
  tokens_ = segments_ = 0;
}

void BatchPacker::add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& documents,
                      std::span<const uint8_t> counts) {
  auto inputs = static_cast<int64_t>(tokens.size()) - 1;
  check(inputs >= 1 && inputs <= length_, ErrorCode::kInternal, "batch: {} tokens for sequences of {}", tokens.size(),
        length_);
  check(counts.empty() || counts.size() == tokens.size(), ErrorCode::kInternal, "batch: a mask of {} for {} tokens",
        counts.size(), tokens.size());
  check(tokens_ + length_ <= sequences_ * length_, ErrorCode::kInternal, "batch: more than {} sequences", sequences_);
  const auto ids = batch_.ints("ids"), positions = batch_.ints("positions"), targets = batch_.ints("targets"),
             segments = batch_.ints("segments");
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
    if (counted) targets[to] = tokens[at + 1];
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

NextToken::NextToken(std::shared_ptr<const TokenDataset> data, SampleOptions sampling, int64_t sequences,
                     bool separate_documents)
    : sampler_(std::move(data), sampling), sequences_(sequences), separate_(separate_documents) {}

Batch NextToken::get(int64_t micro_batch) const {
  BatchPacker packer(sequences_, sampler_.options().length, separate_);
  TokenSample sample;
  for (int64_t i = 0; i < sequences_; ++i) {
    sampler_.get(micro_batch * sequences_ + i, sample);
    packer.add(sample);
  }
  return packer.finish();
}

MaskedTokens::MaskedTokens(std::shared_ptr<const TokenDataset> data, SampleOptions sampling, int64_t sequences,
                           MaskingOptions masking)
    : sampler_(std::move(data), sampling), sequences_(sequences), masking_(std::move(masking)) {
  const MaskingOptions& m = masking_;
  check(m.mask_id >= 0 && m.mask_id < m.vocab_size, ErrorCode::kInvalidArgument,
        "masked tokens: mask_id {} is outside the vocabulary of {}", m.mask_id, m.vocab_size);
  check(m.chosen > 0 && m.chosen <= 1 && m.masked >= 0 && m.random >= 0 && m.masked + m.random <= 1,
        ErrorCode::kInvalidArgument, "masked tokens: {} chosen, of these {} masked and {} random: want probabilities",
        m.chosen, m.masked, m.random);
}

Batch MaskedTokens::get(int64_t micro_batch) const {
  const SampleOptions& sampling = sampler_.options();
  Batch batch = token_batch(sequences_, sampling.length, /*targets=*/true);
  const auto ids = batch.ints("ids"), targets = batch.ints("targets");
  TokenSample sample;
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t index = micro_batch * sequences_ + s;
    sampler_.get(index, sample);
    Philox random(mix64(sampling.seed ^ kMaskKey), static_cast<uint64_t>(index));
    for (int64_t t = 0; t < sampling.length; ++t) {
      const int32_t token = sample.tokens[static_cast<size_t>(t)];
      int32_t& id = ids[static_cast<size_t>(s * sampling.length + t)];
      id = token;
      if (random.uniform() >= masking_.chosen || std::ranges::count(masking_.kept, token) > 0) continue;
      targets[static_cast<size_t>(s * sampling.length + t)] = token;
      ++batch.target_count;
      const double fate = random.uniform();
      if (fate < masking_.masked) {
        id = masking_.mask_id;
      } else if (fate < masking_.masked + masking_.random) {
        id = static_cast<int32_t>(random.below(static_cast<uint64_t>(masking_.vocab_size)));
      }
    }
  }
  return batch;
}

SequenceClassification::SequenceClassification(std::vector<LabelledSequence> data, int64_t length, int64_t sequences,
                                               uint64_t seed)
    : data_(std::move(data)), length_(length), sequences_(sequences), seed_(seed) {
  check(!data_.empty(), ErrorCode::kInvalidArgument, "sequence classification: no sequences");
  for (size_t i = 0; i < data_.size(); ++i)
    check(!data_[i].tokens.empty() && std::cmp_less_equal(data_[i].tokens.size(), length_), ErrorCode::kInvalidArgument,
          "sequence classification: sequence {} has {} tokens (want 1 to {})", i, data_[i].tokens.size(), length_);
}

Batch SequenceClassification::get(int64_t micro_batch) const {
  Batch batch = token_batch(sequences_, length_, /*targets=*/false);
  batch.add("segments", {DType::kI32, {2 * sequences_ + 1}}, /*optional=*/true);
  batch.add("labels", {DType::kI32, {sequences_}});
  for (const char* rows : {"first_rows", "last_rows"}) batch.add(rows, {DType::kI32, {sequences_}}, /*optional=*/true);
  const auto ids = batch.ints("ids"), segments = batch.ints("segments"), labels = batch.ints("labels"),
             first_rows = batch.ints("first_rows"), last_rows = batch.ints("last_rows");
  const auto count = static_cast<int64_t>(data_.size());
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t index = micro_batch * sequences_ + s;
    const IndexPermutation order(count, seed_, static_cast<uint64_t>(index / count));
    const LabelledSequence& sequence = data_[static_cast<size_t>(order(index % count))];
    const auto at = static_cast<size_t>(s);
    const auto begin = static_cast<int32_t>(s * length_), end = begin + static_cast<int32_t>(sequence.tokens.size());
    std::ranges::copy(sequence.tokens, ids.begin() + begin);
    segments[2 * at] = first_rows[at] = begin;
    segments[2 * at + 1] = end;
    last_rows[at] = end - 1;
    labels[at] = sequence.label;
  }
  segments.back() = static_cast<int32_t>(sequences_ * length_);
  batch.target_count = sequences_;
  return batch;
}

}  // namespace octet
