// The choice between a family's kernels and launches: of what there is to do and of the device alone. A family lists
// its candidates, best first by its rule or its model of their time; all of them run, so that a tuner may measure them.
#pragma once

#include <vector>

#include "kernels/cuda/device_facts.h"

namespace octet::cuda {

template <typename Desc>
auto choose(const Desc& desc, const DeviceFacts& device) {
  return candidates(desc, device).front();
}

}  // namespace octet::cuda
