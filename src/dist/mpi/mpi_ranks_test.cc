// Ranks of MPI. All ranks of one mpirun run this program (testing/mpi_test.sh), with as many ranks as it has.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/testing/test_error.h"
#include "dist/launch.h"
#include "dist/mpi/plug_in.h"
#include "dist/open_mpi.h"
#include "dist/testing/rank_expectations.h"

namespace octet {
namespace {

int32_t ranks() {
  return find_identity([](const char* name) { return getenv(name); })->size;
}

Mesh mesh() { return ranks() == 2 ? Mesh{{1, 1, 1, 2}} : Mesh{{1, 2, 1, ranks() / 2}}; }

std::unique_ptr<Communicator> open(double timeout = 60) { return open_mpi(mesh(), timeout, OCTET_MPI_PLUG_IN); }

TEST(MpiRanks, ExchangeWithinGroups) {
  const auto rank = open();
  const auto identity = find_identity([](const char* name) { return getenv(name); });
  EXPECT_EQ(rank->rank(), identity->rank);
  expect_exchanges_within_groups(*rank);
  expect_exchanges_of_all_sizes(*rank);
  expect_exchanges_of_neighbours(*rank);
}

TEST(MpiRanks, AnAbortEndsAll) { expect_an_abort_ends_all(*open()); }

TEST(MpiRanks, UnlikeExchangesAreRefused) { expect_unlike_exchanges_are_refused(*open()); }

TEST(MpiRanks, ASilentRankIsNamed) {
  const auto rank = open(0.01), end = open();
  if (rank->rank() == 0) expect_a_silent_rank_is_named(*rank);
  expect_exchanges_within_groups(*end);  // another communicator is not touched by it
}

TEST(MpiRanks, AnotherNumberOfRanksIsRefused) {
  const Mesh more{{1, 1, 1, ranks() + 1}};
  EXPECT_EQ(error_of([&] { open_mpi(more, 60, OCTET_MPI_PLUG_IN); }),
            fmt::format("MPI has {0} ranks, the settings want {1}: start the program with mpirun -n {1}", ranks(),
                        ranks() + 1));
}

TEST(MpiRanks, AnotherVersionIsRefused) {
  auto* plug_in = reinterpret_cast<MpiPlugIn*>(dlsym(dlopen(OCTET_MPI_PLUG_IN, RTLD_NOW), kMpiPlugInName));
  ASSERT_NE(plug_in, nullptr);
  std::string error = "untouched";
  EXPECT_EQ(plug_in(kMpiPlugInVersion + 1, mesh(), 60, error), nullptr);
  EXPECT_EQ(error, "untouched");
}

}  // namespace
}  // namespace octet
