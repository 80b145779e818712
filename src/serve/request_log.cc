#include "serve/request_log.h"

#include <algorithm>
#include <chrono>

namespace octet::serve {

void RequestRecord::add(const std::vector<RequestTimes>& times, double queued) {
  const auto earliest = [](double& seen, double seconds) { seen = seen > 0 ? std::min(seen, seconds) : seconds; };
  for (const RequestTimes& one : times) {
    prompt_tokens += one.prompt_tokens, cached_tokens += one.cached_tokens, output_tokens += one.generated_tokens;
    if (one.scheduled > 0) earliest(scheduled, queued + one.scheduled);
    if (one.first_token > 0) earliest(first_token, queued + one.first_token);
    if (one.last_token > 0) last_token = std::max(last_token, queued + one.last_token);
  }
}

RequestLog::RequestLog(const RequestLogOptions& options) {
  if (!options.access_log.empty()) access_ = std::make_shared<AccessLog>(options.access_log);
  if (!options.traces.url.empty()) traces_ = std::make_shared<TraceExporter>(options.traces);
}

std::shared_ptr<RequestRecord> RequestLog::make() const {
  if (!access_ && !traces_) return nullptr;
  const auto give = [access = access_, traces = traces_](RequestRecord* filled) {
    const std::shared_ptr<const RequestRecord> record(filled);
    if (access) access->add(record);
    if (traces) traces->add(record);
  };
  std::shared_ptr<RequestRecord> record(new RequestRecord, give);
  record->time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return record;
}

std::shared_ptr<RequestRecord> RequestLog::begin(const HttpRequest& request, const std::string& id) const {
  std::shared_ptr<RequestRecord> record = make();
  if (record) {
    record->id = id, record->peer = request.peer, record->method = request.method;
    record->path = request.path.substr(0, 512);
    if (traces_) record->trace = read_trace_context(request.field("traceparent"), request.field("tracestate"));
  }
  return record;
}

void RequestLog::refused(const std::string& peer, const HttpOutcome& outcome) const {
  const std::shared_ptr<RequestRecord> record = make();
  if (record) record->peer = peer, record->outcome = outcome, record->trace.sampled = false;
}

void RequestLog::reopen() {
  if (access_) access_->reopen();
}

}  // namespace octet::serve
