// octet data dedup: removes duplicates and near-duplicates from JSON lines.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "commands.h"
#include "corpus/dedup.h"
#include "human.h"

namespace octet {
namespace {

struct DedupArguments {
  DedupOptions options;
  std::string stage = "all", shard;
  bool json = false;
};

void print(const DedupArguments& arguments, const std::vector<DedupFile>& files, double seconds) {
  DedupFile all;
  int64_t read = 0;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const DedupFile& file : files) {
    all.documents += file.documents, all.exact += file.exact, all.near += file.near;
    all.bad_lines += file.bad_lines, all.bytes += file.bytes;
    std::error_code gone;
    read += static_cast<int64_t>(std::filesystem::file_size(file.input, gone));
    rows.push_back({{"input", file.input},
                    {"output", file.output},
                    {"documents", file.documents},
                    {"exact", file.exact},
                    {"near", file.near},
                    {"bad_lines", file.bad_lines},
                    {"bytes", file.bytes}});
  }
  const int64_t kept = all.documents - all.exact - all.near;
  if (arguments.json) {
    const nlohmann::ordered_json whole = {
        {"documents", all.documents}, {"kept", kept},       {"exact", all.exact}, {"near", all.near},
        {"bad_lines", all.bad_lines}, {"bytes", all.bytes}, {"seconds", seconds}, {"files", rows}};
    fmt::print("{}\n", whole.dump(2));
    return;
  }
  fmt::print("{} of {} documents kept: {} exact and {} near duplicates are in {}/dropped\n", kept, all.documents,
             all.exact, all.near, arguments.options.output);
  if (all.bad_lines > 0) fmt::print("{} damaged lines are there too\n", all.bad_lines);
  fmt::print("{}: {} file(s), {} of {} on disk, {}\n", arguments.options.output, files.size(), human_bytes(all.bytes),
             human_bytes(read), human_seconds(seconds));
}

void dedup(DedupArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  const std::string& stage = arguments.stage;
  const bool all = stage == "all";
  check(arguments.shard.empty() || stage == "signatures" || stage == "pairs" || stage == "write",
        ErrorCode::kInvalidArgument, "--shard {}: with --stage signatures, pairs or write; the others run once",
        arguments.shard);
  const Shard shard = arguments.shard.empty() ? Shard{} : parse_shard(arguments.shard);
  StageProgress bar;
  arguments.options.progress = [&](std::string_view what, const CorpusProgress& state) {
    bar.update(std::string(what), state);
  };
  Dedup job(arguments.options);
  if (!job.finished()) {
    if (all || stage == "signatures") job.signatures(shard);
    if (all || stage == "pairs") job.pairs(shard);
    if (all || stage == "groups") job.groups();
    if (all || stage == "write") job.write(shard);
    if (all || stage == "finish") job.finish();
  }
  bar.finish();
  if (job.finished())
    print(arguments, job.report(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

void add_json_lines_options(CLI::App& command, std::vector<std::string>& inputs, std::string& output, std::string& key,
                            std::string& id, int64_t& longest, int& threads) {
  command.add_option("inputs", inputs, "JSON lines, plain, .gz or .zst; folders or globs")->required();
  command
      .add_option(
          "--out", output,
          "DIR: NAME.jsonl for each input, dropped/NAME.jsonl, report.json; a killed command goes on where it was")
      ->required();
  command.add_option("--key,--field", key, "key of the text in JSON lines");
  command.add_option("--id", id, "key of a document's id, which the lists of dropped documents name");
  command.add_option("--max-line", longest, "longest line: 64M, 1G; a longer one is an error")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->option_text("SIZE=256M");
  command.add_option("--threads,--jobs", threads, "workers; 0 = all cores")->check(CLI::Range(0, 1024));
}

void add_data_dedup_command(CLI::App& data) {
  auto* command = data.add_subcommand("dedup", "Remove duplicates and near-duplicates (MinHash) from JSON lines");
  auto arguments = std::make_shared<DedupArguments>();
  DedupOptions& o = arguments->options;
  add_json_lines_options(*command, o.inputs, o.output, o.text_key, o.id_key, o.longest_line, o.threads);
  command->add_option("--bands", o.bands, "bands of hashes; documents that share one are of one group")
      ->check(CLI::Range(1, 4096));
  command->add_option("--rows", o.rows, "hashes in a band: more of them, fewer and more similar duplicates")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--verify", o.verify,
                   "documents that share a band are duplicates only from this Jaccard similarity on; 0: all are")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--memory", o.memory, "memory for sorting and grouping: 512M, 64G")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->option_text("SIZE=4G");
  command->add_flag("--skip-bad-lines", o.skip_bad_lines, "drop damaged lines, and list them, instead of stopping");
  command->add_option("--stage", arguments->stage, "run one stage, in this order, as on a cluster")
      ->check(CLI::IsMember({"all", "signatures", "pairs", "groups", "write", "finish"}));
  command->add_option("--shard", arguments->shard, "I/N: the part I of N, from 0, of a stage");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "Of each group of duplicates the first in the order of the inputs stays.\n"
      "Examples:\n"
      "  octet data dedup 'crawl/*.jsonl.gz' --out unique\n"
      "  octet data dedup crawl --out unique --bands 20 --rows 5 --verify 0.8 --memory 64G\n"
      "  octet data dedup crawl --out unique --stage signatures --shard 3/16   # docs/corpus.md");
  command->callback([arguments] { dedup(*arguments); });
}

}  // namespace octet
