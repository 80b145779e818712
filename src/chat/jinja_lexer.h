// Tokens of a template: text between tags, and what stands inside of tags.
#pragma once

#include "chat/jinja_value.h"

namespace octet::jinja {

enum class TokenKind : uint8_t {
  kText,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd,
};
struct Token {
  TokenKind kind = TokenKind::kEnd;
  uint32_t line = 1;
  std::string_view text;  // of kText after white space control
  Value value = {};       // of strings and numbers
};

// `source` is made uniform (line ends, one at the end dropped) and must outlive the tokens, as must the arena. Throws
// kInvalidArgument with `where` and line.
std::vector<Token> lex(std::string& source, Arena& arena, const std::string& where, const TemplateOptions& options);

}  // namespace octet::jinja
