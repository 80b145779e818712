// octet data: converts text to memory-mapped token files.
#include <CLI/CLI.hpp>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"
#include "data_chat.h"
#include "data_decontaminate.h"
#include "human.h"
#include "io/corpus.h"

namespace octet {
namespace {

struct DataArguments {
  PrepareOptions options;
  std::string invalid = "keep", unknown = "unk", split_by = "documents";
  bool no_eod = false, no_bos = false;
  ChatDataArguments chat;
};

void prepare(const CLI::App& command, DataArguments& arguments) {
  PrepareOptions& options = arguments.options;
  settle_chat_data(command, arguments.chat, options);
  options.append_eod = !arguments.no_eod;
  options.prepend_bos = !arguments.no_bos;
  options.split_by_tokens = arguments.split_by == "tokens";
  options.text.utf8 = arguments.invalid == "error"     ? Utf8Policy::kError
                      : arguments.invalid == "replace" ? Utf8Policy::kReplace
                                                       : Utf8Policy::kKeep;
  options.unknown = arguments.unknown == "error"  ? UnknownText::Policy::kError
                    : arguments.unknown == "drop" ? UnknownText::Policy::kDrop
                                                  : UnknownText::Policy::kToken;
  const auto tokenizer = load_tokenizer(options.tokenizer_path);
  std::optional<ChatCorpus> chat;
  if (arguments.chat.wanted()) chat.emplace(*tokenizer, arguments.chat.options);
  if (arguments.chat.print) return chat->print(options, stdout);
  if (chat) chat->prepare(options);
  if (options.append_eod && tokenizer->eos_id() < 0) {
    log_info("the vocabulary has no end token: nothing separates the documents");
  }
  if (tokenizer->adds_bos() && !chat)
    log_info("the vocabulary begins texts with a begin token: documents {} (--no-bos)",
             arguments.no_bos ? "begin without it" : "begin with it");
  const auto start = std::chrono::steady_clock::now();
  ByteProgress bar("tokenizing");
  options.progress = [&](const CorpusProgress& state) { bar.update(state, human_count(state.tokens) + " tokens"); };
  const PrepareResult result = prepare_corpus(*tokenizer, options);
  bar.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (result.text.invalid_places > 0) {
    log_warning("invalid UTF-8 in {} places ({}), first at {}", result.text.invalid_places,
                arguments.invalid == "keep" ? "kept as bytes, replaced by U+FFFD in JSON" : "replaced by U+FFFD",
                result.text.first_invalid);
  }
  if (result.unknown_places > 0) {
    log_warning("{} pieces of text without a token were {}, first in {}", result.unknown_places,
                arguments.unknown == "drop" ? "left out" : "replaced by the unknown token", result.first_unknown);
  }
  if (result.text.skipped_lines > 0) {
    log_warning("{} lines skipped, first: {}", result.text.skipped_lines, result.text.first_skipped);
  }
  if (result.binary_files_skipped > 0) log_info("{} binary files skipped", result.binary_files_skipped);
  for (const SplitInfo& split : result.splits) {
    fmt::print("{}.bin: {} tokens ({}), {} {}, {} of text, {:.3f} bytes per token\n", split.prefix, split.tokens,
               result.dtype, arguments.chat.options.pairs ? split.rows : split.documents,
               !chat                          ? "documents"
               : arguments.chat.options.pairs ? "pairs"
                                              : "conversations",
               human_bytes(split.bytes), static_cast<double>(split.bytes) / static_cast<double>(split.tokens));
  }
  if (chat) report_chat_data(chat->counts(), result, arguments.chat);
  if (result.prompt_tokens > 0 && !chat)
    fmt::print("{} tokens of prompts, which are excluded from the loss\n", result.prompt_tokens);
  fmt::print("{} in {} ({}/s)\n", human_bytes(result.text.bytes), human_seconds(seconds),
             human_number(static_cast<double>(result.text.bytes) / std::max(seconds, 1e-3), "B"));
}

}  // namespace

void add_data_command(CLI::App& app) {
  auto* command = app.add_subcommand("data", "Tokenize text for training (Megatron .bin/.idx)");
  auto arguments = std::make_shared<DataArguments>();
  PrepareOptions& options = arguments->options;
  // Not required: CLI11 would take the name of a subcommand for an input.
  command->add_option("inputs", options.inputs,
                      "text or JSON lines, plain, .gz or .zst; folders (one document per text file) or globs");
  command->add_option("--tokenizer", options.tokenizer_path, "vocabulary folder or file")->required();
  command->add_option("--out", options.output, "PREFIX of the output files");
  command->add_option("--split", options.split, "fractions for PREFIX_train, PREFIX_val [, PREFIX_test]: 0.99,0.01")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--split-by", arguments->split_by, "documents: spread evenly; tokens: first part, last part")
      ->check(CLI::IsMember({"documents", "tokens"}));
  add_text_options(*command, options.text);
  command->add_option("--prompt-key", options.text.prompt_key,
                      "key of a prompt in JSON lines: its tokens precede the text's and are excluded from the loss");
  command->add_option("--invalid-utf8", arguments->invalid, "keep the bytes, replace by U+FFFD, or stop with an error")
      ->check(CLI::IsMember({"keep", "replace", "error"}));
  command
      ->add_option("--on-unknown-byte", arguments->unknown,
                   "text without a token: use the unknown token (an error if there is none), drop it, or stop with an "
                   "error")
      ->check(CLI::IsMember({"unk", "drop", "error"}));
  command->add_flag("--skip-bad-lines", options.text.skip_bad_lines,
                    "skip and count damaged JSON lines instead of stopping");
  command->add_flag("--no-bos", arguments->no_bos,
                    "no begin token in front of documents, where the vocabulary puts one in front of texts");
  command->add_flag("--no-eod", arguments->no_eod, "do not append the end token to documents");
  add_chat_data_options(*command, arguments->chat);
  command->add_option("--threads", options.threads, "tokenizing workers; 0 = all cores")->check(CLI::Range(0, 1024));
  command->footer(
      "Examples:\n"
      "  octet data --tokenizer tok --split 0.99,0.01 --out data/code /usr/include/c++\n"
      "  octet data --tokenizer gpt2 --out data/web 'crawl/*.jsonl.zst' --key content\n"
      "  octet data --tokenizer chars --split 0.9,0.1 --split-by tokens --out data/shakespeare input.txt\n"
      "  octet data --tokenizer llama --chat auto --sequence-length 4096 --out data/chat conversations.jsonl\n"
      "  octet data --tokenizer llama --chat auto --pairs --sequence-length 2048 --out data/pairs preferences.jsonl\n"
      "  octet data --tokenizer llama --chat auto --print conversations.jsonl | head -1\n"
      "A file named as one of the subcommands is given as ./dedup.");
  add_data_clean_command(*command);
  add_data_dedup_command(*command);
  add_data_bert_command(*command);
  add_data_decontaminate_command(*command);
  add_data_mix_command(*command);
  for (CLI::App* below : command->get_subcommands([](const CLI::App*) { return true; }))
    below->preparse_callback([command](size_t) {
      for (CLI::Option* option : command->get_options()) option->required(false);
    });
  command->callback([arguments, command] {
    if (!command->get_subcommands().empty()) return;
    if (arguments->options.inputs.empty()) throw CLI::RequiredError("inputs");
    prepare(*command, *arguments);
  });
}

}  // namespace octet
