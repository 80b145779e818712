// What /metrics shows. Names behind the prefix are those of vLLM's, so that dashboards fit either.
#pragma once

#include <map>

#include "octet/engine.h"
#include "serve/front.h"
#include "serve/metrics.h"
#include "serve/request_log.h"

namespace octet::serve {

class ServerMetrics final : public FrontWatch {
 public:
  ServerMetrics(const std::string& prefix, Engine& engine, const std::function<int64_t()>& waiting,
                const RequestLog& log);

  void refused(const std::string& reason);
  void refused(const Refusal& refusal) override { refused(refusal.reason); }
  void ignored_fields(int64_t count) { ignored_.add(static_cast<double>(count)); }
  void finished(const std::vector<RequestTimes>& times, double queued, FinishReason reason) override;
  void between(double seconds, int64_t tokens) override { between_.observe(seconds, tokens); }
  std::string print() const { return metrics_.print(); }

 private:
  Metrics metrics_;
  std::map<std::string, Counter*> refused_, finished_;
  Counter& ignored_;
  Histogram &first_, &between_, &queue_, &whole_;
};

}  // namespace octet::serve
