// octet data bert: sentence pairs with masks, for BERT pretraining.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "commands.h"
#include "corpus/bert_data.h"
#include "human.h"

namespace octet {
namespace {

struct BertArguments {
  BertDataOptions options;
  bool json = false, no_packing = false;
};

void print(const BertArguments& arguments, const BertDataResult& result) {
  int64_t examples = 0;
  for (const BertSplit& split : result.splits) examples += split.examples;
  const double seconds = result.tokenize_seconds + result.example_seconds + result.pack_seconds;
  const double a_core = static_cast<double>(examples) / std::max(1e-3, seconds) / result.threads;
  if (arguments.json) {
    nlohmann::ordered_json splits = nlohmann::ordered_json::array();
    for (const BertSplit& split : result.splits)
      splits.push_back({{"prefix", split.prefix},
                        {"documents", split.documents},
                        {"examples", split.examples},
                        {"tokens", split.tokens},
                        {"masked", split.masked},
                        {"random_next", split.random_next},
                        {"rows", split.rows},
                        {"filled", split.filled}});
    const nlohmann::ordered_json all = {{"splits", splits},
                                        {"sentences", result.sentences},
                                        {"tokenize_seconds", result.tokenize_seconds},
                                        {"example_seconds", result.example_seconds},
                                        {"pack_seconds", result.pack_seconds},
                                        {"threads", result.threads},
                                        {"examples_per_second_per_thread", a_core}};
    fmt::print("{}\n", all.dump(2));
    return;
  }
  for (const BertSplit& split : result.splits) {
    const auto of = [&](int64_t part, int64_t whole) {
      return 100 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
    };
    fmt::print("{}.bin: {} examples of {:.1f} tokens{}, {:.1f} % masked, {:.1f} % with a random second part\n",
               split.prefix, split.examples, static_cast<double>(split.tokens) / static_cast<double>(split.examples),
               split.documents > 0 ? fmt::format(" from {} documents", split.documents) : "",
               of(split.masked, split.tokens), of(split.random_next, split.examples));
    fmt::print("{} rows of {} tokens, {:.2f} examples in each, {:.2f} % filled\n", split.rows, arguments.options.row,
               static_cast<double>(split.examples) / static_cast<double>(split.rows), 100 * split.filled);
  }
  fmt::print("{} ({} tokenizing, {} pairing and masking, {} packing and writing), {:.0f} examples/s a thread\n",
             human_seconds(seconds), human_seconds(result.tokenize_seconds), human_seconds(result.example_seconds),
             human_seconds(result.pack_seconds), a_core);
}

void prepare(BertArguments& arguments) {
  BertDataOptions& options = arguments.options;
  if (arguments.no_packing) options.most_in_row = 1;
  const auto tokenizer = load_tokenizer(options.tokenizer_path);
  ByteProgress bar("tokenizing");
  options.progress = [&](const CorpusProgress& state) { bar.update(state, human_count(state.tokens) + " tokens"); };
  const BertDataResult result = prepare_bert_data(*tokenizer, options);
  bar.finish();
  if (result.text.skipped_lines > 0)
    log_warning("{} lines skipped, first: {}", result.text.skipped_lines, result.text.first_skipped);
  print(arguments, result);
}

}  // namespace

void add_data_bert_command(CLI::App& data) {
  auto* command =
      data.add_subcommand("bert", "Sentence pairs with masks and next-sentence labels, for BERT pretraining");
  auto arguments = std::make_shared<BertArguments>();
  BertDataOptions& o = arguments->options;
  command
      ->add_option(
          "inputs", o.inputs,
          "text or JSON lines, plain, .gz or .zst, folders or globs; or files .tfrecord* of MLPerf's reference")
      ->required();
  command->add_option("--tokenizer", o.tokenizer_path, "vocabulary folder or file with [CLS], [SEP] and [MASK]")
      ->required();
  command->add_option("--out", o.output, "PREFIX of PREFIX.bin, .idx, .json and PREFIX_tokenizer/")->required();
  command->add_option("--split", o.split, "fractions for PREFIX_train, PREFIX_val [, PREFIX_test]: 0.99,0.01")
      ->delimiter(',')
      ->allow_extra_args(false);
  add_text_options(*command, o.text);
  command->add_flag("--blank-lines", o.parted_by_blank_lines, "an empty line begins another document");
  command->add_flag("--skip-bad-lines", o.text.skip_bad_lines, "skip and count damaged JSON lines instead of stopping");
  command->add_option("--length", o.length, "most tokens of an example")->check(CLI::Range(5, 65536));
  command->add_option("--row", o.row, "tokens of a row that examples are packed into")->check(CLI::Range(5, 65536));
  command->add_option("--in-row", o.most_in_row, "most examples in a row")->check(CLI::Range(1, 3));
  command->add_flag("--no-packing", arguments->no_packing, "one example a row")->excludes("--in-row");
  command->add_option("--masked", o.masked_share, "share of the tokens that are predicted")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--most-masked", o.most_masked, "most tokens of an example that are predicted")
      ->check(CLI::PositiveNumber);
  command->add_option("--short", o.short_share, "share of examples whose wanted length is drawn from 2 on")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--duplicates", o.duplicates, "times each document is used, with other pairs and masks")
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", o.seed, "of pairs, masks and the order of rows");
  command->add_option("--threads", o.threads, "workers; 0 = all cores")->check(CLI::Range(0, 1024));
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "The tokens of all documents are held in memory, 4 bytes each, and their examples, 5 to 10.\n"
      "Examples:\n"
      "  octet data bert --tokenizer bert-base-uncased --split 0.99,0.01 --out data/wiki 'wiki/*.jsonl.zst'\n"
      "  octet data bert --tokenizer bert-base-uncased --duplicates 10 --blank-lines --out data/books books/*.txt\n"
      "  octet data bert --tokenizer bert-large-uncased --out data/eval eval.tfrecord");
  command->callback([arguments] { prepare(*arguments); });
}

}  // namespace octet
