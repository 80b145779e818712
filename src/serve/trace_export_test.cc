#include "serve/trace_export.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "base/testing/test_error.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

// Keeps what it is sent; answers with `status`, or with 500 once it is released.
class Collector {
 public:
  explicit Collector(int status = 200)
      : status_(status), http_({.port = 0}, [this](const HttpRequest& request, const HttpReply& reply) {
          const std::lock_guard lock(mutex_);
          requests_.push_back(request);
          kept_.push_back(reply);
          if (status_ != 0) kept_.back().send(status_, "application/json", "{}");
          arrived_.notify_all();
        }) {}

  std::string url() const { return "http://127.0.0.1:" + std::to_string(http_.port()); }
  std::vector<HttpRequest> wait(size_t count) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return requests_.size() >= count; });
    return requests_;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    status_ = 500;
    kept_.clear();
  }

 private:
  int status_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<HttpRequest> requests_;
  std::vector<HttpReply> kept_;
  HttpServer http_;
};

ServerOptions traced(const std::string& url, double delay = 0) {
  ServerOptions options;
  options.log.traces = {.url = url + "/v1/traces", .headers = {{"X-Token", "secret"}}, .service = "it"};
  options.log.traces.delay = delay;
  return options;
}

Json span_of(const HttpRequest& request) {
  return Json::parse(request.body)["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
}

std::map<std::string, Json> attributes_of(const Json& object) {
  std::map<std::string, Json> all;
  for (const Json& one : object["attributes"]) all[one["key"]] = one["value"].begin().value();
  return all;
}

TEST(TraceExport, ASpanSaysWhatWasAskedAndAnswered) {
  Collector collector;
  const TinyServer tiny(traced(collector.url()));
  const Json reply = tiny.complete({{"prompt", "BCD"},
                                    {"model", "tiny"},
                                    {"max_tokens", 5},
                                    {"ignore_eos", true},
                                    {"temperature", 0.5},
                                    {"n", 2}},
                                   "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
                                   "tracestate: a=b\r\nX-Request-Id: mine\r\n")
                         .json();
  const HttpRequest sent = collector.wait(1)[0];
  EXPECT_EQ(sent.path, "/v1/traces");
  EXPECT_EQ(sent.field("Content-Type"), "application/json");
  EXPECT_EQ(sent.field("X-Token"), "secret");
  EXPECT_EQ(attributes_of(Json::parse(sent.body)["resourceSpans"][0]["resource"])["service.name"], "it");
  const Json span = span_of(sent);
  EXPECT_EQ(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(span["parentSpanId"], "00f067aa0ba902b7");
  EXPECT_EQ(span["traceState"], "a=b");
  EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
  EXPECT_EQ(span["name"], "text_completion tiny");
  EXPECT_EQ(span["kind"], 2);
  EXPECT_FALSE(span.contains("status"));
  EXPECT_GT(std::stoll(span["endTimeUnixNano"].get<std::string>()),
            std::stoll(span["startTimeUnixNano"].get<std::string>()));
  auto is = attributes_of(span);
  EXPECT_EQ(is["gen_ai.operation.name"], "text_completion");
  EXPECT_EQ(is["gen_ai.request.model"], "tiny");
  EXPECT_EQ(is["gen_ai.request.max_tokens"], "5");
  EXPECT_EQ(is["gen_ai.request.temperature"], 0.5);
  EXPECT_EQ(is["gen_ai.request.top_p"], 1);
  EXPECT_EQ(is["gen_ai.request.choice.count"], "2");
  EXPECT_EQ(is["gen_ai.request.id"], "mine");
  EXPECT_EQ(is["gen_ai.response.id"], reply["id"]);
  EXPECT_EQ(is["gen_ai.usage.input_tokens"], "3");
  EXPECT_EQ(is["gen_ai.usage.output_tokens"], "10");
  EXPECT_EQ(is["gen_ai.response.finish_reasons"]["values"],
            Json::parse(R"([{"stringValue": "length"}, {"stringValue": "length"}])"));
  EXPECT_EQ(is["http.response.status_code"], "200");
  EXPECT_EQ(is["http.route"], "/v1/completions");
  EXPECT_EQ(is["client.address"], "127.0.0.1");
  EXPECT_GT(is["gen_ai.latency.time_in_queue"], 0);
  EXPECT_GE(is["gen_ai.latency.time_to_first_token"], is["gen_ai.latency.time_in_queue"]);
  EXPECT_GE(is["gen_ai.latency.e2e"], is["gen_ai.latency.time_to_first_token"]);
}

TEST(TraceExport, ErrorsHaveAStatusAndProbesAndUnsampledNone) {
  Collector collector;
  const TinyServer tiny(traced(collector.url()), {.limits = fake_limits(), .fail_step = 1});
  EXPECT_EQ(tiny.ask("GET", "/livez").status, 200);
  EXPECT_EQ(
      tiny.ask("GET", "/v1/models", "", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n")
          .status,
      200);
  EXPECT_EQ(tiny.complete({{"prompt", "B"}, {"stream", true}}).status, 503);
  const Json span = span_of(collector.wait(1)[0]);
  EXPECT_EQ(span["status"]["code"], 2);
  EXPECT_EQ(attributes_of(span)["error.type"], "device");
  EXPECT_FALSE(span.contains("parentSpanId"));
}

TEST(TraceExport, ManySpansGoTogether) {
  Collector collector;
  TraceExporter exporter({.url = collector.url(), .delay = 3600});
  for (int i = 0; i < 512; ++i) {
    auto record = std::make_shared<RequestRecord>();
    record->trace = read_trace_context("", "");
    exporter.add(record);
  }
  EXPECT_EQ(Json::parse(collector.wait(1)[0].body)["resourceSpans"][0]["scopeSpans"][0]["spans"].size(), 512u);
}

TEST(TraceExport, ACollectorThatIsAwayDelaysNoReplyAndIsCounted) {
  std::string nobody;
  {
    const Collector gone;
    nobody = gone.url();
  }
  Collector refuses(500);
  for (const std::string& url : {nobody, refuses.url()}) {
    const TinyServer tiny(traced(url));
    EXPECT_EQ(tiny.complete({{"prompt", "B"}}).status, 200);
    ASSERT_TRUE(eventually([&] {
      return tiny.ask("GET", "/metrics").body.find("octet_trace_spans_dropped_total 1\n") != std::string::npos;
    }));
  }
}

TEST(TraceExport, ACollectorThatHangsDelaysNoReply) {
  Collector hangs(0);
  const TinyServer tiny(traced(hangs.url()));
  EXPECT_EQ(tiny.complete({{"prompt", "B"}}).status, 200);
  hangs.wait(1);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(tiny.complete({{"prompt", "B"}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(hangs.wait(1).size(), 1u) << "replies came while the export ran";
  hangs.release();
}

TEST(TraceContext, FollowsTheStandard) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", parent = "00f067aa0ba902b7";
  const auto known = [&](const std::string& text) { return read_trace_context(text, "").parent == parent; };
  EXPECT_TRUE(known("00-" + trace + "-" + parent + "-01"));
  EXPECT_TRUE(known("cc-" + trace + "-" + parent + "-01-what-comes"));
  EXPECT_FALSE(known("00-" + trace + "-" + parent + "-01-what-comes"));
  EXPECT_FALSE(known("ff-" + trace + "-" + parent + "-01"));
  EXPECT_FALSE(known("00-" + std::string(32, '0') + "-" + parent + "-01"));
  EXPECT_FALSE(known("00-" + trace + "-" + std::string(16, '0') + "-01"));
  EXPECT_FALSE(known("00-4BF92F3577B34DA6A3CE929D0E0E4736-" + parent + "-01"));
  EXPECT_FALSE(known("00-" + trace + "-" + parent));
  EXPECT_TRUE(read_trace_context("00-" + trace + "-" + parent + "-03", "").sampled);
  EXPECT_FALSE(read_trace_context("00-" + trace + "-" + parent + "-02", "").sampled);
  EXPECT_TRUE(read_trace_context("rubbish", "").sampled);
}

TEST(OtlpOptions, ComeFromTheOptionAndTheEnvironment) {
  std::map<std::string, std::string> variables;
  const auto read = [&](const std::string& endpoint) {
    return read_otlp_options(endpoint, [&](const char* name) -> const char* {
      return variables.contains(name) ? variables[name].c_str() : nullptr;
    });
  };
  EXPECT_EQ(read("").url, "");
  EXPECT_EQ(read("http://a:4318").url, "http://a:4318/v1/traces");
  EXPECT_EQ(read("http://a:4318/").url, "http://a:4318/v1/traces");
  EXPECT_EQ(read("https://a/my/traces").url, "https://a/my/traces");
  EXPECT_NE(error_of([&] { read("a:4317"); }).find("want a URL"), std::string::npos);
  variables = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b/otlp"},
               {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b,x=y=z"},
               {"OTEL_SERVICE_NAME", "it"}};
  EXPECT_EQ(read("").url, "http://b/otlp/v1/traces");
  EXPECT_EQ(read("").service, "it");
  ASSERT_EQ(read("").headers.size(), 2u);
  EXPECT_EQ(read("").headers[0].value, "a b");
  EXPECT_EQ(read("").headers[1].value, "y=z");
  variables["OTEL_EXPORTER_OTLP_HEADERS"] = "secret";
  EXPECT_EQ(error_of([&] { read(""); }).find("secret"), std::string::npos);
}

}  // namespace
}  // namespace octet::serve
