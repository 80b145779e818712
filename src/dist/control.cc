// The operations, each one call of all ranks that rank 0 answers.
#include "dist/control.h"

#include <algorithm>

#include "base/error.h"
#include "dist/control_thread.h"

namespace octet {
namespace {

// What is wrong with the values of all ranks; "" when they are equal. Lines are cut to what a terminal shows.
std::string differences(std::string_view name, const std::vector<std::string>& values) {
  std::vector<size_t> ranks;
  for (size_t rank = 1; rank < values.size(); ++rank)
    if (values[rank] != values[0]) ranks.push_back(rank);
  if (ranks.empty()) return "";
  const std::string &theirs = values[ranks[0]], &ours = values[0];
  const auto at = static_cast<size_t>(std::ranges::mismatch(theirs, ours).in1 - theirs.begin());
  const auto line = [at](const std::string& text) -> std::string {
    if (at >= text.size()) return "the end";
    const size_t newline = at == 0 ? text.npos : text.rfind('\n', at - 1);
    const size_t begin = std::max(newline == text.npos ? 0 : newline + 1, at < 80 ? 0 : at - 80);
    return fmt::format("'{}'", text.substr(begin, std::min(text.find('\n', at) - begin, size_t{160})));
  };
  return fmt::format("{}: rank{} {} of {} differ{} from rank 0: line {} is {} on rank {}, {} on rank 0", name,
                     ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "), values.size(), ranks.size() > 1 ? "" : "s",
                     1 + std::ranges::count(ours.substr(0, at), '\n'), line(theirs), ranks[0], line(ours));
}

std::string nothing(const std::vector<std::string>&) { return ""; }

}  // namespace

Control::Control(const RankIdentity& identity, ControlOptions options)
    : thread_(std::make_unique<ControlThread>(identity, std::move(options))) {}

Control::~Control() = default;

void Control::compare(std::string_view name, std::string_view value) {
  const std::string wrong = thread_->call(
      "compare", name, value, [&](const auto& values) { return differences(name, values); },
      [](const std::string& answer) { return !answer.empty(); });
  if (!wrong.empty()) thread_->fail_operations(ErrorCode::kInvalidArgument, wrong);
}

std::string Control::broadcast(std::string_view name, std::string_view bytes) {
  return thread_->call("broadcast", name, thread_->rank() == 0 ? bytes : "",
                       [](const auto& values) { return values[0]; });
}

void Control::send_parcel(int32_t to, std::span<const std::byte> bytes) { thread_->send_parcel(to, bytes); }

void Control::take_parcel(int32_t from, std::span<std::byte> bytes) { thread_->take_parcel(from, bytes); }

std::vector<std::byte> Control::next_parcel(int32_t from) { return thread_->next_parcel(from); }

std::vector<uint64_t> Control::graphs() { return thread_->graphs(); }

void Control::note(int64_t step, std::string_view graph) { thread_->note(step, graph); }

void Control::give_up(const std::string& why) { thread_->give_up(why); }

void Control::close() {
  thread_->call("close", "", "", nothing, [](const std::string&) { return true; });
}

}  // namespace octet
