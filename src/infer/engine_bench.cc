// Host time of the engine per step: a full batch decodes on a fake runner that costs nothing.
#include <benchmark/benchmark.h>

#include <ctime>

#include "infer/engine_loop.h"
#include "infer/testing/fake_runner.h"

namespace octet {
namespace {

std::unique_ptr<EngineLoop> bench_engine(int64_t sequences) {
  RunnerLimits limits{.tokens = 8192,
                      .sequences = sequences,
                      .rows = sequences,
                      .context = 4096,
                      .vocab = 61,
                      .block_size = 64,
                      .entries = 1 << 20,
                      .masks = sequences};
  limits.groups = {{.blocks = sequences * 64, .blocks_per_sequence = 64}};
  std::vector<std::string> characters;
  for (char c = 'A'; characters.size() < 60; ++c) characters.emplace_back(1, c);
  return std::make_unique<EngineLoop>(
      EngineParts{.runner = std::make_unique<FakeRunner>(FakeOptions{.limits = limits, .checks = false}),
                  .tokenizer = make_character_tokenizer(characters)},
      EngineOptions{.max_sequences = sequences, .max_step_tokens = 8192});
}

// Every sequence of the batch decodes 1000 tokens after a prompt of 128; no stream is read meanwhile.
void run_batches(benchmark::State& state, const GenerationRequest& request) {
  int64_t sequences = state.range(0);
  auto engine = bench_engine(sequences);
  EngineStats before = engine->stats();
  std::clock_t start = std::clock();
  for (auto _ : state) {
    std::vector<GenerationStream> streams;
    for (int64_t i = 0; i < sequences; ++i) {
      GenerationRequest one = request;
      one.max_tokens = 1000;
      for (int32_t p = 0; p < 128; ++p) one.prompt_ids.push_back(static_cast<int32_t>((i * 7 + p) % 60));
      streams.push_back(engine->submit(std::move(one)));
    }
    engine->drain();
  }
  EngineStats after = engine->stats();
  auto steps = static_cast<double>(after.steps - before.steps);
  state.counters["host_us_per_step"] = 1e6 * (after.host_seconds - before.host_seconds) / steps;
  // CPU time of the process, which includes the fake runner and this function.
  state.counters["cpu_us_per_step"] = 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / steps;
  state.counters["steps"] = steps;
}

void decode_batch(benchmark::State& state) { run_batches(state, GenerationRequest()); }

void decode_batch_with_stops(benchmark::State& state) {
  GenerationRequest request;
  request.stop = {"\n\n", "###"};
  run_batches(state, request);
}

void decode_batch_with_penalties(benchmark::State& state) {
  GenerationRequest request;
  request.sampling.repetition_penalty = 1.1;
  run_batches(state, request);
}

void decode_batch_with_logprobs(benchmark::State& state) {
  GenerationRequest request;
  request.logprobs = 5;
  run_batches(state, request);
}

BENCHMARK(decode_batch)->Arg(64)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_batch_with_stops)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_batch_with_penalties)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_batch_with_logprobs)->Arg(512)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octet
