#include "infer/step_builder.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/threads.h"

namespace octet {

// A bias that makes a token the largest logit, whatever the model's: log-probabilities are those before biases.
constexpr float kCertain = 1e30f;

StepBuilder::StepBuilder(const RunnerLimits& limits, const BlockManager& blocks, const Scheduler& scheduler)
    : limits_(limits),
      blocks_(blocks),
      scheduler_(scheduler),
      mask_words_(static_cast<size_t>((limits.vocab + 31) / 32)),
      slot_of_row_(static_cast<size_t>(limits.sequences), -1),
      row_of_slot_(static_cast<size_t>(limits.sequences), -1) {
  step_.groups.resize(limits.groups.size());
}

const StepInput& StepBuilder::forward(const StepPlan& plan) {
  step_.ids.clear();
  step_.positions.clear();
  step_.from.clear();
  step_.segments.assign(1, 0);
  step_.kv_lengths.clear();
  step_.logit_rows.clear();
  size_t rows = plan.sequences.size();
  for (size_t g = 0; g < step_.groups.size(); ++g) {
    step_.groups[g].slots.clear();
    step_.groups[g].table.resize(rows * static_cast<size_t>(limits_.groups[g].blocks_per_sequence), kNoBlock);
  }
  std::fill(slot_of_row_.begin() + static_cast<ptrdiff_t>(rows), slot_of_row_.end(), -1);  // dropped by the resize
  for (size_t row = 0; row < rows; ++row) {
    const ScheduledSequence& entry = plan.sequences[row];
    if (entry.scores > 0) add_scores(entry);
    add_tokens(entry);
    add_slots(entry);
    add_tables(entry, row);
    auto tokens = static_cast<int32_t>(step_.ids.size());
    step_.segments.push_back(tokens);
    step_.kv_lengths.push_back(static_cast<int32_t>(entry.first_position) + entry.count);
    if (entry.samples) step_.logit_rows.push_back(tokens - 1);
  }
  step_.decode_only = plan.decodes == static_cast<int64_t>(rows);
  return step_;
}

void StepBuilder::add_scores(const ScheduledSequence& entry) {
  const int64_t first = static_cast<int64_t>(step_.ids.size()) + entry.scores_from - entry.first_position;
  for (int32_t i = 0; i < entry.scores; ++i) step_.logit_rows.push_back(static_cast<int32_t>(first) + i);
}

void StepBuilder::add_tokens(const ScheduledSequence& entry) {
  const bool from_device = entry.ids.empty();
  for (int32_t i = 0; i < entry.count; ++i) {
    step_.positions.push_back(static_cast<int32_t>(entry.first_position) + i);
    step_.ids.push_back(from_device ? 0 : entry.ids[static_cast<size_t>(i)]);
    step_.from.push_back(from_device ? entry.slot : -1);
  }
}

void StepBuilder::add_slots(const ScheduledSequence& entry) {
  int64_t size = limits_.block_size;
  for (size_t g = 0; g < step_.groups.size(); ++g) {
    std::span<const int32_t> table = blocks_.blocks(entry.table, static_cast<int>(g));
    std::vector<int32_t>& slots = step_.groups[g].slots;
    for (int64_t position = entry.first_position; position < entry.first_position + entry.count; ++position) {
      int32_t block = table[static_cast<size_t>(position / size)];
      slots.push_back(block == kNoBlock ? -1 : static_cast<int32_t>(block * size + position % size));
    }
  }
}

void StepBuilder::add_tables(const ScheduledSequence& entry, size_t row) {
  auto slot = static_cast<size_t>(entry.slot);
  bool kept = slot_of_row_[row] == entry.slot && row_of_slot_[slot] == static_cast<int32_t>(row);
  slot_of_row_[row] = entry.slot;
  row_of_slot_[slot] = static_cast<int32_t>(row);
  for (size_t g = 0; g < step_.groups.size(); ++g) {
    std::span<const int32_t> table = blocks_.blocks(entry.table, static_cast<int>(g));
    auto columns = static_cast<size_t>(limits_.groups[g].blocks_per_sequence);
    int32_t* out = step_.groups[g].table.data() + row * columns;
    size_t used = std::min(table.size(), columns);
    size_t first = kept ? std::min(static_cast<size_t>(entry.changed[g]), used) : 0;
    std::copy(table.begin() + static_cast<ptrdiff_t>(first), table.begin() + static_cast<ptrdiff_t>(used), out + first);
    if (first == 0) std::fill(out + used, out + columns, kNoBlock);  // entries of another sequence
  }
}

const SampleInput& StepBuilder::sample(std::span<const Row> rows, std::vector<Failure>& failed) {
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
  for (size_t r = 0; r < count; ++r) {
    RequestText& sequence = *rows[r].sequence;
    const Request& request = *sequence.request;
    SampleRow row = {.temperature = 0};
    sample_.store[r] = rows[r].slot;
    if (rows[r].target >= 0) {
      sample_.store[r] = -1;
      sample_.top_logprobs |= request.asked.prompt_logprobs > 0;
      sample_.entries.insert(sample_.entries.end(), {static_cast<int32_t>(r), rows[r].target});
      sample_.values.insert(sample_.values.end(), {kCertain, 1, 0});
    } else if (!sequence.over()) {
      row = sample_row(request.asked.sampling, sequence.sample, sequence.generated);
      sample_.top_logprobs |= request.asked.logprobs > 0;
      if (request.adjusts) add_entries(sequence, r);
      if (request.asked.mask) want_mask(sequence, r, failed);
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

void StepBuilder::want_mask(RequestText& sequence, size_t row, std::vector<Failure>& failed) {
  if (static_cast<int64_t>(masks_.size()) == limits_.masks) {
    failed.push_back({&sequence, fmt::format("more than {} sequences of one step have mask callbacks: send fewer such "
                                             "requests at once",
                                             limits_.masks)});
    return;
  }
  const auto prompt = static_cast<size_t>(sequence.request->prompt_tokens);
  masks_.push_back({row, scheduler_.tokens(sequence.id).subspan(prompt), {}});
}

// The scheduler limits the total to SchedulerOptions::max_adjusted.
void StepBuilder::add_entries(RequestText& sequence, size_t row) {
  if (!sequence.counts) {
    const Request& request = *sequence.request;
    sequence.counts.emplace(request.asked.sampling, request.asked.min_tokens, request.end_ids);
    sequence.counts->add_prompt(scheduler_.tokens(sequence.id));  // its first sample: nothing is generated yet
  }
  sequence.counts->append_entries(static_cast<int32_t>(row), sample_.entries, sample_.values);
}

// Each mask is made by whichever thread is free next: some take a thousand times as long as others.
void StepBuilder::add_masks(std::span<const Row> rows, std::vector<Failure>& failed) {
  if (masks_.empty()) return;
  const auto count = static_cast<int64_t>(masks_.size());
  sample_.mask_rows.assign(rows.size(), -1);
  sample_.masks.resize(masks_.size() * mask_words_);
  std::atomic<int64_t> next = 0;
  parallel_for(count, 1, [&](int64_t, int64_t) {
    for (int64_t m = next++; m < count; m = next++) {
      Mask& mask = masks_[static_cast<size_t>(m)];
      const std::span words = std::span(sample_.masks).subspan(static_cast<size_t>(m) * mask_words_, mask_words_);
      std::ranges::fill(words, ~uint32_t{0});
      const RequestText& sequence = *rows[mask.row].sequence;
      try {
        sequence.request->asked.mask(sequence.sample, mask.generated, words);
      } catch (const std::exception& error) {
        const auto* own = dynamic_cast<const Error*>(&error);
        if (own != nullptr && own->code() == ErrorCode::kInvalidArgument) mask.kind = ErrorKind::kInvalid;
        if (own != nullptr && own->code() == ErrorCode::kOutOfMemory) mask.kind = ErrorKind::kQueueFull;
        mask.error = fmt::format("the mask callback failed: {}", error.what());
      } catch (...) {
        mask.error = "the mask callback failed";
      }
    }
  });
  for (size_t m = 0; m < masks_.size(); ++m) {
    Mask& mask = masks_[m];
    if (mask.error.empty())
      sample_.mask_rows[mask.row] = static_cast<int32_t>(m);
    else
      failed.push_back({rows[mask.row].sequence, std::move(mask.error), mask.kind});
  }
}

}  // namespace octet
