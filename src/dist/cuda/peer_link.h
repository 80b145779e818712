// A link between two ranks whose GPUs map each other's memory: the sender copies into one of two boxes of the receiver,
// from which the receiver copies. The streams wait by words in their own memory, without a kernel: neither end takes a
// multiprocessor, and a send does not wait for the receive of the same call.
#pragma once

#include <memory>

#include "dist/cuda/peer_memory.h"
#include "kernels/cuda/collective/ranks.h"

namespace octet {

class PeerLink final : public cuda::DeviceLink {
 public:
  // Both ends make it together. `memory` outlives it.
  PeerLink(PeerMemory& memory, int32_t own, int32_t other, bool sends, int64_t bytes);

  void send(const void* x, Stream stream) override;
  void receive(void* y, Stream stream) override;
  void abort();  // what waits goes on

 private:
  void wait(uint32_t calls, Stream stream) const;  // until the other end has told of so many
  void signal(uint32_t calls, Stream stream) const;
  std::byte* box(std::byte* memory) const;  // of this call

  int64_t bytes_;
  uint32_t calls_ = 0;
  std::shared_ptr<const PeerMemory::Mapped> pad_;  // the word that the other end writes; the receiver's boxes behind it
  std::byte *own_ = nullptr, *other_ = nullptr;
};

}  // namespace octet
