// octet tokenizer train | encode | decode | info.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"
#include "human.h"
#include "io/bpe_trainer.h"
#include "io/corpus.h"
#include "io/tokenizer.h"
#include "numbers.h"

namespace octet {
namespace {

struct TrainArguments {
  std::string kind = "bpe", out, pattern = "gpt2";
  BpeTrainOptions bpe;
  TextOptions text;
  std::vector<std::string> inputs;
  int threads = 0;
};

void train_characters(const TrainArguments& arguments) {
  const auto characters = collect_corpus_characters(arguments.inputs, arguments.text, arguments.threads);
  make_character_tokenizer(characters)->save(arguments.out);
  fmt::print("{}/characters.json: {} characters\n", arguments.out, characters.size());
}

void train_byte_pairs(const TrainArguments& arguments) {
  BpeTrainOptions options = arguments.bpe;
  if (arguments.pattern == "llama3") options.splits = {{.pattern = kLlama3Pattern}};
  TextCounts counts;
  const auto start = std::chrono::steady_clock::now();
  ByteProgress reading("counting");
  const WordCounts words = count_corpus_words(arguments.inputs, arguments.text, options.splits, arguments.threads,
                                              counts, [&](const CorpusProgress& state) { reading.update(state); });
  reading.finish();
  std::optional<Progress> bar;
  BpeVocabulary vocabulary = train_bpe(words, options, [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace(ProgressOptions{.title = "merging", .unit = "merges", .total = total});
    bar->update(done);
  });
  bar.reset();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto tokenizer = make_bpe(std::move(vocabulary), "the trained vocabulary");
  tokenizer->save(arguments.out);
  if (tokenizer->vocab_size() < options.vocab_size) {
    log_warning("the text gave only {} of the {} tokens requested: no other pair occurs {} times",
                tokenizer->vocab_size(), options.vocab_size, options.min_frequency);
  }
  if (counts.invalid_places > 0) {
    log_warning("invalid UTF-8 in {} places (kept as bytes), first at {}", counts.invalid_places, counts.first_invalid);
  }
  fmt::print("{}/tokenizer.json: {} tokens from {} of text, {} distinct words, in {}\n", arguments.out,
             tokenizer->vocab_size(), human_bytes(counts.bytes), words.size(), human_seconds(seconds));
}

void add_train(CLI::App& parent) {
  auto* command = parent.add_subcommand("train", "Make a vocabulary from text (byte-level BPE or characters)");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("inputs", arguments->inputs, "text or JSON lines, plain, .gz or .zst; folders or globs")
      ->required();
  command->add_option("--out", arguments->out, "folder for tokenizer.json (or characters.json)")->required();
  command->add_option("--kind", arguments->kind, "bpe or char")->check(CLI::IsMember({"bpe", "char"}));
  command->add_option("--vocab-size", arguments->bpe.vocab_size, "number of tokens, with special tokens and 256 bytes")
      ->check(CLI::Range(257, 1 << 24));
  command->add_option("--pattern", arguments->pattern, "pre-tokenization pattern: gpt2 or llama3")
      ->check(CLI::IsMember({"gpt2", "llama3"}));
  command->add_option("--special", arguments->bpe.special_tokens,
                      "special tokens; the first is the end-of-document token");
  command->add_option("--min-frequency", arguments->bpe.min_frequency, "merge pairs seen at least this often")
      ->check(positive());
  add_text_options(*command, arguments->text);
  command->add_option("--threads", arguments->threads, "0 = all cores")->check(CLI::Range(0, 1024));
  command->footer("Example: octet tokenizer train --vocab-size 4096 --out tok /usr/include/c++");
  command->callback(
      [arguments] { arguments->kind == "char" ? train_characters(*arguments) : train_byte_pairs(*arguments); });
}

std::string read_stdin() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

void add_encode(CLI::App& parent) {
  struct Arguments {
    std::string path, text;
    EncodeOptions options;
  };
  auto* command = parent.add_subcommand("encode", "Print the token ids of a text");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("tokenizer", arguments->path, "vocabulary folder or file")->required();
  auto* text = command->add_option("text", arguments->text, "the text (default: standard input)");
  command->add_flag("--special", arguments->options.parse_special, "recognise special tokens in the text");
  command->add_flag("--bos", arguments->options.add_bos, "prepend the begin token");
  command->add_flag("--eos", arguments->options.add_eos, "append the end token");
  command->footer("Example: octet tokenizer encode tok \"Hello world\"");
  command->callback([arguments, text] {
    const auto tokenizer = load_tokenizer(arguments->path);
    const auto ids = tokenizer->encode(text->count() > 0 ? arguments->text : read_stdin(), arguments->options);
    fmt::print("{}\n", fmt::join(ids, " "));
  });
}

void add_decode(CLI::App& parent) {
  struct Arguments {
    std::string path;
    std::vector<int32_t> ids;
    bool skip_special = false;
  };
  auto* command = parent.add_subcommand("decode", "Print the text of token ids");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("tokenizer", arguments->path, "vocabulary folder or file")->required();
  command->add_option("ids", arguments->ids, "token ids (default: standard input)")
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  command->add_flag("--skip-special", arguments->skip_special, "leave special tokens out");
  command->footer("Example: octet tokenizer encode tok < a.txt | octet tokenizer decode tok");
  command->callback([arguments] {
    const auto tokenizer = load_tokenizer(arguments->path);
    if (arguments->ids.empty()) {
      std::istringstream words(read_stdin());
      for (std::string word; words >> word;) {
        int32_t id = 0;
        check(CLI::detail::lexical_cast(word, id), ErrorCode::kInvalidArgument, "'{}' is not a token id", word);
        arguments->ids.push_back(id);
      }
    }
    const std::string text = tokenizer->decode(arguments->ids, arguments->skip_special);
    std::cout.write(text.data(), static_cast<std::streamsize>(text.size()));
  });
}

void add_info(CLI::App& parent) {
  auto* command = parent.add_subcommand("info", "Describe a vocabulary");
  auto path = std::make_shared<std::string>();
  command->add_option("tokenizer", *path, "vocabulary folder or file")->required();
  command->footer("Example: octet tokenizer info tok");
  command->callback([path] {
    const auto tokenizer = load_tokenizer(*path);
    const auto name = [&](int32_t id) {
      return id < 0 ? std::string("none") : fmt::format("{} {}", id, tokenizer->token_bytes(id));
    };
    fmt::print("kind         {}\nvocabulary   {} tokens\nfingerprint  {}\nbegin (bos)  {}{}\nend (eos)    {}\n",
               tokenizer->kind(), tokenizer->vocab_size(), tokenizer->fingerprint(), name(tokenizer->bos_id()),
               tokenizer->adds_bos() ? ", begins every text" : "", name(tokenizer->eos_id()));
    fmt::print("any bytes    {}\n", tokenizer->byte_level() ? "yes, lossless" : "no");
    for (const AddedToken& token : tokenizer->added_tokens()) {
      fmt::print("{}      {} {}\n", token.special ? "special" : "added  ", token.id, token.text);
    }
  });
}

}  // namespace

void add_tokenizer_command(CLI::App& app) {
  auto* command = app.add_subcommand("tokenizer", "Train, apply and inspect vocabularies");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  octet tokenizer train --vocab-size 4096 --out tok corpus.txt\n"
      "  octet tokenizer encode tok \"Hello world\"");
  add_train(*command);
  add_encode(*command);
  add_decode(*command);
  add_info(*command);
}

}  // namespace octet
