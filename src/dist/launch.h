// Who this process is among the ranks of a run, as the launcher's variables say; and starting a run again that failed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace octet {

struct RankIdentity {
  int32_t rank = 0, size = 1;              // of all ranks
  int32_t local_rank = 0, local_size = 1;  // of those on this machine
  std::string host;                        // this machine's name
  std::string address;                     // host name or number of rank 0's machine
  int port = 0;                            // where rank 0 listens there
  std::string token;                       // what all ranks of this run know; empty when the launcher gives none
  bool mpi = false;                        // the launcher serves MPI, which ends processes that start it elsewhere
  std::string launcher;                    // "torchrun", "variables" (its own, set by others), "mpirun", "Slurm", "PMI"
};

// The value of an environment variable, null when it is not set: std::getenv.
using Environment = std::function<const char*(const char* name)>;

// The identity that a launcher gives this process; none without a launcher. RANK and WORLD_SIZE (torchrun's) go
// before mpirun's variables, those before Slurm's, those before PMI's. MASTER_ADDR, MASTER_PORT and OCTET_TOKEN hold
// under every launcher. Throws kInvalidArgument naming variable and value for what is missing, malformed or
// contradictory.
std::optional<RankIdentity> find_identity(const Environment& environment);

// The first host of a Slurm node list: "node03" of "node[03-05,9],login". Throws kInvalidArgument.
std::string first_host(const std::string& node_list);

// Forks, and returns nothing in the child, which goes on with the program. This process waits for it, forks again
// after each of the first `restarts` failures, and returns 0 or the last exit status (128 + signal number for a child
// that a signal ended). `log` gets a line for every failure and restart. A child ends with this process. SIGINT,
// SIGTERM and SIGHUP to this process are passed on, and end restarts. Call it before any thread and any CUDA call is
// made, from the thread that lives as long as the process. Throws kIo when there can be no child.
std::optional<int> restart_after_failures(int64_t restarts, const std::function<void(const std::string&)>& log);

}  // namespace octet
