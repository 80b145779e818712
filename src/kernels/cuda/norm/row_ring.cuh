// A ring of stages in shared memory: one thread fills it with rows by bulk copies (TMA), a team of threads reads them.
// The ring has no mbarrier for empty stages: the producer requests the next rows of a stage after a barrier of the team
// behind which no thread reads that stage.
#pragma once

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/norm/choose.h"

namespace octet::cuda {

struct RowRing {
  unsigned char* memory;   // [stages][operands][operand_bytes]
  Mbarrier* full;          // [stages]
  int stages, operands;    // operands: x, addend; or x, dy, addend
  uint32_t operand_bytes;  // of a stage: of one row, or of neighbouring rows
  int stage = 0;           // that the team reads
  uint32_t phase = 0;

  __device__ __forceinline__ unsigned char* at(int of_stage, int operand) const {
    return memory + static_cast<uint32_t>(of_stage * operands + operand) * operand_bytes;
  }
  // By the producer, before the team's first barrier. `request(s)` fills stage s.
  template <typename Request>
  __device__ __forceinline__ void begin(const Request& request) {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) full[s].init(1);
    publish_barriers();
#pragma unroll 1
    for (int s = 0; s < stages; ++s) request(s);
  }
  // By the producer: `bytes` from element `first` on of each operand.
  template <typename T, typename... Operands>
  __device__ __forceinline__ void request(int of_stage, int64_t first, uint32_t bytes, Operands... from) {
    full[of_stage].arrive_expect(bytes * static_cast<uint32_t>(operands));
    const void* const all[] = {from...};
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof...(from)); ++i) {
      if (i < operands) bulk_load(at(of_stage, i), static_cast<const T*>(all[i]) + first, bytes, full[of_stage]);
    }
  }
  __device__ __forceinline__ void wait() { full[stage].wait(phase); }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

}  // namespace octet::cuda
