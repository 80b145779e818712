// The commands of the program `octet`, one file each: every function adds its subcommand, with help and callback, to
// app. Callbacks throw octet::Error; main() turns that into one line and exit code 1.
#pragma once

namespace CLI {
class App;
}

namespace octet {

void add_tokenizer_command(CLI::App& app);
void add_data_command(CLI::App& app);

}  // namespace octet
