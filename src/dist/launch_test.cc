// Launchers' variables: what each gives, and what is refused.
#include "dist/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<RankIdentity> find(const Variables& variables) {
  return find_identity([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refused(const Variables& variables) {
  return error_of([&] { find(variables); });
}

Variables with(Variables variables, const Variables& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}

const Variables kTorchrun = {{"RANK", "9"},
                             {"WORLD_SIZE", "16"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "8"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_RANK", "1"},
                           {"PMIX_NAMESPACE", "3271753729"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
                          {"SLURM_STEP_NODELIST", "node[03-05,9]"},
                          {"SLURM_JOB_NODELIST", "node[01-09]"},
                          {"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "0"},
                          {"PMIX_RANK", "5"}};

TEST(FindIdentity, NoLauncher) {
  EXPECT_FALSE(find({}));
  EXPECT_FALSE(find({{"RANK", ""}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1"}, {"OCTET_TOKEN", "x"}}));
}

TEST(FindIdentity, VariablesAndTorchrun) {
  auto found = find(with(kTorchrun, {{"OCTET_TOKEN", "secret"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 9);
  EXPECT_EQ(found->size, 16);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_size, 8);
  EXPECT_EQ(found->address, "node0");
  EXPECT_EQ(found->port, 29500);
  EXPECT_EQ(found->token, "secret");
  EXPECT_EQ(found->launcher, "variables");
  EXPECT_FALSE(found->host.empty());

  found = find(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "run7"}}));  // its agent may listen at MASTER_PORT
  EXPECT_EQ(found->launcher, "torchrun");
  EXPECT_FALSE(found->mpi);
  EXPECT_EQ(found->port, 29501);
  EXPECT_EQ(found->token, "run7");
}

TEST(FindIdentity, Mpirun) {
  const auto found = find(kMpirun);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->size, 2);
  EXPECT_EQ(found->local_size, 2);
  EXPECT_EQ(found->launcher, "mpirun");
  EXPECT_TRUE(found->mpi);
  EXPECT_EQ(found->address, "127.0.0.1");
  EXPECT_EQ(found->token, "3271753729");
  EXPECT_GE(found->port, 20000);
  EXPECT_LT(found->port, 32000);
  EXPECT_NE(find(with(kMpirun, {{"PMIX_NAMESPACE", "3271753730"}}))->port, found->port);
  EXPECT_EQ(refused(with(kMpirun, {{"OMPI_COMM_WORLD_SIZE", "4"}})),
            "rank 1 of 4 knows no address of rank 0: set MASTER_ADDR to the name of its host for all ranks");
  EXPECT_EQ(find(with(kMpirun, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "b"}}))->address, "b");
}

TEST(FindIdentity, Slurm) {
  auto found = find(kSlurm);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->size, 7);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_size, 3);
  EXPECT_EQ(found->address, "node03");
  EXPECT_EQ(found->token, "4711.0");
  EXPECT_EQ(found->launcher, "Slurm");
  EXPECT_TRUE(found->mpi);
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_NODEID", "1"}}))->local_size, 2);
  found = find(with(kSlurm, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "5000"}, {"OCTET_TOKEN", "t"}}));
  EXPECT_EQ(found->address, "10.0.0.7");
  EXPECT_EQ(found->port, 5000);
  EXPECT_EQ(found->token, "t");
  // torchrun as the one task of each node: its ranks count.
  EXPECT_EQ(find(with(kSlurm, kTorchrun))->rank, 9);
}

// MPI would end the process where srun has no PMIx for it.
TEST(FindIdentity, SlurmServesMpiByPmix) {
  Variables plain = kSlurm;
  plain.erase("PMIX_RANK");
  EXPECT_FALSE(find(plain)->mpi);
  EXPECT_FALSE(find(with(plain, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}))->mpi);
}

TEST(FindIdentity, ABatchScriptOrOneTaskIsNoLaunch) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID"), batch.erase("PMIX_RANK");
  EXPECT_FALSE(find(batch));
  EXPECT_FALSE(find(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})));
}

TEST(FindIdentity, Pmi) {
  const Variables variables = {{"PMI_RANK", "3"},
                               {"PMI_SIZE", "4"},
                               {"MPI_LOCALRANKID", "3"},
                               {"MPI_LOCALNRANKS", "4"},
                               {"MASTER_PORT", "4000"}};
  const auto found = find(variables);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->local_size, 4);
  EXPECT_EQ(found->port, 4000);
  EXPECT_EQ(found->launcher, "PMI");
  EXPECT_EQ(refused({{"PMIX_RANK", "1"}}),
            "PMIX_RANK=1 is set, PMI_SIZE is not: set both (and all others of the launcher), or neither");
}

TEST(FindIdentity, RefusesWhatIsMissingMalformedOrContradictory) {
  Variables missing = kTorchrun;
  missing.erase("LOCAL_RANK");
  EXPECT_EQ(refused(missing),
            "RANK=9 is set, LOCAL_RANK is not: set both (and all others of the launcher), or neither");
  EXPECT_EQ(refused({{"WORLD_SIZE", "2"}}),
            "WORLD_SIZE=2 is set, RANK is not: set both (and all others of the launcher), or neither");
  EXPECT_EQ(refused(with(kTorchrun, {{"RANK", "16"}})), "RANK=16 contradicts WORLD_SIZE=16");
  EXPECT_EQ(refused(with(kTorchrun, {{"LOCAL_RANK", "8"}})), "LOCAL_RANK=8 contradicts LOCAL_WORLD_SIZE=8");
  EXPECT_EQ(refused(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "17"}})), "LOCAL_WORLD_SIZE=17 contradicts WORLD_SIZE=16");
  EXPECT_EQ(refused(with(kTorchrun, {{"RANK", "0"}})), "LOCAL_RANK=1 contradicts RANK=0");
  for (const char* text : {"x", "-1", "1.5", "2 ", "99999999999999999999"})
    EXPECT_EQ(refused(with(kTorchrun, {{"RANK", text}})),
              fmt::format("RANK={}: want a whole number of 0 to 1048575", text));
  EXPECT_EQ(refused(with(kTorchrun, {{"MASTER_PORT", "70000"}})),
            "MASTER_PORT=70000: want a whole number of 1 to 65534");
  EXPECT_EQ(refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}})),
            "SLURM_STEP_TASKS_PER_NODE=2(x: want a whole number of 1 to 1048576");
  EXPECT_EQ(refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}})),
            "SLURM_STEP_TASKS_PER_NODE=4 names fewer nodes than SLURM_NODEID");
}

TEST(FirstHost, OfNodeLists) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[03-05,9],login"), "node03");
  EXPECT_EQ(first_host("gpu[9,11-12].cluster"), "gpu9.cluster");
  EXPECT_EQ(first_host("rack[1-2]n[07-08]"), "rack1n07");
  for (const char* text : {"node[", "node[]", "node[-3]", "node[03-05"})
    EXPECT_EQ(error_of([&] { first_host(text); }),
              fmt::format("Slurm's node list '{}': want names such as node7 or node[03-05,9]", text));
  EXPECT_EQ(error_of([] { first_host(""); }), "Slurm's node list '' is empty");
}

}  // namespace
}  // namespace octet
