// See bpe_trainer.h. Each pair lists the words that contain it, so that a merge visits only those; counts in the heap
// may be stale and are checked when popped.
#include "io/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "base/error.h"
#include "base/threads.h"
#include "io/corpus.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using PairKey = uint64_t;  // left id << 32 | right id: orders as the pair does

PairKey pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Word {
  uint32_t begin, length;  // symbols, in Trainer::symbols_
  int64_t count;
};

struct PairState {
  int64_t count = 0;
  std::vector<uint32_t> words;  // may include words that no longer contain the pair
};

struct Candidate {
  int64_t count;
  PairKey pair;
  bool operator<(const Candidate& other) const {  // the top of the heap: highest count, then lowest pair
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const std::array<int32_t, 256>& byte_ids) {
    // Sorted, so that memory layout (never the result) is the same from run to run.
    std::vector<const WordCounts::value_type*> sorted;
    for (const auto& each : words) sorted.push_back(&each);
    std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
    size_t total = 0;
    for (const auto* each : sorted) total += each->first.size();
    check(total < UINT32_MAX, ErrorCode::kUnsupported, "{} bytes of distinct words (at most {}): train on a part",
          total, UINT32_MAX);
    symbols_.reserve(total);
    for (const auto* each : sorted) {
      words_.push_back(
          {static_cast<uint32_t>(symbols_.size()), static_cast<uint32_t>(each->first.size()), each->second});
      for (char byte : each->first) symbols_.push_back(byte_ids[static_cast<uint8_t>(byte)]);
    }
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (uint32_t i = word.begin; i + 1 < word.begin + word.length; ++i) {
        change(pair_key(symbols_[i], symbols_[i + 1]), word.count, w);
      }
    }
    for (const auto& [pair, state] : pairs_) heap_.push({state.count, pair});
  }

  // The most frequent pair, or a count of 0 when none is left.
  Candidate best() {
    while (!heap_.empty()) {
      Candidate top = heap_.top();
      const auto found = pairs_.find(top.pair);
      const int64_t current = found == pairs_.end() ? 0 : found->second.count;
      if (current == top.count && current > 0) return top;
      heap_.pop();
      if (current > 0 && current < top.count) heap_.push({current, top.pair});
    }
    return {0, 0};
  }

  void merge(PairKey pair, int32_t merged) {
    const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    const std::vector<uint32_t> touched = std::move(pairs_[pair].words);
    grown_.clear();
    for (uint32_t w : touched) merge_in_word(w, left, right, merged);
    pairs_.erase(pair);
    for (PairKey each : grown_) {
      if (const auto found = pairs_.find(each); found != pairs_.end() && found->second.count > 0) {
        heap_.push({found->second.count, each});
      }
    }
  }

 private:
  void change(PairKey pair, int64_t by, uint32_t word) {
    PairState& state = pairs_[pair];
    state.count += by;
    if (by > 0 && (state.words.empty() || state.words.back() != word)) state.words.push_back(word);
  }

  void merge_in_word(uint32_t w, int32_t left, int32_t right, int32_t merged) {
    Word& word = words_[w];
    int32_t* s = symbols_.data() + word.begin;
    uint32_t write = 0;
    for (uint32_t read = 0; read < word.length;) {
      if (s[read] != left || read + 1 >= word.length || s[read + 1] != right) {
        s[write++] = s[read++];
        continue;
      }
      if (write > 0) {
        change(pair_key(s[write - 1], left), -word.count, w);
        grow(pair_key(s[write - 1], merged), word.count, w);
      }
      if (read + 2 < word.length) {
        change(pair_key(right, s[read + 2]), -word.count, w);
        grow(pair_key(merged, s[read + 2]), word.count, w);
      }
      s[write++] = merged;
      read += 2;
    }
    word.length = write;
  }

  void grow(PairKey pair, int64_t by, uint32_t word) {
    change(pair, by, word);
    if (grown_.empty() || grown_.back() != pair) grown_.push_back(pair);
  }

  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<PairKey, PairState> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<PairKey> grown_;
};

// Runs body(worker, text) over all texts; `counts` gathers in order.
void over_texts(const std::vector<std::string>& inputs, const TextOptions& options, int threads, TextCounts& counts,
                const std::function<void(int worker, const TextPiece&)>& body,
                const std::function<void(const CorpusProgress&)>& progress) {
  CorpusReader reader(list_corpus(inputs), options);
  CorpusProgress state{.total_disk_bytes = reader.total_disk_bytes()};
  run_over_corpus(reader, threads, [&](int worker, const CorpusBatch& batch) -> std::function<void()> {
    auto found = std::make_shared<TextCounts>();
    each_text(batch, reader.files(), options, *found, [&](const TextPiece& piece) { body(worker, piece); });
    return [&, found, disk_bytes = batch.disk_bytes] {
      counts.add(*found);
      state.disk_bytes = disk_bytes;
      state.text_bytes = counts.bytes;
      if (progress) progress(state);
    };
  });
  check(counts.bytes > 0, ErrorCode::kInvalidArgument, "the corpus is empty: no text in {} file(s)",
        reader.files().size());
}

}  // namespace

void count_words(std::string_view text, const Splitter& splitter, SplitScratch& scratch, WordCounts& counts) {
  splitter.each_piece(text, scratch, [&](std::string_view word) {
    if (const auto found = counts.find(word); found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace(word, 1);
    }
    return true;
  });
}

BpeVocabulary train_bpe(const WordCounts& words, const BpeTrainOptions& options,
                        const std::function<void(int64_t done, int64_t total)>& progress) {
  BpeVocabulary vocabulary;
  vocabulary.splits = options.splits;
  std::unordered_map<std::string, int32_t> ids;
  const auto add = [&](const std::string& spelling) {
    const auto [at, added] = ids.emplace(spelling, static_cast<int32_t>(vocabulary.tokens.size()));
    if (added) vocabulary.tokens.push_back(spelling);
    return at->second;
  };
  for (const std::string& text : options.special_tokens) {
    check(!text.empty() && !ids.count(text), ErrorCode::kInvalidArgument, "special token \"{}\" is empty or repeated",
          text);
    vocabulary.added.push_back({.id = add(text), .text = text});
  }
  if (!options.special_tokens.empty()) vocabulary.bos = vocabulary.eos = options.special_tokens[0];
  std::vector<std::string> alphabet(byte_spellings().begin(), byte_spellings().end());
  std::sort(alphabet.begin(), alphabet.end());  // UTF-8 sorts by code point
  for (const std::string& spelling : alphabet) add(spelling);
  const auto first = static_cast<int64_t>(vocabulary.tokens.size());
  check(options.vocab_size >= first, ErrorCode::kInvalidArgument,
        "a vocabulary of {} tokens is too small: {} special tokens and 256 bytes come first", options.vocab_size,
        options.special_tokens.size());
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) byte_ids[byte] = ids.at(byte_spellings()[byte]);

  Trainer trainer(words, byte_ids);
  MergeTable known;
  for (auto size = first; size < options.vocab_size; size = static_cast<int64_t>(vocabulary.tokens.size())) {
    const Candidate best = trainer.best();
    if (best.count < std::max<int64_t>(1, options.min_frequency)) break;
    const auto left = static_cast<int32_t>(best.pair >> 32), right = static_cast<int32_t>(best.pair);
    const std::string left_text = vocabulary.tokens[left], right_text = vocabulary.tokens[right];
    // Two merges that produce the same token share its id; each pair is listed once.
    const int32_t merged = add(left_text + right_text);
    if (known.find(left, right).id < 0) {
      known.insert(left, right, {0, merged});
      vocabulary.merges.emplace_back(left_text, right_text);
    }
    trainer.merge(best.pair, merged);
    if (progress) progress(static_cast<int64_t>(vocabulary.tokens.size()) - first, options.vocab_size - first);
  }
  return vocabulary;
}

WordCounts count_corpus_words(const std::vector<std::string>& inputs, const TextOptions& text,
                              const std::vector<SplitRule>& splits, int threads, TextCounts& counts,
                              const std::function<void(const CorpusProgress&)>& progress) {
  if (threads <= 0) threads = thread_count();
  const Splitter splitter(splits, "training");
  std::vector<WordCounts> words(static_cast<size_t>(threads));
  std::vector<SplitScratch> scratches(static_cast<size_t>(threads));
  over_texts(
      inputs, text, threads, counts,
      [&](int worker, const TextPiece& piece) { count_words(piece.text, splitter, scratches[worker], words[worker]); },
      progress);
  for (size_t i = 1; i < words.size(); ++i) {
    for (const auto& [word, count] : words[i]) words[0][word] += count;
    words[i].clear();
  }
  return std::move(words[0]);
}

std::vector<std::string> collect_corpus_characters(const std::vector<std::string>& inputs, const TextOptions& text,
                                                   int threads) {
  if (threads <= 0) threads = thread_count();
  std::vector<std::vector<bool>> seen(static_cast<size_t>(threads), std::vector<bool>(0x110000));
  TextCounts counts;
  TextOptions strict = text;
  if (strict.utf8 == Utf8Policy::kKeep) strict.utf8 = Utf8Policy::kError;
  over_texts(inputs, strict, threads, counts,
             [&](int worker, const TextPiece& piece) {
               for (size_t at = 0; at < piece.text.size();) {
                 const Utf8Char character = utf8_at(piece.text, at);
                 seen[worker][character.code] = true;
                 at += static_cast<size_t>(character.length);
               }
             },
             {});
  std::vector<std::string> characters;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (std::any_of(seen.begin(), seen.end(), [&](const auto& each) { return each[code]; })) {
      utf8_append(characters.emplace_back(), code);
    }
  }
  return characters;
}

}  // namespace octet
