// Beam search as vLLM's clients ask for it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "serve/api.h"

namespace octet::serve {
namespace {

EarlyStopping read_early_stopping(Fields& fields) {
  const nlohmann::ordered_json* value = fields.find("early_stopping");
  if (value == nullptr || *value == false) return EarlyStopping::kNo;
  if (*value == true) return EarlyStopping::kYes;
  if (*value != "never") fields.fail("early_stopping", "want true, false or \"never\"");
  return EarlyStopping::kNever;
}

// What draws tokens, or is not looked for in beams, only where it changes nothing.
void refuse_sampling(Fields& fields, GenerationRequest& request) {
  const auto only = [&](const char* key, double value, double neutral) {
    if (value != neutral) fields.fail(key, fmt::format("use_beam_search does not sample: want {}", neutral));
  };
  SamplingOptions& sampling = request.sampling;
  if (sampling.temperature != 1) only("temperature", sampling.temperature, 0);
  only("top_k", static_cast<double>(sampling.top_k), 0);
  only("top_p", sampling.top_p, 1);
  only("min_p", sampling.min_p, 0);
  only("repetition_penalty", sampling.repetition_penalty, 1);
  only("presence_penalty", sampling.presence_penalty, 0);
  only("frequency_penalty", sampling.frequency_penalty, 0);
  if (!request.stop.empty()) fields.fail("stop", "not supported with use_beam_search: want stop_token_ids");
}

}  // namespace

void read_beams(Fields& fields, const ApiModel& model, GenerationRequest& request) {
  const bool search = fields.flag("use_beam_search").value_or(false);
  const int64_t width = fields.integer("best_of", 1, model.max_texts).value_or(request.n);
  const double penalty = fields.number("length_penalty", -1e6, 1e6).value_or(1);
  const EarlyStopping early = read_early_stopping(fields);
  if (!search) {
    if (width != request.n) fields.fail("best_of", "want n, or use_beam_search");
    if (penalty != 1) fields.fail("length_penalty", "requires use_beam_search");
    if (early != EarlyStopping::kNo) fields.fail("early_stopping", "requires use_beam_search");
    return;
  }
  const int64_t most = std::min(kMaxBeams, model.engine->options().max_sequences);
  if (width > most)
    fields.fail("use_beam_search", fmt::format("{} beams (best_of, or n): want at most {}", width, most));
  if (request.n > width) fields.fail("n", fmt::format("want at most best_of, which is {}", width));
  refuse_sampling(fields, request);
  request.beams = width;
  request.length_penalty = penalty;
  request.early_stopping = early;
}

}  // namespace octet::serve
