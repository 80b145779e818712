#include "serve/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "chat/reply_parser.h"
#include "io/chat_template_file.h"
#include "serve/guided.h"

namespace octet::serve {
namespace {

constexpr double kMax = 1e6;
constexpr size_t kMaxBytes = 1024;  // of a stop string, of a salt

void read_logit_bias(Fields& fields, const ApiModel& model, SamplingOptions& sampling) {
  const nlohmann::ordered_json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->size() > 1024) fields.fail("logit_bias", "want an object of at most 1024 token ids");
  for (const auto& [name, value] : bias->items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0 || id >= model.engine->vocab_size())
      fields.fail("logit_bias", fmt::format("'{}' is not a token id below {}", name, model.engine->vocab_size()));
    if (!value.is_number() || std::abs(value.get<double>()) > 100)
      fields.fail("logit_bias", fmt::format("for token {} want a number from -100 to 100", id));
    sampling.logit_bias[static_cast<int32_t>(id)] = value.get<float>();
  }
}

nlohmann::ordered_json token_json(const Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string_view bytes = token.id < tokenizer.vocab_size() ? tokenizer.token_bytes(token.id) : "";
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (unsigned char byte : bytes) list.push_back(byte);
  return {{"token", token_text(tokenizer, token.id)}, {"logprob", token.logprob}, {"bytes", std::move(list)}};
}

uint64_t random_bits() {
  thread_local std::mt19937_64 generator(std::random_device{}() ^ (uint64_t{std::random_device{}()} << 32));
  return generator();
}

}  // namespace

void ApiModel::check_name(const std::string& name) const {
  if (std::ranges::find(names, name) != names.end() || is_adapter(name)) return;
  std::vector<std::string> known = names;
  for (const AdapterFacts& adapter : engine->adapters()) known.push_back(adapter.name);
  throw ApiError(fmt::format("the model '{}' is not served here (want {})", name, fmt::join(known, ", ")), "model", 404,
                 "model_not_found");
}

bool ApiModel::is_adapter(const std::string& name) const {
  const std::vector<AdapterFacts> adapters = engine->adapters();
  return std::ranges::find(adapters, name, &AdapterFacts::name) != adapters.end();
}

void ApiModel::check_name(Fields& fields) const {
  if (const std::optional<std::string> name = fields.text("model")) check_name(*name);
}

void read_generation_config(const std::string& folder, SamplingOptions& sampling) {
  const std::string path = folder + "/generation_config.json";
  if (!path_exists(path)) return;
  const nlohmann::json config = parse_json(read_file(path), path);
  const auto number = [&](const char* key, double& value) {
    if (config.contains(key) && !config[key].is_null()) value = json_get<double>(config, key, path);
  };
  number("temperature", sampling.temperature), number("top_p", sampling.top_p), number("min_p", sampling.min_p);
  number("repetition_penalty", sampling.repetition_penalty);
  if (config.contains("top_k") && !config["top_k"].is_null()) sampling.top_k = json_get<int64_t>(config, "top_k", path);
}

void read_chat(const std::string& folder, const std::string& file, ApiModel& model) {
  model.trusted = read_token_texts(folder).dump();
  std::string path = file;
  const std::string source = file.empty() ? find_chat_template(folder, "default", path) : read_file(file);
  if (!source.empty()) {
    model.chat = std::make_shared<ChatTemplate>(source, path);
    model.reply_format = find_reply_format(source);
  }
  if (!file.empty()) return;
  const std::string with_tools = find_chat_template(folder, "tool_use", path);
  if (with_tools.empty()) return;
  model.tool_chat = std::make_shared<ChatTemplate>(with_tools, path);
  if (!model.chat) model.chat = model.tool_chat;
  model.reply_format = find_reply_format(with_tools);
}

std::vector<int32_t> encode_prompt(Fields& fields, const std::string& text, bool begin, const ApiModel& model,
                                   int64_t kept, int64_t enough) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const bool special = fields.flag("parse_special").value_or(true);
  std::vector<int32_t> ids = encode_within(
      text, {.parse_special = special, .add_bos = begin && tokenizer.adds_bos(), .enough = enough}, model, kept);
  static std::atomic<bool> told = false;
  if (ids.size() > 1 && ids[0] == tokenizer.bos_id() && ids[1] == ids[0] && begin && !told.exchange(true))
    log_warning(
        "a prompt begins with the text of the begin token '{}', which is added anyway, so it has two (leave one out, "
        "or set add_special_tokens to false)",
        token_text(tokenizer, ids[0]));
  return ids;
}

TextGuide read_generation(Fields& fields, const ApiModel& model, const std::string& key, GenerationRequest& request) {
  SamplingOptions& sampling = request.sampling;
  if (!fields.flag("use_beam_search").value_or(false)) sampling = model.sampling;
  sampling.temperature = fields.number("temperature", 0, 100).value_or(sampling.temperature);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(sampling.top_p);
  sampling.top_k = std::max<int64_t>(fields.integer("top_k", -1, 1'000'000'000).value_or(sampling.top_k), 0);
  sampling.min_p = fields.number("min_p", 0, 1).value_or(sampling.min_p);
  sampling.repetition_penalty = fields.number("repetition_penalty", 1e-3, kMax).value_or(sampling.repetition_penalty);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(sampling.presence_penalty);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(sampling.frequency_penalty);
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const std::optional<int64_t> seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), kAny);
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : random_bits();
  read_logit_bias(fields, model, sampling);
  request.n = fields.integer("n", 1, model.max_texts).value_or(1);
  request.min_tokens = fields.integer("min_tokens", 0, kAny).value_or(0);
  request.stop = fields.texts("stop", 16);
  // Each text of a request has a copy of these.
  for (const std::string& stop : request.stop)
    if (stop.size() > kMaxBytes) fields.fail("stop", fmt::format("want strings of at most {} bytes", kMaxBytes));
  for (int64_t id : fields.integers("stop_token_ids", 0, model.engine->vocab_size() - 1, 64))
    request.stop_ids.push_back(static_cast<int32_t>(id));
  request.ignore_eos = fields.flag("ignore_eos").value_or(false);
  request.draft_tokens = fields.integer("draft_tokens", 0, kMaxDraftTokens).value_or(-1);
  if (!fields.flag("speculation").value_or(true)) request.draft_tokens = 0;
  request.include_stop = fields.flag("include_stop_str_in_output").value_or(false);
  request.skip_special_tokens = fields.flag("skip_special_tokens").value_or(true);
  request.priority = static_cast<int32_t>(fields.integer("priority", -1'000'000, 1'000'000).value_or(0));
  request.cache_salt = fields.text("cache_salt").value_or("");
  if (request.cache_salt.size() > kMaxBytes) fields.fail("cache_salt", fmt::format("want at most {} bytes", kMaxBytes));
  for (const char* key : {"user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"})
    fields.ignore(key);
  for (const char* key : {"allowed_token_ids", "bad_words"}) fields.ignore(key);  // restrict_tokens() reads them
  // What asks for a form of the reply is never dropped.
  for (const char* key : {"audio", "details", "decoder_input_details", "return_full_text", "return_tokens_as_token_ids",
                          "structural_tag"})
    fields.refuse(key, "not supported");
  for (const char* key : {"suffix", "format"}) fields.refuse(key, "not supported", "\"\"");
  fields.refuse("n_probs", "want logprobs", "0"), fields.refuse("function_call", "want tool_choice", "\"auto\"");
  fields.refuse("modalities", "replies are text", "[\"text\"]");
  for (const char* key : {"include_reasoning", "separate_reasoning"})
    if (!fields.flag(key).value_or(true)) fields.fail(key, "reasoning is always separated from the content");
  read_beams(fields, model, request);
  return read_guide(fields, model, key);
}

ApiError too_long(int64_t tokens, const ApiModel& model, bool more) {
  const int64_t context = model.engine->context();
  return ApiError(fmt::format("prompt is too long: {}{} tokens > {} maximum (this model's maximum context length is {} "
                              "tokens): shorten it",
                              more ? "at least " : "", tokens, context - 1, context),
                  {}, 400, "context_length_exceeded");
}

int64_t read_kept(Fields& fields, const ApiModel& model) {
  const int64_t most = model.engine->context() - 1;  // a token of the reply has room behind them
  const std::optional<int64_t> kept = fields.integer("truncate_prompt_tokens", -1, INT32_MAX);
  if (kept == 0) fields.fail("truncate_prompt_tokens", "want at least 1 token, or -1 for as many as fit the context");
  return !kept ? 0 : *kept < 0 ? most : std::min(*kept, most);
}

std::vector<int32_t> encode_within(std::string_view text, EncodeOptions options, const ApiModel& model, int64_t kept) {
  const int64_t most = options.enough > 0 ? options.enough : model.engine->context();
  options.enough = kept > 0 ? 0 : most + 1;
  std::vector<int32_t> ids = model.tokenizer->encode(text, options);
  if (kept == 0 && std::ssize(ids) > most) throw too_long(std::ssize(ids), model, /*more=*/true);
  if (kept > 0 && std::ssize(ids) > kept) {
    const auto begin = ids.begin() + (options.add_bos ? 1 : 0);
    ids.erase(begin, begin + (std::ssize(ids) - kept));
  }
  return ids;
}

std::optional<int64_t> read_max_tokens(Fields& fields, int64_t least) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  std::optional<int64_t> most = fields.integer("n_predict", -1, kMax);
  if (most == -1) most = kMax;
  if (most && *most < least) fields.fail("n_predict", fmt::format("want -1 or a whole number of at least {}", least));
  const std::optional<int64_t> asked = fields.integer("max_tokens", least, kMax);
  return asked ? asked : most;
}

std::string make_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, random_bits(), random_bits());
}

std::string make_call_id(std::string_view prefix, const ApiModel& model) {
  return model.reply_format == "mistral" ? make_id("").substr(0, 9) : make_id(prefix);
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength:
    case FinishReason::kContext: return "length";
    default: return "abort";
  }
}

ApiError api_error(const GenerationEvent& event) {
  switch (event.error_kind) {
    case ErrorKind::kTooLong: return ApiError(event.error, {}, 400, "context_length_exceeded");
    case ErrorKind::kInvalid: return ApiError(event.error, {}, 400, error_kind_name(event.error_kind));
    case ErrorKind::kQueueFull:
    case ErrorKind::kDevice: return ApiError(event.error, {}, 503, error_kind_name(event.error_kind));
    case ErrorKind::kLate: return ApiError(event.error, {}, 504, error_kind_name(event.error_kind));
    default: return ApiError(event.error, {}, 500, error_kind_name(event.error_kind));
  }
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  if (id >= tokenizer.vocab_size()) return {};  // rows of a padded vocabulary
  const std::string_view bytes = tokenizer.token_bytes(id);
  std::string text(bytes);
  try {
    nlohmann::json(text).dump();
    return text;
  } catch (const nlohmann::json::exception&) {
    text = "bytes:";
    for (unsigned char byte : bytes) text += fmt::format("\\x{:02x}", byte);
    return text;
  }
}

nlohmann::ordered_json logprob_json(const Tokenizer& tokenizer, const GenerationEvent& event, size_t i) {
  nlohmann::ordered_json token = token_json(tokenizer, event.logprobs.at(i));
  token["top_logprobs"] = nlohmann::ordered_json::array();
  if (i < event.top.size())
    for (const TokenLogprob& one : event.top[i]) token["top_logprobs"].push_back(token_json(tokenizer, one));
  return token;
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}
std::string sse(const nlohmann::ordered_json& json) { return "data: " + dump(json) + "\n\n"; }

Usage add_up(const std::vector<RequestTimes>& times) {
  Usage usage;
  for (const RequestTimes& one : times)
    usage.prompt += one.prompt_tokens, usage.cached += one.cached_tokens, usage.generated += one.generated_tokens;
  return usage;
}

nlohmann::ordered_json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"total_tokens", usage.prompt + usage.generated},
          {"completion_tokens", usage.generated},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}}};
}

}  // namespace octet::serve
