// Trains a byte-level BPE vocabulary: counts the words of the pre-tokenised text, then repeatedly merges the most
// frequent adjacent pair; ties are resolved by the lowest pair of ids, as in Hugging Face's trainer, so the result is a
// pure function of the text. Special tokens take the first ids, then the 256 bytes in the order of their spellings,
// then merges.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "io/corpus.h"
#include "io/tokenizer_parts.h"

namespace octet {

using WordCounts = std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>>;

struct BpeTrainOptions {
  int64_t vocab_size = 4096;                                    // special tokens and the 256 bytes included
  int64_t min_frequency = 2;                                    // less frequent pairs are not merged
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // the first is the end-of-document token
  std::vector<SplitRule> splits = {{.pattern = kGpt2Pattern}};
};

// `progress(done, total)` in merges. Returns fewer tokens than requested when no pair is frequent enough.
BpeVocabulary train_bpe(const WordCounts& words, const BpeTrainOptions& options,
                        const std::function<void(int64_t done, int64_t total)>& progress = {});

// Adds the words of `text` to `counts`.
void count_words(std::string_view text, const Splitter& splitter, SplitScratch& scratch, WordCounts& counts);

struct CorpusProgress;

// Counts the words of whole corpora in `threads` threads (0 = all cores). An empty corpus is an error.
WordCounts count_corpus_words(const std::vector<std::string>& inputs, const TextOptions& text,
                              const std::vector<SplitRule>& splits, int threads, TextCounts& counts,
                              const std::function<void(const CorpusProgress&)>& progress = {});

// Distinct characters of whole corpora, sorted by code point. Invalid UTF-8 is an error.
std::vector<std::string> collect_corpus_characters(const std::vector<std::string>& inputs, const TextOptions& text,
                                                   int threads);

}  // namespace octet
