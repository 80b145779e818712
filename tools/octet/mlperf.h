// What the subcommands of `octet mlperf` share.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace octet {

struct MlperfSummary {
  std::string folder, points = {};
  bool json = false, faults = false;
};
void summarize_mlperf(const MlperfSummary& summary);

void add_mlperf_run_commands(CLI::App& mlperf);

}  // namespace octet
