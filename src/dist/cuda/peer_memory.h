// Memory of GPUs that the ranks of a mesh map into each other: ranks of one machine whose devices reach each other, as
// threads or processes. Built with CUDA only.
//
// By CUDA's virtual memory management: only what is allocated here is mapped elsewhere, so that other allocations, and
// modules that are loaded, wait for no other device; and memory lasts until the last rank that maps it lets it go, so
// that one that fails takes nothing from under the others' kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace octet {

class PeerMemory {
 public:
  // All ranks make theirs together. `device` is CUDA's index of this rank's.
  PeerMemory(Communicator& ranks, int device);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;

  // Whether each of these ranks maps the memory of all of them.
  bool reach(const std::vector<int32_t>& ranks) const;
  bool any() const;  // any rank another one's: the same on all

  // Of one allocation by each of some ranks, by their order: where it lies here. Null: another size, or out of reach.
  struct Mapped {
    int64_t bytes = 0;
    std::vector<std::byte*> at;
    std::byte* own = nullptr;
  };
  // All of `ranks` call it; `initialize(own)` has ended on each before any of them goes on. Unmapped, when the last
  // reference goes, after this device's work has ended. Throws kOutOfMemory naming `purpose`.
  std::shared_ptr<const Mapped> allocate(const std::vector<int32_t>& ranks, int64_t bytes, const std::string& purpose,
                                         const std::function<void(std::byte*)>& initialize = {});
  // Of all ranks, and known to there(): at equal distances from its start lies what a collective reads. Null: no bytes.
  std::shared_ptr<std::byte> share(int64_t bytes, const std::string& purpose);
  // Where rank `rank` has what lies at `address` here; null: not shared, or not alike there.
  std::byte* there(const void* address, int32_t rank) const;

  // The word that makes kernels stop waiting, of the host.
  const int* aborted() const { return aborted_; }
  void abort() { *static_cast<volatile int*>(aborted_) = 1; }

 private:
  struct Address;
  std::byte* import(const Address& address, int64_t bytes) const;

  Communicator& ranks_;
  int device_;
  std::vector<char> reaches_;  // [rank * ranks + other]
  std::vector<std::weak_ptr<const Mapped>> shared_;
  int* aborted_ = nullptr;
};

}  // namespace octet
