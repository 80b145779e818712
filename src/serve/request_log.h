// Records of requests on their way to those who want them.
#pragma once

#include <memory>

#include "serve/access_log.h"
#include "serve/trace_export.h"

namespace octet::serve {

struct RequestLogOptions {
  std::string access_log = {};  // AccessLog's path; empty: none
  OtlpOptions traces = {};
};

class RequestLog {
 public:
  explicit RequestLog(const RequestLogOptions& options);

  // Given on when the last of those who hold it lets go, in any thread, which never waits; nullptr: nobody wants it.
  std::shared_ptr<RequestRecord> begin(const HttpRequest& request, const std::string& id) const;
  // A request that the connection refused.
  void refused(const std::string& peer, const HttpOutcome& outcome) const;
  // As AccessLog's.
  void reopen();
  int64_t dropped_lines() const { return access_ ? access_->dropped() : 0; }
  int64_t dropped_spans() const { return traces_ ? traces_->dropped() : 0; }

 private:
  std::shared_ptr<RequestRecord> make() const;

  // Shared with records under way.
  std::shared_ptr<AccessLog> access_;
  std::shared_ptr<TraceExporter> traces_;
};

}  // namespace octet::serve
