// Masks of a vocabulary of 50,000 made-up tokens: a string's inside, a name, a number, a pattern; a guide's start; free
// text and calls under a guide of calls.
#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>
#include <random>

#include "chat/call_guide.h"
#include "chat/token_trie.h"

namespace octet {
namespace {

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
  "minimum": 0, "maximum": 150}, "id": {"type": "string", "pattern": "^[a-z]+-[0-9]{4}$"}}, "required": ["name", "age"]})";

const std::shared_ptr<const TokenTrie>& vocabulary() {
  static const auto trie = [] {
    std::mt19937 random(1);
    const std::string letters = "aaabcdeeefghiiijklmnooopqrrrsssttttuuvwxyz    ABCDEFGHIJ0123456789.,:\"\"{}[]\\_-\n";
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; b++) tokens.push_back(std::string(1, char(b)));
    while (tokens.size() < 50'000) {
      std::string token;
      for (size_t i = 0; i < 2 + random() % 7; i++) token += letters[random() % letters.size()];
      tokens.push_back(token);
    }
    return std::make_shared<const TokenTrie>(std::move(tokens));
  }();
  return trie;
}

std::shared_ptr<const Guide> schema() { return json_schema_guide(kSchema); }
std::shared_ptr<const Guide> calls() {
  nlohmann::ordered_json tool;
  tool["function"] = {{"name", "find"}, {"strict", true}, {"parameters", nlohmann::ordered_json::parse(kSchema)}};
  return call_guide({.format = "hermes"}, nlohmann::ordered_json::array({tool}));
}

// A mask behind a text, with its state known or, `fresh`, in a guide made anew.
void bench_mask(benchmark::State& state, std::shared_ptr<const Guide> (*make)(), const std::string& text, bool fresh) {
  std::vector<uint32_t> bits(size_t(vocabulary()->words()));
  const auto guide = make();
  for (auto _ : state) {
    GuideState walked(fresh ? make() : guide, vocabulary());
    walked.accept_text(text);
    std::fill(bits.begin(), bits.end(), ~0u);
    walked.mask(bits);
    benchmark::DoNotOptimize(bits.data());
  }
}

BENCHMARK_CAPTURE(bench_mask, known_string, schema, R"({"name": "Jo)", false);
BENCHMARK_CAPTURE(bench_mask, known_name, schema, R"({"na)", false);
BENCHMARK_CAPTURE(bench_mask, first, schema, "", true);
BENCHMARK_CAPTURE(bench_mask, fresh_string, schema, R"({"name": "Jo)", true);
BENCHMARK_CAPTURE(bench_mask, fresh_number, schema, R"({"age": 1)", true);
BENCHMARK_CAPTURE(bench_mask, fresh_pattern, schema, R"({"id": "ab)", true);
BENCHMARK_CAPTURE(bench_mask, known_free_text, calls, "It is a", false);
BENCHMARK_CAPTURE(bench_mask, fresh_free_text, calls, "It is a", true);
BENCHMARK_CAPTURE(bench_mask, fresh_call, calls,
                  "It is <tool_call>\n{\"name\": \"find\", \"arguments\": {\"name\": \"Jo", true);

}  // namespace
}  // namespace octet
