// read_chat_record (chat_data.h): the forms of records.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/json_cost.h"
#include "chat/chat_data.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxDepth = 64;

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

Json message(const char* role, Json content) { return {{"role", role}, {"content", std::move(content)}}; }

void check_messages(const Json& messages, const char* key) {
  if (!messages.is_array() || messages.empty()) refuse("{}: want a list of at least one message", key);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& one = messages[i];
    if (!one.is_object() || !one.contains("role") || !one["role"].is_string())
      refuse("{}[{}] has no role: want an object with a role and content", key, i);
    const Json content = one.value("content", Json());
    if (!content.is_null() && !content.is_string() && !content.is_array())
      refuse("{}[{}].content is a {}: want a text or a list of parts", key, i, content.type_name());
    if (content.is_null() && !one.contains("tool_calls") && !one.contains("content"))
      refuse("{}[{}] has no content", key, i);
  }
}

// ShareGPT's {"from", "value"}.
Json from_share_gpt(const Json& turns) {
  if (!turns.is_array()) refuse("conversations: want a list of messages");
  Json messages = turns;
  for (Json& one : messages) {
    if (!one.is_object() || !one.contains("from") || !one["from"].is_string()) continue;
    const auto& from = one["from"].get_ref<const std::string&>();
    const std::string role = from == "human" ? "user" : from == "gpt" ? "assistant" : from;
    Json message{{"role", role}, {"content", one.value("value", Json())}};
    if (one.contains("weight")) message["weight"] = one["weight"];
    one = std::move(message);
  }
  return messages;
}

// A text, of `role`, or messages.
Json turns_of(const Json& record, const char* key, const char* role) {
  const Json& given = record[key];
  if (given.is_string()) return Json::array({message(role, given)});
  if (!given.is_array()) refuse("{} is a {}: want a text or a list of messages", key, given.type_name());
  check_messages(given, key);
  return given;
}

std::string text_of(const Json& record, const char* key) {
  const Json given = record.value(key, Json());
  if (given.is_null() && record.contains(key)) return "";
  if (!given.is_string()) refuse("{} is a {}: want a text", key, given.type_name());
  return given.get<std::string>();
}

void append(Json& messages, const Json& more) { messages.insert(messages.end(), more.begin(), more.end()); }

// Fills in the messages of a form whose parts are no messages.
void read_parts(const Json& record, ChatRecord& out) {
  const auto has = [&](const char* key) { return record.contains(key); };
  if (has("system") && !text_of(record, "system").empty()) out.messages.push_back(message("system", record["system"]));
  if (has("chosen") && has("rejected")) {
    out.chosen = turns_of(record, "chosen", "assistant"), out.rejected = turns_of(record, "rejected", "assistant");
    // Pairs of whole conversations repeat the prompt, or are all there is of it: what both begin with.
    if (has("prompt")) append(out.messages, turns_of(record, "prompt", "user"));
    const size_t most = std::min(out.chosen.size(), out.rejected.size()) - 1;
    for (size_t i = 0; i < most && !has("prompt") && out.chosen[i] == out.rejected[i]; ++i)
      out.messages.push_back(out.chosen[i]);
    for (Json* side : {&out.chosen, &out.rejected})
      if (side->size() > out.messages.size() && std::equal(out.messages.begin(), out.messages.end(), side->begin()))
        side->erase(side->begin(), side->begin() + std::ssize(out.messages));
  } else if (has("prompt") && has("completion")) {
    append(out.messages, turns_of(record, "prompt", "user"));
    append(out.messages, turns_of(record, "completion", "assistant"));
  } else if (has("instruction") && has("output")) {
    std::string text = text_of(record, "instruction");
    const std::string input = has("input") ? text_of(record, "input") : "";
    if (!input.empty()) text += "\n" + input;
    out.messages.push_back(message("user", std::move(text)));
    out.messages.push_back(message("assistant", text_of(record, "output")));
  } else if (has("input") && has("output")) {
    append(out.messages, turns_of(record, "input", "user"));
    append(out.messages, turns_of(record, "output", "assistant"));
  } else {
    std::string keys;
    for (const auto& member : record.items()) keys += (keys.empty() ? "" : ", ") + member.key();
    refuse(
        "no chat record: want messages, conversations, instruction and output, prompt and completion, input and "
        "output, or prompt, chosen and rejected (there are: {})",
        keys.empty() ? "no keys" : keys.substr(0, 200));
  }
}

// The weight of an object, taken out of it.
float take_weight(Json& from, const std::string& where) {
  const auto found = from.find("weight");
  if (found == from.end()) return 1;
  const double weight = found->is_number() ? found->get<double>() : -1;
  if (!(weight >= 0 && weight <= 1e6)) refuse("{}weight is {}: want a number from 0 to 1e6", where, found->dump());
  from.erase("weight");
  return static_cast<float>(weight);
}

// Of messages and of the whole record.
void read_weights(const Json& record, ChatRecord& out) {
  Json rest = record.contains("weight") ? Json{{"weight", record["weight"]}} : Json::object();
  const float whole = take_weight(rest, "");
  std::vector<float> weights;
  bool any = whole != 1;
  for (size_t i = 0; i < out.messages.size(); ++i) {
    Json& message = out.messages[i];
    const bool answers = message["role"] == "assistant", given = message.contains("weight");
    if (given && !answers) refuse("messages[{}] has a weight, and no target: weights are for the assistant's", i);
    any |= given;
    weights.push_back(whole * take_weight(message, fmt::format("messages[{}].", i)));
  }
  if (any && out.is_pair()) refuse("a pair of answers has a weight: pairs are learnt without");
  for (const Json* side : {&out.chosen, &out.rejected})
    for (const Json& message : *side)
      if (message.contains("weight")) refuse("a pair of answers has a weight: pairs are learnt without");
  if (any) out.weights = std::move(weights);
}

}  // namespace

ChatRecord read_chat_record(std::string_view json) {
  if (const size_t first = json.find_first_not_of(" \t\r"); first != json.npos && json[first] == '[')
    refuse("the line begins an array and is not a JSON object: jq -c '.[]' turns an array into lines");
  check_json_cost(json, "the record", kMaxDepth);
  const Json record = parse_json<Json>(json, "the record");
  if (!record.is_object()) refuse("the line is a {}, not a JSON object", record.type_name());
  ChatRecord out;
  if (record.contains("messages")) {
    out.messages = record["messages"];
  } else if (record.contains("conversations")) {
    out.messages = from_share_gpt(record["conversations"]);
  } else {
    read_parts(record, out);
  }
  check_messages(out.messages, record.contains("conversations") ? "conversations" : "messages");
  read_weights(record, out);
  out.tools = record.value("tools", Json());
  if (!out.tools.is_null() && !out.tools.is_array()) refuse("tools is a {}: want a list", out.tools.type_name());
  if (out.tools.is_array() && out.tools.empty()) out.tools = nullptr;
  if (record.contains("chat_template_kwargs")) out.settings = record["chat_template_kwargs"];
  if (!out.settings.is_object()) refuse("chat_template_kwargs is a {}: want an object", out.settings.type_name());
  return out;
}

}  // namespace octet
