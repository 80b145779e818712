// What the wire forms share: the model's side of a server, fields of sampling, pieces of replies.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "chat/guide.h"
#include "io/tokenizer.h"
#include "octet/engine.h"
#include "serve/fields.h"
#include "serve/guide_cache.h"
#include "serve/http.h"
#include "serve/template_cache.h"

namespace octet::serve {

class ResponseStore;

// The model that requests name.
struct ApiModel {
  Engine* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;
  std::vector<std::string> names;                    // the first is the one that replies give
  SamplingOptions sampling;                          // where a request says nothing
  std::shared_ptr<const ChatTemplate> chat;          // none: no chat
  std::shared_ptr<const ChatTemplate> tool_chat;     // of requests with tools; none: `chat`
  std::shared_ptr<TemplateCache> request_templates;  // none: requests bring no templates of their own
  std::string reply_format;                          // of tool calls, of reply_formats(); empty: none are parsed
  bool open_tool_schemas = false;                    // objects of tools' schemas are not closed
  std::string trusted = "{}";             // JSON of what a template reads beside requests: bos_token, eos_token
  std::shared_ptr<const TokenTrie> trie;  // of guides
  std::shared_ptr<GuideCache> guides = std::make_shared<GuideCache>();
  int64_t max_texts = 128;             // of one request: prompts times n
  int64_t created = 0;                 // seconds since 1970
  std::string version = {};            // the server's
  ResponseStore* responses = nullptr;  // none: no response is kept
  std::string adapter_root = {};       // whose folders requests may load adapters from; empty: they may not

  // One that the engine has loaded: a name of the model with it.
  bool is_adapter(const std::string& name) const;
  // ApiError 404 for another model's name; a request's `model` may be missing.
  void check_name(const std::string& name) const;
  void check_name(Fields& fields) const;
};

// Defaults of sampling that a model's folder names in generation_config.json, where it has one. Throws as parse_json.
void read_generation_config(const std::string& folder, SamplingOptions& sampling);

// Fills chat, tool_chat, reply_format and trusted from a model's folder (chat_template.jinja,
// additional_chat_templates/, tokenizer_config.json, special_tokens_map.json), the template from `file` where it is not
// empty. Throws as ChatTemplate.
void read_chat(const std::string& folder, const std::string& file, ApiModel& model);

// What a request's texts are guided by.
struct TextGuide {
  std::shared_ptr<const Guide> guide = {};  // none: they are free
  bool answer = false;                      // it is of the answer: tools may be called instead
};

// Reads what all wire forms say alike: temperature, top_p, top_k, min_p, penalties, seed, stop, n, logit_bias,
// min_tokens, priority, cache_salt ... and refuses by name what is not served. `key`: the API key's name. The guide is
// not yet the request's.
[[nodiscard]] TextGuide read_generation(Fields& fields, const ApiModel& model, const std::string& key,
                                        GenerationRequest& request);

// Ids of a raw prompt. Special tokens that it spells are recognised unless field parse_special is false. `begin`: as
// the model was trained, with a begin token. A second one, which the text spells, is told once in the log. `kept` and
// `enough`: as in encode_within().
std::vector<int32_t> encode_prompt(Fields& fields, const std::string& text, bool begin, const ApiModel& model,
                                   int64_t kept = 0, int64_t enough = 0);

// Reads use_beam_search, best_of, length_penalty and early_stopping, after the other fields of sampling.
void read_beams(Fields& fields, const ApiModel& model, GenerationRequest& request);

// Of a prompt that leaves no room in the context: the words and the code that OpenAI's, Anthropic's and vLLM's clients
// look for; `more`: it has more tokens than these, uncounted.
ApiError too_long(int64_t tokens, const ApiModel& model, bool more = false);
// truncate_prompt_tokens: of prompts that are longer the last tokens are kept, at most so many; 0: they are refused.
int64_t read_kept(Fields& fields, const ApiModel& model);
inline constexpr int64_t kMaxTokens = 1'000'000;  // of a request for ids or their number
// The text's ids. Without `kept` it throws too_long() as soon as they are more than options.enough, or than the context
// where that is 0: a text of megabytes is not read to its end then. Else the last so many, of them the begin token that
// options.add_bos puts there.
std::vector<int32_t> encode_within(std::string_view text, EncodeOptions options, const ApiModel& model,
                                   int64_t kept = 0);
// max_tokens, or llama.cpp's n_predict, where -1 is all that the context has room for.
std::optional<int64_t> read_max_tokens(Fields& fields, int64_t least);

// An identifier that begins with this: "cmpl-" and 32 hex digits.
std::string make_id(std::string_view prefix);
// Of a tool call, which templates may write: Mistral's take nine letters or digits, others the prefix and 32 hex
// digits.
std::string make_call_id(std::string_view prefix, const ApiModel& model);
int64_t unix_seconds();

// "stop", "length", "abort"; null while a text runs.
const char* finish_name(FinishReason reason);
// What a client is told of a text's end by an error.
ApiError api_error(const GenerationEvent& event);

// Bytes of ids as text of a reply: what is not UTF-8 as "bytes:\xNN".
std::string token_text(const Tokenizer& tokenizer, int32_t id);
// The event's i-th token: {"token", "logprob", "bytes", "top_logprobs": [those three of each]}.
nlohmann::ordered_json logprob_json(const Tokenizer& tokenizer, const GenerationEvent& event, size_t i);

// JSON text; what is not UTF-8 becomes U+FFFD.
std::string dump(const nlohmann::ordered_json& json);
// An event of a stream: "data: ...\n\n".
std::string sse(const nlohmann::ordered_json& json);

struct Usage {
  int64_t prompt = 0, cached = 0, generated = 0;
};
Usage add_up(const std::vector<RequestTimes>& times);
nlohmann::ordered_json usage_json(const Usage& usage);

}  // namespace octet::serve
