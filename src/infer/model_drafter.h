// Drafts of a smaller model with the same vocabulary: a runner of its own with caches of its own. A sequence's drafts
// are sampled with the sequence's options, seed and positions: the random numbers are those of the verifying model, so
// the two choose the same token more often than two independent draws would (Gumbel-max coupling).
//
// A draft's forward and sampling run to their end before the next; what a sequence lacks (its prompt, accepted tokens)
// is computed first, at most a step's tokens a call, and sequences that are not through get no drafts yet.
#pragma once

#include <memory>
#include <unordered_map>

#include "infer/drafter.h"
#include "infer/forward_builder.h"

namespace octet {

class ModelDrafter final : public Drafter {
 public:
  explicit ModelDrafter(std::unique_ptr<Runner> runner);

  bool runs_model() const override { return true; }
  void propose(std::span<DraftSequence> texts) override;
  void forget(SequenceId id) override;

 private:
  struct Text {
    SequenceId id = -1;
    TableId table = -1;
    int32_t slot = -1;
    std::vector<int32_t> ids = {};  // computed or about to be: the sequence's tokens, then drafts
    int64_t computed = 0;
    int64_t turn = 0;  // the last propose() with it
  };
  struct Active {
    DraftSequence* text;
    Text* own;
  };

  Text* open(const DraftSequence& text);
  bool evict_oldest();
  bool make_room(Text& own, int64_t tokens);
  bool catch_up(DraftSequence& text, int64_t& budget);
  void add(const Active& active, int64_t count);
  void run();

  std::unique_ptr<Runner> runner_;
  BlockManager blocks_;
  ForwardBuilder builder_;
  std::unordered_map<SequenceId, Text> texts_;
  std::vector<int32_t> free_slots_;
  StepPlan plan_;
  SampleInput sample_;
  std::vector<Active> active_, drawn_;  // sequences that are drafted; rows of the step
  int64_t turn_ = 0;
};

}  // namespace octet
