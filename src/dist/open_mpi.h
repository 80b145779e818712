// Ranks as processes under mpirun. MPI is a plug-in: a library of its own, liboctet_mpi.so, which alone links MPI, so
// that the program starts on machines without it.
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"

namespace octet {

// Where the plug-in is looked for: next to this program, then in ../lib from there. The first that exists, else the
// first.
std::string mpi_plug_in_path();

// This process as a rank of `mesh` under mpirun (or another launcher that this MPI knows). A rank that waits longer
// than `timeout` seconds for another throws; what it was sending may then not be freed before the process ends.
// Exchanges are called by one thread at a time, abort by any. MPI ends with the process. Throws kUnsupported naming
// path and reason when there is no plug-in or its MPI is missing, kInvalidArgument when MPI has another number of ranks
// than the mesh.
std::unique_ptr<Communicator> open_mpi(const Mesh& mesh, double timeout = 60,
                                       const std::string& plug_in = mpi_plug_in_path());

}  // namespace octet
