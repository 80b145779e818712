// The program `octet`: its commands, and errors as one line. Exit codes: 0 success, 1 an error, 2 a command line error.
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <new>

#include "base/error.h"
#include "build_info.h"
#include "commands.h"
#include "numbers.h"
#include "wait_policy.h"

namespace {

// Opens closed standard streams: otherwise a file opened later would get their descriptor and messages be written to
// it. Writing to such a standard output still fails.
void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream)
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", stream == 2 ? O_WRONLY : O_RDONLY);
}

// CLI11 prints a negative flag as "--no-echo{false}".
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string names = CLI::Formatter::make_option_name(option, is_positional);
    for (size_t at; (at = names.find('{')) != std::string::npos;) names.erase(at, names.find('}', at) + 1 - at);
    return names;
  }
};

// Output that could not be written is an error (a full disk); a closed pipe needs no message.
int finish_output() {
  std::cout.flush();
  bool good = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (!good && errno != EPIPE)
    std::cerr << "octet: i/o error: cannot write to standard output: " << std::strerror(errno) << '\n';
  return good ? 0 : 1;
}

// Options of vLLM and what stands for them here: an option, of commands that have it, or a word of advice.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"--max-model-len", "--context"},
    {"--max-num-seqs", "--max-sequences"},
    {"--max-num-batched-tokens", "--max-step-tokens"},
    {"--gpu-memory-utilization", "--memory-fraction"},
    {"--tensor-parallel-size", "--tensor"},
    {"--kv-cache-dtype", "--kv-cache"},
    {"--dtype", "--recipe"},
    {"--quantization", "--recipe"},
    {"--speculative-config", "--draft"},
    {"--api-key", "--api-keys"},
    {"--lora-modules", "--adapter"},
    {"--enable-lora", "--adapter"},
    {"--max-loras", "--max-adapters"},
    {"--max-lora-rank", "--max-adapter-rank"},
    {"--allowed-origins", "--allow-host"},
    {"--forwarded-allow-ips", "--trusted-proxies"},
    {"--tool-call-parser", "--tool-calls"},
    {"--enable-auto-tool-choice", "leave it out: tool calls are always on"},
    {"--reasoning-parser", "leave it out: reasoning is always parsed"},
    {"--enable-prefix-caching", "leave it out: prefix caching is always on"},
    {"--enable-chunked-prefill", "leave it out: chunked prefill is always on"},
    {"--trust-remote-code", "leave it out: a folder's code is never run"},
    {"--model", "give the folder after the command, without an option"},
};

// A message for the first unknown command or option, with the nearest known one; "" when every word is known.
std::string unknown_word(const CLI::App& app, int argc, char** argv) {
  const CLI::App* level = &app;
  const auto suggest = [](const std::string& text, const std::string& word, const std::vector<std::string>& names) {
    const std::string nearest = octet::nearest_name(word, names);
    const bool near = !nearest.empty() && octet::edit_distance(word, nearest) <= static_cast<int>(word.size()) / 3 + 1;
    return text + (near ? "; did you mean '" + nearest + "'?" : "");
  };
  for (int i = 1; i < argc && std::string(argv[i]) != "--"; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    if (word.starts_with("--")) {
      std::vector<std::string> names;
      for (const CLI::Option* option : level->get_options())
        for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
      const auto known = [&](std::string_view other) { return std::ranges::find(names, other) != names.end(); };
      const auto* elsewhere =
          std::ranges::find(kElsewhere, name, &std::pair<std::string_view, std::string_view>::first);
      if (!known(name) && elsewhere != std::end(kElsewhere)) {
        const std::string_view here = elsewhere->second;
        if (known(here)) return fmt::format("no option '{}': use {}", name, here);
        if (!here.starts_with("--") && level->get_name() == "serve")
          return fmt::format("no option '{}': {}", name, here);
      }
      if (!known(name)) return suggest("no option '" + name + "'", name, names);
    } else if (const auto commands = level->get_subcommands([](const CLI::App*) { return true; }); !commands.empty()) {
      std::vector<std::string> names;
      for (const CLI::App* command : commands) names.push_back(command->get_name());
      const auto found = std::find(names.begin(), names.end(), word);
      const bool takes_words = std::ranges::any_of(level->get_options(), &CLI::Option::get_positional);  // or a file
      if (found == names.end() && takes_words) continue;
      if (found == names.end()) return suggest("no command '" + word + "'", word, names);
      level = commands[static_cast<size_t>(found - names.begin())];
    }
  }
  return "";
}

// Defaults that a description names, and empty lists, are not shown.
void hide_defaults(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (option->get_default_str() == "[]" || option->get_description().find("(default") != std::string::npos)
      option->default_str("");
  for (CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) hide_defaults(*below);
}

int run(int argc, char** argv) {
  CLI::App app{"Octet trains, evaluates and generates with transformer language models in FP8."};
  app.name("octet");
  app.formatter(std::make_shared<HelpFormatter>());  // inherited by the commands
  app.set_version_flag("--version", octet::version_text("octet"));
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("octet: ") + error.what() + "\nTry 'octet --help' or 'octet COMMAND --help'.\n";
  });
  app.footer(
      "Examples:\n"
      "  octet tokenizer train --vocab-size 4096 --out tok corpus.txt\n"
      "  octet data --tokenizer tok --split 0.99,0.01 --out data/corpus corpus.txt\n"
      "Each command has its own help: octet COMMAND --help");

  app.option_defaults()->always_capture_default();
  for (const auto add :
       {octet::add_tokenizer_command, octet::add_data_command, octet::add_train_command, octet::add_eval_command,
        octet::add_quantize_command, octet::add_export_command, octet::add_generate_command, octet::add_embed_command,
        octet::add_verify_command, octet::add_plan_command, octet::add_tune_command, octet::add_report_command,
        octet::add_mlperf_command, octet::add_bench_command, octet::add_config_command, octet::add_completion_command})
    add(app);
#ifdef OCTET_SERVE
  octet::add_serve_command(app);
  octet::add_chat_command(app);
#endif
  hide_defaults(app);
  octet::check_whole_numbers(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {  // a command that ran and found a mismatch (verify)
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    const std::string unknown = error.get_exit_code() == 0 ? "" : unknown_word(app, argc, argv);
    if (unknown.empty()) return app.exit(error) == 0 ? finish_output() : 2;
    std::cerr << "octet: " << unknown << "\nTry 'octet --help' or 'octet COMMAND --help'.\n";
    return 2;
  }
  if (app.get_subcommands().empty()) std::cout << app.help();
  return finish_output();
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  octet::settle_wait_policy(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe (octet ... | head) is reported by the stream's error instead
  try {
    return run(argc, argv);
  } catch (const octet::Error& error) {
    std::cerr << "octet: " << octet::error_code_name(error.code()) << ": " << error.what() << '\n';
  } catch (const std::bad_alloc&) {
    std::cerr << "octet: out of memory\n";
  } catch (const std::exception& error) {
    std::cerr << "octet: " << error.what() << '\n';
  }
  return 1;
}
