// Loss, perplexity and bits per byte of a model on a sequence of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dist/rank_team.h"
#include "exec/batch.h"
#include "io/dataset.h"
#include "io/tokenizer.h"
#include "passes/pass.h"
#include "weights/weights.h"

namespace octet {

// What a loss is measured on: a text's tokens, or a prepared set with the targets that it counts.
struct EvalTokens {
  std::vector<int32_t> ids = {};
  int32_t begin_id = -1;  // of a text: no target, and put in front of every window that does not begin with it
  std::shared_ptr<const TokenDataset> set = {};
  int64_t count() const { return set ? set->tokens() : std::ssize(ids); }
  void read(int64_t first, std::span<int32_t> out) const;
};

struct PerplexityOptions {
  Recipe recipe = {};
  Target target = {};
  int64_t tensor = 1;        // ranks that share the model
  double rank_timeout = 60;  // seconds of a rank's silence after which its process is lost
  std::string build = {};    // equal in all processes of the ranks
  int64_t length = 0;        // tokens of a window; 0 = the model's max_positions
  int64_t stride = 0;        // tokens between windows; 0 = length. Smaller: every counted token sees more context
  int64_t windows = 4;       // windows run at once
  int64_t max_tokens = 0;    // 0 = all
  bool separate_documents = false;  // of a set: no attention and no target across them, as in training. Windows of a
                                    // packed set, which wants it, are its rows
  // Keys and values are written to a paged cache of this type and read back, as when serving; none: there is no cache.
  std::optional<DType> cache = {};
};

// How many tokens from the beginning run() reads for max_tokens: the last windows run whole, whatever of them counts.
// 0 = all there are. The options' length must be given.
int64_t tokens_needed(const PerplexityOptions& options);

struct PerplexityResult {
  double loss_sum = 0;           // nats over counted targets
  int64_t tokens = 0;            // counted targets
  int64_t bytes = 0;             // of text those targets stand for
  int32_t rank = 0;              // of this process: results are rank 0's to tell
  double loss() const;           // mean nats per token
  double perplexity() const;     // exp(loss)
  double bits_per_byte() const;  // loss_sum / ln 2 / bytes
};

class PerplexityEvaluator {
 public:
  // `rank`: one of options.tensor, which all run the same tokens at once.
  PerplexityEvaluator(const WeightSource& weights, const PerplexityOptions& options, const LocalRank& rank = {});
  // `on_progress` gets targets done. Throws kInvalidArgument where no token is a target.
  PerplexityResult run(const EvalTokens& tokens, const Tokenizer* tokenizer,
                       const std::function<void(int64_t)>& on_progress = {});

 private:
  PerplexityOptions options_;
  int64_t vocab_size_ = 0;
  std::unique_ptr<Executor> executor_;
  Batch cache_inputs_;  // of a graph with a cache
};

// An evaluator's run, on options.tensor ranks: threads of this process, or a launcher's processes, which all call it.
PerplexityResult evaluate_perplexity(const WeightSource& weights, const PerplexityOptions& options,
                                     const EvalTokens& tokens, const Tokenizer* tokenizer,
                                     const std::function<void(int64_t)>& on_progress = {});

}  // namespace octet
