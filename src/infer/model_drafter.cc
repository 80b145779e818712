#include "infer/model_drafter.h"

#include <algorithm>

namespace octet {

ModelDrafter::ModelDrafter(std::unique_ptr<Runner> runner)
    : runner_(std::move(runner)),
      blocks_({.groups = runner_->limits().groups, .block_size = static_cast<int32_t>(runner_->limits().block_size)}),
      builder_(runner_->limits(), blocks_) {
  for (int64_t slot = runner_->limits().sequences - 1; slot >= 0; --slot)
    free_slots_.push_back(static_cast<int32_t>(slot));
}

void ModelDrafter::forget(SequenceId id) {
  const auto found = texts_.find(id);
  if (found == texts_.end()) return;
  blocks_.free(found->second.table);
  free_slots_.push_back(found->second.slot);
  texts_.erase(found);
}

// Of the sequences that are not part of this call.
bool ModelDrafter::evict_oldest() {
  const Text* oldest = nullptr;
  for (const auto& [id, text] : texts_)
    if (text.turn < turn_ && (oldest == nullptr || text.turn < oldest->turn)) oldest = &text;
  if (oldest == nullptr) return false;
  forget(oldest->id);
  return true;
}

// Its state, without what does not continue the sequence any more: drafts that were wrong. Null: no room.
ModelDrafter::Text* ModelDrafter::open(const DraftSequence& text) {
  const auto known = text.tokens.first(text.tokens.size() - 1);  // the last one is always computed
  const auto found = texts_.find(text.id);
  if (found == texts_.end()) {
    if (free_slots_.empty() && !evict_oldest()) return nullptr;
    Text& own = texts_[text.id] = {.id = text.id, .table = blocks_.create(0, text.salt), .slot = free_slots_.back()};
    free_slots_.pop_back();
    own.computed = blocks_.match(own.table, text.tokens);
    own.ids.assign(text.tokens.begin(), text.tokens.begin() + own.computed);
    return &own;
  }
  Text& own = found->second;
  const size_t computed = std::min({static_cast<size_t>(own.computed), own.ids.size(), known.size()});
  own.computed = std::mismatch(known.begin(), known.begin() + static_cast<int64_t>(computed), own.ids.begin()).first -
                 known.begin();
  own.ids.resize(static_cast<size_t>(own.computed));
  blocks_.truncate(own.table, own.computed);
  blocks_.publish(own.table, known);
  return &own;
}

bool ModelDrafter::make_room(Text& own, int64_t tokens) {
  while (blocks_.room(own.table, tokens) < tokens)
    if (!evict_oldest()) return false;
  return blocks_.allocate(own.table, tokens, turn_, plan_.copies);
}

// Plans what the sequence lacks; true when its first draft comes of that.
bool ModelDrafter::catch_up(DraftSequence& text, int64_t& budget) {
  const RunnerLimits& limits = runner_->limits();
  const auto length = static_cast<int64_t>(text.tokens.size());
  if (budget == 0 || length + text.most > limits.context) return false;
  Text* own = open(text);
  if (own == nullptr) return false;
  own->turn = turn_;
  const auto fresh = text.tokens.subspan(static_cast<size_t>(own->computed));
  if (std::ranges::any_of(fresh, [&](int32_t id) { return id >= limits.vocab; })) return false;
  const int64_t lacks = length - own->computed, count = std::min(lacks, budget);
  const bool drafts = count == lacks;
  // The slots of all drafts at once: nothing outside a window is freed before the drafts are known to be right.
  if (!make_room(*own, drafts ? count + text.most - 1 : count)) return false;
  budget -= count;
  own->ids.insert(own->ids.end(), fresh.begin(), fresh.begin() + count);
  active_.push_back({&text, own});
  add(active_.back(), count);
  return drafts;
}

// The next `count` of its ids.
void ModelDrafter::add(const Active& active, int64_t count) {
  Text& own = *active.own;
  ScheduledSequence entry{.id = own.id,
                          .slot = own.slot,
                          .table = own.table,
                          .first_position = own.computed,
                          .count = static_cast<int32_t>(count)};
  entry.ids = std::span(own.ids).subspan(static_cast<size_t>(own.computed), static_cast<size_t>(count));
  own.computed += count;
  entry.samples = own.computed >= static_cast<int64_t>(active.text->tokens.size());
  for (int g = 0; g < blocks_.groups(); ++g) entry.changed[static_cast<size_t>(g)] = blocks_.take_changed(own.table, g);
  plan_.sequences.push_back(entry);
  plan_.decodes += count == 1;
  plan_.tokens += count;
  if (!entry.samples) return;
  SampleRow row = active.text->row;
  row.position += std::ssize(active.text->drafts);
  sample_.params.insert(sample_.params.end(), {row.temperature, row.top_p, row.min_p});
  sample_.top_k.push_back(row.top_k);
  sample_.seeds.insert(sample_.seeds.end(), {row.seed, row.sequence, row.position});
  sample_.store.push_back(-1);
  drawn_.push_back(active);
}

// The step that was added: appends a draft to each sequence that it samples.
void ModelDrafter::run() {
  if (!plan_.copies.empty()) runner_->copy_blocks(plan_.copies);
  runner_->forward(builder_.build(plan_));
  runner_->sample(sample_);
  const SampleOutput output = runner_->wait();
  for (size_t i = 0; i < drawn_.size(); ++i) {
    if (output.ids[i] < 0) continue;
    drawn_[i].text->drafts.push_back(output.ids[i]);
    drawn_[i].own->ids.push_back(output.ids[i]);
  }
  plan_ = {};
  sample_ = {};
  drawn_.clear();
}

void ModelDrafter::propose(std::span<DraftSequence> texts) {
  ++turn_;
  active_.clear();
  int64_t budget = runner_->limits().tokens, longest = 0;
  for (DraftSequence& text : texts) {
    text.drafts.clear();
    if (text.most > 0 && catch_up(text, budget)) longest = std::max(longest, text.most);
  }
  if (active_.empty()) return;
  run();
  for (int64_t place = 1; place < longest; ++place) {
    for (const Active& active : active_)
      if (place < active.text->most && std::ssize(active.text->drafts) == place) add(active, 1);
    if (plan_.sequences.empty()) break;
    run();
  }
  blocks_.step_done(turn_);
}

}  // namespace octet
