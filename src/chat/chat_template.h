// Chat templates: the Jinja of published models (chat_template.jinja, tokenizer_config.json), rendered as transformers
// sets Jinja2 up (trim_blocks, lstrip_blocks, loop controls, raise_exception, strftime_now, tojson without escapes).
//
// A rendered prompt is a list of pieces, each with its origin: added tokens are recognised in what the template itself
// wrote and never in what a request gave, so no message can forge a role.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

struct RenderedPiece {
  std::string text;
  bool from_template = true;  // false: any of its bytes came from the bindings
};

// What rendering may use; more is an error that names the limit.
struct RenderLimits {
  int64_t steps = 2'000'000;         // expressions and statements evaluated
  int64_t depth = 200;               // of calls, of nested expressions and of values
  int64_t output_bytes = 8'000'000;  // and of any string on the way
};

class ChatTemplate {
 public:
  // Throws kInvalidArgument with `where`, line and what is wrong.
  ChatTemplate(std::string_view source, const std::string& where);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Names that the template reads and does not set itself: what chat_template_kwargs may give.
  const std::set<std::string>& variables() const;

  // `bindings`: an object, its members in their order: messages, tools, add_generation_prompt, bos_token ...
  // `now`: what strftime_now formats, seconds since 1970, local time. Neighbouring pieces differ in origin. Throws
  // kInvalidArgument with line and text for what the template raises, and for what the limits forbid. Thread safe.
  std::vector<RenderedPiece> render(const nlohmann::ordered_json& bindings, double now,
                                    const RenderLimits& limits = {}) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octet
