#include "dist/joined_rank.h"

#include <new>

#include "base/error.h"
#include "base/log.h"
#include "dist/control_ranks.h"
#include "dist/open_mpi.h"

namespace octet {

JoinedRank::JoinedRank(const RankIdentity& identity, JoinOptions options) : options_(std::move(options)) {
  RankIdentity joining = identity;
  joining.size = options_.mesh.ranks();
  control_ =
      std::make_unique<Control>(joining, ControlOptions{.rendezvous_timeout = 5 * options_.timeout,
                                                        .timeout = options_.timeout,
                                                        .build = options_.build,
                                                        .log = [](const std::string& line) { log_warning("{}", line); },
                                                        .on_lost = [this](const std::string& why) { on_lost(why); }});
  guard([&] { open(identity); });
}

JoinedRank::~JoinedRank() {
  const std::lock_guard lock(mutex_);
  joined_ = nullptr;
}

// Exchanges go under MPI by its own way, else through the control plane: for GPUs they are what hosts tell each other,
// for CPUs all. MPI wants every process that it started, so that ranks cannot leave before the end.
void JoinedRank::open(const RankIdentity& identity) {
  control_->compare("settings", options_.settings);
  const bool all = options_.mesh.ranks() == identity.size;
  const bool mpi = all && !options_.devices.make && identity.mpi;
  // MPI's limit is later than that of the control plane, which knows more of a rank that is silent.
  ranks_ =
      mpi ? open_mpi(options_.mesh, options_.timeout + 2) : make_control_ranks(*control_, options_.mesh, identity.rank);
  rank_.ranks = ranks_.get();
  rank_.check = [this] {
    check();
    if (options_.check) options_.check();
  };
  if (!options_.devices.make) {
    const std::lock_guard lock(mutex_);
    octet::check(lost_.empty(), ErrorCode::kIo, "{}", lost_);
    joined_ = ranks_.get();
    return;
  }
  octet::check(identity.local_rank < options_.devices.usable, ErrorCode::kInvalidArgument,
               "rank {} is number {} on {}, where {} GPUs can be used: start as many ranks as there are GPUs",
               identity.rank, identity.local_rank, identity.host, options_.devices.usable);
  rank_.device = identity.local_rank;
  devices_ = options_.devices.make(*ranks_, rank_.device, rank_.check);
  rank_.devices = devices_.get();
}

void JoinedRank::on_lost(const std::string& why) {
  const std::lock_guard lock(mutex_);
  lost_ = why;
  if (joined_ != nullptr) joined_->abort(why);
}

void JoinedRank::guard(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    control_->give_up(dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what());
    throw;
  }
}

void JoinedRank::check() const {
  const std::lock_guard lock(mutex_);
  octet::check(lost_.empty(), ErrorCode::kIo, "{}", lost_);
}

}  // namespace octet
