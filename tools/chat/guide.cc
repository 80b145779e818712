// octet-chat guide: texts and instances against guides, with the time of each mask.
#include <time.h>
#include <zlib.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "chat/call_guide.h"
#include "chat/cases.h"
#include "chat/guide.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

struct GuideOptions {
  std::string cases, tokenizer;
  GuideLimits limits;
};

// As Python's json.dumps(ensure_ascii=False) writes it: ", " and ": " between values.
void write(const Json& value, std::string& out) {
  if (!value.is_structured()) {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out += value.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [name, item] : value.items()) {
    if (!first) out += ", ";
    first = false;
    if (value.is_object()) out += Json(name).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    write(item, out);
  }
  out += value.is_object() ? '}' : ']';
}

std::shared_ptr<const Guide> make_guide(const Json& one, const GuideLimits& limits) {
  if (one.contains("schema")) return json_schema_guide(one["schema"].dump(), limits);
  if (one.contains("regex")) return regex_guide(one["regex"].get<std::string>(), limits);
  if (one.contains("grammar")) return grammar_guide(one["grammar"].get<std::string>(), limits);
  if (one.contains("tools")) {
    const Json choice = one.value("tool_choice", Json("auto"));
    const std::string only = choice.is_object() ? choice.at("function").at("name").get<std::string>() : "";
    return call_guide({.format = one.at("format"), .required = choice != "auto", .only = only}, one["tools"], limits);
  }
  check(one.contains("choices"), ErrorCode::kInvalidArgument, "a case has a schema, regex, grammar, choices or tools");
  return choice_guide(one["choices"].get<std::vector<std::string>>(), limits);
}

class Runner {
 public:
  explicit Runner(const GuideOptions& options) : limits_(options.limits) {
    if (options.tokenizer.empty()) return;
    tokenizer_ = load_tokenizer(options.tokenizer);
    trie_ = make_token_trie(*tokenizer_);
  }

  Json run(const Json& one) {
    Json answer;
    const double start = now();
    std::shared_ptr<const Guide> guide;
    try {
      guide = make_guide(one, limits_);
      if (trie_ != nullptr) {
        GuideState state(guide, trie_);
        mask(state);
        answer["first_mask_us"] = now() - start;
        answer["mask_us"] = Json::array();
      }
    } catch (const Error& error) {
      return {{"unsupported", error.what()}};
    }
    answer["verdicts"] = Json::array();
    for (const Json& test : one.value("tests", Json::array())) {
      std::string text;
      if (test.contains("text")) {
        text = test["text"].get<std::string>();
      } else {
        write(test.at("data"), text);
      }
      try {
        answer["verdicts"].push_back(accepts(guide, text, test.value("valid", false), answer));
      } catch (const Error& error) {
        answer["verdicts"].push_back(false);
        answer["error"] = error.what();
      }
    }
    return answer;
  }

 private:
  // Microseconds of this thread on its core: others on the machine do not count.
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) * 1e6 + double(time.tv_nsec) * 1e-3;
  }

  void mask(GuideState& state) {
    mask_.assign(size_t(tokenizer_->vocab_size() + 31) / 32, ~0u);
    state.mask(mask_);
  }

  // By tokens, with a mask before each, where the text is valid and there is a tokenizer; else by bytes.
  bool accepts(const std::shared_ptr<const Guide>& guide, const std::string& text, bool valid, Json& answer) {
    GuideState state(guide, trie_);
    if (trie_ == nullptr || !valid) return state.accept_text(text) && state.may_end();
    for (const int32_t token : tokenizer_->encode(text)) {
      const double start = now();
      mask(state);
      answer["mask_us"].push_back(now() - start);
      const bool allowed = (mask_[size_t(token / 32)] >> (token % 32) & 1) != 0;
      const bool accepted = state.accept(token);
      check(allowed == accepted, ErrorCode::kInternal, "guide: token {} of '{}' is {} but {}", token, text,
            allowed ? "allowed" : "masked", accepted ? "accepted" : "refused");
      if (!accepted) return false;
    }
    return state.may_end();
  }

  GuideLimits limits_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<uint32_t> mask_;
};

void run_guide(const GuideOptions& options) {
  Runner runner(options);
  const gzFile file = gzopen(options.cases.c_str(), "rb");  // reads files that are not compressed, too
  check(file != nullptr, ErrorCode::kNotFound, "{}: cannot be opened", options.cases);
  std::string line;
  const auto flush = [&] {
    if (line.empty()) return;
    Json answer;
    try {
      answer = runner.run(Json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::puts(answer.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    line.clear();
  };
  for (int c = gzgetc(file); c >= 0; c = gzgetc(file)) {
    if (c == '\n') {
      flush();
    } else {
      line += char(c);
    }
  }
  flush();
  gzclose(file);
}

}  // namespace

void add_guide_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("guide", "Texts and instances against schemas, regexes, grammars and choices.");
  auto options = std::make_shared<GuideOptions>();
  command
      ->add_option("cases", options->cases,
                   "JSON lines, also gzipped: {schema | regex | grammar | choices | format, tools, "
                   "tool_choice, tests: [{data | text, valid}]}")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "Vocabulary: masks are made and timed before each token");
  command->add_option("--limit-bytes", options->limits.source_bytes, "Of a schema, regex or grammar");
  command->add_option("--limit-depth", options->limits.depth, "Of its nesting");
  command->add_option("--limit-states", options->limits.states, "Of its automaton");
  command->add_option("--limit-steps", options->limits.steps, "Of one mask or token");
  command->callback([options] { run_guide(*options); });
}

}  // namespace octet
