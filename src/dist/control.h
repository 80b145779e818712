// The control plane: what ranks agree on between steps, and how they learn that one of them is lost.
//
// Every rank has a TCP connection to rank 0. Operations are called by one thread a rank, by all ranks, in the same
// order and with the same names; rank 0 answers when all have called. A thread of its own keeps a heartbeat. When a
// rank closes its connection, is silent for `timeout` seconds, or gives up, rank 0 tells all others: from then on every
// operation of every rank throws one Error (kIo) that names the lost rank, its host, step and graph, and why.
// Nothing here is for much data: all messages go through rank 0 and are at most 256 MiB.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/launch.h"

namespace octet {

struct ControlOptions {
  double rendezvous_timeout = 300;              // seconds until all ranks are there
  double timeout = 60;                          // seconds without a word of a rank, after which it is lost
  std::string build;                            // text that must be equal on all ranks
  std::function<void(const std::string&)> log;  // a line for each connection that was dropped at the start
  // Called once, by the control thread, with the error of the lost rank: ends what waits for other ranks.
  std::function<void(const std::string&)> on_lost;
};

class ControlThread;

class Control {
 public:
  // Returns when all ranks are there. Throws as rendezvous.h says. One rank needs no connection.
  explicit Control(const RankIdentity& identity, ControlOptions options = {});
  Control(const Control&) = delete;
  ~Control();  // without close(): this rank is lost to the others

  // Throws kInvalidArgument on every rank where `value` is not the same on all, naming the ranks that differ from rank
  // 0 and the first line that does. No operation is possible after that.
  void compare(std::string_view name, std::string_view value);
  std::string broadcast(std::string_view name, std::string_view bytes);  // rank 0's, on all ranks

  // Bytes from one rank to another, without the others: sending does not wait, taking waits until the parcel has come,
  // `timeout` and two seconds at most. Of each two ranks parcels come in order. Taking throws kInternal where the
  // parcel has another size than `bytes`.
  void send_parcel(int32_t to, std::span<const std::byte> bytes);
  void take_parcel(int32_t from, std::span<std::byte> bytes);
  // The next parcel of that rank, of whatever size; waits as long as no rank is lost.
  std::vector<std::byte> next_parcel(int32_t from);

  // What this rank runs from now on; for each graph of each step, from any thread. Cheap.
  void note(int64_t step, std::string_view graph);
  // On rank 0: how many graphs each rank has noted, as far as heartbeats tell.
  std::vector<uint64_t> graphs();
  // Tells all others why this rank cannot go on: their error names it. Operations throw it here too.
  void give_up(const std::string& why);
  // All ranks: the end of the run. What closes after it is no loss, and no operation is possible.
  void close();

 private:
  std::unique_ptr<ControlThread> thread_;
};

}  // namespace octet
