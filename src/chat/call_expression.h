// Replies that call tools, as expressions over bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/call_guide.h"
#include "chat/json_schema.h"
#include "chat/reply_tools.h"

namespace octet::guides {

// As of call_guide(). `schema` is made: it holds the schemas of the tools.
Expr call_expression(Expressions& x, std::unique_ptr<JsonSchema>& schema, const CallRules& rules, const Json& tools,
                     const GuideLimits& limits);

// The schema with its objects closed, as `unevaluatedProperties: false` closes them over the union of allOf, anyOf,
// oneOf, if and $ref: those that name properties and say nothing of others (close_objects.cc). Its references lead into
// itself.
Json with_closed_objects(const Json& schema);

Expr thought_expression(Expressions& x);  // the rest of a thought through </think>

// A tag as bytes and as a special token.
std::vector<std::string> spellings(std::string_view tag);

// How a format writes an argument whose value stands bare between tags; a line end follows each.
struct ArgumentTags {
  Expr open = kEmptyText, middle = kEmptyText;  // in front of the key, between key and value
  std::vector<std::string> close = {};          // behind the value, in its spellings
  std::vector<std::string> never = {};          // what else ends a value
};

// Arguments as keys with bare values (call_parameters.cc).
class BareArguments {
 public:
  BareArguments(Expressions& x, ArgumentTags tags, const GuideLimits& limits);
  Expr any();
  // Those that fit `parameters`, which is of the document of `schema`. `types`: what the parser knows of them.
  Expr fitting(JsonSchema& schema, const Json& parameters, const ToolTable& types, std::string_view function);

 private:
  Expr argument(Expr key, Expr value) { return x_.concat({tags_.open, key, tags_.middle, value, x_.byte('\n')}); }
  Expr other_names(const std::vector<std::string>& names);
  Expr value(JsonSchema& schema, const Json& place, uint8_t types);  // with its close tag
  Expr bare(Expr texts);
  Expr strings(JsonSchema& schema, const Json& place);  // that fit, as they are

  Expressions& x_;
  const ArgumentTags tags_;
  const GuideLimits limits_;
  Expr any_text_;
};

}  // namespace octet::guides
