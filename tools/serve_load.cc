// One thread sends requests when they are due; the client's thread reads their events. An event in the middle of a text
// is recognised by a few searches, without parsing its JSON: a client must keep up with what it measures.
#include "serve_load.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/json.h"
#include "base/rng.h"

namespace octet {
namespace {

using Clock = serve::HttpClient::Clock;
constexpr auto kProgress = std::chrono::milliseconds(100);
constexpr size_t kExamples = 3, kLongestMessage = 300;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What follows `"name":` in a JSON text; empty: the name is not there. Inside of a string its quotes were escaped.
std::string_view value_of(std::string_view json, std::string_view quoted_name) {
  const size_t at = json.find(quoted_name);
  if (at == std::string_view::npos) return {};
  const size_t value = json.find_first_not_of(": ", at + quoted_name.size());
  return value == std::string_view::npos ? std::string_view() : json.substr(value);
}

// Whether an event is nothing but more text: no usage, no error, no end.
bool is_plain(std::string_view event) {
  for (const std::string_view name : {R"("finish_reason")", R"("usage")", R"("error")"})
    if (const std::string_view value = value_of(event, name); !value.empty() && !value.starts_with("null"))
      return false;
  const std::string_view choices = value_of(event, R"("choices")");
  return choices.starts_with("[{") || choices.starts_with("[ {");
}

bool has_text(const nlohmann::json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && !member->is_null() && !member->empty() && *member != "";
}

// An error's message in the JSON forms that servers use, else the text itself.
std::string message_of(const std::string& body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  for (const char* path : {"/error/message", "/message", "/detail", "/error"}) {
    const nlohmann::json::json_pointer pointer(path);
    if (json.is_object() && json.contains(pointer) && json[pointer].is_string()) return json[pointer];
  }
  return body.substr(0, kLongestMessage);
}

std::string random_words(int64_t count, uint64_t seed, uint64_t index) {
  static constexpr std::array kWords = {
      "time",   "year",    "people", "way",     "day",      "man",     "thing",   "woman", "life",  "child", "world",
      "school", "state",   "family", "student", "group",    "country", "problem", "hand",  "part",  "place", "case",
      "week",   "company", "system", "program", "question", "work",    "number",  "night", "point", "home"};
  Philox random(seed, index);
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random.next_u32() % kWords.size()];
  }
  return text;
}

class ServeLoad {
 public:
  ServeLoad(serve::HttpClient& client, const Workload& workload, const ServeLoadOptions& options)
      : client_(client), workload_(workload), options_(options), running_(workload.requests.size()) {
    result_.drive.records.resize(workload.requests.size());
    for (size_t i = 0; i < workload.requests.size(); ++i) bodies_.push_back(body_of(i));
  }

  ServeLoadResult run(const DriveProgress& progress) {
    const double cpu = cpu_seconds();
    start_ = Clock::now();
    size_t next = 0;
    std::unique_lock lock(mutex_);
    while (done_ < static_cast<int64_t>(bodies_.size())) {
      const bool room = options_.concurrency == 0 || static_cast<int64_t>(next) - done_ < options_.concurrency;
      auto until = Clock::now() + kProgress;
      if (next < bodies_.size() && room) {
        const auto due = start_ + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(workload_.requests[next].arrival));
        if (due <= Clock::now()) {
          lock.unlock();
          send(next++);
          lock.lock();
          continue;
        }
        until = std::min(until, due);
      }
      changed_.wait_until(lock, until);
      const int64_t done = done_;
      lock.unlock();
      if (progress) progress(done, tokens_);
      lock.lock();
    }
    if (progress) progress(done_, tokens_);
    DriveResult& drive = result_.drive;
    for (const RequestRecord& record : drive.records) drive.seconds = std::max(drive.seconds, record.last_token);
    result_.events = tokens_;
    result_.cpu_seconds = cpu_seconds() - cpu;
    return std::move(result_);
  }

 private:
  struct Running {
    int64_t events = 0;
    int64_t tokens = -1;  // of the reply's usage; -1: it had none
  };

  double since_start(Clock::time_point time) const { return std::chrono::duration<double>(time - start_).count(); }

  std::string body_of(size_t i) const {
    const LoadRequest& request = workload_.requests[i];
    nlohmann::json body = {{"model", options_.model},
                           {"max_tokens", request.output_tokens},
                           {"temperature", options_.temperature},
                           {"stream", true},
                           {"stream_options", {{"include_usage", true}}}};
    if (options_.temperature > 0) body["seed"] = options_.seed + i;
    const auto at = static_cast<double>(i);
    const bool guided = !options_.guide.empty() &&
                        std::floor((at + 1) * options_.guided_share) > std::floor(at * options_.guided_share);
    if (guided) {
      body["structured_outputs"]["json"] = nlohmann::json::parse(options_.guide);
    } else if (options_.ignore_eos) {
      body["ignore_eos"] = true;
    }
    nlohmann::json prompt;
    if (!options_.prompts.empty()) {
      prompt = nlohmann::json::parse(options_.prompts[i % options_.prompts.size()]);
    } else if (options_.vocab > 0 && !options_.chat) {
      prompt = prompt_of(workload_, i, options_.vocab, options_.seed);
    } else {
      prompt = random_words(request.prompt_tokens, options_.seed, i);
    }
    if (!options_.chat) {
      body["prompt"] = std::move(prompt);
    } else if (prompt.is_string()) {
      body["messages"] = {{{"role", "user"}, {"content", std::move(prompt)}}};
    } else {
      body["messages"] = std::move(prompt);
    }
    return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void send(size_t i) {
    result_.drive.records[i].submitted = since_start(Clock::now());
    client_.send(
        {.target = options_.chat ? "/v1/chat/completions" : "/v1/completions",
         .body = std::move(bodies_[i]),
         .fields = request_fields(options_.api_key),
         .timeout_seconds = options_.timeout_seconds},
        [this, i](std::string_view data, Clock::time_point arrived) { take(i, data, since_start(arrived)); },
        [this, i](const serve::HttpAnswer& answer) { end(i, answer); });
  }

  // --- in the client's thread
  void take(size_t i, std::string_view data, double time) {
    RequestRecord& record = result_.drive.records[i];
    if (data == "[DONE]") return;
    if (record.first_token >= 0 && is_plain(data)) return add_token(i, time);
    try {
      read(i, data, time);
    } catch (const nlohmann::json::exception& error) {
      record.error = fmt::format("an event that cannot be read: {}", error.what());
    }
  }

  void read(size_t i, std::string_view data, double time) {
    RequestRecord& record = result_.drive.records[i];
    const nlohmann::json event = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      record.error = fmt::format("an event is not a JSON object: {}", data.substr(0, kLongestMessage));
      return;
    }
    if (has_text(event, "error")) record.error = message_of(std::string(data));
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      running_[i].tokens = usage->value("completion_tokens", int64_t{-1});
      record.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
      if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object())
        record.cached_tokens = details->value("cached_tokens", int64_t{0});
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const nlohmann::json& choice = choices->front();
    const nlohmann::json delta = choice.value("delta", nlohmann::json::object());
    const bool text = has_text(choice, "text") || has_text(delta, "content") || has_text(delta, "reasoning_content") ||
                      has_text(delta, "reasoning") || has_text(delta, "tool_calls");
    const bool ends = has_text(choice, "finish_reason");
    if (text || (!options_.chat && !ends)) {
      add_token(i, time);
    } else if (ends && record.first_token >= 0) {
      record.last_token = time;
    }
    if (ends) record.finished = choice["finish_reason"] == "length" ? FinishReason::kLength : FinishReason::kStop;
  }

  void add_token(size_t i, double time) {
    RequestRecord& record = result_.drive.records[i];
    if (record.first_token < 0) {
      record.first_token = time;
    } else {
      record.gaps.push_back(static_cast<float>(time - record.last_token));
    }
    record.last_token = time;
    ++running_[i].events;
    ++tokens_;
  }

  void end(size_t i, const serve::HttpAnswer& answer) {
    RequestRecord& record = result_.drive.records[i];
    record.output_tokens = running_[i].tokens >= 0 ? running_[i].tokens : running_[i].events;
    if (record.prompt_tokens == 0) record.prompt_tokens = workload_.requests[i].prompt_tokens;
    std::string kind;
    if (answer.status != 0 && answer.status != 200) {
      kind = fmt::format("status {}", answer.status), record.error = message_of(answer.body);
    } else if (!answer.error.empty()) {
      kind = "connection", record.error = answer.error;
    } else if (!record.error.empty() || record.finished == FinishReason::kNone) {
      kind = "stream";
      if (record.error.empty())
        record.error = answer.body.empty() ? "the stream ended without a finish_reason"
                                           : "the reply is not an event stream: " + message_of(answer.body);
    }
    const std::lock_guard lock(mutex_);
    if (kind.empty()) {
      result_.counted |= running_[i].tokens < 0;
    } else {
      record.finished = FinishReason::kError;
      ServeErrors& errors = result_.errors[kind];
      ++errors.count;
      if (errors.examples.size() < kExamples &&
          std::ranges::find(errors.examples, record.error) == errors.examples.end())
        errors.examples.push_back(record.error);
    }
    ++done_;
    changed_.notify_one();
  }

  serve::HttpClient& client_;
  const Workload& workload_;
  const ServeLoadOptions& options_;
  std::vector<Running> running_;
  std::vector<std::string> bodies_;
  ServeLoadResult result_;
  Clock::time_point start_;
  std::atomic<int64_t> tokens_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t done_ = 0;
};

}  // namespace

ServeLoadResult drive_server(serve::HttpClient& client, const Workload& workload, const ServeLoadOptions& options,
                             const DriveProgress& progress) {
  return ServeLoad(client, workload, options).run(progress);
}

serve::HttpFields request_fields(const std::string& api_key) {
  if (api_key.empty()) return {};
  return {{"Authorization", "Bearer " + api_key}};
}

}  // namespace octet
