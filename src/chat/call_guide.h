// Guides of replies that call tools: text and reasoning are free, calls are written as the reply format wants them, and
// their arguments fit the schema of their function.
//
// What the guide lets through, the parser of the same format (chat/reply_parser.h) reads as these calls. White space
// around tags is that of the published templates; calls end a reply, only more calls may follow. Text holds the tag
// that begins a call only where a call follows; under llama3_json, text that begins with '{' is a call. Arguments that
// a format writes without JSON around (qwen3_coder, glm4) come in the order of `properties`, names that the schema does
// not mention last; strings are bare, values that are a string or something else are JSON, unless the schema takes
// either as it comes.
//
// A tag may be one special token of the vocabulary ([TOOL_CALLS]): it is allowed where the tag is wanted, and nowhere
// else, as no special token is.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "chat/guide.h"

namespace octet {

struct CallRules {
  std::string format = {};    // of reply_formats()
  bool required = false;      // the reply is calls, at least one; else text, and calls where the model begins one
  bool calls_only = false;    // the reply is calls too, but only strict functions are held to their schemas
  std::string only = {};      // the one function that may be called; empty: any of the tools
  bool parallel = true;       // more than one call
  bool reasoning = true;      // as of ReplyOptions: <think> ... </think> may come first
  bool open_objects = false;  // as JSON Schema says; else objects that name properties have no others
  bool in_reasoning = false;  // the prompt ended inside of it: </think> comes before all else
};

// `tools`: an array of {"type": "function", "function": {"name", "parameters", "strict"}}. Arguments fit `parameters`
// where `required` or `strict` is true, else they are any JSON object; a function without `parameters` takes none.
// Throws kInvalidArgument: an unknown format, a function that is not there, names that the format cannot write, and
// what json_schema_guide() refuses, with the name of the tool; of qwen3_coder and glm4 also keywords of the object
// itself but type, properties, required and additionalProperties.
std::shared_ptr<const Guide> call_guide(const CallRules& rules, const nlohmann::ordered_json& tools,
                                        const GuideLimits& limits = {});

}  // namespace octet
