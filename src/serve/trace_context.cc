#include "serve/trace_context.h"

#include <algorithm>

#include "serve/api.h"

namespace octet::serve {
namespace {

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) { return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos; }

}  // namespace

TraceContext read_trace_context(std::string_view given, std::string_view tracestate) {
  TraceContext context{.trace = make_id(""), .span = make_id("").substr(0, 16)};
  // version-trace-parent-flags: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
  const bool known = given.size() >= 55 && given[2] == '-' && given[35] == '-' && given[52] == '-' &&
                     is_hex(given.substr(0, 2)) && !given.starts_with("ff") && is_id(given.substr(3, 32)) &&
                     is_id(given.substr(36, 16)) && is_hex(given.substr(53, 2)) &&
                     (given.size() == 55 || (!given.starts_with("00") && given[55] == '-'));
  if (!known) return context;
  context.trace = given.substr(3, 32), context.parent = given.substr(36, 16);
  context.state = tracestate.substr(0, 512);
  const char flags = given[54];
  context.sampled = ((flags <= '9' ? flags - '0' : flags - 'a' + 10) & 1) != 0;
  return context;
}

}  // namespace octet::serve
