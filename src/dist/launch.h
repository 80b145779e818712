// Who this process is among the ranks of a run, as the launcher's variables say; and the launcher of Octet's own, which
// starts the ranks of one machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octet {

struct RankIdentity {
  int32_t rank = 0, size = 1;              // of all ranks
  int32_t local_rank = 0, local_size = 1;  // of those on this machine
  std::string host;                        // this machine's name
  std::string address;                     // host name or number of rank 0's machine
  int port = 0;                            // where rank 0 listens there
  std::string token;                       // what all ranks of this run know; empty when the launcher gives none
  std::string launcher;                    // "octet", "torchrun", "mpirun", "Slurm", "PMI"
};

// The value of an environment variable, null when it is not set: std::getenv.
using Environment = std::function<const char*(const char* name)>;

// The identity that a launcher gives this process; none without a launcher. RANK and WORLD_SIZE (torchrun, Octet's own)
// go before mpirun's variables, those before Slurm's, those before PMI's. MASTER_ADDR, MASTER_PORT and OCTET_TOKEN hold
// under every launcher. Throws kInvalidArgument naming variable and value for what is missing, malformed or
// contradictory.
std::optional<RankIdentity> find_identity(const Environment& environment);

// The first host of a Slurm node list: "node03" of "node[03-05,9],login". Throws kInvalidArgument.
std::string first_host(const std::string& node_list);

// `ranks` copies of this program (/proc/self/exe) on this machine.
struct LocalLaunch {
  int32_t ranks = 1;
  std::vector<std::string> arguments;  // argv of each rank, argv[0] included
  std::string log_folder;              // ranks other than 0 write to log_folder/rank_N.log; empty: as this process
  int32_t restarts = 0;                // how often all ranks may be started again after one has failed
  double kill_after = 10;              // seconds from SIGTERM to SIGKILL for ranks that outlive a failed one
  std::function<void(const std::string&)> log;  // a line when a rank has failed, and when all are started again
  // Called before ranks are started again; may change `ranks` and `arguments`.
  std::function<void(LocalLaunch&)> before_restart;
};

// Starts the ranks, waits for all, and returns 0 or the exit status of the first that failed (128 + signal number for
// one that a signal ended). Ranks end with this process. SIGINT, SIGTERM and SIGHUP to this process are passed on to
// all ranks, which are not started again after that. Call it before any thread and any CUDA call is made, from the
// thread that lives as long as the process. Throws kIo when a rank cannot be started.
int run_local_ranks(LocalLaunch launch);

}  // namespace octet
