// Options shared by `octet train` and `octet plan`: a settings file, key=value words, and flags for passes.
#pragma once

#include <string>
#include <vector>

#include "train/run_config.h"

namespace CLI {
class App;
}

namespace octet {

struct RunOptions {
  std::string file;  // or the first key=value word
  std::vector<std::string> words;
  std::vector<std::string> disable;
  std::string dump_ir, device;
};

void add_run_options(CLI::App& command, RunOptions& options);

// Applies the file, then words, then flags to the struct of the table. Throws when none is given.
void read_run_options(const RunOptions& options, RunConfig& config, SettingsTable& settings);

}  // namespace octet
