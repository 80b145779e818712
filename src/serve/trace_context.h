// The W3C trace context of a request: https://www.w3.org/TR/trace-context/
#pragma once

#include <string>
#include <string_view>

namespace octet::serve {

struct TraceContext {
  std::string trace, span;    // 32 and 16 hex digits; of this request
  std::string parent, state;  // the caller's span and its tracestate; empty: none
  bool sampled = true;
};

// Of a traceparent and tracestate. A traceparent that is missing or malformed begins a trace of its own, which is
// sampled; the caller's is sampled where its flag says so.
TraceContext read_trace_context(std::string_view traceparent, std::string_view tracestate);

}  // namespace octet::serve
