// Launchers' variables. A launcher is a row of names; Slurm and rank 0's address need some lines more.
#include "dist/launch.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/crc32c.h"
#include "base/error.h"
#include "dist/socket.h"

namespace octet {
namespace {

using Names = std::vector<const char*>;  // of one value, the first that is set counts

struct Launcher {
  const char* name;
  Names rank, size, local_rank, local_size;
  Names job;  // a name of the run that all its ranks see
  Names mpi;  // one is set where the launcher serves MPI
};

const std::array kLaunchers = {
    Launcher{"torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}, {"TORCHELASTIC_RUN_ID"}, {}},
    Launcher{"mpirun",
             {"OMPI_COMM_WORLD_RANK"},
             {"OMPI_COMM_WORLD_SIZE"},
             {"OMPI_COMM_WORLD_LOCAL_RANK"},
             {"OMPI_COMM_WORLD_LOCAL_SIZE"},
             {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
             {"OMPI_COMM_WORLD_RANK"}},
    Launcher{"Slurm",
             {"SLURM_PROCID"},
             {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
             {"SLURM_LOCALID"},
             {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
             {"SLURM_JOB_ID"},
             {"PMIX_RANK"}},  // srun --mpi=pmix
    Launcher{"PMI",
             {"PMI_RANK", "PMIX_RANK"},
             {"PMI_SIZE"},
             {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
             {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
             {"PMI_JOBID", "PMIX_NAMESPACE"},
             {"PMI_RANK", "PMIX_RANK"}},
};

struct Variable {
  std::string name, text;

  int32_t number(int64_t least, int64_t most) const { return number_of(text, least, most); }
  int32_t number_of(std::string_view part, int64_t least, int64_t most) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    check(error == std::errc() && end == part.data() + part.size() && value >= least && value <= most,
          ErrorCode::kInvalidArgument, "{}={}: want a whole number of {} to {}", name, text, least, most);
    return static_cast<int32_t>(value);
  }
};

std::optional<Variable> find(const Environment& environment, const Names& names) {
  for (const char* name : names) {
    const char* text = environment(name);
    if (text != nullptr && *text != '\0') return Variable{name, text};
  }
  return std::nullopt;
}

Variable need(const Environment& environment, const Names& names, const Variable& given) {
  auto found = find(environment, names);
  check(found.has_value(), ErrorCode::kInvalidArgument,
        "{}={} is set, {} is not: set both (and all others of the launcher), or neither", given.name, given.text,
        names.front());
  return *found;
}

constexpr int32_t kMaxRanks = 1 << 20;

// Tasks on node `node` of "2(x3),1".
int32_t tasks_of_node(const Variable& list, int32_t node) {
  for (std::string_view rest = list.text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const size_t repeat = entry.find("(x");
    node -=
        repeat == entry.npos ? 1 : list.number_of(entry.substr(repeat + 2, entry.size() - repeat - 3), 1, kMaxRanks);
    if (node < 0) return list.number_of(entry.substr(0, repeat), 1, kMaxRanks);
  }
  fail(ErrorCode::kInvalidArgument, "{}={} names fewer nodes than SLURM_NODEID", list.name, list.text);
}

// Ports of user services below those that Linux gives to outgoing connections; the same for all ranks of a job.
int job_port(const std::string& job) {
  return 20000 + static_cast<int>(crc32c(job.data(), static_cast<int64_t>(job.size())) % 12000);
}

void find_address(const Environment& environment, const Variable& rank, RankIdentity& identity) {
  if (const auto address = find(environment, {"MASTER_ADDR"})) {
    identity.address = address->text;
  } else if (identity.launcher == "Slurm") {
    identity.address = first_host(need(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}, rank).text);
  } else {
    check(identity.local_size == identity.size, ErrorCode::kInvalidArgument,
          "rank {} of {} knows no address of rank 0: set MASTER_ADDR to the name of its host for all ranks",
          identity.rank, identity.size);
    identity.address = "127.0.0.1";
  }
  if (const auto port = find(environment, {"MASTER_PORT"})) {
    // torchrun's agent may listen at MASTER_PORT itself, so rank 0 takes the next one.
    identity.port = port->number(1, 65534) + (identity.launcher == "torchrun" ? 1 : 0);
  } else {
    check(!identity.token.empty(), ErrorCode::kInvalidArgument,
          "rank {} of {} knows no port of rank 0: set MASTER_PORT for all ranks", identity.rank, identity.size);
    identity.port = job_port(identity.token);
  }
}

}  // namespace

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i), end = node_list.find_first_of("-,]", i);
    check(close != node_list.npos && end > i + 1, ErrorCode::kInvalidArgument,
          "Slurm's node list '{}': want names such as node7 or node[03-05,9]", node_list);
    host += node_list.substr(i + 1, end - i - 1);
    i = close;
  }
  check(!host.empty(), ErrorCode::kInvalidArgument, "Slurm's node list '{}' is empty", node_list);
  return host;
}

std::optional<RankIdentity> find_identity(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const bool slurm = launcher.name == std::string("Slurm");
    // Slurm sets its variables in a batch script and an interactive shell too: only a step of srun is a launch.
    if (slurm && !find(environment, {"SLURM_STEP_ID", "SLURM_STEPID"})) continue;
    const auto rank = find(environment, launcher.rank);
    if (!rank) {
      if (const auto size = find(environment, launcher.size); size && !slurm) need(environment, launcher.rank, *size);
      continue;
    }
    const Variable size = need(environment, launcher.size, *rank);
    if (slurm && size.number(1, kMaxRanks) == 1) return std::nullopt;
    const Variable local_rank = need(environment, launcher.local_rank, *rank);
    const Variable local_size = need(environment, launcher.local_size, *rank);

    RankIdentity identity{.host = host_name(), .launcher = launcher.name};
    identity.rank = rank->number(0, kMaxRanks - 1), identity.size = size.number(1, kMaxRanks);
    identity.local_rank = local_rank.number(0, kMaxRanks - 1);
    identity.local_size =
        slurm ? tasks_of_node(local_size, need(environment, {"SLURM_NODEID"}, *rank).number(0, kMaxRanks))
              : local_size.number(1, kMaxRanks);
    const auto agree = [](const Variable& a, bool holds, const Variable& b) {
      check(holds, ErrorCode::kInvalidArgument, "{}={} contradicts {}={}", a.name, a.text, b.name, b.text);
    };
    agree(*rank, identity.rank < identity.size, size);
    agree(local_rank, identity.local_rank < identity.local_size, local_size);
    agree(local_rank, identity.local_rank <= identity.rank, *rank);
    agree(local_size, identity.local_size <= identity.size, size);

    if (const auto job = find(environment, launcher.job)) {
      identity.token = job->text;
      if (slurm) identity.token += "." + need(environment, {"SLURM_STEP_ID", "SLURM_STEPID"}, *rank).text;
    } else if (identity.launcher == "torchrun") {
      identity.launcher = "variables";  // the same variables, without torchrun's agent
    }
    identity.mpi = find(environment, launcher.mpi).has_value();
    if (const auto token = find(environment, {"OCTET_TOKEN"})) identity.token = token->text;
    find_address(environment, *rank, identity);
    return identity;
  }
  return std::nullopt;
}

}  // namespace octet
