#include "exec/timeline.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"

namespace octet {

std::string cupti_mismatch(uint32_t found, uint32_t known) {
  constexpr uint32_t kMajor = 10000, kMinor = 100;
  if (found / kMajor != known / kMajor) return fmt::format("is version {}, not {}xxxx", found, known / kMajor);
  return found / kMinor < known / kMinor ? fmt::format("is version {}, older than {}", found, known) : "";
}

DeviceUse device_use(const std::vector<DeviceActivity>& activities) {
  if (activities.empty()) return {};
  double end = activities.front().begin, busy = 0;
  for (const DeviceActivity& activity : activities) {
    if (activity.end <= end) continue;
    busy += activity.end - std::max(end, activity.begin);
    end = activity.end;
  }
  return {.span = end - activities.front().begin, .busy = busy};
}

DeviceExchanges device_exchanges(const std::vector<DeviceActivity>& activities) {
  const auto exchanges = [](const DeviceActivity& activity) {
    return activity.name.starts_with("nccl") || activity.name == kPeerCopy ||
           activity.name.find("::peer_") != std::string::npos;
  };
  std::vector<DeviceActivity> of_ranks, kernels;
  for (const DeviceActivity& activity : activities) (exchanges(activity) ? of_ranks : kernels).push_back(activity);
  const double all = device_use(activities).busy, without = device_use(kernels).busy;
  return {.busy = device_use(of_ranks).busy, .alone = all - without};
}

std::vector<DeviceGap> device_gaps(const std::vector<DeviceActivity>& activities) {
  std::vector<DeviceGap> gaps;
  size_t last = 0;
  for (size_t i = 1; i < activities.size(); ++i) {
    const double end = activities[last].end, begin = activities[i].begin;
    if (begin > end) gaps.push_back({.begin = end, .seconds = begin - end, .after = last, .before = i});
    if (activities[i].end > end) last = i;
  }
  return gaps;
}

std::string timeline_text(const std::vector<DeviceActivity>& activities, int64_t steps, int64_t top) {
  const DeviceUse use = device_use(activities);
  const auto count = static_cast<double>(steps);
  std::string text =
      fmt::format("device timeline of {} steps: {} activities, {:.1f} us a step, device idle {:.2f} % of it\n", steps,
                  activities.size(), 1e6 * use.span / count, 100 * use.idle());
  if (const DeviceExchanges exchanges = device_exchanges(activities); exchanges.busy > 0)
    text += fmt::format("exchanges: {:.1f} us a step, {:.1f} us of it ({:.0f} %) with no kernel beside them\n",
                        1e6 * exchanges.busy / count, 1e6 * exchanges.alone / count,
                        100 * exchanges.alone / exchanges.busy);
  struct Sum {
    double seconds = 0, gap = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Sum> by_name;
  double end = activities.empty() ? 0 : activities.front().begin;
  for (const DeviceActivity& activity : activities) {
    Sum& sum = by_name[activity.name];
    sum.seconds += activity.end - activity.begin;
    sum.gap += std::max(0.0, activity.begin - end);
    end = std::max(end, activity.end);
    ++sum.calls;
  }
  std::vector<std::pair<std::string, Sum>> list(by_name.begin(), by_name.end());
  std::ranges::sort(list, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  text += fmt::format("{:>10} {:>9} {:>12} {:>14}  kernel\n", "us a step", "calls", "us a call", "us idle before");
  for (size_t i = 0; i < list.size() && i < static_cast<size_t>(top); ++i) {
    const auto& [name, sum] = list[i];
    const auto calls = static_cast<double>(sum.calls);
    text += fmt::format("{:>10.1f} {:>9.1f} {:>12.2f} {:>14.2f}  {}\n", 1e6 * sum.seconds / count, calls / count,
                        1e6 * sum.seconds / calls, 1e6 * sum.gap / calls, name.substr(0, 110));
  }
  return text;
}

std::string run_timeline_text(const std::vector<DeviceActivity>& activities, const std::vector<double>& marks,
                              int64_t first_step, int64_t top) {
  const DeviceUse use = device_use(activities);
  if (use.span == 0) return "device timeline: nothing was seen\n";
  constexpr double kWait = 20e-6;  // longer ones are not a kernel's launch: the device waits for the host
  double between = 0, longest = 0, waits = 0;
  int64_t boundaries = 0, within = 0;
  std::vector<DeviceGap> gaps = device_gaps(activities);
  const auto steps_begun = [&](double time) {
    return std::upper_bound(marks.begin(), marks.end(), time) - marks.begin();
  };
  for (const DeviceGap& gap : gaps) {
    if (steps_begun(gap.begin) < steps_begun(gap.begin + gap.seconds)) {
      between += gap.seconds;
      longest = std::max(longest, gap.seconds);
      ++boundaries;
    } else if (gap.seconds >= kWait) {
      waits += gap.seconds;
      ++within;
    }
  }
  const auto steps = static_cast<int64_t>(marks.size());
  const double idle = use.span - use.busy, share = 100 / use.span;
  std::string text = fmt::format(
      "device timeline of steps {} to {}: {:.3f} ms a step, {} activities, busy {:.2f} %, idle {:.2f} %\n"
      "  idle between steps: {:.3f} % ({} gaps, {:.1f} us each, longest {:.1f} us)\n"
      "  idle within steps: {:.3f} % in {} gaps of {:.0f} us or more, {:.3f} % in shorter ones\n",
      first_step, first_step + steps - 1, 1e3 * use.span / static_cast<double>(steps), activities.size(),
      share * use.busy, share * idle, share * between, boundaries,
      boundaries > 0 ? 1e6 * between / static_cast<double>(boundaries) : 0.0, 1e6 * longest, share * waits, within,
      1e6 * kWait, share * (idle - between - waits));
  std::ranges::sort(gaps, [](const DeviceGap& a, const DeviceGap& b) { return a.seconds > b.seconds; });
  text += fmt::format("{:>10} {:>8}  after -> before\n", "us idle", "step");
  for (size_t i = 0; i < std::min(gaps.size(), static_cast<size_t>(top)); ++i) {
    const DeviceGap& gap = gaps[i];
    const int64_t from = first_step + steps_begun(gap.begin) - 1,
                  to = first_step + steps_begun(gap.begin + gap.seconds) - 1;
    text += fmt::format("{:>10.1f} {:>8}  {} -> {}\n", 1e6 * gap.seconds,
                        from == to ? fmt::format("{}", from) : fmt::format("{}|{}", from, to),
                        activities[gap.after].name.substr(0, 70), activities[gap.before].name.substr(0, 70));
  }
  return text;
}

std::string timeline_json(const std::vector<DeviceActivity>& activities) {
  std::map<std::string, std::string> quoted;  // runs have few names and many activities
  std::string text = "{\"traceEvents\":[";
  for (size_t i = 0; i < activities.size(); ++i) {
    const DeviceActivity& activity = activities[i];
    std::string& name = quoted[activity.name];
    if (name.empty()) name = nlohmann::json(activity.name).dump();
    text += fmt::format("{}{{\"name\":{},\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":{:.3f},\"dur\":{:.3f}}}",
                        i > 0 ? ",\n" : "", name, 1e6 * (activity.begin - activities.front().begin),
                        1e6 * (activity.end - activity.begin));
  }
  return text + "]}\n";
}

}  // namespace octet
