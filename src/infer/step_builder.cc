#include "infer/step_builder.h"

#include <algorithm>

#include "base/error.h"

namespace octet {

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
  sample_.masks.clear();
  sample_.mask_rows.clear();
  sample_.top_logprobs = false;
  std::string reason;
  for (size_t r = 0; r < count; ++r) {
    RequestText& sequence = *rows[r].sequence;
    const Request& request = *sequence.request;
    SampleRow row = {.temperature = 0};
    sample_.store[r] = rows[r].slot;
    if (!sequence.over()) {
      row = sample_row(request.asked.sampling, sequence.sample, sequence.generated);
      sample_.top_logprobs |= request.asked.logprobs > 0;
      if (request.adjusts) add_entries(sequence, r);
      if (request.asked.mask) {
        sample_.mask_rows.resize(count, -1);
        sample_.mask_rows[r] = static_cast<int32_t>(sample_.masks.size() / mask_words_);
        if (!add_mask(sequence, reason)) {
          sample_.mask_rows[r] = -1;
          failed.push_back({&sequence, std::move(reason)});
        }
      }
    }
    sample_.params[3 * r] = row.temperature;
    sample_.params[3 * r + 1] = row.top_p;
    sample_.params[3 * r + 2] = row.min_p;
    sample_.top_k[r] = row.top_k;
    sample_.seeds[3 * r] = row.seed;
    sample_.seeds[3 * r + 1] = row.sequence;
    sample_.seeds[3 * r + 2] = row.position;
  }
  return sample_;
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

bool StepBuilder::add_mask(const RequestText& sequence, std::string& reason) {
  size_t words = sample_.masks.size();
  if (static_cast<int64_t>(words / mask_words_) >= limits_.masks) {
    reason = fmt::format("more than {} sequences of one step have mask callbacks: send fewer such requests at once",
                         limits_.masks);
    return false;
  }
  sample_.masks.resize(words + mask_words_, ~uint32_t{0});
  try {
    const Request& request = *sequence.request;
    const std::span generated = scheduler_.tokens(sequence.id).subspan(static_cast<size_t>(request.prompt_tokens));
    request.asked.mask(sequence.sample, generated, std::span(sample_.masks).subspan(words));
    return true;
  } catch (const std::exception& error) {
    reason = fmt::format("the mask callback failed: {}", error.what());
  } catch (...) {
    reason = "the mask callback failed";
  }
  sample_.masks.resize(words);
  return false;
}

}  // namespace octet
