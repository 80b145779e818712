#include "train/choose_mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "passes/pass.h"

namespace octet {
namespace {

// The most data ranks, at most `limit`, that share the micro-batches of a step alike.
int64_t most_data_ranks(const RunConfig& config, int64_t limit) {
  int64_t most = 1;
  for (const int64_t ranks : divisors(config.accumulation()))
    if (ranks <= limit) most = ranks;
  return most;
}

std::string text(const RunConfig& c) {
  const std::string stages = c.pipeline > 1 ? fmt::format("parallel.pipeline={} x ", c.pipeline) : "";
  return fmt::format("{}parallel.tensor={} x parallel.data={} x parallel.context={}", stages, c.tensor, c.data_ranks,
                     c.context);
}

}  // namespace

MeshChoice choose_mesh(const RunConfig& config, int64_t count, const std::string& source) {
  RunConfig c = config;
  const auto open = std::ranges::count(std::array{c.tensor, c.data_ranks, c.context}, 0);
  check(open <= 1, ErrorCode::kInvalidArgument,
        "{}: only one of them may be 0, for what is left of {} {}; set the others to one of {}", text(c), count, source,
        fmt::join(divisors(count), ", "));
  MeshChoice choice;
  const int64_t wanted = c.pipeline * c.tensor * c.data_ranks * c.context;
  choice.fewer = wanted > count && c.restarts > 0;
  if (c.data_ranks == 0 || choice.fewer) {
    const int64_t others = c.pipeline * c.tensor * c.context;
    check(others <= count, ErrorCode::kInvalidArgument,
          "{} needs {} for every rank of parallel.data, but there are {} {}: want a multiple of {}", text(c), others,
          count, source, others);
    c.data_ranks = most_data_ranks(c, count / others);
    choice.note = fmt::format("{} {}: parallel.data={}, the largest number that divides the {} micro-batches of a step",
                              count, source, c.data_ranks, c.accumulation());
    if (choice.fewer) choice.note += fmt::format(" (the settings want {})", config.data_ranks);
    if (const int64_t over = count - c.data_ranks * others; over > 0)
      choice.note += fmt::format("; {} left over", over);
  } else if (open == 1) {
    int64_t& size = c.tensor == 0 ? c.tensor : c.context;
    size = 1;
    const int64_t others = c.pipeline * c.tensor * c.data_ranks * c.context;
    check(count % others == 0, ErrorCode::kInvalidArgument,
          "{}: {} {} are not divisible by {}: want a multiple of {}, or parallel.data x {} among {}", text(config),
          count, source, others, others, config.tensor == 0 ? "parallel.context" : "parallel.tensor",
          fmt::join(divisors(count), ", "));
    size = count / others;
    choice.note = fmt::format("{} {}: {}", count, source, text(c));
  } else {
    check(wanted <= count, ErrorCode::kInvalidArgument,
          "{} are {} ranks, but there are {} {}: want {}, or set one of them to 0, which takes what is left", text(c),
          wanted, count, source, wanted);
  }
  choice.mesh = c.mesh();
  return choice;
}

}  // namespace octet
