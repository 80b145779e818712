#include "infer/sample_builder.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/threads.h"

namespace octet {

// A bias that makes a token the largest logit, whatever the model's: log-probabilities are those before biases.
constexpr float kCertain = 1e30f;

SampleBuilder::SampleBuilder(const RunnerLimits& limits, const Scheduler& scheduler)
    : limits_(limits), scheduler_(scheduler), mask_words_(static_cast<size_t>((limits.vocab + 31) / 32)) {}

const SampleInput& SampleBuilder::build(std::span<Row> rows, std::vector<Failure>& failed) {
  size_t count = rows.size();
  sample_.params.resize(3 * count);
  sample_.top_k.resize(count);
  sample_.seeds.resize(3 * count);
  sample_.store.resize(count);
  sample_.entries.clear();
  sample_.values.clear();
  sample_.mask_rows.clear();
  sample_.top_logprobs = false;
  masks_.clear();
  mask_count_ = 0;
  for (size_t r = 0; r < count; ++r) {
    RequestSequence& sequence = *rows[r].sequence;
    const Request& request = *sequence.request;
    SampleRow row = {.temperature = 0};
    sample_.store[r] = rows[r].draft < 0 && rows[r].ahead == 0 && rows[r].beams == 0 ? rows[r].slot : -1;
    if (rows[r].target >= 0) {
      sample_.store[r] = -1;
      sample_.top_logprobs |= request.asked.prompt_logprobs > 0;
      sample_.entries.insert(sample_.entries.end(), {static_cast<int32_t>(r), rows[r].target});
      sample_.values.insert(sample_.values.end(), {kCertain, 1, 0});
    } else if (rows[r].beams > 0 ? !request.over() : !sequence.over()) {
      if (rows[r].beams == 0)
        row = sample_row(request.asked.sampling, sequence.sample, sequence.generated + rows[r].ahead);
      sample_.top_logprobs |= rows[r].beams > 0 || request.asked.logprobs > 0;
      if (request.adjusts) add_entries(rows, r);
      if (request.asked.mask && rows[r].ahead == 0) want_masks(rows, r, failed);
    }
    sample_.params[3 * r] = row.temperature;
    sample_.params[3 * r + 1] = row.top_p;
    sample_.params[3 * r + 2] = row.min_p;
    sample_.top_k[r] = row.top_k;
    sample_.seeds[3 * r] = row.seed;
    sample_.seeds[3 * r + 1] = row.sequence;
    sample_.seeds[3 * r + 2] = row.position;
  }
  add_masks(rows, failed);
  return sample_;
}

// Masks of the row and of those of its drafts, as many as there is room for.
void SampleBuilder::want_masks(std::span<Row> rows, size_t row, std::vector<Failure>& failed) {
  Masks masks{.row = row, .first = mask_count_};
  const auto room = static_cast<size_t>(limits_.masks) - mask_count_;
  if (room == 0) {
    failed.push_back(
        {rows[row].sequence, fmt::format("more than {} sequences of one step have mask callbacks: send fewer "
                                         "such requests at once",
                                         limits_.masks)});
    return;
  }
  while (rows[row + masks.count].draft >= 0) ++masks.count;
  masks.count = std::min(masks.count + 1, room);
  mask_count_ += masks.count;
  masks_.push_back(std::move(masks));
}

// The scheduler limits the total to SchedulerOptions::max_adjusted.
void SampleBuilder::add_entries(std::span<const Row> rows, size_t row) {
  RequestSequence& sequence = *rows[row].sequence;
  if (!sequence.counts) {
    const Request& request = *sequence.request;
    sequence.counts.emplace(request.asked.sampling, request.asked.min_tokens, request.end_ids);
    // Its first sample: nothing is generated yet.
    sequence.counts->add_prompt(scheduler_.tokens(sequence.id).subspan(static_cast<size_t>(request.virtual_tokens())));
  }
  const auto ahead = static_cast<size_t>(rows[row].ahead);
  for (size_t i = ahead; i > 0; --i) sequence.counts->add_output(rows[row - i].draft);
  sequence.counts->append_entries(static_cast<int32_t>(row), sample_.entries, sample_.values);
  for (size_t i = 1; i <= ahead; ++i) sequence.counts->remove_output(rows[row - i].draft);
}

// The masks of one sequence. A row behind a draft that its mask forbids, or where the callback fails, is not usable;
// the first row's failure is the sequence's.
void SampleBuilder::make_masks(Masks& masks, std::span<Row> rows) {
  const RequestSequence& sequence = *rows[masks.row].sequence;
  const Request& request = *sequence.request;
  const auto known =
      scheduler_.tokens(sequence.id).subspan(static_cast<size_t>(request.virtual_tokens() + request.prompt_tokens));
  std::vector<int32_t> ahead;
  if (masks.count > 1) ahead.assign(known.begin(), known.end());
  size_t done = 0;
  try {
    for (bool fits = true; fits && done < masks.count; ++done) {
      const std::span words = std::span(sample_.masks).subspan((masks.first + done) * mask_words_, mask_words_);
      std::ranges::fill(words, ~uint32_t{0});
      const int32_t draft = rows[masks.row + done].draft;
      sequence.request->asked.mask(sequence.sample, masks.count > 1 ? ahead : known, words);
      sample_.mask_rows[masks.row + done] = static_cast<int32_t>(masks.first + done);
      fits = draft >= 0 && (words[static_cast<size_t>(draft) / 32] >> (draft % 32) & 1) != 0;
      if (fits && masks.count > 1) ahead.push_back(draft);
    }
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    const bool memory = own != nullptr && own->code() == ErrorCode::kOutOfMemory;
    masks.kind = memory ? ErrorKind::kQueueFull : kind_of(error);
    masks.error = fmt::format("the mask callback failed: {}", error.what());
  } catch (...) {
    masks.error = "the mask callback failed";
  }
  if (done > 0) masks.error.clear();  // of a token that may never come
  for (size_t row = masks.row + done; row > masks.row && rows[row - 1].draft >= 0; ++row) rows[row].usable = false;
}

// Each sequence's are made by whichever thread is free next: some take a thousand times as long as others.
void SampleBuilder::add_masks(std::span<Row> rows, std::vector<Failure>& failed) {
  if (masks_.empty()) return;
  const auto count = static_cast<int64_t>(masks_.size());
  sample_.mask_rows.assign(rows.size(), -1);
  sample_.masks.resize(mask_count_ * mask_words_);
  std::atomic<int64_t> next = 0;
  parallel_for(count, 1, [&](int64_t, int64_t) {
    for (int64_t m = next++; m < count; m = next++) make_masks(masks_[static_cast<size_t>(m)], rows);
  });
  for (Masks& masks : masks_)
    if (!masks.error.empty()) failed.push_back({rows[masks.row].sequence, std::move(masks.error), masks.kind});
}

}  // namespace octet
