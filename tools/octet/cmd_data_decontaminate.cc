// octet data decontaminate: drops documents that share n-grams of words with test sets.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "commands.h"
#include "corpus/decontaminate.h"
#include "data_decontaminate.h"
#include "human.h"
#include "line_job_command.h"

namespace octet {
namespace {

struct DecontaminateArguments {
  DecontaminateOptions options;
  std::vector<std::string> tests;
  std::string shard;
  bool json = false;
};

// NAME=FILES or FILES, whose name is the set's; a name given again has more files.
void add_test(const std::string& word, std::vector<TestSet>& tests) {
  const size_t equals = word.find('=');
  const std::string files = equals == std::string::npos ? word : word.substr(equals + 1);
  std::string name = word.substr(0, equals);
  if (equals == std::string::npos) {
    name = std::filesystem::path(files).filename().string();
    name = name.substr(0, name.find('.'));
  }
  check(!name.empty() && !files.empty(), ErrorCode::kInvalidArgument, "--test \"{}\" (want NAME=FILE or FILE)", word);
  auto known = std::ranges::find(tests, name, &TestSet::name);
  if (known == tests.end()) known = tests.insert(tests.end(), TestSet{.name = name, .files = {}});
  known->files.push_back(files);
}

void print(const DecontaminateArguments& arguments, const Decontaminate& job, double seconds) {
  const LineCounts totals = job.totals();
  const std::string& output = arguments.options.lines.output;
  const auto count = [&](const std::string& name) { return totals.contains(name) ? totals.at(name) : 0; };
  if (arguments.json) {
    auto report = parse_json<nlohmann::ordered_json>(job.report(), output + "/report.json");
    for (const TestSetFacts& test : job.tests())
      report["tests"].push_back({{"name", test.name},
                                 {"texts", test.texts},
                                 {"too_short", test.too_short},
                                 {"ngrams", test.ngrams},
                                 {"documents", count("test." + test.name)}});
    report["seconds"] = seconds;
    return fmt::print("{}\n", report.dump(2));
  }
  for (const TestSetFacts& test : job.tests())
    fmt::print("{}: {} documents share {} words with it ({} texts, {} of them shorter)\n", test.name,
               count("test." + test.name), arguments.options.words, test.texts, test.too_short);
  fmt::print("{} of {} documents kept, {} of {} of text, in {}; the others are in {}/dropped\n", totals.at("kept"),
             totals.at("documents"), human_bytes(totals.at("bytes_out")), human_bytes(totals.at("bytes_in")),
             human_seconds(seconds), output);
}

void decontaminate(DecontaminateArguments& arguments) {
  for (const std::string& word : arguments.tests) add_test(word, arguments.options.tests);
  run_line_job<Decontaminate>(arguments.options, "comparing", arguments.shard,
                              [&](const Decontaminate& job, double seconds) { print(arguments, job, seconds); });
}

}  // namespace

void add_data_decontaminate_command(CLI::App& data) {
  auto* command = data.add_subcommand("decontaminate", "Drop documents that share 13 words in a row with test sets");
  auto arguments = std::make_shared<DecontaminateArguments>();
  DecontaminateOptions& o = arguments->options;
  LineJobOptions& l = o.lines;
  add_json_lines_options(*command, l.inputs, l.output, l.text_key, l.id_key, l.longest_line, l.threads);
  command
      ->add_option("--test", arguments->tests,
                   "NAME=FILE, a test set: JSON lines, whose strings are compared one by one, or lines of text; .gz, "
                   ".zst, folders and globs as inputs; may be given several times")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--test-key", o.keys, "keys of the test sets' objects that are compared: question,choices")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("all");
  command->add_option("--ngram", o.words, "words in a row; texts of fewer are compared with nothing")
      ->check(CLI::Range(1, 1000));
  command->add_option("--matches", o.matches, "different n-grams from which on a document is dropped")
      ->check(CLI::Range(1, 1 << 30));
  command->add_flag("--skip-bad-lines", l.skip_bad_lines, "drop damaged lines, and list them, instead of stopping");
  command->add_option("--shard", arguments->shard,
                      "I/N: the inputs I, I + N, ... alone; the command without it writes the report at the end");
  command->add_flag("--json", arguments->json, "print the report");
  command->footer(
      "Words are lower-cased runs of letters and digits: case, punctuation and white space make no difference.\n"
      "Examples:\n"
      "  octet data decontaminate 'clean/*.jsonl' --out train --test hellaswag_val.jsonl --test gsm8k=test.jsonl\n"
      "  octet data decontaminate clean --out train --test mmlu=mmlu_test.jsonl --test-key question --ngram 8");
  command->callback([arguments] { decontaminate(*arguments); });
}

}  // namespace octet
