// Conversations as training data: a record of JSON in any of the usual forms, rendered by a chat template, as token ids
// and which of them are answers. Answers are what {% generation %} blocks write; of a template without them, what a
// message of the assistant adds to the text that asks for it. Special tokens that a message spells stay text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"
#include "io/tokenizer.h"

namespace octet {

// One conversation; or a pair, where `chosen` and `rejected` are two ways to go on after `messages`.
struct ChatRecord {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  std::vector<float> weights = {};                                     // of messages, as targets; empty: all 1
  nlohmann::ordered_json chosen = {}, rejected = {};                   // lists of messages; null: no pair
  nlohmann::ordered_json tools = {};                                   // null: none
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();  // other variables of the template
  bool is_pair() const { return !chosen.is_null(); }
};

// Of {messages}, {conversations} (from, value), {instruction, input, output}, {prompt, completion}, {input, output} or
// {prompt, chosen, rejected} (without a prompt: what both begin with), each with tools, chat_template_kwargs or, where
// no messages are given, system beside it; a message of the assistant may have a weight, which is taken out of it, and
// so may a record, by which those of its messages are multiplied; prompts and completions are texts or lists of
// messages. Throws kInvalidArgument or kCorrupt, without a place.
ChatRecord read_chat_record(std::string_view json);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;        // 1: of an answer
  std::vector<float> weights = {};  // of each; empty: 1
  // Whether training learns from it: the first token is no target.
  bool has_targets() const;
};

struct PairTokens {
  std::vector<int32_t> prompt, chosen, rejected;
};

// Thread safe.
class ChatEncoder {
 public:
  // `trusted`: texts of special tokens that the template writes (io/chat_template_file.h); begin and end tokens of the
  // vocabulary where they are missing. `now`: of strftime_now. Throws as ChatTemplate.
  ChatEncoder(const Tokenizer& tokenizer, std::string_view source, const std::string& where,
              nlohmann::ordered_json trusted, double now);

  // Throws kInvalidArgument for what the template raises (the text alone), for one that writes messages in another way
  // once others follow, and for pairs.
  ChatTokens encode(const ChatRecord& record) const;
  // Throws kInvalidArgument, also for what is no pair.
  PairTokens encode_pair(const ChatRecord& record) const;

  // The texts of special tokens, complete.
  const nlohmann::ordered_json& trusted() const { return trusted_; }

 private:
  RenderedPrompt render(const ChatRecord& record, nlohmann::ordered_json messages, bool ask) const;
  struct Answer {
    TextRange text;
    float weight = 1;
  };
  std::vector<Answer> find_answers(const ChatRecord& record, const RenderedPrompt& whole) const;
  std::vector<int32_t> encode_text(std::string_view text, const RenderedPrompt& prompt) const;
  std::vector<size_t> token_begins(const RenderedPrompt& prompt, const std::vector<int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  std::string where_;
  nlohmann::ordered_json trusted_;
  double now_;
};

}  // namespace octet
