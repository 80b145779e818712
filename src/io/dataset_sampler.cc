// TokenSampler and IndexPermutation (dataset.h). An epoch's shuffled document order is a permutation computed on
// demand; only every 32nd boundary of the concatenation is stored: an index of a quarter byte for each document.
#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "io/dataset.h"

namespace octet {
namespace {

constexpr int64_t kStride = 32;  // documents between stored boundaries: finding a sample walks at most this many
enum Stream : uint64_t { kDocumentStream = 0, kSampleStream = 1 };

}  // namespace

IndexPermutation::IndexPermutation(int64_t count, uint64_t seed, uint64_t stream)
    : count_(static_cast<uint64_t>(count)), half_bits_(3) {
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < count_) ++half_bits_;
  Philox random(seed, stream);
  for (uint64_t& key : keys_) key = random.next_u64();
}

int64_t IndexPermutation::operator()(int64_t index) const {
  // A Feistel network permutes [0, 4^half_bits); walking the cycle until it lands below count_ permutes [0, count_).
  const uint64_t half = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & half;
    for (uint64_t key : keys_) {
      const uint64_t next = left ^ (mix64(right + key) & half);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= count_);
  return static_cast<int64_t>(value);
}

// One epoch's order of documents and samples.
struct TokenSampler::Epoch {
  int64_t number;
  IndexPermutation documents, samples;
  std::vector<int64_t> boundaries;  // first token, in the concatenation, of shuffled document 0, 32, 64, ...
};

TokenSampler::TokenSampler(std::shared_ptr<const TokenDataset> dataset, SampleOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  check(options_.length > 0, ErrorCode::kInvalidArgument, "sample length {} (want at least 1)", options_.length);
  if (dataset_->is_packed()) {
    check(dataset_->row_length() <= options_.length, ErrorCode::kInvalidArgument,
          "{}: its rows of up to {} tokens do not fit samples of {} inputs: set data.sequence_length={}, or prepare it "
          "again with octet data --sequence-length {}",
          dataset_->prefix(), dataset_->row_length(), options_.length, dataset_->row_length(), options_.length);
    samples_per_epoch_ = dataset_->rows();
    return;
  }
  const int64_t least = options_.order == SampleOrder::kSequential ? 2 : options_.length + 1;
  check(dataset_->tokens() >= least, ErrorCode::kInvalidArgument,
        "{}: {} tokens are too few for samples of {} inputs (want at least {}): give more text or a shorter context",
        dataset_->prefix(), dataset_->tokens(), options_.length, least);
  const int64_t inputs = dataset_->tokens() - 1;
  samples_per_epoch_ = options_.order == SampleOrder::kSequential ? (inputs + options_.length - 1) / options_.length
                                                                  : inputs / options_.length;
}

std::shared_ptr<const TokenSampler::Epoch> TokenSampler::epoch(int64_t number) const {
  std::lock_guard lock(mutex_);
  auto& cached = epochs_[number % 2];
  if (cached && cached->number == number) return cached;
  const auto stream = static_cast<uint64_t>(number) * 2;
  auto made =
      std::make_shared<Epoch>(Epoch{number,
                                    IndexPermutation(dataset_->documents(), options_.seed, stream + kDocumentStream),
                                    IndexPermutation(samples_per_epoch_, options_.seed, stream + kSampleStream),
                                    {}});
  if (dataset_->is_packed()) return cached = made;
  made->boundaries.reserve(static_cast<size_t>(dataset_->documents() / kStride + 1));
  int64_t position = 0;
  for (int64_t i = 0; i < dataset_->documents(); ++i) {
    if (i % kStride == 0) made->boundaries.push_back(position);
    position += dataset_->document_length(made->documents(i));
  }
  cached = made;
  return made;
}

void TokenSampler::get(int64_t index, TokenSample& out) const {
  check(index >= 0, ErrorCode::kInvalidArgument, "sample index {}", index);
  const int64_t length = options_.length;
  out.segments.assign(1, 0);
  out.counts.clear(), out.weights.clear();
  out.row = -1;
  // `count` tokens of the set behind those that `out` has.
  const auto append = [&](int64_t first, int64_t count) {
    const auto filled = static_cast<size_t>(out.tokens.size()), more = static_cast<size_t>(count);
    out.tokens.resize(filled + more);
    dataset_->read(first, std::span(out.tokens).subspan(filled));
    if (dataset_->has_weights()) {
      out.weights.resize(filled + more);
      dataset_->read_weights(first, std::span(out.weights).subspan(filled));
    }
    if (dataset_->all_count()) return;
    out.counts.resize(filled + more);
    dataset_->read_counts(first, std::span(out.counts).subspan(filled));
  };
  out.tokens.clear();
  if (dataset_->is_packed()) {
    const int64_t place = index % samples_per_epoch_;
    int64_t row = place;
    if (options_.order == SampleOrder::kShuffled) row = epoch(epoch_of(index))->samples(place);
    if (options_.order == SampleOrder::kRandomOffset)
      row = static_cast<int64_t>(
          Philox(options_.seed, static_cast<uint64_t>(index)).below(static_cast<uint64_t>(samples_per_epoch_)));
    out.row = row;
    const int64_t first = dataset_->row_begin(row), end = dataset_->row_begin(row + 1);
    append(first, end - first);
    for (int64_t document = dataset_->document_at(first) + 1;
         document < dataset_->documents() && dataset_->document_begin(document) < end; ++document)
      out.segments.push_back(static_cast<int32_t>(dataset_->document_begin(document) - first));
    return;
  }
  if (options_.order != SampleOrder::kShuffled) {
    int64_t first = 0, count = length + 1;
    if (options_.order == SampleOrder::kSequential) {
      first = index % samples_per_epoch_ * length;
      count = std::min(count, dataset_->tokens() - first);
    } else {
      first = static_cast<int64_t>(Philox(options_.seed, static_cast<uint64_t>(index))
                                       .below(static_cast<uint64_t>(dataset_->tokens() - length)));
    }
    append(first, count);
    for (int64_t document = dataset_->document_at(first) + 1; document < dataset_->documents(); ++document) {
      const int64_t begin = dataset_->document_begin(document) - first;
      if (begin >= count) break;
      if (begin > out.segments.back()) out.segments.push_back(static_cast<int32_t>(begin));
    }
    return;
  }
  const auto order = epoch(epoch_of(index));
  const int64_t first = order->samples(index % samples_per_epoch_) * length;
  const auto after = std::upper_bound(order->boundaries.begin(), order->boundaries.end(), first);
  int64_t place = (after - order->boundaries.begin() - 1) * kStride, begin = *(after - 1);
  for (int64_t filled = 0; filled <= length; ++place) {
    const int64_t document = order->documents(place), size = dataset_->document_length(document);
    const int64_t skip = std::max<int64_t>(0, first - begin);  // of the document in which the sample begins
    begin += size;
    if (skip >= size) continue;
    const int64_t take = std::min(size - skip, length + 1 - filled);
    if (filled > 0) out.segments.push_back(static_cast<int32_t>(filled));
    append(dataset_->document_begin(document) + skip, take);
    filled += take;
  }
}

}  // namespace octet
