#include "serve/trace_export.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "serve/api.h"
#include "serve/http_client.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr RecordQueue::Options kQueue = {.most = 8192, .batch = 512};
constexpr double kTimeout = 5;
constexpr int kServerKind = 2, kErrorStatus = 2;

// Attributes in the JSON form of protocol buffers, where 64-bit numbers are texts.
class Attributes {
 public:
  void add(const char* key, const std::string& text) { put(key, {{"stringValue", text}}); }
  void add(const char* key, int64_t number) { put(key, {{"intValue", std::to_string(number)}}); }
  void add(const char* key, double number) { put(key, {{"doubleValue", number}}); }
  void add(const char* key, const std::vector<std::string>& texts) {
    Json values = Json::array();
    for (const std::string& text : texts) values.push_back({{"stringValue", text}});
    put(key, {{"arrayValue", {{"values", std::move(values)}}}});
  }
  Json take() { return std::move(list_); }

 private:
  void put(const char* key, Json value) { list_.push_back({{"key", key}, {"value", std::move(value)}}); }
  Json list_ = Json::array();
};

void add_generation(const RequestRecord& record, Attributes& attributes) {
  attributes.add("gen_ai.operation.name", record.operation);
  attributes.add("gen_ai.provider.name", "octet");
  attributes.add("gen_ai.request.model", record.model);
  attributes.add("gen_ai.request.max_tokens", record.max_tokens);
  attributes.add("gen_ai.request.temperature", record.temperature);
  attributes.add("gen_ai.request.top_p", record.top_p);
  if (record.choices != 1) attributes.add("gen_ai.request.choice.count", record.choices);
  if (!record.reply_id.empty()) attributes.add("gen_ai.response.id", record.reply_id);
  if (record.finished.empty()) return;
  std::vector<std::string> reasons;
  for (const FinishReason reason : record.finished) reasons.emplace_back(finish_name(reason));
  attributes.add("gen_ai.response.finish_reasons", reasons);
  attributes.add("gen_ai.usage.input_tokens", record.prompt_tokens);
  attributes.add("gen_ai.usage.cache_read.input_tokens", record.cached_tokens);
  attributes.add("gen_ai.usage.output_tokens", record.output_tokens);
  if (record.scheduled > 0) attributes.add("gen_ai.latency.time_in_queue", record.scheduled);
  if (record.first_token > 0) attributes.add("gen_ai.latency.time_to_first_token", record.first_token);
  if (record.last_token > 0) attributes.add("gen_ai.latency.e2e", record.last_token);
}

std::string nanoseconds(double seconds) { return std::to_string(static_cast<int64_t>(seconds * 1e6) * 1000); }

Json span_json(const RequestRecord& record) {
  Attributes attributes;
  attributes.add("http.request.method", record.method);
  attributes.add("url.path", record.path);
  if (!record.route.empty()) attributes.add("http.route", record.route);
  attributes.add("http.response.status_code", int64_t{record.outcome.status});
  attributes.add(
      "client.address",
      record.peer.substr(0, record.peer.find(':', record.peer.starts_with('[') ? record.peer.find(']') : 0)));
  attributes.add("gen_ai.request.id", record.id);
  if (!record.error.empty()) attributes.add("error.type", record.error);
  if (!record.operation.empty()) add_generation(record, attributes);
  Json span = {{"traceId", record.trace.trace}, {"spanId", record.trace.span}};
  if (!record.trace.parent.empty()) span["parentSpanId"] = record.trace.parent;
  if (!record.trace.state.empty()) span["traceState"] = record.trace.state;
  span["flags"] = 1;
  span["name"] = record.operation.empty() ? fmt::format("{} {}", record.method, record.route)
                                          : fmt::format("{} {}", record.operation, record.model);
  span["kind"] = kServerKind;
  span["startTimeUnixNano"] = nanoseconds(record.time);
  span["endTimeUnixNano"] = nanoseconds(record.time + record.outcome.seconds);
  span["attributes"] = attributes.take();
  if (record.outcome.status >= 500 || (record.outcome.status < 400 && !record.error.empty()))
    span["status"] = {{"code", kErrorStatus}};
  return span;
}

// Of "name=value,name=value", values with % and two hex digits for other bytes.
HttpFields read_headers(const std::string& text) {
  HttpFields fields;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const size_t equals = one.find('=');
    check(equals != std::string::npos && equals > 0, ErrorCode::kInvalidArgument,
          "OTEL_EXPORTER_OTLP_HEADERS: header {} has no '=' (want name=value,name=value)", fields.size() + 1);
    std::string value;
    for (size_t i = equals + 1; i < one.size(); ++i) {
      const bool escaped =
          one[i] == '%' && i + 2 < one.size() && std::isxdigit(one[i + 1]) && std::isxdigit(one[i + 2]);
      value += escaped ? static_cast<char>(std::stoi(one.substr(i + 1, 2), nullptr, 16)) : one[i];
      if (escaped) i += 2;
    }
    fields.push_back({one.substr(0, equals), value});
    at = end + 1;
  }
  return fields;
}

}  // namespace

OtlpOptions read_otlp_options(const std::string& endpoint, const std::function<const char*(const char*)>& environment) {
  const auto variable = [&](const char* name) {
    const char* value = environment(name);
    return std::string(value != nullptr ? value : "");
  };
  OtlpOptions options{.url = endpoint};
  const std::string base = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
  if (endpoint.empty() && !base.empty()) options.url = base + (base.ends_with('/') ? "v1/traces" : "/v1/traces");
  if (options.url.empty()) return options;
  const size_t scheme = options.url.find("://");
  check(options.url.starts_with("http://") || options.url.starts_with("https://"), ErrorCode::kInvalidArgument,
        "OTLP endpoint '{}': want a URL of http:// or https://, such as http://localhost:4318", options.url);
  if (const size_t slash = options.url.find('/', scheme + 3); slash == std::string::npos) {
    options.url += "/v1/traces";
  } else if (slash + 1 == options.url.size()) {
    options.url += "v1/traces";
  }
  options.headers = read_headers(variable("OTEL_EXPORTER_OTLP_HEADERS"));
  if (const std::string name = variable("OTEL_SERVICE_NAME"); !name.empty()) options.service = name;
  return options;
}

std::string otlp_json(const std::vector<RecordQueue::Record>& records, const OtlpOptions& options) {
  Attributes resource;
  resource.add("service.name", options.service);
  if (!options.version.empty()) resource.add("service.version", options.version);
  Json spans = Json::array();
  for (const RecordQueue::Record& record : records) spans.push_back(span_json(*record));
  Json scope = {{"scope", {{"name", "octet"}}}, {"spans", std::move(spans)}};
  Json all = {{"resource", {{"attributes", resource.take()}}}, {"scopeSpans", Json::array({std::move(scope)})}};
  return dump({{"resourceSpans", Json::array({std::move(all)})}});
}

TraceExporter::TraceExporter(const OtlpOptions& options)
    : options_(options),
      queue_({.most = kQueue.most, .batch = kQueue.batch, .delay = options.delay},
             [this](const auto& records) { send(records); }) {}

void TraceExporter::add(RecordQueue::Record record) {
  if (record->trace.sampled && !record->probe) queue_.add(std::move(record));
}

void TraceExporter::send(const std::vector<RecordQueue::Record>& records) {
  const HttpAnswer answer = post(options_.url, otlp_json(records, options_), options_.headers, kTimeout);
  const bool failed = answer.status < 200 || answer.status > 299;
  if (failed) queue_.drop(records.size());
  if (failed && !failing_)
    log_warning("cannot send traces to {}: {}; spans are dropped", options_.url,
                answer.status == 0 ? answer.error : fmt::format("status {}", answer.status));
  failing_ = failed;
}

}  // namespace octet::serve
