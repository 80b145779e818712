#include "infer/beam_search.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace octet {

BeamSearch::BeamSearch(BeamOptions options) : options_(std::move(options)) {
  check(options_.width >= 1 && options_.limit >= 1, ErrorCode::kInternal, "beam search: width {}, limit {}",
        options_.width, options_.limit);
  beams_.resize(static_cast<size_t>(options_.width));
  beams_[0].score = 0;  // the others say the same
}

double BeamSearch::scored(double sum, int64_t length) const {
  return sum / std::pow(static_cast<double>(length), options_.length_penalty);
}

// All that may follow, best first; of equals the first beam's and likeliest token.
void BeamSearch::gather(std::span<const Row> rows) {
  candidates_.clear();
  for (size_t b = 0; b < beams_.size(); ++b) {
    if (beams_[b].score == kNoScore) continue;
    for (size_t i = 0; i < rows[b].next.size(); ++i) {
      const double logprob = rows[b].next[i].logprob;
      if (std::isfinite(logprob))
        candidates_.push_back({beams_[b].score + logprob, static_cast<int32_t>(b), static_cast<int32_t>(i)});
    }
  }
  std::ranges::stable_sort(candidates_, std::greater<>(), &Candidate::score);
}

int32_t BeamSearch::add_node(const Candidate& candidate, std::span<const Row> rows) {
  const auto beam = static_cast<size_t>(candidate.beam);
  nodes_.push_back({beams_[beam].node, rows[beam].next[static_cast<size_t>(candidate.place)], rows[beam].top});
  return static_cast<int32_t>(nodes_.size()) - 1;
}

// Adds a finished sequence, if it is among the best.
void BeamSearch::finish(const Candidate& candidate, bool ends, std::span<const Row> rows) {
  const double score = scored(candidate.score, length_);
  if (std::ssize(finished_) == options_.width && score <= finished_.back().score) return;
  const auto beam = static_cast<size_t>(candidate.beam);
  Finished text{.score = score, .node = beams_[beam].node};
  if (ends)
    text.stop_id = rows[beam].next[static_cast<size_t>(candidate.place)].id;
  else
    text.node = add_node(candidate, rows);
  finished_.insert(std::ranges::upper_bound(finished_, score, std::greater<>(), &Finished::score), text);
  if (std::ssize(finished_) > options_.width) finished_.pop_back();
}

bool BeamSearch::over() const {
  if (live_.empty() || length_ == options_.limit) return true;
  if (std::ssize(finished_) < options_.width) return false;
  if (options_.early_stopping == EarlyStopping::kYes) return true;
  const bool longest = options_.early_stopping == EarlyStopping::kNever && options_.length_penalty > 0;
  return scored(live_[0].score, longest ? options_.limit : length_) <= finished_.back().score;
}

// Gives every beam its step: the first child of a beam stays in its place.
void BeamSearch::go_on(std::span<const Row> rows) {
  std::vector<Beam> next(beams_.size());
  steps_.assign(beams_.size(), {.parent = -1});
  const auto put = [&](size_t place, const Candidate& candidate) {
    steps_[place] = {candidate.beam,
                     rows[static_cast<size_t>(candidate.beam)].next[static_cast<size_t>(candidate.place)].id};
    next[place] = {candidate.score, add_node(candidate, rows)};
  };
  std::vector<Candidate> moved;
  for (const Candidate& candidate : live_) {
    const auto own = static_cast<size_t>(candidate.beam);
    if (steps_[own].parent < 0)
      put(own, candidate);
    else
      moved.push_back(candidate);
  }
  const Step spare = steps_[static_cast<size_t>(live_[0].beam)];
  for (size_t place = 0, used = 0; place < steps_.size(); ++place) {
    if (steps_[place].parent >= 0) continue;
    if (used < moved.size())
      put(place, moved[used++]);
    else
      steps_[place] = spare;
  }
  beams_ = std::move(next);
}

std::span<const BeamSearch::Step> BeamSearch::advance(std::span<const Row> rows) {
  check(rows.size() == beams_.size(), ErrorCode::kInternal, "beam search: {} rows of {} beams", rows.size(),
        beams_.size());
  ++length_;
  gather(rows);
  live_.clear();
  const auto width = static_cast<size_t>(options_.width);
  for (size_t rank = 0; rank < candidates_.size() && (rank < width || live_.size() < width); ++rank) {
    const Candidate& candidate = candidates_[rank];
    const int32_t token = rows[static_cast<size_t>(candidate.beam)].next[static_cast<size_t>(candidate.place)].id;
    const bool ends = std::ranges::find(options_.end_ids, token) != options_.end_ids.end();
    if (!ends && length_ < options_.limit) {
      if (live_.size() < width) live_.push_back(candidate);
    } else if (rank < width) {
      finish(candidate, ends, rows);
    }
  }
  if (over()) return {};
  go_on(rows);
  return steps_;
}

std::vector<BeamSearch::Text> BeamSearch::texts() const {
  std::vector<Text> texts;
  for (const Finished& finished : finished_) {
    Text& text = texts.emplace_back(Text{.score = finished.score, .stop_id = finished.stop_id});
    for (int32_t n = finished.node; n >= 0; n = nodes_[static_cast<size_t>(n)].parent) {
      text.tokens.push_back(nodes_[static_cast<size_t>(n)].token);
      text.top.push_back(nodes_[static_cast<size_t>(n)].top);
    }
    std::ranges::reverse(text.tokens);
    std::ranges::reverse(text.top);
  }
  return texts;
}

}  // namespace octet
