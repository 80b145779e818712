#include "infer/postprocess.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace octet {

const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "length", "stop", "context full", "cancelled", "timeout", "error"};
  return kNames[static_cast<size_t>(reason)];
}

const char* error_kind_name(ErrorKind kind) {
  constexpr const char* kNames[] = {"none", "invalid", "too long", "queue full", "late", "device", "internal"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {

std::vector<TokenLogprob> top_of(const SampleOutput& output, size_t row, int64_t wanted) {
  std::vector<TokenLogprob> top;
  if (wanted == 0) return top;
  size_t columns = output.top_ids.size() / output.ids.size(), first = row * columns;
  top.reserve(std::min(columns, static_cast<size_t>(wanted)));
  for (size_t k = 0; k < std::min(columns, static_cast<size_t>(wanted)); ++k)
    top.push_back({output.top_ids[first + k], output.top_logprobs[first + k]});
  return top;
}

// The tokens that may follow a beam. Log-probabilities are the model's with biases added, not scaled to add up to one
// again where a mask or bias forbids tokens: those after the adjustment are all off by what the best one, sampled
// greedily, is.
std::vector<TokenLogprob> next_of_beam(const Request& request, const SampleOutput& output, size_t row) {
  std::vector<TokenLogprob> next;
  if (output.ids[row] < 0) return next;  // there is none
  const bool adjusted = (request.adjusts || request.asked.mask) && !output.adjusted_ids.empty();
  const auto ids = adjusted ? output.adjusted_ids : output.top_ids;
  const auto logprobs = adjusted ? output.adjusted_logprobs : output.top_logprobs;
  const size_t columns = ids.size() / output.ids.size(), first = row * columns;
  float shift = 0;
  if (adjusted) {
    const auto bias = request.asked.sampling.logit_bias.find(output.ids[row]);
    shift = output.logprobs[row] - logprobs[first];
    if (bias != request.asked.sampling.logit_bias.end()) shift += bias->second;
  }
  for (size_t k = first; k < first + columns; ++k) next.push_back({ids[k], logprobs[k] + shift});
  return next;
}

}  // namespace

FinishReason Postprocess::append_token(RequestSequence& sequence, const SampleOutput& output, size_t row, int32_t id) {
  if (sequence.over()) return FinishReason::kNone;
  const Request& request = *sequence.request;
  if (request.asked.max_tokens == 0) return FinishReason::kNone;  // only the prompt's were wanted
  touch(sequence);
  if (id < 0) {
    end(sequence, FinishReason::kError, ErrorKind::kInternal,
        "no token can be sampled: the mask and biases forbid all tokens, or the model's logits are not finite");
    return FinishReason::kError;
  }
  if (std::ranges::find(request.end_ids, id) != request.end_ids.end()) {
    sequence.news.finished = FinishReason::kStop;
    sequence.news.stop_id = id;
    for (const auto& [token, text] : request.stop_tokens)
      if (token == id) sequence.news.stop = text, sequence.news.stop_id = -1;
    return FinishReason::kStop;
  }
  ++sequence.generated;
  if (sequence.counts) sequence.counts->add_output(id);
  sequence.news.ids.push_back(id);
  if (request.asked.logprobs >= 0) {
    sequence.news.logprobs.push_back({id, output.logprobs[row]});
    sequence.news.top.push_back(top_of(output, row, request.asked.logprobs));
  }
  ++generated_tokens_;
  return FinishReason::kNone;
}

void Postprocess::append_prompt_token(RequestSequence& sequence, int32_t id, const SampleOutput& output, size_t row) {
  if (sequence.over()) return;
  touch(sequence);
  const bool chosen = output.ids[row] == id;  // not where its logit is not finite
  sequence.news.prompt_logprobs.push_back({id, chosen ? output.logprobs[row] : -INFINITY});
  sequence.news.prompt_top.push_back(top_of(output, row, sequence.request->asked.prompt_logprobs));
}

std::span<const BeamSearch::Step> Postprocess::append_beams(Request& request, const SampleOutput& output, size_t row) {
  beam_rows_.clear();
  for (size_t i = 0; i < request.sequences.size(); ++i)
    beam_rows_.push_back({.next = next_of_beam(request, output, row + i),
                          .top = top_of(output, row + i, std::max<int64_t>(request.asked.logprobs, 0))});
  const std::span steps = request.search->advance(beam_rows_);
  for (size_t i = 0; i < steps.size(); ++i) {
    RequestSequence& beam = request.sequences[i];
    beam.generated = request.search->length();
    if (beam.counts) beam.counts->add_output(steps[i].token);
  }
  if (steps.empty()) end_search(request);
  return steps;
}

void Postprocess::end_search(Request& request) {
  std::vector<BeamSearch::Text> texts = request.search->texts();
  for (int64_t i = 0; i < request.asked.n; ++i) {
    RequestSequence& sequence = request.sequences[static_cast<size_t>(i)];
    if (i >= std::ssize(texts)) {
      end(sequence, FinishReason::kError, ErrorKind::kInternal,
          fmt::format("beam search: only {} sequences can be found: the mask and biases forbid all others, or the "
                      "model's logits are not finite",
                      texts.size()));
      continue;
    }
    touch(sequence);
    BeamSearch::Text& text = texts[static_cast<size_t>(i)];
    GenerationEvent& news = sequence.news;
    for (const TokenLogprob& token : text.tokens) news.ids.push_back(token.id);
    if (request.asked.logprobs >= 0) news.logprobs = std::move(text.tokens), news.top = std::move(text.top);
    sequence.generated = std::ssize(news.ids);
    generated_tokens_ += sequence.generated;
    news.score = text.score;
    news.stop_id = text.stop_id;
    const bool whole = sequence.generated == request.asked.max_tokens;
    news.finished = text.stop_id >= 0 ? FinishReason::kStop : whole ? FinishReason::kLength : FinishReason::kContext;
  }
}

void Postprocess::end(RequestSequence& sequence, FinishReason reason, ErrorKind kind, const std::string& error) {
  if (sequence.over()) return;
  touch(sequence);
  sequence.news.finished = reason;
  sequence.news.error_kind = kind;
  sequence.news.error = error;
}

// Appends the text of the new ids; true when a stop string ended it.
bool Postprocess::add_text(RequestSequence& sequence) {
  GenerationEvent& news = sequence.news;
  const int64_t min_tokens = sequence.request->asked.min_tokens;  // stop strings are behind their text
  for (size_t i = 0; i < news.ids.size(); ++i) {
    if (news.ids[i] >= tokenizer_vocab_) continue;
    std::string text = sequence.decoder->push(news.ids[i]);
    const bool early = sequence.generated - (std::ssize(news.ids) - 1 - static_cast<int64_t>(i)) <= min_tokens;
    news.text += sequence.stops.empty() || early ? std::move(text) : sequence.stops.push(text);
    if (!sequence.stops.stopped()) continue;
    news.ids.resize(i + 1);
    if (!news.logprobs.empty()) news.logprobs.resize(i + 1), news.top.resize(i + 1);
    return true;
  }
  return false;
}

// Appends text held back as a possible part of a character or stop string.
void Postprocess::finish_text(RequestSequence& sequence) {
  std::string text = sequence.decoder->finish();
  const GenerationRequest& asked = sequence.request->asked;
  sequence.news.text += sequence.generated <= asked.min_tokens ? std::move(text) : sequence.stops.push(text);
  if (!sequence.stops.stopped()) sequence.news.text += sequence.stops.finish();
  if (asked.include_stop && sequence.news.stop_id < 0) sequence.news.text += sequence.news.stop;
}

void Postprocess::deliver(double now, std::vector<RequestSequence*>& stopped) {
  for (RequestSequence* sequence : touched_) {
    GenerationEvent& news = sequence->news;
    sequence->touched = false;
    if (sequence->decoder) {
      if (add_text(*sequence)) {
        news.finished = FinishReason::kStop;
        news.stop = sequence->stops.matched();
        news.stop_id = -1;
        news.error_kind = ErrorKind::kNone;
        news.error.clear();
        stopped.push_back(sequence);
      } else if (news.finished != FinishReason::kNone) {
        finish_text(*sequence);
      }
    }
    Request& request = *sequence->request;
    request.stream->publish(news, now - request.submitted);
    if (news.finished != FinishReason::kNone) {
      sequence->closed = true;
      request.outcome = std::max(request.outcome, news.finished);
      if (--request.open == 0) completed_.push_back(&request);
    }
    clear(news);
  }
  touched_.clear();
}

}  // namespace octet
