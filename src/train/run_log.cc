#include "train/run_log.h"

#include <cmath>

#include "io/event_file.h"
#include "io/jsonl_log.h"

namespace octet {

struct RunLog::Files {
  explicit Files(const std::string& out) : jsonl(out + "/log.jsonl"), events(out + "/events") {}
  JsonlLog jsonl;
  EventFile events;
};

RunLog::RunLog(const std::string& out) : files_(std::make_unique<Files>(out)) {}
RunLog::~RunLog() = default;

void RunLog::step(const StepLog& e) {
  files_->jsonl.write({{"kind", "step"},
                       {"step", e.step},
                       {"tokens", e.tokens},
                       {"loss", e.loss},
                       {"grad_norm", e.grad_norm},
                       {"lr", e.lr},
                       {"seconds", e.seconds},
                       {"tokens_per_second", e.tokens_per_second},
                       {"finite", e.finite}});
  files_->events.scalars(e.step, {{"train/loss", e.loss},
                                  {"train/grad_norm", e.grad_norm},
                                  {"train/lr", e.lr},
                                  {"train/tokens_per_second", e.tokens_per_second}});
}

void RunLog::evaluation(int64_t step, double loss, int64_t tokens, double seconds) {
  files_->jsonl.write({{"kind", "eval"},
                       {"step", step},
                       {"loss", loss},
                       {"perplexity", std::exp(loss)},
                       {"tokens", tokens},
                       {"seconds", seconds}});
  files_->events.scalars(step, {{"eval/loss", loss}, {"eval/perplexity", std::exp(loss)}});
}

void RunLog::event(int64_t step, const std::string& kind, const std::string& text) {
  files_->jsonl.write({{"kind", kind}, {"step", step}, {"text", text}});
}

}  // namespace octet
