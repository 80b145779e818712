// How the ranks of a run find each other: rank 0 listens, the others connect and say who they are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/launch.h"
#include "dist/message.h"

namespace octet {

struct Met {
  int32_t rank = 0;
  std::string host;
  Link link;
};

struct RendezvousOptions {
  double timeout = 300;                         // seconds until all ranks are there
  std::string build;                            // text that must be equal on all ranks
  std::function<void(const std::string&)> log;  // a line for each connection that was dropped
};

// On rank 0 all others in order of ranks, elsewhere rank 0. Connections without the token, with a rank that is there
// already, or with anything but a hello are dropped and logged. Throws on all ranks that have met: kIo naming the ranks
// that are missing after the timeout, kInvalidArgument naming rank and difference for another size or build.
std::vector<Met> rendezvous(const RankIdentity& identity, const RendezvousOptions& options);

}  // namespace octet
