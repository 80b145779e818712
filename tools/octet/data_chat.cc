#include "data_chat.h"

#include "base/error.h"
#include "base/log.h"

namespace octet {

void add_chat_data_options(CLI::App& command, ChatDataArguments& arguments) {
  command.add_option("--chat", arguments.options.chat_template,
                     "inputs are conversations, in JSON lines, and this file their chat template (Jinja); auto: the "
                     "tokenizer folder's own. Only answers are learnt");
  command.add_flag(
      "--print", arguments.print,
      "with --chat: print ids and mask, or the error, of every line as a JSON object instead of writing a set");
  command.add_flag("--pairs", arguments.options.pairs,
                   "with --chat: records are pairs of answers (prompt, chosen, rejected), for train.objective=dpo; a "
                   "row is one pair");
  command
      .add_option("--sequence-length", arguments.options.sequence_length,
                  "with --chat: tokens of a row, into which conversations are packed whole (data.sequence_length)")
      ->check(CLI::Range(2, 1 << 24));
  command
      .add_option("--too-long", arguments.too_long,
                  "with --chat: conversations longer than a row are cut on the right or left, or dropped")
      ->check(CLI::IsMember({"cut-right", "cut-left", "drop"}));
}

void settle_chat_data(const CLI::App& command, ChatDataArguments& arguments, const PrepareOptions& options) {
  const auto given = [&](const char* name) { return command.get_option(name)->count() > 0; };
  if (!arguments.wanted()) {
    for (const char* name : {"--print", "--pairs", "--sequence-length", "--too-long"})
      check(!given(name), ErrorCode::kInvalidArgument, "{} is of conversations: give --chat FILE or --chat auto", name);
    check(given("--out"), ErrorCode::kInvalidArgument, "--out is required: the PREFIX of the files to write");
    return;
  }
  for (const char* name : {"--key", "--format", "--prompt-key", "--no-bos", "--no-eod", "--on-unknown-byte"})
    check(!given(name), ErrorCode::kInvalidArgument,
          "{} is of texts: --chat reads JSON lines of conversations, whose template writes what stands around them",
          name);
  check(!arguments.print || !given("--out"), ErrorCode::kInvalidArgument,
        "--print writes to standard output and --out to files: leave one out");
  check(arguments.print || given("--out"), ErrorCode::kInvalidArgument,
        "--out is required: the PREFIX of the files to write (or --print)");
  for (const char* name : {"--split", "--split-by", "--pairs", "--sequence-length", "--too-long", "--skip-bad-lines"})
    check(!arguments.print || !given(name), ErrorCode::kInvalidArgument,
          "{} is of the set that --out writes, and "
          "--print prints every line as it is",
          name);
  arguments.options.tokenizer_path = options.tokenizer_path;
  using Long = ChatCorpusOptions::Long;
  arguments.options.too_long = arguments.too_long == "drop"       ? Long::kDrop
                               : arguments.too_long == "cut-left" ? Long::kCutLeft
                                                                  : Long::kCutRight;
}

void report_chat_data(const ChatCounts& counts, const PrepareResult& result, const ChatDataArguments& arguments) {
  const int64_t length = arguments.options.sequence_length;
  int64_t rows = 0, tokens = 0;
  for (const SplitInfo& split : result.splits) rows += split.rows, tokens += split.tokens;
  const char* what = arguments.options.pairs ? "pairs" : "conversations";
  if (counts.truncated > 0)
    log_warning("{} {} are longer than --sequence-length {}: cut on the {} (--too-long)", counts.truncated, what,
                length, arguments.too_long == "cut-left" ? "left" : "right");
  if (counts.dropped > 0)
    log_warning("{} {} are longer than --sequence-length {}: dropped (--too-long)", counts.dropped, what, length);
  if (counts.without_answer > 0)
    log_warning("{} {} have no answer to learn{}: dropped", counts.without_answer, what,
                counts.truncated > 0 ? ", some of them since it was cut off" : "");
  fmt::print("{} {} in {} rows of {} tokens, {:.1f} % full; {} of {} tokens are learnt\n", counts.conversations, what,
             rows, length,
             100.0 * static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(rows * length, 1)),
             counts.targets, tokens);
  fmt::print("train with data.sequence_length={} {}\n", length,
             arguments.options.pairs ? "train.objective=dpo" : "data.separate_documents=true");
}

}  // namespace octet
