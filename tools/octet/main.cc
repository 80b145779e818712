// The program `octet`: the list of its commands, and errors as one clear line. Exit codes: 0 good, 1 an error of the
// work, 2 a mistake on the command line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <iostream>
#include <new>

#include "base/error.h"
#include "commands.h"
#include "wait_policy.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Octet trains, evaluates and generates with transformer language models in FP8."};
  app.name("octet");
  app.set_version_flag("--version", "octet " OCTET_VERSION);
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("octet: ") + error.what() + "\nTry 'octet --help' or 'octet COMMAND --help'.\n";
  });
  app.footer(
      "Examples:\n"
      "  octet tokenizer train --vocab-size 4096 --out tok corpus.txt\n"
      "  octet data --tokenizer tok --split 0.99,0.01 --out data/corpus corpus.txt\n"
      "Each command has its own help: octet COMMAND --help");

  octet::add_tokenizer_command(app);
  octet::add_data_command(app);
  octet::add_train_command(app);
  octet::add_eval_command(app);
  octet::add_generate_command(app);
  octet::add_verify_command(app);
  octet::add_plan_command(app);
  octet::add_config_command(app);
  octet::add_completion_command(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const std::string word = argc > 1 ? argv[1] : "";
    std::vector<std::string> names;
    for (const auto* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
    if (std::find(names.begin(), names.end(), word) != names.end() || word.starts_with('-')) return app.exit(error), 2;
    const std::string nearest = octet::nearest_name(word, names);
    std::cerr << "octet: no command '" << word << "'" << (nearest.empty() ? "" : "; did you mean '" + nearest + "'?")
              << "\nTry 'octet --help'.\n";
    return 2;

  } catch (const CLI::RuntimeError& error) {  // a command that did its work and found a fault (verify)
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (app.get_subcommands().empty()) std::cout << app.help();
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  octet::settle_wait_policy(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves (octet ... | head) ends us through the stream's error
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
