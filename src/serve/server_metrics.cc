#include "serve/server_metrics.h"

#include <fmt/format.h>

#include "serve/api.h"

namespace octet::serve {
namespace {

const std::vector<double> kSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                      0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
const std::vector<double> kBetween = {0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05,
                                      0.075, 0.1,    0.15,  0.2,  0.3,   0.4,  0.5,   0.75, 1,    2.5};

}  // namespace

ServerMetrics::ServerMetrics(const std::string& prefix, Engine& engine, const std::function<int64_t()>& waiting,
                             const RequestLog& log)
    : metrics_(prefix),
      ignored_(metrics_.counter("ignored_fields_total", "Unknown fields of requests, which were ignored.")),
      first_(metrics_.histogram("time_to_first_token_seconds", "Time from a request's arrival to its first token.",
                                kSeconds)),
      between_(metrics_.histogram("inter_token_latency_seconds", "Time between two tokens of a completion.", kBetween)),
      queue_(metrics_.histogram("request_queue_time_seconds", "Time from a request's arrival to its first step.",
                                kSeconds)),
      whole_(metrics_.histogram("e2e_request_latency_seconds", "Time from a request's arrival to its end.", kSeconds)) {
  for (const char* reason : {"stop", "length", "abort", "error"})
    finished_[reason] = &metrics_.counter("request_success_total", "Requests that have ended, by finish reason.",
                                          metric_label("finished_reason", reason));
  for (const char* reason : {"requests", "tokens", "texts", "queue", "wait", "key", "invalid"})
    refused_[reason] = &metrics_.counter("requests_refused_total", "Requests that were refused, by reason.",
                                         metric_label("reason", reason));
  const auto stat = [&engine](auto read) {
    return [&engine, read] { return static_cast<double>(read(engine.stats())); };
  };
  metrics_.gauge("num_requests_running", "Sequences running.", stat([](const EngineStats& s) { return s.running; }));
  metrics_.gauge("num_requests_waiting", "Sequences that wait, in the engine and before it.",
                 [&engine, waiting] { return static_cast<double>(engine.stats().waiting + waiting()); });
  metrics_.gauge(
      "kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 is all.", stat([](const EngineStats& s) {
        return s.kv_blocks > 0 ? static_cast<double>(s.kv_blocks_used) / static_cast<double>(s.kv_blocks) : 0;
      }));
  metrics_.total("prompt_tokens_total", "Prompt tokens.", stat([](const EngineStats& s) { return s.prompt_tokens; }));
  metrics_.total("generation_tokens_total", "Tokens generated.",
                 stat([](const EngineStats& s) { return s.generated_tokens; }));
  metrics_.total("num_preemptions_total", "Sequences preempted because the KV cache was full.",
                 stat([](const EngineStats& s) { return s.preemptions; }));
  metrics_.total("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
                 stat([](const EngineStats& s) { return s.prompt_tokens; }));
  metrics_.total("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
                 stat([](const EngineStats& s) { return s.cached_tokens; }));
  if (!engine.options().draft.empty()) {
    metrics_.total("spec_decode_num_drafts_total", "Drafts made.", stat([](const EngineStats& s) { return s.drafts; }));
    metrics_.total("spec_decode_num_draft_tokens_total", "Draft tokens proposed.",
                   stat([](const EngineStats& s) { return s.drafted_tokens; }));
    metrics_.total("spec_decode_num_accepted_tokens_total", "Draft tokens accepted.",
                   stat([](const EngineStats& s) { return s.accepted_tokens; }));
    for (int64_t i = 0; i < engine.options().draft_tokens; ++i)
      metrics_.total("spec_decode_num_accepted_tokens_per_pos_total", "Draft tokens accepted, by position.",
                     stat([i](const EngineStats& s) { return s.accepted_at[static_cast<size_t>(i)]; }),
                     metric_label("position", std::to_string(i)));
    metrics_.gauge("draft_failed", "1: the draft model has failed, and speculation is off.",
                   stat([](const EngineStats& s) { return s.draft_failed; }));
  }
  if (engine.options().max_adapters > 0)
    metrics_.info(
        "lora_requests_info",
        "Adapters of requests that run and that wait, and how many fit the device; when this was.",
        [&engine] {
          std::string running, waiting;
          const auto add = [](std::string& names, const std::string& name) {
            names += (names.empty() ? "" : ",") + name;
          };
          for (const AdapterFacts& adapter : engine.adapters()) {
            if (adapter.running > 0) add(running, adapter.name);
            if (adapter.waiting > 0) add(waiting, adapter.name);
          }
          return fmt::format("{},{},{}", metric_label("max_lora", std::to_string(engine.options().max_adapters)),
                             metric_label("running_lora_adapters", running),
                             metric_label("waiting_lora_adapters", waiting));
        },
        [] { return static_cast<double>(unix_seconds()); });
  metrics_.total("access_log_dropped_total", "Lines of the access log that were dropped.",
                 [&log] { return static_cast<double>(log.dropped_lines()); });
  metrics_.total("trace_spans_dropped_total", "Spans that did not reach the collector.",
                 [&log] { return static_cast<double>(log.dropped_spans()); });
  metrics_.gauge(
      "cache_config_info", "Blocks of the KV cache.", [] { return 1.0; },
      metric_label("block_size", std::to_string(engine.options().block_size)) + "," +
          metric_label("num_gpu_blocks", std::to_string(engine.stats().kv_blocks)));
}

void ServerMetrics::refused(const std::string& reason) {
  const auto found = refused_.find(reason);
  (found != refused_.end() ? found : refused_.find("invalid"))->second->add();
}

void ServerMetrics::finished(const std::vector<RequestTimes>& times, double queued, FinishReason reason) {
  const bool failed = reason == FinishReason::kError || reason == FinishReason::kTimeout;
  finished_.at(failed ? "error" : finish_name(reason))->add();
  for (const RequestTimes& one : times) {
    if (one.first_token > 0) first_.observe(queued + one.first_token);
    if (one.scheduled > 0) queue_.observe(queued + one.scheduled);
    if (one.last_token > 0) whole_.observe(queued + one.last_token);
  }
}

}  // namespace octet::serve
