#include "infer/forward_builder.h"

#include <algorithm>

namespace octet {

ForwardBuilder::ForwardBuilder(const RunnerLimits& limits, const BlockManager& blocks)
    : limits_(limits),
      blocks_(blocks),
      slot_of_row_(static_cast<size_t>(limits.sequences), -1),
      row_of_slot_(static_cast<size_t>(limits.sequences), -1) {
  step_.groups.resize(limits.groups.size());
}

const StepInput& ForwardBuilder::build(const StepPlan& plan) {
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
    for (int32_t i = entry.drafts; entry.samples && i >= 0; --i) step_.logit_rows.push_back(tokens - 1 - i);
  }
  step_.decode_only = plan.decodes == static_cast<int64_t>(rows);
  add_adapters(plan);
  return step_;
}

void ForwardBuilder::add_scores(const ScheduledSequence& entry) {
  const int64_t first = static_cast<int64_t>(step_.ids.size()) + entry.scores_from - entry.first_position;
  for (int32_t i = 0; i < entry.scores; ++i) step_.logit_rows.push_back(static_cast<int32_t>(first) + i);
}

void ForwardBuilder::add_tokens(const ScheduledSequence& entry) {
  const bool from_device = entry.ids.empty();
  for (int32_t i = 0; i < entry.count; ++i) {
    step_.positions.push_back(static_cast<int32_t>(entry.first_position) + i);
    step_.ids.push_back(from_device ? 0 : entry.ids[static_cast<size_t>(i)]);
    step_.from.push_back(from_device ? entry.slot : -1);
  }
}

// Ids behind the vocabulary are virtual tokens of the sequence's adapter.
void ForwardBuilder::add_adapters(const StepPlan& plan) {
  step_.adapters.clear();
  step_.virtual_rows.clear();
  if (plan.sequences.empty() || plan.sequences.back().adapter_slot < 0) return;  // they are sorted
  const AdapterTables& tables = limits_.adapters;
  for (const ScheduledSequence& entry : plan.sequences) step_.adapters.push_back(entry.adapter_slot);
  if (tables.virtual_tokens == 0) return;
  step_.virtual_rows.assign(step_.ids.size(), -1);
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const int64_t slot = plan.sequences[s].adapter_slot - std::ssize(tables.ranks) * tables.slots;
    for (auto t = static_cast<size_t>(step_.segments[s]); t < static_cast<size_t>(step_.segments[s + 1]); ++t) {
      if (step_.ids[t] < limits_.vocab) continue;
      step_.virtual_rows[t] = static_cast<int32_t>(slot * tables.virtual_tokens + step_.ids[t] - limits_.vocab);
      step_.ids[t] = 0;
    }
  }
}

void ForwardBuilder::add_slots(const ScheduledSequence& entry) {
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

void ForwardBuilder::add_tables(const ScheduledSequence& entry, size_t row) {
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

}  // namespace octet
