// Spans of requests, sent to an OpenTelemetry collector by OTLP over HTTP as JSON.
#pragma once

#include <functional>
#include <string>

#include "serve/record_queue.h"

namespace octet::serve {

struct OtlpOptions {
  std::string url = {};  // that takes traces; empty: none are sent
  HttpFields headers = {};
  std::string service = "octet", version = {};  // of the resource
  double delay = 5;                             // seconds that spans wait for others
};

// `endpoint`: a URL, whose path is /v1/traces where it has none; empty: what OTEL_EXPORTER_OTLP_ENDPOINT says, or no
// traces. OTEL_EXPORTER_OTLP_HEADERS and OTEL_SERVICE_NAME are read too. Throws kInvalidArgument naming what is wrong.
OtlpOptions read_otlp_options(const std::string& endpoint,
                              const std::function<const char*(const char*)>& environment = std::getenv);

class TraceExporter {
 public:
  explicit TraceExporter(const OtlpOptions& options);

  // From any thread; does not wait. Requests that are not sampled and probes have no span.
  void add(RecordQueue::Record record);
  int64_t dropped() const { return queue_.dropped(); }  // spans

 private:
  void send(const std::vector<RecordQueue::Record>& records);

  const OtlpOptions options_;
  bool failing_ = false;  // of the thread that sends
  RecordQueue queue_;
};

// The body of an export: an ExportTraceServiceRequest in the JSON form of protocol buffers.
std::string otlp_json(const std::vector<RecordQueue::Record>& records, const OtlpOptions& options);

}  // namespace octet::serve
