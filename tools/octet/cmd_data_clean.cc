// octet data clean: repairs, filters and masks the documents of JSON lines.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/json.h"
#include "commands.h"
#include "corpus/clean.h"
#include "human.h"
#include "line_job_command.h"

namespace octet {
namespace {

struct CleanArguments {
  CleanOptions options;
  SettingsTable rules = options.rules.table();
  std::string shard;
  bool json = false;
};

// Counts of a kind, the most frequent first: "gopher_min_words 120, c4_min_sentences 4".
std::string counts_of(const LineCounts& totals, const std::string& kind) {
  std::vector<std::pair<int64_t, std::string>> rows;
  for (const auto& [name, count] : totals)
    if (name.starts_with(kind)) rows.emplace_back(-count, name.substr(kind.size()));
  std::ranges::sort(rows);
  std::string text;
  for (const auto& [count, name] : rows) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, -count);
  return text;
}

void print(const CleanArguments& arguments, const Clean& job, double seconds) {
  const LineCounts totals = job.totals();
  if (arguments.json) {
    auto report = parse_json<nlohmann::ordered_json>(job.report(), arguments.options.lines.output + "/report.json");
    report["seconds"] = seconds;
    return fmt::print("{}\n", report.dump(2));
  }
  fmt::print("{} of {} documents kept, {} of {} of text; the others are in {}/dropped\n", totals.at("kept"),
             totals.at("documents"), human_bytes(totals.at("bytes_out")), human_bytes(totals.at("bytes_in")),
             arguments.options.lines.output);
  for (const char* kind : {"dropped", "repaired", "masked"})
    if (const std::string counts = counts_of(totals, std::string(kind) + "."); !counts.empty())
      fmt::print("{}: {}\n", kind, counts);
  fmt::print("{}: {} ({}/s)\n", arguments.options.lines.output, human_seconds(seconds),
             human_number(static_cast<double>(totals.at("bytes_in")) / std::max(seconds, 1e-3), "B"));
}

void clean(const CleanArguments& arguments) {
  arguments.rules.validate();
  run_line_job<Clean>(arguments.options, "cleaning", arguments.shard,
                      [&](const Clean& job, double seconds) { print(arguments, job, seconds); });
}

}  // namespace

void add_data_clean_command(CLI::App& data) {
  auto* command = data.add_subcommand("clean", "Repair text, and drop documents by language, rules and models");
  auto arguments = std::make_shared<CleanArguments>();
  CleanOptions& o = arguments->options;
  add_json_lines_options(*command, o.lines.inputs, o.lines.output, o.lines.text_key, o.lines.id_key,
                         o.lines.longest_line, o.lines.threads);
  command->add_flag("--skip-bad-lines", o.lines.skip_bad_lines,
                    "drop damaged lines, and list them, instead of stopping");
  command->add_option("--shard", arguments->shard,
                      "I/N: the inputs I, I + N, ... alone; the command without it writes the report at the end");
  command->add_flag("--json", arguments->json, "print the report");
  command->add_flag("--repair,!--no-repair", o.repair,
                    "repair misread UTF-8, control characters, white space; NFC (default: on)");
  command->add_option("--language", o.languages, "languages that stay: en,de")->delimiter(',')->allow_extra_args(false);
  command->add_option("--language-model", o.language_model,
                      "fastText model of languages, such as lid.176.bin (default: CLD2, which needs none)");
  command->add_option("--language-threshold", o.language_threshold, "least score of the language")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--quality-model", o.quality_model, "fastText model of quality; scored last");
  command->add_option("--quality-label", o.quality_label, "its class of good texts");
  command->add_option("--quality-threshold", o.quality_threshold, "least score of that class")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--mask", o.mask, "personal data to mask: email,ip,phone, or email=TEXT; none: nothing")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("email,ip");
  std::string family;
  for (const SettingsTable::Row& row : arguments->rules.rows()) {
    add_options(*command, arguments->rules, {row.name});
    if (row.name == "gopher_repetition" || row.name == "gopher_quality" || row.name == "c4" || row.name == "fineweb")
      family = row.name;
    std::string flag = "--" + row.name;
    std::ranges::replace(flag, '_', '-');
    command->get_option(flag)->group("Rules: " + family);
  }
  command->get_option("--gopher-stop-words")->delimiter(',')->allow_extra_args(false);
  command->footer(
      "A rule drops what is beyond its threshold; the report counts the documents that each dropped.\n"
      "Examples:\n"
      "  octet data clean 'crawl/*.jsonl.gz' --out clean\n"
      "  octet data clean crawl --out clean --language en --language-model lid.176.bin --no-c4 --gopher-min-words 30\n"
      "  octet data clean code --out clean --no-gopher-repetition --no-gopher-quality --no-c4 --no-fineweb --mask "
      "email");
  command->callback([arguments] { clean(*arguments); });
}

}  // namespace octet
