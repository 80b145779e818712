#include "dist/rendezvous.h"

#include <poll.h>

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

constexpr const char* kProtocol = "octet-control 1";

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

class Listener {
 public:
  Listener(const RankIdentity& identity, const RendezvousOptions& options)
      : identity_(identity), options_(options), listener_(listen_at(identity.address, identity.port)) {}

  std::vector<Met> run() {
    const auto deadline = Clock::now() + seconds(options_.timeout);
    while (const size_t missing = missing_ranks().size()) {
      if (Clock::now() >= deadline)
        refuse_all(ErrorCode::kIo, fmt::format("rank 0 on {} has waited {} s at port {} for rank{} {} of {}: start all "
                                               "ranks, with the same MASTER_ADDR and MASTER_PORT",
                                               identity_.host, options_.timeout, identity_.port, missing > 1 ? "s" : "",
                                               fmt::join(missing_ranks(), ", "), identity_.size));
      wait(deadline);
      for (Socket caller = accept_from(listener_); caller.is_open(); caller = accept_from(listener_)) {
        const std::string from = peer_of(caller);
        callers_.push_back({from, {.rank = -1, .link = Link(std::move(caller), kLongestHello)}});
      }
      for (Caller& caller : callers_) on_message(caller);
      std::erase_if(callers_, [](const Caller& caller) { return !caller.met.link.is_open(); });
    }
    std::vector<Met> all;
    for (Caller& caller : callers_)
      if (caller.met.rank > 0) all.push_back(std::move(caller.met));
    std::ranges::sort(all, {}, &Met::rank);
    for (Met& met : all) {
      met.link.set_limit(kLongestMessage);
      met.link.send({MessageType::kWelcome, {identity_.host}});
      met.link.flush();  // who is gone by now is lost later, like any other
    }
    return all;
  }

 private:
  struct Caller {
    std::string from;
    Met met;  // rank -1 until its hello
  };

  void wait(Clock::time_point deadline) const {
    std::vector<pollfd> polled = {{.fd = listener_.descriptor(), .events = POLLIN}};
    for (const Caller& caller : callers_)
      polled.push_back({.fd = caller.met.link.socket().descriptor(), .events = POLLIN});
    poll(polled.data(), polled.size(), milliseconds_until(deadline));
  }

  std::vector<int32_t> missing_ranks() const {
    std::vector<bool> here(static_cast<size_t>(identity_.size));
    for (const Caller& caller : callers_)
      if (caller.met.rank > 0) here[static_cast<size_t>(caller.met.rank)] = true;
    std::vector<int32_t> missing;
    for (int32_t rank = 1; rank < identity_.size; ++rank)
      if (!here[static_cast<size_t>(rank)]) missing.push_back(rank);
    return missing;
  }

  void on_message(Caller& caller) {
    Link& link = caller.met.link;
    try {
      const bool more = link.fill();
      if (const auto message = link.next()) {
        check(message->type == MessageType::kHello && caller.met.rank < 0, ErrorCode::kCorrupt,
              "a message of type {} where a hello is due", static_cast<int>(message->type));
        judge(*message, caller);
      }
      if (!more) drop(caller, "it was closed");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      drop(caller, "it sent " + error.message());
    }
  }

  void judge(const Message& hello, Caller& caller) {
    if (hello.field(1) != identity_.token) return refuse(caller, "it has another token: another run's?");
    const uint64_t rank = hello.number(2), size = hello.number(3);
    const std::string who = fmt::format("rank {} on {}", rank, hello.field(4));
    const auto differs = [&](std::string_view what, const auto& theirs, const auto& ours) {
      refuse_all(
          ErrorCode::kInvalidArgument,
          fmt::format("{} has {} '{}', rank 0 on {} has '{}': start the same program in the same way on all hosts", who,
                      what, theirs, identity_.host, ours));
    };
    if (hello.field(0) != kProtocol) differs("protocol", hello.field(0), kProtocol);
    if (hello.field(5) != options_.build) differs("build", hello.field(5), options_.build);
    if (size != static_cast<uint64_t>(identity_.size)) differs("number of ranks", size, identity_.size);
    if (rank == 0 || rank >= size) return refuse(caller, fmt::format("it calls itself rank {} of {}", rank, size));
    for (const Caller& other : callers_)
      if (other.met.link.is_open() && other.met.rank == static_cast<int32_t>(rank))
        return refuse(caller, fmt::format("{} is here already, from {}", who, other.from));
    caller.met.rank = static_cast<int32_t>(rank), caller.met.host = hello.field(4);
  }

  void drop(Caller& caller, const std::string& why) {
    if (!caller.met.link.is_open()) return;
    const std::string who = caller.met.rank < 0 ? "a connection" : fmt::format("rank {}", caller.met.rank);
    if (options_.log) options_.log(fmt::format("{} from {} was dropped: {}", who, caller.from, why));
    caller.met.link.close();
  }

  void refuse(Caller& caller, const std::string& why) {
    caller.met.link.send({MessageType::kRefused, {why}});
    caller.met.link.flush();
    drop(caller, why);
  }

  [[noreturn]] void refuse_all(ErrorCode code, const std::string& why) {
    for (Caller& caller : callers_) {
      caller.met.link.send({MessageType::kRefused, {why}});
      caller.met.link.flush();
    }
    throw_error(code, why);
  }

  const RankIdentity& identity_;
  const RendezvousOptions& options_;
  Socket listener_;
  std::vector<Caller> callers_;
};

std::vector<Met> join(const RankIdentity& identity, const RendezvousOptions& options) {
  const std::string where = fmt::format("rank 0 at {} port {}", identity.address, identity.port);
  Link link(connect_to(identity.address, identity.port, Clock::now() + seconds(options.timeout)));
  link.send({MessageType::kHello,
             {kProtocol, identity.token, std::to_string(identity.rank), std::to_string(identity.size), identity.host,
              options.build}});
  // Rank 0 began to wait before it took this connection, so its own verdict comes first.
  const auto deadline = Clock::now() + seconds(options.timeout) + std::chrono::seconds(5);
  for (bool more = link.flush(); more;) {
    check(wait_for(link.socket(), false, deadline), ErrorCode::kIo, "rank {}: {} has not answered for {} s",
          identity.rank, where, options.timeout + 5);
    more = link.fill();
    const auto message = link.next();
    if (!message) continue;
    check(message->type != MessageType::kRefused, ErrorCode::kInvalidArgument, "rank {} was refused by {}: {}",
          identity.rank, where, message->field(0));
    check(message->type == MessageType::kWelcome, ErrorCode::kCorrupt, "{} speaks another protocol", where);
    std::vector<Met> met;
    met.push_back({.rank = 0, .host = message->field(0), .link = std::move(link)});
    return met;
  }
  fail(ErrorCode::kIo,
       "rank {}: {} closed the connection before all ranks were there: did it fail, or does another "
       "program listen at that port?",
       identity.rank, where);
}

}  // namespace

std::vector<Met> rendezvous(const RankIdentity& identity, const RendezvousOptions& options) {
  if (identity.size == 1) return {};
  return identity.rank == 0 ? Listener(identity, options).run() : join(identity, options);
}

}  // namespace octet
