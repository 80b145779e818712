#include "serve/encoding_job.h"

#include <fmt/format.h>

#include "io/sequence_template.h"

namespace octet::serve {

InputReader::InputReader(Fields& fields, const ApiModel& model) : model_(model) {
  model.check_name(fields);
  const int64_t context = model.engine->context();
  const std::optional<int64_t> asked = fields.integer("truncate_prompt_tokens", -1, context);
  if (asked) most_ = *asked == -1 ? context : *asked;
  if (asked && most_ == 0)
    fields.fail("truncate_prompt_tokens", "want at least 1 token, or -1 for the model's maximum");
  for (const char* key : {"user", "priority"}) fields.ignore(key);
}

GenerationRequest InputReader::text(const std::string& text, const std::optional<std::string_view>& pair) const {
  if (text.empty() || (pair && pair->empty())) throw ApiError("an empty text cannot be encoded", "input");
  const int64_t context = model_.engine->context();
  EncodedTexts encoded = encode_texts(*model_.tokenizer, text, pair, most_, /*enough=*/context + 1);
  if (std::ssize(encoded.ids) > context)
    throw ApiError(
        fmt::format("the input has at least {} tokens, the model takes {}: shorten it, or set truncate_prompt_tokens",
                    encoded.ids.size(), context),
        "input", 400, "context_length_exceeded");
  GenerationRequest request;
  request.max_tokens = 0, request.encode = true;
  request.prompt_ids = std::move(encoded.ids);
  if (pair) request.token_types = std::move(encoded.types);
  return request;
}

GenerationRequest InputReader::ids(const nlohmann::ordered_json& list) const {
  GenerationRequest request;
  request.max_tokens = 0, request.encode = true;
  for (const nlohmann::ordered_json& id : list) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() >= static_cast<double>(model_.engine->vocab_size()))
      throw ApiError(fmt::format("input contains {} (want token ids below {})", id.dump().substr(0, 60),
                                 model_.engine->vocab_size()),
                     "input");
    request.prompt_ids.push_back(id.get<int32_t>());
  }
  if (most_ > 0 && std::ssize(request.prompt_ids) > most_) request.prompt_ids.resize(static_cast<size_t>(most_));
  if (request.prompt_ids.empty()) throw ApiError("an empty list of ids cannot be encoded", "input");
  return request;
}

Prepared prepared_job(std::shared_ptr<EncodingJob> job, std::vector<GenerationRequest> prompts, Fields& fields) {
  Prepared prepared;
  for (const GenerationRequest& prompt : prompts) prepared.prompt_tokens += std::ssize(prompt.prompt_ids);
  job->prompts = std::move(prompts);
  prepared.job = std::move(job);
  prepared.unknown = fields.unknown();
  return prepared;
}

}  // namespace octet::serve
