// Gathering what vocabularies are trained from (words, characters) over whole corpora, in parallel.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/threads.h"
#include "io/bpe_trainer.h"
#include "io/corpus.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

// Runs body(worker, text) over all texts; `counts` gathers in order.
void over_texts(const std::vector<std::string>& inputs, const TextOptions& options, int threads, TextCounts& counts,
                const std::function<void(int worker, const TextPiece&)>& body,
                const std::function<void(const CorpusProgress&)>& progress) {
  CorpusReader reader(list_corpus(inputs));
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
