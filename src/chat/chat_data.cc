#include "chat/chat_data.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

bool ChatTokens::has_targets() const { return mask.size() > 1 && std::count(mask.begin() + 1, mask.end(), 1) > 0; }

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, std::string_view source, const std::string& where, Json trusted,
                         double now)
    : tokenizer_(tokenizer), template_(source, where), where_(where), trusted_(std::move(trusted)), now_(now) {
  if (!trusted_.is_object()) trusted_ = Json::object();
  for (const auto& [key, id] : {std::pair("bos_token", tokenizer.bos_id()), {"eos_token", tokenizer.eos_id()}})
    if (!trusted_.contains(key) && id >= 0) trusted_[key] = std::string(tokenizer.token_bytes(id));
}

// `ask`: with what the template writes before an answer.
RenderedPrompt ChatEncoder::render(const ChatRecord& record, Json messages, bool ask) const {
  Json bindings = record.settings;
  bindings["messages"] = messages_for_template(std::move(messages), template_.message_form());
  bindings["tools"] = record.tools;
  bindings["add_generation_prompt"] = ask;
  try {
    return template_.render(bindings, trusted_, now_);
  } catch (const Error& error) {  // "WHERE:LINE: text"
    const std::string& text = error.message();
    const size_t line = where_.size() + 1, end = text.find(": ", line);
    const bool placed =
        text.starts_with(where_ + ":") && end != std::string::npos && text.find_first_not_of("0123456789", line) == end;
    throw Error(error.code(), placed ? text.substr(end + 2) : text);
  }
}

std::vector<ChatEncoder::Answer> ChatEncoder::find_answers(const ChatRecord& record,
                                                           const RenderedPrompt& whole) const {
  std::vector<float> weights;  // of messages of the assistant
  for (size_t i = 0; i < record.messages.size(); ++i)
    if (record.messages[i]["role"] == "assistant") weights.push_back(record.weights.empty() ? 1 : record.weights[i]);
  std::vector<Answer> answers;
  if (template_.marks_answers()) {
    check(!whole.answers_elsewhere, ErrorCode::kInvalidArgument,
          "{}: a {{% generation %}} block within a macro, set, call or filter block does not tell where the answer "
          "stands: put it where the text is written",
          where_);
    const bool each = whole.answers.size() == weights.size();
    check(
        each || std::ranges::adjacent_find(weights, std::not_equal_to()) == weights.end(), ErrorCode::kInvalidArgument,
        "{} marks {} answers of {} messages of the assistant, so that the weights of messages have no place: give one "
        "weight for the whole record",
        where_, whole.answers.size(), weights.size());
    for (const TextRange& text : whole.answers)
      answers.push_back({text, weights.empty() ? 1 : weights[each ? answers.size() : 0]});
    return answers;
  }
  size_t answer = 0;
  for (size_t i = 0; i < record.messages.size(); ++i) {
    if (record.messages[i]["role"] != "assistant") continue;
    const float weight = weights[answer++];
    const auto first = record.messages.begin(), at = first + static_cast<ptrdiff_t>(i);
    const std::string before = render(record, Json(std::vector<Json>(first, at)), /*ask=*/true).text;
    const std::string with = render(record, Json(std::vector<Json>(first, at + 1)), /*ask=*/false).text;
    check(whole.text.starts_with(before) && whole.text.starts_with(with), ErrorCode::kInvalidArgument,
          "{} writes messages before [{}] in another way once it or others follow, so that its answer has no place: "
          "put {{% generation %}} and {{% endgeneration %}} around answers in a copy of the template, or split the "
          "conversation",
          where_, i);
    if (with.size() > before.size()) answers.push_back({{before.size(), with.size()}, weight});
  }
  return answers;
}

// Of a text with which the prompt begins.
std::vector<int32_t> ChatEncoder::encode_text(std::string_view text, const RenderedPrompt& prompt) const {
  std::vector<TextRange> ranges;
  for (const TextRange& range : prompt.from_template)
    if (range.begin < text.size()) ranges.push_back({range.begin, std::min(range.end, text.size())});
  return tokenizer_.encode(text, {.parse_special = true, .added_in = &ranges});
}

// Where each token begins, in bytes of the text; none where tokens do not spell it (it was normalised, or has bytes
// without a token).
std::vector<size_t> ChatEncoder::token_begins(const RenderedPrompt& prompt, const std::vector<int32_t>& ids) const {
  const std::string_view text = prompt.text;
  std::vector<size_t> begins;
  size_t at = 0;
  for (const int32_t id : ids) {
    std::string_view bytes = tokenizer_.token_bytes(id);
    size_t begin = at;
    if (!text.substr(begin).starts_with(bytes))  // white space that an added token has swallowed
      while (begin < text.size() && is_space(text[begin]) && !text.substr(begin).starts_with(bytes)) ++begin;
    if (!text.substr(begin).starts_with(bytes) && bytes.starts_with(' ')) begin = at, bytes.remove_prefix(1);
    if (!text.substr(begin).starts_with(bytes)) return {};
    begins.push_back(begin);
    at = begin + bytes.size();
  }
  return begins;
}

ChatTokens ChatEncoder::encode(const ChatRecord& record) const {
  check(!record.is_pair(), ErrorCode::kInvalidArgument, "the record is a pair (prompt, chosen, rejected)");
  const RenderedPrompt prompt = render(record, record.messages, /*ask=*/false);
  const std::vector<Answer> answers = find_answers(record, prompt);
  ChatTokens out{.ids = encode_text(prompt.text, prompt), .mask = {}};
  const std::vector<size_t> begins = token_begins(prompt, out.ids);
  out.mask.resize(out.ids.size());
  // The first token that begins at or behind a place. Without places of tokens: behind those that the text up to there
  // has alike.
  const auto token_at = [&](size_t place) {
    if (begins.size() == out.ids.size()) return std::ranges::lower_bound(begins, place) - begins.begin();
    const std::vector<int32_t> part = encode_text(std::string_view(prompt.text).substr(0, place), prompt);
    return std::ranges::mismatch(part, out.ids).in1 - part.begin();
  };
  const bool weighed = std::ranges::any_of(answers, [](const Answer& answer) { return answer.weight != 1; });
  if (weighed) out.weights.resize(out.ids.size(), 1);
  for (const auto& [answer, weight] : answers) {
    const auto first = token_at(answer.begin);
    // As transformers has it, a token across the beginning of a marked answer belongs to it.
    const bool across = template_.marks_answers() && first > 0 && std::ssize(begins) > first &&
                        begins[static_cast<size_t>(first)] > answer.begin;
    const auto begin = first - (across ? 1 : 0), end = token_at(answer.end);
    std::fill(out.mask.begin() + begin, out.mask.begin() + end, weight > 0 ? 1 : 0);
    if (weighed && weight > 0) std::fill(out.weights.begin() + begin, out.weights.begin() + end, weight);
  }
  return out;
}

PairTokens ChatEncoder::encode_pair(const ChatRecord& record) const {
  check(record.is_pair(), ErrorCode::kInvalidArgument, "the record is no pair (prompt, chosen, rejected)");
  const RenderedPrompt prompt = render(record, record.messages, /*ask=*/true);
  PairTokens out{.prompt = encode_text(prompt.text, prompt), .chosen = {}, .rejected = {}};
  for (const auto& [side, ids] : {std::pair(&record.chosen, &out.chosen), {&record.rejected, &out.rejected}}) {
    Json messages = record.messages;
    messages.insert(messages.end(), side->begin(), side->end());
    const RenderedPrompt whole = render(record, std::move(messages), /*ask=*/false);
    *ids = encode_text(whole.text, whole);
    check(whole.text.starts_with(prompt.text) && std::ranges::mismatch(out.prompt, *ids).in1 == out.prompt.end(),
          ErrorCode::kInvalidArgument,
          "{} writes the prompt in another way once an answer follows, so that the answer has no place", where_);
    ids->erase(ids->begin(), ids->begin() + std::ssize(out.prompt));
  }
  return out;
}

}  // namespace octet
