// The GPUs of ranks, for those who make ranks: dist knows no device.
#pragma once

#include "dist/rank_team.h"
#include "ir/target.h"

namespace octet {

// None for CPUs. `peer_memory` as in NcclOptions. Throws kUnsupported where this build has no CUDA; make() of what is
// returned throws it where NCCL is missing.
RankDevices rank_devices(Device device, bool peer_memory = true);
// The group of the ranks along these axes, which takes memory of the device: all of them call it.
void make_group(cuda::DeviceRanks& ranks, const AxisList& over);

}  // namespace octet
