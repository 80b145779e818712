#include "train/sequence_scores.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "dist/communicator.h"

namespace octet {
namespace {

struct Placed {
  size_t sequence = 0;
  int64_t row = 0, at = 0;  // the place of its first token in the row
};

// Batches of `rows` rows: longest first, each into the first row of the open batch that has room. Same on all ranks.
std::vector<std::vector<Placed>> place(const std::vector<ScoredSequence>& sequences, int64_t rows, int64_t length,
                                       bool together) {
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](size_t i) { return std::ssize(sequences[i].ids); };
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return size(a) > size(b); });
  std::vector<std::vector<Placed>> batches;
  std::vector<int64_t> used;  // tokens of each row of the open batch
  for (const size_t i : order) {
    check(size(i) >= 2 && size(i) <= length + 1, ErrorCode::kInvalidArgument,
          "a sequence of {} tokens is to be scored in rows of {} (want 2 .. {})", size(i), length, length + 1);
    const auto room =
        std::ranges::find_if(used, [&](int64_t tokens) { return together && tokens + size(i) <= length + 1; });
    int64_t row = room - used.begin();
    if (room == used.end()) {
      if (batches.empty() || std::ssize(used) == rows) batches.emplace_back(), used.clear();
      row = std::ssize(used);
      used.push_back(0);
    }
    int64_t& tokens = used[static_cast<size_t>(row)];
    batches.back().push_back({.sequence = i, .row = row, .at = tokens});
    tokens += size(i);
  }
  return batches;
}

Batch batch_of(const std::vector<Placed>& placed, const std::vector<ScoredSequence>& sequences,
               const LanguageModel& model) {
  std::vector<TokenSample> rows;
  for (const Placed& one : placed) {
    if (one.row >= std::ssize(rows)) rows.resize(static_cast<size_t>(one.row) + 1);
    TokenSample& row = rows[static_cast<size_t>(one.row)];
    const std::vector<int32_t>& ids = sequences[one.sequence].ids;
    row.segments.push_back(static_cast<int32_t>(row.tokens.size()));
    row.tokens.insert(row.tokens.end(), ids.begin(), ids.end());
  }
  return model.batch_of(rows);
}

}  // namespace

void check_scores_sequences(const RunConfig& config) {
  check(config.objective == "next_token", ErrorCode::kUnsupported,
        "eval.tasks with train.objective={}: a row of such a run holds pairs: run them with octet eval --tasks on "
        "checkpoints",
        config.objective);
  check(config.pipeline <= 1 && config.context <= 1, ErrorCode::kUnsupported,
        "eval.tasks with parallel.pipeline={} and parallel.context={}: tasks are scored where a rank has whole "
        "sequences and logits: run them with octet eval --tasks on checkpoints",
        config.pipeline, config.context);
}

std::vector<SequenceScore> score_sequences(Stepper& stepper, const LanguageModel& model,
                                           const std::vector<ScoredSequence>& sequences,
                                           const std::function<bool()>& stop) {
  const std::vector<std::vector<Placed>> batches =
      place(sequences, model.sequences(), model.length(), model.separates_documents());
  const int64_t count = std::ssize(batches), ranks = stepper.data_ranks(), own = stepper.data_rank();
  const int64_t front = model.adapter().virtual_tokens, width = model.length() + front;
  // A batch has its sequences one after another: sum, and 1 where all are greedy.
  std::vector<double> found;
  for (int64_t index = 0; index < count; ++index) {
    if (stop && stop()) return {};
    if (index % ranks != own) continue;
    const std::vector<Placed>& placed = batches[static_cast<size_t>(index)];
    const Stepper::TokenScores scores = stepper.score_tokens(batch_of(placed, sequences, model));
    for (const Placed& one : placed) {
      const ScoredSequence& sequence = sequences[one.sequence];
      SequenceScore score;
      for (int64_t i = sequence.from; i < std::ssize(sequence.ids); ++i) {
        const auto token = static_cast<size_t>(one.row * width + front + one.at + i - 1);  // that predicts it
        score.sum -= static_cast<double>(scores.losses[token]);
        score.greedy &= scores.likeliest[token] == sequence.ids[static_cast<size_t>(i)];
      }
      found.insert(found.end(), {score.sum, score.greedy ? 1.0 : 0.0});
    }
  }
  if (count % ranks != 0 && own >= count % ranks) stepper.score_tokens(model.batch_of({}));  // for the collectives
  std::vector<SequenceScore> results(sequences.size());
  const auto take = [&](std::span<const double> values, int64_t rank) {
    size_t next = 0;
    for (int64_t index = rank; index < count; index += ranks)
      for (const Placed& one : batches[static_cast<size_t>(index)]) {
        results[one.sequence] = {.sum = values[next], .greedy = values[next + 1] != 0};
        next += 2;
      }
  };
  Communicator* others = stepper.executor().ranks();
  if (others == nullptr) {
    take(found, 0);
    return results;
  }
  const std::vector<std::vector<std::byte>> all = gather(*others, std::as_bytes(std::span(found)));
  for (int32_t rank = 0; rank < std::ssize(all); ++rank) {
    std::vector<double> values(all[static_cast<size_t>(rank)].size() / sizeof(double));
    std::memcpy(values.data(), all[static_cast<size_t>(rank)].data(), values.size() * sizeof(double));
    take(values, others->mesh().coordinate(rank)[Axis::kData]);
  }
  return results;
}

}  // namespace octet
