#include "serve/reply_job.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"

namespace octet::serve {

ReplyJob::ReplyJob(const ApiModel& model, bool stream, HttpReply reply)
    : model_(model), stream_(stream), created_(unix_seconds()), reply_(std::move(reply)) {}

ApiError refusal_error(const Refusal& refusal, HttpReply& reply) {
  if (refusal.retry_after > 0)
    reply.add_field("Retry-After", fmt::format("{:.0f}", std::max(1.0, refusal.retry_after + 0.5)));
  return ApiError(refusal.message, {}, refusal.status, refusal.reason);
}

void ReplyJob::on_refusal(const Refusal& refusal) { fail(refusal_error(refusal, reply_)); }

void ReplyJob::on_event(size_t prompt, const GenerationEvent& event) {
  if (failed_) return;
  if (event.finished == FinishReason::kError || event.finished == FinishReason::kTimeout) return fail(api_error(event));
  on_news(prompt, event);
}

void ReplyJob::on_end(const std::vector<RequestTimes>& times) {
  if (failed_) return;
  const Usage usage = add_up(times);
  if (!stream_) {
    const std::string body = whole(usage);
    return reply_.send(200, content_type(), body);
  }
  write(last_events(usage));
  reply_.end();
}

void ReplyJob::write(std::string_view events) {
  begin();
  reply_.write(events);
}

void ReplyJob::begin() {
  if (!reply_.begun()) reply_.begin(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
}

void ReplyJob::fail(const ApiError& error) {
  if (std::exchange(failed_, true)) return;
  if (!reply_.begun()) return reply_.send(error.status(), "application/json", this->error(error));
  reply_.write(error_events(error));
  reply_.end();
}

}  // namespace octet::serve
