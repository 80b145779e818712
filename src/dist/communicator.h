// One rank's way to the others of a mesh.
//
// Everything a collective does follows from one exchange of bytes: sums are then made by each rank itself, in order of
// ranks, so that they do not depend on what carries the bytes. All ranks of a group call the same exchanges of the
// group in the same order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/layout.h"

namespace octet {

class Communicator {
 public:
  Communicator(const Mesh& mesh, int32_t rank) : mesh_(mesh), rank_(rank) {}
  virtual ~Communicator() = default;
  const Mesh& mesh() const { return mesh_; }
  int32_t rank() const { return rank_; }
  Coordinate coordinate() const { return mesh_.coordinate(rank_); }

  // Gives send[i] to rank ranks[i] and gets receive[i] from it; this rank is among them. What is sent must have the
  // size of what is received. Throws kIo naming the rank when one has failed, is gone, or does not answer in time.
  virtual void exchange(const std::vector<int32_t>& ranks, std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive) = 0;
  // Ends this and every later exchange of all ranks with an error that says why.
  virtual void abort(const std::string& why) = 0;

 private:
  Mesh mesh_;
  int32_t rank_;
};

// All ranks call these. Bytes of rank 0, on every rank. What every rank has for this one, by rank, of any sizes: `mine`
// are what this one has for each of them. The same where that is one for all. The flags of all ranks or-ed. All
// have come here.
void broadcast(Communicator& ranks, std::span<std::byte> bytes);
std::vector<std::vector<std::byte>> exchange_all(Communicator& ranks, std::span<const std::span<const std::byte>> mine);
std::vector<std::vector<std::byte>> gather(Communicator& ranks, std::span<const std::byte> mine);
bool any_of(Communicator& ranks, bool flag);
inline void barrier(Communicator& ranks) { any_of(ranks, false); }

// What `work` gave on each rank. Ranks that are done wait for the others however long they take. When it throws an
// Error on any rank, all throw that of the first such rank, with rank and host. Null: one rank, whose Error stays as it
// is.
std::vector<std::string> do_together(Communicator* ranks, const std::function<std::string()>& work);

// The ranks of a mesh as threads of one process, one communicator for each. A rank that waits longer than `timeout`
// seconds for another throws.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(const Mesh& mesh, double timeout = 60);

// Runs `work` for each rank in a thread of its own and waits for all. When one throws, the others' exchanges end; the
// error of the first that threw is thrown here.
void run_thread_ranks(const Mesh& mesh, const std::function<void(Communicator&)>& work, double timeout = 60);

}  // namespace octet
