// Exchanges over the control plane: for ranks that are processes without MPI, and for what GPUs' hosts tell each other.
#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/control.h"

namespace octet {

// This process as a rank of `mesh`. Everything goes through rank 0. `control` must outlive it; its timeout and its
// errors are those of the exchanges.
std::unique_ptr<Communicator> make_control_ranks(Control& control, const Mesh& mesh, int32_t rank);

}  // namespace octet
