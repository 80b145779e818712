// Subcommands of octet-chat: each runs one stage of the chat core on a file of cases, a line of JSON each, and prints a
// line of JSON for each. A case that cannot run has {"error": ...} for its answer.
#pragma once

#include <CLI/CLI.hpp>

namespace octet {

void add_template_command(CLI::App& app);
void add_parse_command(CLI::App& app);
void add_guide_command(CLI::App& app);

}  // namespace octet
