#include "serve/guided.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace octet::serve {
namespace {

using Guides = std::shared_ptr<const Guide>;

// A schema as its object or its text.
std::string source_of(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Guides make_guide(const std::string& kind, const nlohmann::ordered_json& value, const std::string& source,
                  const GuideLimits& limits) {
  if (kind == "json") return json_schema_guide(source, limits);
  if (kind == "json_object") return json_object_guide(limits);
  if (kind == "regex") return regex_guide(source, limits);
  if (kind == "grammar") return grammar_guide(source, limits);
  std::vector<std::string> choices;
  for (const nlohmann::ordered_json& choice : value)
    choices.push_back(choice.is_string() ? choice.get<std::string>() : choice.dump());
  return choice_guide(choices, limits);
}

// Where guides of requests come from: the model's, and whose.
struct Source {
  const ApiModel& model;
  const std::string& key;
};

Guides guide_of(Fields& fields, const char* field, const Source& from, const std::string& kind,
                const nlohmann::ordered_json& value) {
  if ((kind == "regex" || kind == "grammar") && !value.is_string())
    fields.fail(field, fmt::format("{}: want a string", kind));
  const std::string source = source_of(value);
  try {
    return find_guide(from.model, from.key, kind, source,
                      [&](const GuideLimits& limits) { return make_guide(kind, value, source, limits); });
  } catch (const Error& error) {
    throw ApiError(fmt::format("{}.{}: {}", fields.name_of(field), kind, error.message()), fields.name_of(field));
  }
}

Guides structured(Fields& fields, const Source& from) {
  const nlohmann::ordered_json* asked = fields.find("structured_outputs");
  if (asked == nullptr) return nullptr;
  Fields inner(*asked, "structured_outputs.");
  Guides guide;
  for (const char* kind : {"json", "regex", "choice", "grammar", "json_object"}) {
    const nlohmann::ordered_json* value = inner.find(kind);
    if (value == nullptr || *value == false) continue;
    if (guide) fields.fail("structured_outputs", "want one of json, regex, choice, grammar and json_object");
    guide = guide_of(fields, "structured_outputs", from, kind, *value);
  }
  if (const auto unknown = inner.unknown(); !unknown.empty())
    throw ApiError(fmt::format("{} is not supported (want json, regex, choice, grammar or json_object)", unknown[0]),
                   unknown[0]);
  return guide;
}

// OpenAI's: {"type": "text" | "json_object" | "json_schema"}, a schema as {"json_schema": {"name", "schema"}} or,
// `flat`, as {"name", "schema"} beside the type. Others': {"type": "json_object" | "json", "schema" or "value": a
// schema}, {"type": "regex", "value": an expression}.
Guides format_guide(Fields& fields, const char* key, const Source& from, bool flat) {
  const nlohmann::ordered_json* asked = fields.find(key);
  if (asked == nullptr) return nullptr;
  Fields inner(*asked, fields.name_of(key) + ".");
  const std::string type = inner.text("type").value_or("");
  if (type == "text") return nullptr;
  const nlohmann::ordered_json* value = inner.find("value");
  if (type == "regex" && value != nullptr) return guide_of(fields, key, from, "regex", *value);
  if (type == "json_object" || type == "json") {
    if (value == nullptr) value = inner.find("schema");
    return value != nullptr ? guide_of(fields, key, from, "json", *value)
                            : guide_of(fields, key, from, "json_object", {});
  }
  const nlohmann::ordered_json* holder = flat ? asked : inner.find("json_schema");
  if (!flat && holder == nullptr) holder = value;
  if (type != "json_schema" || holder == nullptr || !holder->is_object() || !holder->contains("schema"))
    fields.fail(key, fmt::format("want a type of text, json_object, or json_schema with a {}schema",
                                 flat ? "" : "json_schema."));
  return guide_of(fields, key, from, "json", holder->at("schema"));
}

// One text under guides: takes what was generated, then says what may come. What it took of a draft that turned out
// wrong it takes back.
class Guided {
 public:
  Guided(const std::vector<GuideUse>& guides, const std::shared_ptr<const TokenTrie>& trie, std::vector<int32_t> ends)
      : ends_(std::move(ends)) {
    for (const GuideUse& use : guides) ways_.push_back({GuideState(use.guide, trie, use.thought)});
  }

  void mask(std::span<const int32_t> generated, std::span<uint32_t> allowed) {
    take(generated);
    const std::vector<uint32_t> given(allowed.begin(), allowed.end());
    std::ranges::fill(allowed, 0u);
    bool may_end = false;
    for (Way& way : ways_) {
      if (way.lost > 0) continue;
      std::vector<uint32_t> bits = given;
      way.state.mask(bits);
      for (size_t i = 0; i < bits.size(); ++i) allowed[i] |= bits[i];
      may_end |= way.state.may_end();
    }
    for (const int32_t id : ends_) {
      uint32_t& word = allowed[static_cast<size_t>(id) / 32];
      const uint32_t bit = uint32_t{1} << (id % 32);
      word = may_end ? word | bit : word & ~bit;
    }
    check(std::ranges::any_of(allowed, [](uint32_t word) { return word != 0; }), ErrorCode::kInvalidArgument,
          "no token of the vocabulary can continue the output under its guide");
  }

  // How many of the drafts fit behind what was generated.
  int64_t fits(std::span<const int32_t> generated, std::span<const int32_t> drafts) {
    take(generated);
    const auto end = std::ranges::find_if_not(drafts, [this](int32_t draft) { return accept(draft); });
    rollback(end - drafts.begin());
    return end - drafts.begin();
  }

 private:
  struct Way {
    GuideState state;
    int64_t lost = 0;  // tokens since the text does not fit this guide
  };

  bool accept(int32_t token) {
    for (Way& way : ways_) way.lost += way.lost > 0 || !way.state.accept(token);
    const bool fits = std::ranges::any_of(ways_, [](const Way& way) { return way.lost == 0; });
    if (!fits) rollback(1);
    return fits;
  }

  void rollback(int64_t tokens) {
    for (Way& way : ways_) {
      const int64_t lost = std::min(tokens, way.lost);
      way.lost -= lost;
      way.state.rollback(tokens - lost);
    }
  }

  void take(std::span<const int32_t> generated) {
    const auto [taken, next] = std::ranges::mismatch(taken_, generated);
    rollback(taken_.end() - taken);
    taken_.erase(taken, taken_.end());
    for (const int32_t token : generated.subspan(taken_.size())) {
      check(accept(token), ErrorCode::kInternal, "token {} does not fit the guide", token);
      taken_.push_back(token);
    }
  }

  std::vector<Way> ways_;
  std::vector<int32_t> ends_;
  std::vector<int32_t> taken_;
};

// The mask of a request, or what judges its drafts: samples are masked at the same time, so each has a state. A copy is
// of another request, whose texts begin anew.
class GuidedTexts {
 public:
  GuidedTexts(std::vector<GuideUse> guides, std::shared_ptr<const TokenTrie> trie, std::vector<int32_t> ends,
              int64_t samples)
      : guides_(std::move(guides)), trie_(std::move(trie)), ends_(std::move(ends)) {
    for (int64_t i = 0; i < samples; ++i) texts_.emplace_back(guides_, trie_, ends_);
  }
  GuidedTexts(const GuidedTexts& other)
      : GuidedTexts(other.guides_, other.trie_, other.ends_, std::ssize(other.texts_)) {}
  GuidedTexts(GuidedTexts&&) = default;

  void operator()(int64_t sample, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
    texts_[static_cast<size_t>(sample)].mask(generated, allowed);
  }
  int64_t operator()(int64_t sample, std::span<const int32_t> generated, std::span<const int32_t> drafts) {
    return texts_[static_cast<size_t>(sample)].fits(generated, drafts);
  }

 private:
  std::vector<GuideUse> guides_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> ends_;
  std::vector<Guided> texts_;
};

}  // namespace

void set_guides(const std::vector<GuideUse>& guides, const ApiModel& model, GenerationRequest& request) {
  if (guides.empty()) return;
  if (request.ignore_eos || request.min_tokens > 0) {
    const std::string field = request.ignore_eos ? "ignore_eos" : "min_tokens";
    throw ApiError(field + ": not supported with guided output, which ends where its guide ends", field);
  }
  std::vector<int32_t> ends = model.engine->end_tokens();
  ends.insert(ends.end(), request.stop_ids.begin(), request.stop_ids.end());
  if (ends.empty()) throw ApiError("guided output requires a model with an end token");
  const int64_t texts = std::max(request.n, request.beams);
  request.mask = GuidedTexts(guides, model.trie, ends, texts);
  if (!model.engine->options().draft.empty() && request.draft_tokens != 0)
    request.fits = GuidedTexts(guides, model.trie, ends, texts);
}

void set_guide(const TextGuide& guide, const ApiModel& model, GenerationRequest& request) {
  if (guide.guide) set_guides({{guide.guide}}, model, request);
}

Guides find_guide(const ApiModel& model, const std::string& key, const std::string& kind, const std::string& source,
                  const GuideCache::Make& make) {
  return model.guides->get(fmt::format("{} {} {} {}", key.size(), key, kind, source), make);
}

TextGuide read_guide(Fields& fields, const ApiModel& model, const std::string& key) {
  const Source from{model, key};
  TextGuide guide{structured(fields, from)};
  if (Guides format = format_guide(fields, "response_format", from, /*flat=*/false)) {
    if (guide.guide) fields.fail("response_format", "structured_outputs is given too: want one of them");
    guide = {std::move(format), /*answer=*/true};
  }
  // llama.cpp's and SGLang's; a grammar may also be an object as TGI has it.
  for (const auto& [field, kind] : {std::pair("grammar", "grammar"), std::pair("ebnf", "grammar"),
                                    std::pair("json_schema", "json"), std::pair("regex", "regex")}) {
    const nlohmann::ordered_json* value = fields.find(field);
    if (value == nullptr || *value == "") continue;
    if (guide.guide) fields.fail(field, "another field guides the output: want one of them");
    guide.guide = value->is_object() && std::string_view(field) == "grammar"
                      ? format_guide(fields, field, from, /*flat=*/false)
                      : guide_of(fields, field, from, kind, *value);
  }
  for (const char* key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar"})
    fields.refuse(key, "use structured_outputs instead");
  return guide;
}

void read_text_format(Fields& fields, const ApiModel& model, const std::string& key, TextGuide& guide) {
  const nlohmann::ordered_json* text = fields.find("text");
  if (text == nullptr) return;
  Fields inner(*text, "text.");
  Guides format = format_guide(inner, "format", {model, key}, /*flat=*/true);
  if (!format) return;
  if (guide.guide) inner.fail("format", "structured_outputs is given too: want one of them");
  guide = {std::move(format), /*answer=*/true};
}

}  // namespace octet::serve
