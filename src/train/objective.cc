#include "train/objective.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

// Keys the draws of masks apart from those of sampling orders, which use the seed itself.
constexpr uint64_t kMaskKey = 0x6d61736b;

}  // namespace

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
