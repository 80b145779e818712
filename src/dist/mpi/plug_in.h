// What the program and its MPI plug-in must agree on: one function, found by name.
#pragma once

#include <string>

#include "dist/communicator.h"

namespace octet {

// Raised whenever the function below, Communicator, Mesh or Error change.
inline constexpr int32_t kMpiPlugInVersion = 1;

// A Communicator that the caller deletes. Null with `error` set when it cannot be made; null with `error` untouched
// when the plug-in has another version.
using MpiPlugIn = Communicator*(int32_t version, const Mesh& mesh, double timeout, std::string& error);
inline constexpr const char* kMpiPlugInName = "octet_mpi_communicator";

}  // namespace octet
