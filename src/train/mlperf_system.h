// The machine that a submission to MLPerf describes: what Linux tells of it.
#pragma once

#include <string>

#include "train/mlperf_run.h"

namespace octet {

struct MlperfMachine {
  std::string processor, distribution;
  int64_t sockets = 1, cores = 0, threads = 0;  // cores and threads of all sockets
  int64_t memory_bytes = 0, nodes = 1;
  std::vector<std::string> accelerators;  // of a node, a name each

  std::string platform() const;  // "8xNVIDIA H100 80GB HBM3"; without accelerators "1xAMD EPYC 9654"
  // systems/NAME.json of a submission: all fields that the package checker wants, as text; what is not known is "".
  std::string json(const MlperfSubmission& submission, const std::string& name, const std::string& build) const;
};
MlperfMachine this_machine();

}  // namespace octet
