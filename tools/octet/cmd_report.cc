// octet report: an HTML page of a run, from its log.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "octet/commands.h"
#include "train/report.h"

namespace octet {

void add_report_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  auto* command = app.add_subcommand("report", "Write RUN/report.html: loss, precision over time, statistics");
  command->footer(R"(Examples:
  octet report out/run
Runs of recipe auto write it themselves after every round of statistics. The page needs nothing but a browser.)");
  command->add_option("run", *folder, "the `out` folder of `octet train`")->required();
  command->callback([folder] { fmt::print("{}\n", write_report(*folder)); });
}

}  // namespace octet
