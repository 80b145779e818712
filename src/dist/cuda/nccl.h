// GPUs of a mesh's ranks joined by NCCL and, on one machine, by each other's memory. NCCL is opened at run time: no
// build needs the library, and without its header (scripts/setup.sh cuda) a build has everything but this.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "kernels/cuda/collective/ranks.h"

namespace octet {

struct NcclOptions {
  int device = 0;  // which of the usable ones, as CudaOptions::device
  // GPUs of one machine exchange by each other's memory where they can (dist/cuda/peer_group.h).
  bool peer_memory = true;
  // Throws when a rank is known to be lost. Called every few milliseconds while the host waits for the device.
  std::function<void()> check = {};
};

// The device of the rank that `ranks` is, which must outlive it. Groups are made over `ranks`, by ncclCommInitRank;
// that call itself ends only when all ranks of the group make it, or one of their processes is gone. Throws
// kUnsupported where NCCL is missing or too old, with the way out.
std::unique_ptr<cuda::DeviceRanks> make_nccl_ranks(Communicator& ranks, NcclOptions options = {});

// The version of the library found, "2.28.9", in the usual places or the first of `paths` that will do. Throws
// kUnsupported naming the places and what was found there.
std::string nccl_version(const std::vector<std::string>& paths = {});

}  // namespace octet
