// For tests of the engine: an engine on the fake runner, readers, and the expected output of a request.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "infer/engine_loop.h"
#include "infer/testing/fake_runner.h"
#include "infer/testing/sample_token.h"

namespace octet {

inline void PrintTo(SchedulingPolicy policy, std::ostream* out) {
  constexpr const char* kNames[] = {"never evict", "max utilization"};
  *out << kNames[static_cast<size_t>(policy)];
}

inline void PrintTo(DType dtype, std::ostream* out) { *out << dtype_name(dtype); }

inline constexpr int32_t kEos = 60;

// Ids 0 .. 59 are characters "a" .. ; 60 has no text.
inline std::unique_ptr<Tokenizer> test_tokenizer() {
  std::vector<std::string> characters;
  for (char c = 'A'; characters.size() < 60; ++c) characters.emplace_back(1, c);
  return make_character_tokenizer(characters);
}

inline std::unique_ptr<EngineLoop> test_engine(FakeOptions fake, const EngineOptions& options = {},
                                               std::unique_ptr<Drafter> drafter = nullptr) {
  return std::make_unique<EngineLoop>(EngineParts{.runner = std::make_unique<FakeRunner>(std::move(fake)),
                                                  .tokenizer = test_tokenizer(),
                                                  .eos_ids = {kEos},
                                                  .drafter = std::move(drafter)},
                                      options);
}

// Drafts for the fake model: what it samples where no penalties are, but for one in `wrong`. `fail_at`: the call that
// throws. `memoryless`: as FakeOptions.
class FakeDrafter final : public Drafter {
 public:
  explicit FakeDrafter(int64_t vocab, uint64_t wrong = 4, int64_t fail_at = 0, bool memoryless = false)
      : vocab_(vocab), wrong_(wrong), fail_at_(fail_at), memoryless_(memoryless) {}
  bool runs_model() const override { return true; }
  void propose(std::span<DraftSequence> texts) override {
    check(++calls_ != fail_at_, ErrorCode::kInternal, "the draft's device is lost");
    for (DraftSequence& text : texts) {
      uint64_t hash = memoryless_ ? 1 : 0;
      for (const int32_t id : text.tokens) hash = next(hash, id);
      text.drafts.clear();
      for (SampleRow row = text.row; std::ssize(text.drafts) < text.most; ++row.position) {
        std::vector<int32_t> tokens(static_cast<size_t>(vocab_));
        scratch_.tokens = tokens;
        int32_t id = sample_from(fake_logits(hash, vocab_), row, scratch_);
        if (mix64(hash + static_cast<uint64_t>(row.position)) % wrong_ == 0)
          id = (id + 1) % static_cast<int32_t>(vocab_);
        text.drafts.push_back(id);
        hash = next(hash, id);
      }
    }
  }
  void forget(SequenceId) override {}

 private:
  uint64_t next(uint64_t hash, int32_t id) const { return memoryless_ ? hash : fake_hash(hash, id); }

  int64_t vocab_, calls_ = 0;
  uint64_t wrong_;
  int64_t fail_at_;
  bool memoryless_;
  SampleScratch scratch_;
};

// Limits with room for the rows of drafts.
inline RunnerLimits with_drafts(RunnerLimits limits) {
  limits.rows = limits.masks = 24;
  return limits;
}

// All events of a text, joined.
struct Collected {
  std::string text, error, stop;
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  FinishReason finished = FinishReason::kNone;
  ErrorKind kind = ErrorKind::kNone;
  int32_t stop_id = -1;
  int64_t events = 0;
};

inline std::vector<Collected> collect(GenerationStream& stream, int64_t n = 1) {
  std::vector<Collected> texts(static_cast<size_t>(n));
  for (GenerationEvent event; stream.next(event);) {
    Collected& text = texts.at(static_cast<size_t>(event.sample));
    EXPECT_EQ(text.finished, FinishReason::kNone) << "an event after the end";
    text.text += event.text;
    text.ids.insert(text.ids.end(), event.ids.begin(), event.ids.end());
    text.logprobs.insert(text.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    text.top.insert(text.top.end(), event.top.begin(), event.top.end());
    text.finished = event.finished;
    text.error = event.error;
    text.kind = event.error_kind;
    text.stop = event.stop;
    text.stop_id = event.stop_id;
    ++text.events;
  }
  return texts;
}

inline Collected collect_one(GenerationStream stream) { return collect(stream)[0]; }

// The expected output of sequence `sample` of the request.
inline Collected alone(const GenerationRequest& request, int64_t sample, const RunnerLimits& limits) {
  Collected result;
  std::vector<int32_t> ends = request.stop_ids;
  if (!request.ignore_eos) ends.push_back(kEos);
  TokenCounts counts(request.sampling, request.min_tokens, ends);
  counts.add_prompt(request.prompt_ids);
  uint64_t hash = 0;
  for (int32_t id : request.prompt_ids) hash = fake_hash(hash, id);
  auto prompt = static_cast<int64_t>(request.prompt_ids.size());
  while (result.finished == FinishReason::kNone) {
    std::vector<float> logits = fake_logits(hash, limits.vocab);
    adjust(counts, logits);
    int32_t id = sample_token(logits, request.sampling, sample, static_cast<int64_t>(result.ids.size()));
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result.finished = FinishReason::kStop;
      result.stop_id = id;
      break;
    }
    result.ids.push_back(id);
    if (id < 60) result.text += static_cast<char>('A' + id);
    counts.add_output(id);
    hash = fake_hash(hash, id);
    auto generated = static_cast<int64_t>(result.ids.size());
    if (generated == request.max_tokens)
      result.finished = FinishReason::kLength;
    else if (prompt + generated == limits.context)
      result.finished = FinishReason::kContext;
  }
  return result;
}

inline std::vector<int32_t> some_ids(int64_t count, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(mix64(seed * 1000 + static_cast<uint64_t>(i) + 1) % 60));
  return ids;
}

// A request whose options vary with `i`.
inline GenerationRequest some_request(uint64_t i) {
  GenerationRequest request{.prompt_ids = some_ids(1 + static_cast<int64_t>(i * 7 % 37), i / 3)};
  request.max_tokens = 1 + static_cast<int64_t>(i * 5 % 29);
  request.sampling = {.temperature = i % 3 == 0 ? 0.0 : 0.9, .seed = i};
  if (i % 4 == 1) request.sampling.top_k = 5, request.sampling.top_p = 0.9;
  if (i % 4 == 2) request.sampling.repetition_penalty = 1.3, request.sampling.frequency_penalty = 0.4;
  if (i % 5 == 3) request.min_tokens = std::min<int64_t>(4, request.max_tokens);
  if (i % 6 == 5) request.n = 1 + static_cast<int64_t>(i % 3);
  if (i % 7 == 2) request.priority = 1;
  request.ignore_eos = i % 2 == 0;
  return request;
}

}  // namespace octet
