#include "chat/call_expression.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "chat/regex.h"
#include "chat/reply_parser.h"
#include "chat/reply_scan.h"
#include "chat/token_trie.h"

namespace octet::guides {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

struct Tool {
  std::string name;
  bool guided = false;
  Json parameters;  // guided: their schema
  Expr arguments = kNothing;
};

std::vector<Tool> read_tools(const CallRules& rules, const Json& tools) {
  std::vector<Tool> out;
  for (const Json& item : tools) {
    const Json& function = item.is_object() && item.contains("function") ? item["function"] : item;
    check(function.is_object() && function.contains("name") && function["name"].is_string(),
          ErrorCode::kInvalidArgument, "tools: {} is not {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}",
          item.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 100));
    Tool tool{.name = function["name"].get<std::string>()};
    check(!tool.name.empty() && std::ranges::all_of(tool.name, is_name_byte), ErrorCode::kInvalidArgument,
          "tool '{}': want a name of letters, digits, '_', '-', '.', ':' and '/'", tool.name);
    check(std::ranges::find(out, tool.name, &Tool::name) == out.end(), ErrorCode::kInvalidArgument,
          "tool '{}': two tools have this name", tool.name);
    if (!rules.only.empty() && tool.name != rules.only) continue;
    tool.guided = rules.required || (function.contains("strict") && function["strict"] == true);
    const bool given = function.contains("parameters") && !function["parameters"].is_null();
    if (tool.guided)
      tool.parameters = given ? function["parameters"] : Json{{"type", "object"}, {"additionalProperties", false}};
    if (tool.guided && !given) tool.parameters["properties"] = Json::object();
    out.push_back(std::move(tool));
  }
  check(!out.empty(), ErrorCode::kInvalidArgument, "tools: there is no {} to call",
        rules.only.empty() ? "function" : "'" + rules.only + "'");
  return out;
}

// References of a schema that moves to `place` of a larger document. `named`: `schema` is schemas by name.
void move_references(Json& schema, const std::string& place, bool named = false) {
  if (schema.is_array())
    for (Json& item : schema) move_references(item, place);
  if (!schema.is_object()) return;
  for (auto& [name, value] : schema.items()) {
    static constexpr std::string_view kByName[] = {
        "properties", "patternProperties", "dependencies", "dependentSchemas", "$defs", "definitions"};
    if (!named && name == "$ref" && value.is_string()) {
      const std::string old = value.get<std::string>();
      if (old.starts_with('#')) value = place + old.substr(1);
    } else if (named || (name != "const" && name != "enum" && name != "default" && name != "examples")) {
      move_references(value, place, !named && std::ranges::find(kByName, name) != std::end(kByName));
    }
  }
}

class Replies {
 public:
  Replies(Expressions& x, const CallRules& rules, const GuideLimits& limits) : x_(x), rules_(rules), limits_(limits) {
    check(std::ranges::find(reply_formats(), rules.format) != reply_formats().end(), ErrorCode::kInvalidArgument,
          "tool call format '{}' (want one of {})", rules.format, fmt::join(reply_formats(), ", "));
  }

  Expr make(std::unique_ptr<JsonSchema>& schema, const Json& tools) {
    tools_ = read_tools(rules_, tools);
    for (const Tool& tool : read_tools({}, tools)) names_.push_back(tool.name);
    Json all{{"anyOf", Json::array({true})}};
    for (Tool& tool : tools_) {
      if (!tool.guided) continue;
      named(tool, [&] {
        for (const std::string& regex : check_schema(tool.parameters).patterns)
          regex_expression(x_, regex, RegexUse::kString, limits_);
        if (!rules_.open_objects) tool.parameters = with_closed_objects(tool.parameters);
      });
      std::string place = "#/anyOf/" + std::to_string(all["anyOf"].size());
      move_references(tool.parameters, place);
      all["anyOf"].push_back(tool.parameters);
    }
    GuideLimits deeper = limits_;
    deeper.depth += 6;  // of anyOf here, of the schemas that close objects
    schema = std::make_unique<JsonSchema>(x_, all.dump(), deeper, value_end());
    size_t index = 0;
    const ToolTable types(tools);
    for (Tool& tool : tools_) {
      const Json& parameters = schema->document()["anyOf"][tool.guided ? ++index : 0];
      named(tool, [&] { tool.arguments = arguments(*schema, tool, parameters, types); });
    }
    return reply();
  }

 private:
  template <typename Do>
  static void named(const Tool& tool, Do act) {
    try {
      act();
    } catch (const Error& error) {
      fail(error.code(), "tool '{}': {}", tool.name, error.message());
    }
  }

  // The tag at which the parser ends a bare value: no string of JSON in its place holds it.
  std::string_view value_end() const {
    return rules_.format == "qwen3_coder" ? "</parameter>" : rules_.format == "glm4" ? "</arg_value>" : "";
  }
  Expr mark(std::string_view tag) { return x_.words(spellings(tag)); }

  Expr arguments(JsonSchema& schema, const Tool& tool, const Json& parameters, const ToolTable& types) {
    const Expr object = tool.guided ? x_.derive(schema.at(parameters), '{') : schema.any_object();
    check(x_.alive(object), ErrorCode::kInvalidArgument, "no object fits its parameters");
    if (value_end().empty()) return tool.guided ? x_.concat(x_.byte('{'), object) : object;
    check(tool.parameters.dump().find(value_end()) == std::string::npos, ErrorCode::kInvalidArgument,
          "its parameters contain '{}', which ends a value in this reply format", value_end());
    ArgumentTags tags;
    if (rules_.format == "glm4") {
      tags = {mark("<arg_key>"), x_.concat({mark("</arg_key>"), x_.byte('\n'), mark("<arg_value>")}),
              spellings("</arg_value>")};
    } else {
      tags = {x_.text("<parameter="),
              x_.text(">\n"),
              {"\n</parameter>"},
              {"</parameter>", "\n<parameter=", "\n</function>"}};
    }
    BareArguments bare(x_, std::move(tags), limits_);
    return tool.guided ? bare.fitting(schema, parameters, types, tool.name) : bare.any();
  }

  // A call of any of the tools.
  Expr call(std::string_view before, Expr between, Expr after) {
    std::vector<Expr> calls;
    for (const Tool& tool : tools_)
      calls.push_back(x_.concat({x_.text(std::string(before) + tool.name), between, tool.arguments, after}));
    return x_.alt(calls);
  }
  Expr list(Expr one, Expr separator) {
    return rules_.parallel ? x_.concat(one, x_.repeat(x_.concat(separator, one), 0, kUnbounded)) : one;
  }
  Expr object(std::string_view key) {
    return call("{\"name\": \"", x_.text("\", \"" + std::string(key) + "\": "), x_.byte('}'));
  }

  // The calls behind the tag that begins the first of them.
  Expr tagged_calls(std::string_view tag) {
    const Expr next = x_.concat(x_.byte('\n'), mark(tag)), end = mark("</tool_call>");
    if (rules_.format == "hermes")
      return list(x_.concat({x_.byte('\n'), object("arguments"), x_.byte('\n'), end}), next);
    if (rules_.format == "qwen3_coder")
      return list(call("\n<function=", x_.text(">\n"), x_.concat(x_.text("</function>\n"), end)), next);
    if (rules_.format == "glm4") return list(call("", x_.byte('\n'), end), next);
    if (rules_.format == "llama3_json") return list(object("parameters"), x_.text("; "));
    if (rules_.format == "glm4_json") return list(call("", x_.byte('\n'), kEmptyText), mark(tag));
    const Expr array = x_.concat({x_.byte('['), list(object("arguments"), x_.text(", ")), x_.byte(']')});
    const Expr spaced = x_.concat(x_.repeat(x_.byte(' '), 0, 1), array);
    if (rules_.format == "granite") return spaced;
    return x_.alt({spaced, list(call("", x_.repeat(mark("[ARGS]"), 0, 1), kEmptyText), mark(tag))});
  }

  Expr reply() {
    const std::string tag = call_tag(rules_.format);
    const Expr calls = tagged_calls(tag);
    const Expr bare = rules_.format == "llama3_json" || rules_.format == "glm4_json" ? calls : kNothing;
    const Expr lead = x_.repeat(x_.byte('\n'), 0, 2);
    // Text that does not begin with any of `begins`, and calls.
    const auto rest = [&](std::vector<Expr> begins) {
      if (rules_.required || rules_.calls_only) return x_.concat(lead, x_.alt({x_.concat(mark(tag), calls), bare}));
      if (rules_.format == "llama3_json") begins.push_back(x_.byte('{'));
      if (rules_.format == "glm4_json")
        for (const std::string& name : names_) begins.push_back(x_.text(name + "\n"));
      std::vector<std::string> never;
      if (rules_.format == "qwen3_coder") never.push_back("<function=");
      const Expr text_and_calls = x_.concat(x_.until(spellings(tag), never), calls);
      never.push_back(tag);
      const Expr other = x_.complement(
          x_.concat({x_.repeat(x_.alt({x_.byte(' '), x_.byte('\n'), x_.byte('\t'), x_.byte('\r')}), 0, kUnbounded),
                     x_.alt(begins), x_.repeat(x_.bytes(~ByteSet()), 0, kUnbounded)}));
      return x_.alt({x_.both({x_.until({}, never), other}), x_.both({text_and_calls, other}), x_.concat(lead, bare)});
    };
    const Expr thought = thought_expression(x_);
    if (rules_.in_reasoning) return x_.concat(thought, rest({}));
    if (!rules_.reasoning) return rest({});
    return x_.alt({x_.concat({lead, mark(kThink), thought, rest({})}), rest({mark(kThink)})});
  }

  Expressions& x_;
  const CallRules& rules_;
  const GuideLimits& limits_;
  std::vector<Tool> tools_;
  std::vector<std::string> names_;  // of all tools that the parser knows
};

}  // namespace

Expr thought_expression(Expressions& x) { return x.until(spellings(kThinkEnd), {}); }

std::vector<std::string> spellings(std::string_view tag) { return {std::string(tag), kSpecialByte + std::string(tag)}; }

Expr call_expression(Expressions& x, std::unique_ptr<JsonSchema>& schema, const CallRules& rules, const Json& tools,
                     const GuideLimits& limits) {
  return Replies(x, rules, limits).make(schema, tools);
}

}  // namespace octet::guides
