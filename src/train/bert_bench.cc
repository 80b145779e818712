// Batches of BERT pretraining from a prepared set, on one thread: 48 rows of 512 tokens, of up to three sequences each
// with 256 tokens on average, 15 % of them masked.
//   octet_train_bench
#include <benchmark/benchmark.h>

#include "base/rng.h"
#include "base/testing/test_data.h"
#include "train/bert.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 30522, kSequences = 20'000;

void bert_batches(benchmark::State& state) {
  TempFolder folder;
  std::vector<BertSequence> sequences(kSequences);
  Philox random(1);
  for (BertSequence& s : sequences) {
    const auto length = static_cast<int32_t>(2 + random.below(509));
    for (int32_t i = 0; i < length; ++i) {
      s.ids.push_back(static_cast<int32_t>(random.below(kVocab)));
      s.types.push_back(2 * i >= length);
      if (i % 7 == 3) s.positions.push_back(i), s.labels.push_back(s.ids.back());
    }
  }
  write_bert_set(folder.file("set"), {.vocab_size = kVocab}, sequences);
  RunConfig config = default_settings("bert");
  config.train_data = folder.file("set"), config.micro_batch = 48;
  const BertPretraining bert(config);
  int64_t index = 0, made = 0;
  for (auto _ : state) made += bert.batch(DataSplit::kTraining, index++).target_count;
  state.counters["sequences/s"] = benchmark::Counter(static_cast<double>(made), benchmark::Counter::kIsRate);
}
BENCHMARK(bert_batches)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octet
