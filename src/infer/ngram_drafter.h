// Prompt lookup: the tokens that followed the last few when these came before, in the prompt or the output. Nothing is
// computed: the index costs O(1) a token, a lookup O(1) and the drafts.
#pragma once

#include <array>
#include <unordered_map>

#include "infer/drafter.h"

namespace octet {

// Where n-grams of one sequence occur. Grows with the sequence.
class NgramIndex {
 public:
  // Up to `most` tokens that followed the latest earlier occurrence of the longest n-gram that ends `tokens`. A run
  // that reaches the end of the sequence goes on with itself. `tokens` continues those of the last call.
  void find(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts);

 private:
  static constexpr std::array<int64_t, 3> kLengths = {8, 4, 2};  // of n-grams, tried in this order
  struct Table {
    std::vector<int32_t> ends;  // open addressing by the n-gram: index behind its latest occurrence; 0 = unused
    int64_t used = 0;
  };

  int32_t& entry(Table& table, int64_t length, std::span<const int32_t> tokens, int64_t end);
  void add(Table& table, int64_t length, std::span<const int32_t> tokens, int64_t end);

  std::array<Table, kLengths.size()> tables_;
  int64_t indexed_ = 0;  // n-grams that end in front of this index are known
};

class NgramDrafter final : public Drafter {
 public:
  bool runs_model() const override { return false; }
  void propose(std::span<DraftSequence> texts) override;
  void forget(SequenceId id) override { texts_.erase(id); }

 private:
  std::unordered_map<SequenceId, NgramIndex> texts_;
};

}  // namespace octet
