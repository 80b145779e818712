// Chat templates: the Jinja of published models (chat_template.jinja, tokenizer_config.json), rendered as transformers
// sets Jinja2 up (trim_blocks, lstrip_blocks, loop controls, raise_exception, strftime_now, tojson without escapes).
//
// A rendered prompt says which of its bytes the template wrote: added tokens are recognised in them only and never in
// what a request gave, so no message can forge a role. A role that is a usual one counts as the template's, which may
// write it inside of a marker (<|user|>).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer.h"

namespace octet {

// Its ids: tokenizer.encode(text, {.parse_special = true, .added_in = &from_template}).
struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> from_template;  // ascending, apart from each other; the rest came from the bindings
  std::vector<TextRange> answers;        // what {% generation %} blocks wrote, in order
  bool answers_elsewhere = false;        // some of these blocks stand where a text has no place yet: in a macro, a set,
                                         // call or filter block
};

// What rendering may use; more is an error that names the limit.
struct RenderLimits {
  int64_t steps = 2'000'000;           // expressions and statements evaluated, items gone through
  int64_t depth = 500;                 // of calls, of nested statements and expressions, and of values
  int64_t output_bytes = 8'000'000;    // and of any string on the way; at most 2^32 - 1
  int64_t memory_bytes = 128'000'000;  // of all values
};

struct TemplateOptions {
  bool trim_blocks = true;    // a line end right behind a block is dropped
  bool lstrip_blocks = true;  // and white space before a block on its line
  // Reading an undefined value is an error, but for `is defined` and default(): Jinja2's StrictUndefined.
  bool strict_undefined = false;
};

// The form in which a template reads messages, as its source shows.
struct MessageForm {
  enum class Content : uint8_t { kText, kParts, kEither };
  Content content = Content::kText;
  bool null_content = false;       // it tells none from ""
  bool arguments_as_text = false;  // it writes a call's arguments as they are, without tojson or items
};

class ChatTemplate {
 public:
  // Throws kInvalidArgument with `where`, line and what is wrong.
  ChatTemplate(std::string_view source, const std::string& where, const TemplateOptions& options = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Names that the template reads where it has not certainly set them before: what chat_template_kwargs may give.
  const std::set<std::string>& variables() const;
  const MessageForm& message_form() const;
  bool marks_answers() const;                // with {% generation %} blocks
  bool spells(std::string_view word) const;  // as a string of its own: it may have a branch for it

  // `bindings`: an object: messages, tools, add_generation_prompt, what the request gives. `trusted`: an object whose
  // texts count as the template's (bos_token, eos_token); its members stand before bindings of the same name. `now`:
  // what strftime_now formats, seconds since 1970, in local time. Throws kInvalidArgument with line and text for what
  // the template raises, and for what the limits forbid. Thread safe.
  RenderedPrompt render(const nlohmann::ordered_json& bindings, const nlohmann::ordered_json& trusted, double now,
                        const RenderLimits& limits = {}) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

// Messages of a request in the form that a template reads: content of text parts joined by line ends (or text made a
// part), content null as "", other members that are null and tool_calls without a call left out, arguments of calls
// parsed into objects or written as text. Throws kInvalidArgument for
// arguments that are no JSON object and for parts that are no text where the template takes text only.
nlohmann::ordered_json messages_for_template(nlohmann::ordered_json messages, const MessageForm& form);

}  // namespace octet
