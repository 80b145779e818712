#include "dist/control_ranks.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

class ControlRank final : public Communicator {
 public:
  ControlRank(Control& control, const Mesh& mesh, int32_t rank) : Communicator(mesh, rank), control_(control) {}

  void exchange(const std::vector<int32_t>& ranks, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    for (size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] != rank()) control_.send_parcel(ranks[i], send[i]);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] != rank()) {
        control_.take_parcel(ranks[i], receive[i]);
      } else {
        check(send[i].size() == receive[i].size(), ErrorCode::kInternal, "rank {} sends itself {} bytes, expects {}",
              rank(), send[i].size(), receive[i].size());
        std::ranges::copy(send[i], receive[i].begin());
      }
    }
  }

  void abort(const std::string& why) override { control_.give_up(why); }

 private:
  Control& control_;
};

}  // namespace

std::unique_ptr<Communicator> make_control_ranks(Control& control, const Mesh& mesh, int32_t rank) {
  return std::make_unique<ControlRank>(control, mesh, rank);
}

}  // namespace octet
