#include "dist/control_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace octet {
namespace {

constexpr auto kNoteInterval = std::chrono::milliseconds(50);  // to each other rank, of a rank that runs graphs
constexpr auto kFarewell = std::chrono::seconds(1);            // for last messages before connections are closed
constexpr auto kParcelGrace = std::chrono::seconds(2);         // a silent rank is found first, which says more
constexpr size_t kPart = size_t{16} << 20;                     // bytes of a parcel in one message

}  // namespace

ControlThread::ControlThread(const RankIdentity& identity, ControlOptions options)
    : identity_(identity),
      options_(std::move(options)),
      timeout_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout))),
      interval_(std::min<Clock::duration>(timeout_ / 4, std::chrono::seconds(1))),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      parcels_(static_cast<size_t>(identity.size)) {
  check(wake_.is_open(), ErrorCode::kIo, "cannot make an event descriptor: {}", std::strerror(errno));
  for (Met& met : rendezvous(identity, {options_.rendezvous_timeout, options_.build, options_.log}))
    peers_.push_back({.met = std::move(met), .heard = Clock::now()});
  if (!peers_.empty()) thread_ = std::thread([this] { run(); });
}

ControlThread::~ControlThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

std::string ControlThread::call(std::string_view operation, std::string_view name, std::string_view given,
                                const Answer& answer, const IsLast& is_last) {
  std::unique_lock lock(mutex_);
  throw_failure();
  check(!ended_, ErrorCode::kInternal, "{} {} after the ranks' connections were closed", operation, name);
  const std::string title = fmt::format("{} {}", operation, name);
  const uint64_t sequence = ++sequence_;
  if (rank() != 0) {
    send_note();
    peers_[0].met.link.send({MessageType::kCall, {std::to_string(sequence), title, std::string(given)}});
    wake();
    changed_.wait(lock, [&] { return reply_.has_value() || failure_.has_value(); });
    if (!reply_) throw_failure();
    return std::exchange(reply_, std::nullopt)->field(2);
  }
  changed_.wait(lock, [&] {
    return failure_.has_value() || std::ranges::none_of(peers_, [](const Peer& peer) { return peer.calls.empty(); });
  });
  throw_failure();
  std::vector<std::string> all = {std::string(given)};
  for (Peer& peer : peers_) {
    Message call = std::move(peer.calls.front());
    peer.calls.pop_front();
    if (call.number(0) != sequence || call.field(1) != title) {
      fail_all(
          fmt::format("ranks do not call the same operations: number {} is '{}' on rank 0, "
                      "number {} is '{}' on rank {}",
                      sequence, title, call.number(0), call.field(1), peer.met.rank));
      throw_failure();
    }
    all.push_back(call.field(2));
  }
  std::string result = answer(all);
  ended_ = is_last(result);
  send_note();
  for (Peer& peer : peers_)
    peer.met.link.send({MessageType::kReply, {std::to_string(sequence), ended_ ? "last" : "", result}});
  wake();
  return result;
}

void ControlThread::send_parcel(int32_t to, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  throw_failure();
  check(!ended_, ErrorCode::kInternal, "a parcel to rank {} after the ranks' connections were closed", to);
  send_new_note();
  Link& link = peers_[rank() == 0 ? static_cast<size_t>(to - 1) : 0].met.link;
  const std::string other = std::to_string(rank() == 0 ? 0 : to), size = std::to_string(bytes.size());
  for (size_t at = 0; at == 0 || at < bytes.size(); at += kPart) {
    const std::span<const std::byte> part = bytes.subspan(at, std::min(bytes.size() - at, kPart));
    link.send({MessageType::kParcel, {other, size, {reinterpret_cast<const char*>(part.data()), part.size()}}});
  }
  wake();
}

void ControlThread::take_parcel(int32_t from, std::span<std::byte> bytes) {
  std::unique_lock lock(mutex_);
  std::deque<Message>& parts = parcels_[static_cast<size_t>(from)];
  for (size_t at = 0; at == 0 || at < bytes.size(); at += kPart) {
    const bool came = changed_.wait_for(lock, timeout_ + kParcelGrace, [&] { return !parts.empty() || failure_; });
    throw_failure();
    check(came, ErrorCode::kIo, "rank {} has waited {} s for rank {}", rank(),
          std::chrono::duration<double>(timeout_ + kParcelGrace).count(), from);
    const Message part = std::move(parts.front());
    parts.pop_front();
    check(part.number(1) == bytes.size() && part.field(2).size() == std::min(bytes.size() - at, kPart),
          ErrorCode::kInternal, "rank {} sent {} bytes, rank {} expects {}: they do not run the same exchanges", from,
          part.number(1), rank(), bytes.size());
    std::ranges::copy(std::as_bytes(std::span(part.field(2))), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

std::vector<std::byte> ControlThread::next_parcel(int32_t from) {
  std::vector<std::byte> bytes;
  {
    std::unique_lock lock(mutex_);
    const std::deque<Message>& parts = parcels_[static_cast<size_t>(from)];
    changed_.wait(lock, [&] { return !parts.empty() || failure_; });
    throw_failure();
    bytes.resize(parts.front().number(1));
  }
  take_parcel(from, bytes);
  return bytes;
}

std::vector<uint64_t> ControlThread::graphs() {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> graphs = {own_note().graphs};
  for (const Peer& peer : peers_) graphs.push_back(peer.note.graphs);
  return graphs;
}

void ControlThread::note(int64_t step, std::string_view graph) {
  bool was_new = true;
  {
    const std::lock_guard lock(note_mutex_);
    note_.step = step, note_.graph = graph, ++note_.graphs;
    was_new = std::exchange(note_is_new_, true);
  }
  if (!was_new && !peers_.empty()) wake();
}

void ControlThread::give_up(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (over()) return;
  const std::string reason = "gave up: " + why;
  if (rank() == 0) {
    fail_all(where(0, identity_.host, own_note(), reason));
  } else {
    send_note();
    peers_[0].met.link.send({MessageType::kGiveUp, {reason}});
    failure_.emplace(ErrorCode::kIo, where(rank(), identity_.host, own_note(), reason));
  }
  wake();
}

void ControlThread::fail_operations(ErrorCode code, const std::string& why) {
  const std::lock_guard lock(mutex_);
  failure_.emplace(code, why);
  throw Error(*failure_);
}

void ControlThread::throw_failure() const {
  if (failure_) throw Error(*failure_);
}

void ControlThread::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.descriptor(), &one, sizeof one);
}

std::string ControlThread::where(int32_t rank, const std::string& host, const Note& note,
                                 const std::string& what) const {
  const std::string ran = note.graphs == 0 ? "it had run no graph"
                                           : fmt::format("it was in step {}, graph {} (number {} of its run)",
                                                         note.step, note.graph, note.graphs);
  return fmt::format("rank {} of {} on {} {}; {}", rank, identity_.size, host, what, ran);
}

void ControlThread::run() {
  std::unique_lock lock(mutex_);
  try {
    while (!over()) turn(lock);
  } catch (const std::exception& error) {
    fail_all(where(rank(), identity_.host, own_note(), fmt::format("failed: {}", error.what())));
  }
  for (Peer& peer : peers_) say_farewell(peer);
  if (lost_ && options_.on_lost) {
    const std::string why = failure_->message();
    lock.unlock();
    options_.on_lost(why);
    lock.lock();
  }
  // A socket closed with unread bytes would take our last messages with it: read until the other side has closed too.
  const auto deadline = Clock::now() + kFarewell;
  while (std::ranges::any_of(peers_, [](const Peer& peer) { return peer.met.link.is_open(); })) {
    const std::vector<pollfd> polled = wait(lock, deadline);
    for (size_t i = 0; i < peers_.size(); ++i) {
      Link& link = peers_[i].met.link;
      say_farewell(peers_[i]);
      if (link.is_open() && ((polled[i].revents != 0 && !link.fill()) || Clock::now() >= deadline)) link.close();
    }
  }
}

std::vector<pollfd> ControlThread::wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  std::vector<pollfd> polled;
  for (const Peer& peer : peers_) {
    const Link& link = peer.met.link;
    polled.push_back({.fd = link.socket().descriptor(),  // -1, once closed, is passed over
                      .events = static_cast<short>(link.flushed() ? POLLIN : POLLIN | POLLOUT)});
  }
  polled.push_back({.fd = wake_.descriptor(), .events = POLLIN});
  lock.unlock();
  poll(polled.data(), polled.size(), milliseconds_until(deadline));
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.descriptor(), &count, sizeof count);
  lock.lock();
  return polled;
}

void ControlThread::turn(std::unique_lock<std::mutex>& lock) {
  auto deadline = next_note();
  for (const Peer& peer : peers_) deadline = std::min(deadline, peer.heard + timeout_);
  const std::vector<pollfd> polled = wait(lock, deadline);
  if (Clock::now() >= next_note()) send_note();
  for (size_t i = 0; i < peers_.size() && !over(); ++i) attend(peers_[i], polled[i].revents);
}

void ControlThread::attend(Peer& peer, int events) {
  Link& link = peer.met.link;
  bool open = true;
  try {
    if ((events & ~POLLOUT) != 0) {
      open = link.fill();
      peer.heard = Clock::now();
      while (auto message = link.next()) on_message(peer, std::move(*message));
    }
    open = link.flush() && open;
  } catch (const Error& error) {
    return lose(peer, "sent " + error.message());
  }
  if (!open) return lose(peer, "has ended or closed its connection");
  if (Clock::now() >= peer.heard + timeout_) lose(peer, fmt::format("was silent for {} s", options_.timeout));
}

void ControlThread::on_message(Peer& peer, Message message) {
  const bool first = rank() == 0;
  if (message.type == MessageType::kHeartbeat) {
    peer.note = {static_cast<int64_t>(message.number(0)), message.field(1), message.number(2)};
  } else if (message.type == MessageType::kCall && first) {
    message.number(0), message.field(2);
    peer.calls.push_back(std::move(message));
  } else if (message.type == MessageType::kGiveUp && first) {
    lose(peer, message.field(0));
  } else if (message.type == MessageType::kReply && !first) {
    ended_ = message.field(1) == "last";
    message.field(2);
    reply_ = std::move(message);
  } else if (message.type == MessageType::kParcel) {
    hear_parcel(peer, std::move(message));
  } else if (message.type == MessageType::kLost && !first) {
    fail_all(message.field(0));
  } else {
    fail(ErrorCode::kCorrupt, "a message of type {} that is not due", static_cast<int>(message.type));
  }
  changed_.notify_all();
}

// Rank 0 passes on what is for others.
void ControlThread::hear_parcel(Peer& peer, Message message) {
  const uint64_t other = message.number(0);
  check(other < parcels_.size(), ErrorCode::kCorrupt, "a parcel of rank {} of {}", other, parcels_.size());
  message.number(1), message.field(2);
  if (rank() != 0 || other == 0) {
    parcels_[rank() == 0 ? static_cast<size_t>(peer.met.rank) : other].push_back(std::move(message));
  } else {
    message.fields[0] = std::to_string(peer.met.rank);
    peers_[other - 1].met.link.send(message);
  }
}

ControlThread::Note ControlThread::own_note() {
  const std::lock_guard lock(note_mutex_);
  return note_;
}

Clock::time_point ControlThread::next_note() {
  const std::lock_guard lock(note_mutex_);
  const Clock::duration soon = kNoteInterval * std::ssize(peers_);  // rank 0 has more to tell
  return noted_ + (note_is_new_ ? std::min(soon, interval_) : interval_);
}

void ControlThread::send_new_note() {
  bool is_new = false;
  {
    const std::lock_guard lock(note_mutex_);
    is_new = note_is_new_;
  }
  if (is_new) send_note();
}

void ControlThread::send_note() {
  const std::lock_guard lock(note_mutex_);
  note_is_new_ = false, noted_ = Clock::now();
  for (Peer& peer : peers_)
    peer.met.link.send(
        {MessageType::kHeartbeat, {std::to_string(note_.step), note_.graph, std::to_string(note_.graphs)}});
}

void ControlThread::lose(Peer& peer, const std::string& why) {
  peer.met.link.close();
  if (!over()) fail_all(where(peer.met.rank, peer.met.host, peer.note, why));
}

void ControlThread::fail_all(const std::string& why) {
  failure_.emplace(ErrorCode::kIo, why), lost_ = true;
  if (rank() == 0)
    for (Peer& peer : peers_) peer.met.link.send({MessageType::kLost, {why}});
  changed_.notify_all();
}

void ControlThread::say_farewell(Peer& peer) {
  Link& link = peer.met.link;
  if (!link.is_open()) return;
  if (!link.flush()) return link.close();
  if (link.flushed()) link.end_of_sending();
}

}  // namespace octet
