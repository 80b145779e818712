// What is said where the MPI plug-in cannot be opened; mpi/mpi_ranks_test.cc runs it.
#include "dist/open_mpi.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

TEST(OpenMpi, WithoutAPlugIn) {
  EXPECT_TRUE(mpi_plug_in_path().ends_with("/liboctet_mpi.so"));
  EXPECT_EQ(
      error_of([] {
        open_mpi({{1, 2, 1, 1}}, 60, "/none/liboctet_mpi.so");
      }),
      "there is no /none/liboctet_mpi.so: build Octet where MPI is installed (scripts/setup.sh test installs OpenMPI)");
}

TEST(OpenMpi, AFileThatIsNoLibrary) {
  const TempFolder folder;
  write_file(folder.file("liboctet_mpi.so"), "text");
  const std::string error = error_of([&] { open_mpi({{1, 2, 1, 1}}, 60, folder.file("liboctet_mpi.so")); });
  EXPECT_TRUE(error.starts_with("cannot open the MPI plug-in: " + folder.file("liboctet_mpi.so"))) << error;
  EXPECT_NE(error.find("; install the MPI it was built with"), std::string::npos) << error;
}

TEST(OpenMpi, AnotherLibrary) {
  Dl_info libc{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "getenv"), &libc), 0);
  EXPECT_EQ(error_of([&] {
              open_mpi({{1, 2, 1, 1}}, 60, libc.dli_fname);
            }),
            fmt::format("{} is no MPI plug-in of Octet: it has no octet_mpi_communicator", libc.dli_fname));
}

}  // namespace
}  // namespace octet
