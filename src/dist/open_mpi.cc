#include "dist/open_mpi.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "dist/mpi/plug_in.h"

namespace octet {

std::string mpi_plug_in_path() {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string beside = folder / "liboctet_mpi.so", installed = folder / "../lib/liboctet_mpi.so";
  return !path_exists(beside) && path_exists(installed) ? installed : beside;
}

std::unique_ptr<Communicator> open_mpi(const Mesh& mesh, double timeout, const std::string& plug_in) {
  check(path_exists(plug_in), ErrorCode::kUnsupported,
        "there is no {}: build Octet where MPI is installed (scripts/setup.sh test installs OpenMPI)", plug_in);
  // RTLD_GLOBAL: OpenMPI opens components of its own, which look for its symbols there. Never closed: MPI has threads.
  void* library = dlopen(plug_in.c_str(), RTLD_NOW | RTLD_GLOBAL);
  check(library != nullptr, ErrorCode::kUnsupported,
        "cannot open the MPI plug-in: {}; install the MPI it was built with, or build Octet with the one that is here",
        library == nullptr ? dlerror() : "");
  auto* open = reinterpret_cast<MpiPlugIn*>(dlsym(library, kMpiPlugInName));
  check(open != nullptr, ErrorCode::kUnsupported, "{} is no MPI plug-in of Octet: it has no {}", plug_in,
        kMpiPlugInName);
  std::string error = fmt::format("{} is of another build than this program: build both together", plug_in);
  std::unique_ptr<Communicator> rank(open(kMpiPlugInVersion, mesh, timeout, error));
  check(rank != nullptr, ErrorCode::kInvalidArgument, "{}", error);
  return rank;
}

}  // namespace octet
