// Rendering of a conversation of 22 messages and 5 tools (src/chat/testdata/bench_conversation.json) by Qwen3's
// template, as benchmarks/chat_template.py times Jinja2 on it.
//   octet_chat_bench (needs the test material: serving/chat/templates)
#include "chat/chat_template.h"

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

struct Case {
  std::string source;
  ordered_json bindings;
};

Case qwen3(benchmark::State& state) {
  const std::string path = test_data_path("serving/chat/templates/Qwen-Qwen3-0.6B.jinja");
  if (path.empty()) return state.SkipWithError("test material is absent"), Case{};
  Case out{read_file(path),
           ordered_json::parse(read_file(source_dir() + "/src/chat/testdata/bench_conversation.json"))};
  out.bindings["add_generation_prompt"] = true;
  return out;
}

void render_qwen3(benchmark::State& state) {
  const Case given = qwen3(state);
  if (given.source.empty()) return;
  const ChatTemplate chat(given.source, "qwen3");
  size_t bytes = 0;
  for (auto _ : state) bytes = chat.render(given.bindings, {}, 0).text.size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(render_qwen3)->Unit(benchmark::kMicrosecond);

void parse_qwen3(benchmark::State& state) {
  const Case given = qwen3(state);
  for (auto _ : state) benchmark::DoNotOptimize(ChatTemplate(given.source, "qwen3").variables().size());
}
BENCHMARK(parse_qwen3)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace octet
