// An engine without a model for the scheduler's tests and benchmark: it runs plans on a fake device.
//
// The device holds a KV slot per token and group. A token's KV is the hash of its id and the KV before it; a sampled
// token is a hash of all KV its position can see. It updates block tables only by the changes of the plan, reads
// sampled tokens from its own memory and runs a step as late as the engine allows. So a wrong block, copy, position or
// token changes the output, which expected() computes without scheduler or blocks.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "base/rng.h"
#include "infer/scheduler.h"
#include "infer/testing/audit.h"

namespace octet {

inline const char* policy_name(SchedulingPolicy policy) {
  constexpr const char* kNames[] = {"never_evict", "max_utilization"};
  return kNames[static_cast<size_t>(policy)];
}
inline void PrintTo(SchedulingPolicy policy, std::ostream* out) { *out << policy_name(policy); }

}  // namespace octet

namespace octet::test {

inline constexpr int32_t kVocabulary = 97;
inline constexpr int32_t kStopToken = 13;

struct FakeRequest {
  SequenceParams params;
  bool stops = true;  // ends at kStopToken
};

class FakeEngine {
 public:
  // `lag`: steps launched before the results of the first are committed.
  FakeEngine(SchedulerOptions options, BlockManagerOptions blocks, int64_t lag = 1)
      : blocks_(blocks), scheduler_(options, blocks_), lag_(lag), groups_(blocks.groups.size()) {
    for (size_t g = 0; g < groups_; ++g) {
      kv_.emplace_back(static_cast<size_t>(blocks.groups[g].blocks) * static_cast<size_t>(blocks.block_size));
      tables_.emplace_back(static_cast<size_t>(options.max_sequences));
    }
    last_token_.resize(static_cast<size_t>(options.max_sequences), -1);
  }

  Submitted submit(const FakeRequest& request) {
    Submitted submitted = scheduler_.submit(request.params, now);
    for (int64_t i = 0; submitted.id >= 0 && i < request.params.n; ++i) {
      requests_[submitted.id + i] = {request, submitted.id};
      if (drafting && !request.params.beams) expected_[submitted.id + i] = expected(submitted.id + i);
    }
    return submitted;
  }

  // One turn of the engine's loop; false when there was nothing to launch.
  bool turn() {
    if (drafting) draft();
    const StepPlan& plan = scheduler_.schedule(now);
    check_plan(plan);
    const bool launched = !plan.empty();
    preempted += static_cast<int64_t>(plan.preempted.size());
    max_preempted = std::max(max_preempted, static_cast<int64_t>(plan.preempted.size()));
    if (launched) launch(plan);
    while (!launched_.empty() && (!launched || static_cast<int64_t>(launched_.size()) > lag_)) run_and_commit();
    collect();
    now += 1;
    return launched;
  }

  // Runs until no work is left. Throws after `turns` turns.
  void drain(int64_t turns = 100'000) {
    while (scheduler_.has_work() || scheduler_.in_flight() > 0) {
      turn();
      if (--turns < 0) throw std::runtime_error("the scheduler does not come to an end");
    }
    collect();
  }

  void device_error() {
    launched_.clear();
    scheduler_.fail_running();
    collect();
  }

  // The tokens the sequence generates alone: to its limit, its stop token or the end of the context. Of a beam those it
  // has when all beams of its search have `most`.
  std::vector<int32_t> expected(SequenceId id, size_t most = SIZE_MAX) const {
    const auto& [request, first] = requests_.at(id);
    const SequenceParams& params = request.params;
    const auto prompt = static_cast<int64_t>(params.prompt.size());
    const int64_t limit = prompt + std::min(params.max_tokens, scheduler_.options().context_length - prompt);
    const auto count = static_cast<size_t>(params.beams ? params.n : 1), own = static_cast<size_t>(id - first);
    std::vector<Text> texts(count, Text{.tokens = params.prompt, .sums = std::vector<uint64_t>(groups_, 0)});
    while (std::ssize(texts[0].tokens) < limit && texts[0].tokens.size() < most) {
      std::vector<uint64_t> sums;
      for (Text& text : texts) sums.push_back(sum_of(text, params));
      if (!params.beams) {
        texts[0].tokens.push_back(sample(sums[0], id - first));
        if (request.stops && texts[0].tokens.back() == kStopToken) break;
        continue;
      }
      if (request.stops && search_ends(sums)) break;
      std::vector<Text> next;
      for (size_t i = 0; i < count; ++i) {
        const auto [parent, token] = next_of_beam(sums, i);
        next.push_back(texts[parent]);
        next.back().tokens.push_back(token);
      }
      texts = std::move(next);
    }
    return texts[params.beams ? own : 0].tokens;
  }
  bool is_beam(SequenceId id) const { return requests_.at(id).first.params.beams; }

  Scheduler& scheduler() { return scheduler_; }
  const BlockManager& blocks() const { return blocks_; }

  double now = 0;
  bool verify_each_step = true;
  // Before submissions: two turns of three are not ahead of the device, and texts have drafts there, right and wrong.
  bool drafting = false;
  int64_t preempted = 0, max_preempted = 0;  // ever, and in one step
  std::map<SequenceId, FinishReason> ended;
  std::map<SequenceId, std::vector<int32_t>> outputs;  // tokens of ended sequences
  std::vector<StepPlan> history;                       // plans launched, when keep_history
  bool keep_history = false;

 private:
  struct Launched {
    StepPlan plan;
    std::vector<std::vector<int32_t>> ids;                   // of each entry's tokens; empty: from the device
    std::vector<std::vector<std::vector<int32_t>>> changes;  // [entry][group]: table entries from `changed` on
    std::vector<std::pair<uint64_t, uint64_t>> name_spaces;  // adapter, salt
    std::vector<std::pair<int64_t, bool>> sampling;          // index in its request, stops
  };

  // A text that is simulated alone.
  struct Text {
    std::vector<int32_t> tokens;
    std::vector<uint64_t> kv = {}, sums;  // of its tokens but the last; by group, of what the last one sees
  };
  // Of all KV that its last token sees.
  uint64_t sum_of(Text& text, const SequenceParams& params) const {
    for (auto p = std::ssize(text.kv); p < std::ssize(text.tokens); ++p) {
      const uint64_t before = p == 0 ? root(params.adapter, params.salt) : text.kv.back();
      text.kv.push_back(next_kv(before, text.tokens[static_cast<size_t>(p)]));
      for (size_t g = 0; g < groups_; ++g) {
        const int64_t window = blocks_.options().groups[g].window;
        text.sums[g] += text.kv.back() * (g + 1);
        if (window > 0 && p >= window) text.sums[g] -= text.kv[static_cast<size_t>(p - window)] * (g + 1);
      }
    }
    return std::accumulate(text.sums.begin(), text.sums.end(), uint64_t{0});
  }

  // The fake search: which beam this one follows, and with which token.
  static std::pair<size_t, int32_t> next_of_beam(std::span<const uint64_t> sums, size_t beam) {
    const size_t parent = mix64(sums[beam] * 7 + beam) % sums.size();
    return {parent, sample(sums[parent], static_cast<int64_t>(beam))};
  }
  static bool search_ends(std::span<const uint64_t> sums) { return mix64(sums.front() + sums.back()) % 19 == 0; }

  void draft() {
    if (random_.below(3) == 0) return;
    while (!launched_.empty()) run_and_commit();
    collect();
    for (const auto& [id, tokens] : expected_) {
      const int64_t room = scheduler_.draft_room(id);
      if (room == 0 || random_.below(8) == 0) continue;
      std::vector<int32_t> drafts;
      for (size_t at = scheduler_.tokens(id).size(); drafts.size() < 1 + random_.below(static_cast<uint64_t>(room));
           ++at)
        drafts.push_back(random_.below(4) == 0 || at >= tokens.size() ? static_cast<int32_t>(random_.below(kVocabulary))
                                                                      : tokens[at]);
      scheduler_.propose(id, drafts);
    }
  }

  static uint64_t root(uint64_t adapter, uint64_t salt) { return mix64(adapter * 31 + salt + 7); }
  static uint64_t next_kv(uint64_t before, int32_t token) {
    return mix64(before * 3 + static_cast<uint64_t>(token) + 1);
  }
  static int32_t sample(uint64_t sum, int64_t index) {
    return static_cast<int32_t>(mix64(sum + static_cast<uint64_t>(index) * 1000003) % kVocabulary);
  }
  static void require(bool condition, const char* what) {
    if (!condition) throw std::runtime_error(what);
  }

  void check_plan(const StepPlan& plan) {
    if (verify_each_step) Audit::verify(scheduler_);
    const SchedulerOptions& o = scheduler_.options();
    int64_t tokens = 0, rows = 0, scores = 0, singles = 0, adjusted = 0;
    for (const ScheduledSequence& s : plan.sequences) {
      tokens += s.count, rows += s.samples ? 1 + s.drafts : 0, scores += s.scores, singles += s.count == 1;
      const SequenceParams& params = requests_.at(s.id).first.params;
      const int64_t sampled = s.first_position + s.count - static_cast<int64_t>(params.prompt.size());
      for (int64_t i = sampled - s.drafts; s.samples && i <= sampled; ++i)
        adjusted += std::min(params.adjusted + i, params.max_adjusted);
      require(s.beams == (params.beams && s.samples ? params.n : 0), "a search's step has all beams");
      require(s.drafts == 0 || (s.samples && s.count == 1 + s.drafts), "drafts");
      require(std::ranges::count(plan.preempted, s.id) == 0, "preempted and planned in one step");
      require(s.count >= 1 && s.slot >= 0 && s.slot < o.max_sequences, "count or slot out of range");
      require(s.samples || s.count == 1 || (s.first_position + s.count) % blocks_.options().block_size == 0 ||
                  params.n > 1 || params.score_from > 0 || params.beams,
              "a chunk that is not the last is not whole blocks");
    }
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const ScheduledSequence& s = plan.sequences[i];
      if (s.beams > 1 && s.id == requests_.at(s.id).second)
        for (int32_t b = 1; b < s.beams; ++b) require(plan.sequences.at(i + b).id == s.id + b, "beams side by side");
    }
    require(tokens == plan.tokens && rows == plan.logit_rows && singles == plan.decodes, "sums of the plan");
    require(tokens <= std::max(o.token_budget, o.max_sequences), "token budget");
    require(adjusted + scores <= o.max_adjusted, "adjusted logits");
    require(rows + scores <= o.max_logit_rows && static_cast<int64_t>(plan.sequences.size()) <= o.max_sequences,
            "limits");
  }

  void launch(const StepPlan& plan) {
    Launched& l = launched_.emplace_back();
    l.plan = plan;
    if (keep_history) history.push_back(plan);
    for (const ScheduledSequence& s : plan.sequences) {
      const auto& [request, first] = requests_.at(s.id);
      const auto tokens = scheduler_.tokens(s.id);
      auto& ids = l.ids.emplace_back();
      const int64_t known = s.count - s.drafts;
      require(s.ids.empty() == (s.first_position + known > static_cast<int64_t>(tokens.size())), "from_device");
      if (!s.ids.empty()) {
        const auto chunk = tokens.subspan(static_cast<size_t>(s.first_position), static_cast<size_t>(known));
        require(std::ranges::equal(s.ids.first(static_cast<size_t>(known)), chunk), "ids");
        ids.assign(s.ids.begin(), s.ids.end());
      }
      auto& changes = l.changes.emplace_back(groups_);
      for (size_t g = 0; g < groups_; ++g) {
        const auto table = blocks_.blocks(s.table, static_cast<int>(g)).subspan(static_cast<size_t>(s.changed[g]));
        changes[g].assign(table.begin(), table.end());
      }
      l.name_spaces.emplace_back(request.params.adapter, request.params.salt);
      l.sampling.emplace_back(s.id - first, request.stops);
    }
  }

  uint64_t& slot_of(size_t group, int32_t row, int64_t position) {
    const auto size = static_cast<size_t>(blocks_.options().block_size);
    const auto& table = tables_[group][static_cast<size_t>(row)];
    const int32_t block = table.at(static_cast<size_t>(position) / size);
    require(block >= 0, "the device reads a block that was given back");
    return kv_[group][static_cast<size_t>(block) * size + static_cast<size_t>(position) % size];
  }

  void run_and_commit() {
    const Launched l = std::move(launched_.front());
    launched_.pop_front();
    const auto size = static_cast<int64_t>(blocks_.options().block_size);
    for (size_t i = 0; i < l.plan.sequences.size(); ++i)
      for (size_t g = 0; g < groups_; ++g) {
        auto& table = tables_[g][static_cast<size_t>(l.plan.sequences[i].slot)];
        table.resize(static_cast<size_t>(l.plan.sequences[i].changed[g]), kNoBlock);
        table.insert(table.end(), l.changes[i][g].begin(), l.changes[i][g].end());
      }
    for (const BlockCopy& c : l.plan.copies) {
      auto& kv = kv_[static_cast<size_t>(c.group)];
      std::copy_n(kv.begin() + c.from * size, size, kv.begin() + c.to * size);
    }
    // All KV of a step is written before any is read, as in a layer of a model; one sequence may read what another
    // computes in the same step. By first position, so that what comes earlier in a prefix is there.
    std::vector<size_t> order(l.plan.sequences.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return l.plan.sequences[i].first_position; });
    for (size_t i : order) {
      const ScheduledSequence& s = l.plan.sequences[i];
      for (int64_t p = s.first_position; p < s.first_position + s.count; ++p) {
        const int32_t id = l.ids[i].empty() ? last_token_[static_cast<size_t>(s.slot)]
                                            : l.ids[i][static_cast<size_t>(p - s.first_position)];
        const uint64_t before =
            p == 0 ? root(l.name_spaces[i].first, l.name_spaces[i].second) : slot_of(0, s.slot, p - 1);
        for (size_t g = 0; g < groups_; ++g) slot_of(g, s.slot, p) = next_kv(before, id);
      }
    }
    std::vector<SampledToken> results;
    std::vector<uint64_t> beams;  // of a search: the sums of those whose rows have come
    for (size_t i = 0; i < l.plan.sequences.size(); ++i) {
      const ScheduledSequence& s = l.plan.sequences[i];
      if (!s.samples) continue;
      for (int64_t row = s.count - 1 - s.drafts; row < s.count; ++row) {
        uint64_t sum = 0;
        const int64_t last = s.first_position + row;
        for (size_t g = 0; g < groups_; ++g) {
          const int64_t window = blocks_.options().groups[g].window;
          for (int64_t p = window == 0 ? 0 : std::max<int64_t>(0, last - window + 1); p <= last; ++p)
            sum += slot_of(g, s.slot, p) * (g + 1);
        }
        if (s.beams > 0) {
          beams.push_back(sum);
          if (std::ssize(beams) == s.beams) add_beams(s.id + 1 - s.beams, beams, l.sampling[i].second, results);
          break;
        }
        const int32_t token = sample(sum, l.sampling[i].first);
        last_token_[static_cast<size_t>(s.slot)] = s.drafts > 0 ? -1 : token;
        const bool stop = l.sampling[i].second && token == kStopToken;
        results.push_back({s.id, token, stop ? FinishReason::kStop : FinishReason::kNone});
        if (stop || (row + 1 < s.count && token != l.ids[i][static_cast<size_t>(row) + 1])) break;
      }
    }
    scheduler_.commit(l.plan.step, results);
    if (verify_each_step) Audit::verify(scheduler_);
  }

  static void add_beams(SequenceId first, std::vector<uint64_t>& sums, bool stops, std::vector<SampledToken>& results) {
    const bool ends = stops && search_ends(sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto [parent, token] = next_of_beam(sums, i);
      results.push_back({.id = first + static_cast<SequenceId>(i),
                         .token = token,
                         .end = ends ? FinishReason::kStop : FinishReason::kNone,
                         .parent = first + static_cast<SequenceId>(parent)});
    }
    sums.clear();
  }

  void collect() {
    for (const FinishedSequence& f : scheduler_.take_finished()) {
      require(ended.emplace(f.id, f.reason).second, "a sequence was reported twice");
      const auto tokens = scheduler_.tokens(f.id);
      outputs[f.id].assign(tokens.begin(), tokens.end());
      expected_.erase(f.id);
    }
  }

  BlockManager blocks_;
  Scheduler scheduler_;
  int64_t lag_;
  size_t groups_;
  std::map<SequenceId, std::pair<FakeRequest, SequenceId>> requests_;
  std::map<SequenceId, std::vector<int32_t>> expected_;  // of those that have not ended, where they are drafted
  Philox random_ = Philox(7);
  std::deque<Launched> launched_;
  std::vector<std::vector<uint64_t>> kv_;                  // [group][block * block_size + offset]
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [group][slot]
  std::vector<int32_t> last_token_;                        // [slot]
};

}  // namespace octet::test
