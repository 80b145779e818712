#include "chat/chat_template.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_cost.h"
#include "chat/jinja_renderer.h"

namespace octet {

using nlohmann::ordered_json;

struct ChatTemplate::Impl {
  Impl(std::string_view source, std::string where_, int64_t memory)
      : parsed(source, memory), where(std::move(where_)) {}
  jinja::Template parsed;
  std::string where;
  std::set<std::string> variables;
  MessageForm form;
};

namespace {

bool is_usual_role(std::string_view role) {
  static constexpr std::array<std::string_view, 9> kRoles = {
      "system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "model"};
  return std::ranges::find(kRoles, role) != kRoles.end();
}

// Texts are views into the JSON.
jinja::Value to_value(jinja::Renderer& runtime, const ordered_json& json, jinja::Origin origin) {
  using jinja::Value;
  switch (json.type()) {
    case ordered_json::value_t::string: return Value::of(std::string_view(json.get_ref<const std::string&>()), origin);
    case ordered_json::value_t::boolean: {
      Value out = Value::of(json.get<bool>());
      out.origin = origin;
      return out;
    }
    case ordered_json::value_t::number_integer: return Value::of(json.get<int64_t>(), origin);
    case ordered_json::value_t::number_unsigned:
      runtime.check(json.get<uint64_t>() <= INT64_MAX, "integers beyond 64 bits are not supported");
      return Value::of(json.get<int64_t>(), origin);
    case ordered_json::value_t::number_float: return Value::of(json.get<double>(), origin);
    case ordered_json::value_t::array: {
      const jinja::Runtime::Nested nested(runtime);
      const std::span<Value> items = runtime.array<Value>(json.size());
      for (size_t i = 0; i < items.size(); ++i) items[i] = to_value(runtime, json[i], origin);
      return make_list(runtime, items, jinja::List::Type::kList, origin);
    }
    case ordered_json::value_t::object: {
      const jinja::Runtime::Nested nested(runtime);
      const std::span<jinja::Entry> entries = runtime.array<jinja::Entry>(json.size());
      size_t count = 0;
      for (const auto& [key, member] : json.get_ref<const ordered_json::object_t&>()) {
        const bool role = key == "role" && member.is_string() && is_usual_role(member.get_ref<const std::string&>());
        entries[count++] = {Value::of(std::string_view(key), origin),
                            to_value(runtime, member, role ? jinja::Origin::kTemplate : origin)};
      }
      return adopt_dict(runtime, entries, origin);
    }
    default: {
      Value out = Value::none();
      out.origin = origin;
      return out;
    }
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& where, const TemplateOptions& options) {
  constexpr size_t kMaxBytes = 1'000'000;
  constexpr int64_t kMaxMemory = 512'000'000;
  check(source.size() <= kMaxBytes, ErrorCode::kInvalidArgument, "{}: a template of {} bytes (at most {})", where,
        source.size(), kMaxBytes);
  auto impl = std::make_unique<Impl>(source, where, kMaxMemory);
  parse(impl->parsed, impl->where, options);
  impl->variables = undeclared_names(impl->parsed);
  impl->form = message_form_of(impl->parsed);
  impl_ = std::move(impl);
}

ChatTemplate::~ChatTemplate() = default;

const std::set<std::string>& ChatTemplate::variables() const { return impl_->variables; }
const MessageForm& ChatTemplate::message_form() const { return impl_->form; }
bool ChatTemplate::marks_answers() const { return impl_->parsed.marks_answers; }
bool ChatTemplate::spells(std::string_view word) const {
  const auto quoted = [&](char quote) {
    return impl_->parsed.source.find(quote + std::string(word) + quote) != std::string::npos;
  };
  return quoted('\'') || quoted('"');
}

RenderedPrompt ChatTemplate::render(const ordered_json& bindings, const ordered_json& trusted, double now,
                                    const RenderLimits& limits) const {
  jinja::Renderer renderer(impl_->parsed, impl_->where, limits, now);
  for (const bool trust : {false, true}) {
    const ordered_json& given = trust ? trusted : bindings;
    if (given.is_null()) continue;
    check(given.is_object(), ErrorCode::kInternal, "the bindings of a template are not an object");
    for (const auto& [name, value] : given.get_ref<const ordered_json::object_t&>()) {
      const auto number = impl_->parsed.numbers.find(name);
      if (number == impl_->parsed.numbers.end()) continue;
      const jinja::Origin origin = trust ? jinja::Origin::kTemplate : jinja::Origin::kInput;
      renderer.bind(number->second, to_value(renderer, value, origin));
    }
  }
  jinja::TextBuilder out(renderer);
  renderer.render(out);
  RenderedPrompt prompt;
  size_t begin = 0;
  for (const jinja::Run& run : out.runs()) {
    if (run.origin == jinja::Origin::kTemplate) prompt.from_template.push_back({begin, run.end});
    begin = run.end;
  }
  prompt.answers = renderer.answers();
  prompt.answers_elsewhere = renderer.answers_elsewhere();
  prompt.text = out.take_text();
  return prompt;
}

namespace {

// The content of a message: null, text or a list of parts.
void shape_content(ordered_json& content, const MessageForm& form) {
  if (content.is_null() && !form.null_content) content = "";
  if (content.is_string() && form.content == MessageForm::Content::kParts)
    content = ordered_json::array({{{"type", "text"}, {"text", std::move(content)}}});
  if (!content.is_array() || form.content != MessageForm::Content::kText) return;
  std::string text;
  for (const ordered_json& part : content) {
    const bool known = part.is_object() && part.contains("text") && part["text"].is_string();
    check(known, ErrorCode::kInvalidArgument, "content: a non-text part, which this chat template cannot render: {}",
          part.dump(-1, ' ', false, ordered_json::error_handler_t::replace).substr(0, 200));
    if (&part != &content.front()) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  content = std::move(text);
}

constexpr int64_t kMaxArgumentDepth = 64;

void shape_arguments(ordered_json& arguments, const MessageForm& form) {
  constexpr auto kReplace = ordered_json::error_handler_t::replace;
  if (arguments.is_object() && form.arguments_as_text) {
    arguments = arguments.dump(-1, ' ', false, kReplace);
  } else if (arguments.is_string() && !form.arguments_as_text) {
    const auto& text = arguments.get_ref<const std::string&>();
    check_json_cost(text, "the text of a tool call's arguments", kMaxArgumentDepth);
    ordered_json parsed = text.empty() ? ordered_json::object() : ordered_json::parse(text, nullptr, false);
    check(parsed.is_object(), ErrorCode::kInvalidArgument, "the arguments of a tool call are not a JSON object: {}",
          text.substr(0, 200));
    arguments = std::move(parsed);
  }
}

}  // namespace

ordered_json messages_for_template(ordered_json messages, const MessageForm& form) {
  if (!messages.is_array()) return messages;
  for (ordered_json& message : messages) {
    if (!message.is_object()) continue;
    for (auto member = message.begin(); member != message.end();) {
      const bool none = member->is_null() || (member.key() == "tool_calls" && member->is_array() && member->empty());
      member = none && member.key() != "content" ? message.erase(member) : std::next(member);
    }
    if (const auto content = message.find("content"); content != message.end()) shape_content(*content, form);
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (ordered_json& call : *calls) {
      if (!call.is_object()) continue;
      ordered_json& function = call.contains("function") && call["function"].is_object() ? call["function"] : call;
      if (const auto arguments = function.find("arguments"); arguments != function.end())
        shape_arguments(*arguments, form);
    }
  }
  return messages;
}

}  // namespace octet
