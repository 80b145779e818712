// Encoding and pre-tokenisation speed on English text, in bytes per second of one thread.
//   octet_io_bench (needs the test material: GPT-2's vocabulary and wikitext-2)
#include <benchmark/benchmark.h>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "io/tokenizer_parts.h"

namespace octet {
namespace {

std::string english() {
  const std::string path = test_data_path("text/wikitext-2/valid.txt");
  return path.empty() ? "" : read_file(path);
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer.encode_to(text, {}, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void encode_gpt2(benchmark::State& state) {
  const std::string path = test_data_path("tokenizers/gpt2-bpe"), text = english();
  if (path.empty() || text.empty()) return state.SkipWithError("test material is absent");
  encode(state, *load_tokenizer(path), text);
}
BENCHMARK(encode_gpt2)->Unit(benchmark::kMillisecond);

// The small vocabularies of the tests, by kind: 400 to 700 tokens, so more merges a word than a real one.
void encode_kind(benchmark::State& state, const char* kind) {
  const std::string text = english();
  if (text.empty()) return state.SkipWithError("test material is absent");
  encode(state, *load_tokenizer(source_dir() + "/src/io/testdata/tokenizers/" + kind), text);
}
BENCHMARK_CAPTURE(encode_kind, qwen2, "qwen2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, falcon, "falcon")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, llama2_json, "llama2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, gemma_json, "gemma")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, unigram_json, "unigram-bytes")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, wordpiece_json, "wordpiece")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, sentencepiece_bpe, "sp-llama")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, sentencepiece_bpe_uncut, "sp-inside")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_kind, sentencepiece_unigram, "sp-unigram")->Unit(benchmark::kMillisecond);

void split_by_pattern(benchmark::State& state, const char* pattern) {
  const std::string text = english();
  if (text.empty()) return state.SkipWithError("test material is absent");
  const Splitter splitter({{.pattern = pattern}}, "bench");
  SplitScratch scratch;
  for (auto _ : state) {
    int64_t pieces = 0;
    splitter.each_piece(text, scratch, [&](std::string_view) { return ++pieces > 0; });
    benchmark::DoNotOptimize(pieces);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK_CAPTURE(split_by_pattern, gpt2, kGpt2Pattern)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(split_by_pattern, llama3, kLlama3Pattern)->Unit(benchmark::kMillisecond);

// Merging one word of n bytes: where the scan of short words meets the heap of long ones.
void merge_word(benchmark::State& state) {
  MergeTable table;
  for (int32_t id = 0; id < 4096; ++id)
    table.insert(id % 64, id / 64, {static_cast<uint32_t>(4096 - id), 64 + id % 900});
  std::vector<int32_t> word(static_cast<size_t>(state.range(0)));
  for (size_t i = 0; i < word.size(); ++i) word[i] = static_cast<int32_t>(i * 7919 % 61);
  MergeScratch scratch;
  for (auto _ : state) {
    auto symbols = word;
    apply_merges(table, symbols, scratch);
    benchmark::DoNotOptimize(symbols.data());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(merge_word)->Arg(8)->Arg(24)->Arg(47)->Arg(49)->Arg(96)->Arg(1024);

}  // namespace
}  // namespace octet
