// octet data mix: a mixture of sets of documents by weights.
#include <CLI/CLI.hpp>
#include <chrono>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "commands.h"
#include "corpus/mix.h"
#include "data_decontaminate.h"
#include "human.h"

namespace octet {
namespace {

struct MixArguments {
  MixOptions options;
  std::vector<std::string> sets, weights;
  std::string by = "documents", stage = "all", shard;
  bool json = false;
};

std::pair<std::string, std::string> named(const std::string& option, const std::string& word, const char* value) {
  const size_t equals = word.find('=');
  check(equals != std::string::npos && equals > 0 && equals + 1 < word.size(), ErrorCode::kInvalidArgument,
        "{} \"{}\" (want NAME={})", option, word, value);
  return {word.substr(0, equals), word.substr(equals + 1)};
}

void set_options(MixArguments& arguments) {
  MixOptions& o = arguments.options;
  for (const std::string& word : arguments.sets) {
    const auto [name, files] = named("--set", word, "FILES");
    auto known = std::ranges::find(o.sets, name, &MixSet::name);
    if (known == o.sets.end()) known = o.sets.insert(o.sets.end(), MixSet{.name = name, .files = {}});
    known->files.push_back(files);
  }
  for (const std::string& word : arguments.weights) {
    const auto [name, number] = named("--weight", word, "NUMBER");
    const auto set = std::ranges::find(o.sets, name, &MixSet::name);
    check(set != o.sets.end(), ErrorCode::kInvalidArgument, "--weight {}: no --set is called {}", word, name);
    check(CLI::detail::lexical_cast(number, set->weight), ErrorCode::kInvalidArgument, "--weight {} (want a number)",
          word);
  }
  o.unit = arguments.by == "tokens"  ? MixUnit::kTokens
           : arguments.by == "bytes" ? MixUnit::kBytes
                                     : MixUnit::kDocuments;
}

void print(const MixArguments& arguments, const Mix& job, double seconds) {
  auto report = parse_json<nlohmann::ordered_json>(job.report(), arguments.options.output + "/report.json");
  if (arguments.json) {
    report["seconds"] = seconds;
    return fmt::print("{}\n", report.dump(2));
  }
  const std::string unit = report.at("unit");
  int64_t documents = 0;
  for (const auto& set : report.at("sets")) {
    documents += set.at("taken_documents").get<int64_t>();
    fmt::print("{}: {:.2f} % ({:.2f} % wanted), {} of {} documents, {:.3g} epochs\n", set.at("name").get<std::string>(),
               100 * set.at("share").get<double>(), 100 * set.at("weight").get<double>(),
               set.at("taken_documents").get<int64_t>(), set.at("documents").get<int64_t>(),
               set.at("epochs").get<double>());
  }
  if (const auto bad = report.at("bad_lines").get<int64_t>(); bad > 0) fmt::print("{} damaged lines left out\n", bad);
  fmt::print("{}: {} documents{}, {} file(s), {}\n", arguments.options.output, documents,
             unit == "documents" ? "" : fmt::format(", {} {}", human_count(report.at("size").get<int64_t>()), unit),
             report.at("files").size(), human_seconds(seconds));
}

void mix(MixArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  set_options(arguments);
  const std::string& stage = arguments.stage;
  const bool all = stage == "all";
  check(arguments.shard.empty() || stage == "count" || stage == "write", ErrorCode::kInvalidArgument,
        "--shard {}: with --stage count or write; the others run once", arguments.shard);
  const Shard shard = arguments.shard.empty() ? Shard{} : parse_shard(arguments.shard);
  StageProgress bar;
  arguments.options.progress = [&](std::string_view what, const CorpusProgress& state) {
    bar.update(std::string(what), state);
  };
  Mix job(arguments.options);
  if (!job.finished()) {
    if (all || stage == "count") job.count(shard);
    if (all || stage == "plan") job.plan();
    if (all || stage == "write") job.write(shard);
    if (all || stage == "finish") job.finish();
  }
  bar.finish();
  if (job.finished())
    print(arguments, job, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

void add_data_mix_command(CLI::App& data) {
  auto* command = data.add_subcommand("mix", "Mix sets of documents by weights");
  auto arguments = std::make_shared<MixArguments>();
  MixOptions& o = arguments->options;
  command
      ->add_option("--set", arguments->sets,
                   "NAME=FILES, a set: JSON lines, plain, .gz or .zst, folders or globs; a name given again has more")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--weight", arguments->weights, "NAME=NUMBER, a set's share of the sum of all weights")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--out", o.output,
                   "DIR: NAME.jsonl for each input, report.json; a killed command goes on where it was")
      ->required();
  command->add_option("--by", arguments->by, "what shares are counted in")
      ->check(CLI::IsMember({"documents", "tokens", "bytes"}));
  command->add_option("--tokenizer", o.tokenizer, "of --by tokens: vocabulary folder or file");
  command
      ->add_option("--size", o.size,
                   "of the mixture, in what --by counts: 500K, 10G; sets that are too small are repeated (default: the "
                   "most that repeats no document)")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, int64_t>{
          {"k", 1'000}, {"m", 1'000'000}, {"g", 1'000'000'000}, {"t", 1'000'000'000'000}}))
      ->option_text("TEXT");
  command->add_option("--seed", o.seed, "of the documents that are drawn");
  command->add_option("--key,--field", o.text_key, "key of the text in JSON lines");
  command->add_option("--max-line", o.longest_line, "longest line: 64M, 1G; a longer one is an error")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->option_text("SIZE=256M");
  command->add_option("--threads,--jobs", o.threads, "workers; 0 = all cores")->check(CLI::Range(0, 1024));
  command->add_flag("--skip-bad-lines", o.skip_bad_lines,
                    "leave out damaged lines, and count them, instead of stopping");
  command->add_option("--stage", arguments->stage, "run one stage, in this order, as on a cluster")
      ->check(CLI::IsMember({"all", "count", "plan", "write", "finish"}));
  command->add_option("--shard", arguments->shard, "I/N: the part I of N, from 0, of the stages count and write");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "Lines stay as they are. octet train shuffles what octet data makes of DIR.\n"
      "Examples:\n"
      "  octet data mix --set web=unique --set code='code/*.jsonl.zst' --weight web=0.7,code=0.3 --out mixed\n"
      "  octet data mix --set web=web --set math=math --weight web=9,math=1 --by tokens --tokenizer tok --size 10G "
      "--out mixed\n"
      "  octet data mix --set a=a --set b=b --weight a=1,b=1 --out mixed --stage count --shard 3/16   # "
      "docs/corpus.md");
  command->callback([arguments] { mix(*arguments); });
}

}  // namespace octet
