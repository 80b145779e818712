// The steps around the model of a tokenizer.json: normalizer, pre-tokenizer, decoder, post-processor. Each step is one
// branch by its type's name; a type or setting without a branch is an error that names it.
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/character_map.h"
#include "io/tokenizer_json.h"
#include "io/tokenizer_utf8.h"

namespace octet {

using Json = nlohmann::json;

namespace {

// What Rust's regex crate calls \w and \s, in which Hugging Face's Whitespace is written.
constexpr const char* kWhitespacePattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

// Normalizers without settings.
const std::map<std::string, std::string (*)(std::string_view)> kPlainSteps = {
    {"NFC", [](std::string_view text) { return normal_form(NormalForm::kNfc, text); }},
    {"NFD", [](std::string_view text) { return normal_form(NormalForm::kNfd, text); }},
    {"NFKC", [](std::string_view text) { return normal_form(NormalForm::kNfkc, text); }},
    {"NFKD", [](std::string_view text) { return normal_form(NormalForm::kNfkd, text); }},
    {"Lowercase", lowercase},
    {"StripAccents", strip_accents}};

struct Pattern {
  std::string text;
  bool literal = false;
};

Pattern read_pattern(const Json& pattern) {
  const bool literal = pattern.contains("String");
  return {pattern.at(literal ? "String" : "Regex").get<std::string>(), literal};
}

SplitRule::Behavior read_behavior(const std::string& name, const std::string& where) {
  const auto found = std::ranges::find(kSplitBehaviors, name);
  if (found != std::end(kSplitBehaviors)) return static_cast<SplitRule::Behavior>(found - std::begin(kSplitBehaviors));
  fail(ErrorCode::kUnsupported,
       "{}: split behaviour {} (known: Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext)", where,
       name);
}

Metaspace::Prepend read_prepend(const Json& object, const std::string& where) {
  const bool prefix = object.value("add_prefix_space", true);  // older files have this one only
  const auto scheme = object.value("prepend_scheme", std::string(prefix ? "always" : "never"));
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme == "never") return Metaspace::Prepend::kNever;
  fail(ErrorCode::kUnsupported, "{}: prepend_scheme {} (known: always, first, never)", where, scheme);
}

// WordPiece's removal of spaces before punctuation.
std::string clean_up(std::string text) {
  static constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replace_all(text, from, to);
  return text;
}

// At most `start` and `stop` times `content` from the ends.
std::string strip_token(std::string text, const std::string& content, int64_t start, int64_t stop) {
  for (; start > 0 && text.starts_with(content); --start) text.erase(0, content.size());
  for (; stop > 0 && text.ends_with(content); --stop) text.resize(text.size() - content.size());
  return text;
}

}  // namespace

void read_normalizer(const Json& object, TextNormalizer& out, const std::string& where) {
  using Step = TextNormalizer::Step;
  const std::string type = json_type(object), name = object.dump();
  const auto add = [&](Step step) { out.add(name, std::move(step)); };
  if (type == "Sequence") {
    for (const Json& each : object.at("normalizers")) read_normalizer(each, out, where);
  } else if (const auto plain = kPlainSteps.find(type); plain != kPlainSteps.end()) {
    add([step = plain->second](std::string_view text, const TextPlace&) { return step(text); });
  } else if (type == "Strip") {
    const bool left = object.value("strip_left", true), right = object.value("strip_right", true);
    add([left, right](std::string_view text, const TextPlace&) { return strip_spaces(text, left, right); });
  } else if (type == "Prepend") {
    add(prepend_step(object.at("prepend").get<std::string>()));
  } else if (type == "Replace") {
    const Pattern pattern = read_pattern(object.at("pattern"));
    add(replace_step(pattern.text, pattern.literal, object.at("content").get<std::string>(), where + ": normalizer"));
  } else if (type == "Precompiled") {
    add(precompiled_step(object.at("precompiled_charsmap").get<std::string>(), where + ": normalizer"));
  } else if (type == "BertNormalizer") {
    BertCleaning what;
    what.clean_text = object.value("clean_text", true);
    what.handle_chinese_chars = object.value("handle_chinese_chars", true);
    what.lowercase = object.value("lowercase", true);
    what.strip_accents =
        json_present(object, "strip_accents") ? object.at("strip_accents").get<bool>() : what.lowercase;
    add([what](std::string_view text, const TextPlace&) { return bert_clean(what, text); });
  } else {
    fail(ErrorCode::kUnsupported,
         "{}: normalizer {} (known: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, "
         "Precompiled, BertNormalizer, Sequence)",
         where, type);
  }
}

void read_pre_tokenizer(const Json& object, TokenizerFile& out, const std::string& where) {
  const std::string type = json_type(object);
  check(!out.parts.metaspace || type == "Sequence", ErrorCode::kUnsupported, "{}: pre-tokenizer {} after Metaspace",
        where, type);
  const auto add = [&](SplitRule rule) {
    rule.spelled = out.byte_level;
    out.parts.splits.push_back(std::move(rule));
  };
  if (type == "Sequence") {
    for (const Json& each : object.at("pretokenizers")) read_pre_tokenizer(each, out, where);
  } else if (type == "ByteLevel") {
    check(!out.byte_level, ErrorCode::kUnsupported, "{}: two ByteLevel pre-tokenizers", where);
    if (object.value("add_prefix_space", true)) {
      out.parts.prefix_space = true;
      out.parts.splits_before_prefix.swap(out.parts.splits);
    }
    if (object.value("use_regex", true)) add({.pattern = kGpt2Pattern});
    out.byte_level = true;
  } else if (type == "Digits") {
    add({.pattern = object.value("individual_digits", false) ? "\\p{N}" : "\\p{N}+"});
  } else if (type == "Punctuation") {
    const auto behavior = read_behavior(object.value("behavior", std::string("Isolated")), where);
    add({.pattern = kPunctuationPattern, .behavior = behavior});
  } else if (type == "Split") {
    Pattern pattern = read_pattern(object.at("pattern"));
    const auto behavior = read_behavior(object.at("behavior").get<std::string>(), where);
    add({std::move(pattern.text), pattern.literal, behavior, object.value("invert", false)});
  } else if (type == "Whitespace") {
    add({.pattern = kWhitespacePattern, .behavior = SplitRule::Behavior::kRemoved, .invert = true});
  } else if (type == "WhitespaceSplit") {
    add({.pattern = "\\s", .behavior = SplitRule::Behavior::kRemoved});
  } else if (type == "BertPreTokenizer") {
    add({.pattern = "\\s", .behavior = SplitRule::Behavior::kRemoved});
    add({.pattern = kPunctuationPattern});
  } else if (type == "Metaspace") {
    Metaspace rule;
    rule.mark = object.value("replacement", std::string(kSpaceMark));
    check(!rule.mark.empty(), ErrorCode::kCorrupt, "{}: Metaspace with an empty replacement", where);
    rule.prepend = read_prepend(object, where);
    rule.split = object.value("split", true);
    out.parts.metaspace = rule;
  } else {
    fail(ErrorCode::kUnsupported,
         "{}: pre-tokenizer {} (known: ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
         "BertPreTokenizer, Metaspace, Sequence)",
         where, type);
  }
}

void read_decoder(const Json& object, TokenizerFile& out, const std::string& where) {
  const std::string type = json_type(object);
  const bool fused = std::find(out.decoders.begin(), out.decoders.end(), "Fuse") != out.decoders.end();
  out.decoders.push_back(type);
  const auto each_token = [&](std::function<std::string(std::string)> step) {
    check(!fused, ErrorCode::kUnsupported, "{}: decoder {} behind Fuse", where, type);
    out.decoders_of_tokens.push_back(std::move(step));
  };
  if (type == "Sequence") {
    for (const Json& each : object.at("decoders")) read_decoder(each, out, where);
  } else if (type == "ByteLevel" || type == "Fuse") {
    // ByteLevel: BPE's own; Fuse: tokens are always joined.
  } else if (type == "Replace") {
    const Pattern pattern = read_pattern(object.at("pattern"));
    each_token([step = replace_step(pattern.text, pattern.literal, object.at("content").get<std::string>(),
                                    where + ": decoder")](const std::string& token) { return step(token, {}); });
  } else if (type == "ByteFallback") {
    each_token([](const std::string& token) {
      const int byte = parse_byte_token(token);
      return byte < 0 ? token : std::string(1, static_cast<char>(byte));
    });
  } else if (type == "Strip") {
    const auto content = object.at("content").get<std::string>();
    const auto start = object.value("start", int64_t{0}), stop = object.value("stop", int64_t{0});
    if (fused) {
      check(content == " " && start <= 1 && stop == 0, ErrorCode::kUnsupported,
            "{}: decoder Strip of \"{}\", {} from the left, {} from the right (known: one space from the left)", where,
            content, start, stop);
      if (start == 1) out.parts.first_space = FirstSpace::kOne;
    } else {
      check(!content.empty(), ErrorCode::kCorrupt, "{}: decoder Strip of an empty string", where);
      each_token([=](std::string token) { return strip_token(std::move(token), content, start, stop); });
    }
  } else if (type == "Metaspace") {
    const auto mark = object.value("replacement", std::string(kSpaceMark));
    each_token([step = replace_step(mark, true, " ", "decoder")](const std::string& token) { return step(token, {}); });
    if (read_prepend(object, where) != Metaspace::Prepend::kNever) out.parts.first_space = FirstSpace::kWholeToken;
  } else if (type == "WordPiece") {
    const auto prefix = object.value("prefix", std::string("##"));
    const bool clean = object.value("cleanup", true);
    each_token([=](const std::string& token) {
      std::string shown = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
      return clean ? clean_up(std::move(shown)) : shown;
    });
    out.parts.first_space = FirstSpace::kOne;
  } else {
    fail(ErrorCode::kUnsupported,
         "{}: decoder {} (known: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece, Sequence)", where,
         type);
  }
}

namespace {

// Of TemplateProcessing, whose special_tokens have the ids.
std::vector<SequenceTemplate::Piece> read_template(const Json& object, const char* key) {
  std::vector<SequenceTemplate::Piece> pieces;
  if (!json_present(object, "special_tokens")) return pieces;  // their ids are not known
  for (const Json& each : json_present(object, key) ? object.at(key) : Json::array()) {
    const bool special = each.contains("SpecialToken");
    const Json& one = each.at(special ? "SpecialToken" : "Sequence");
    const auto type = one.value("type_id", 0);
    if (!special) {
      pieces.push_back({.text = one.at("id") == "B" ? 1 : 0, .type = type});
      continue;
    }
    for (const Json& id : object.at("special_tokens").at(one.at("id").get<std::string>()).at("ids"))
      pieces.push_back({.id = id.get<int32_t>(), .type = type});
  }
  return pieces;
}

}  // namespace

void read_post_processor(const Json& object, TokenizerFile& file, const std::string& where) {
  TokenizerConfig& out = file.special;
  const std::string type = json_type(object);
  if (type == "Sequence") {
    for (const Json& each : object.at("processors")) read_post_processor(each, file, where);
  } else if (type == "TemplateProcessing") {
    file.parts.sequence = {read_template(object, "single"), read_template(object, "pair")};
    std::vector<std::string> before, after;
    bool text = false;
    for (const Json& each : object.at("single")) {
      if (each.contains("SpecialToken")) {
        (text ? after : before).push_back(each.at("SpecialToken").at("id").get<std::string>());
      } else {
        check(each.contains("Sequence") && !text, ErrorCode::kUnsupported,
              "{}: a post-processor template with {} (known: special tokens around one text)", where, each.dump());
        text = true;
      }
    }
    check(before.size() <= 1 && after.size() <= 1, ErrorCode::kUnsupported,
          "{}: a post-processor template with {} tokens before and {} behind the text (known: at most one each)", where,
          before.size(), after.size());
    out.adds_bos = !before.empty();
    if (!before.empty()) out.bos = before[0];
    if (!after.empty()) out.eos = after[0];
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    out.bos = object.at("cls").at(0).get<std::string>();
    out.eos = object.at("sep").at(0).get<std::string>();
    out.adds_bos = true;
    const auto cls = object.at("cls").at(1).get<int32_t>(), sep = object.at("sep").at(1).get<int32_t>();
    const bool bert = type == "BertProcessing";
    file.parts.sequence.single = {{.id = cls}, {.text = 0}, {.id = sep}};
    file.parts.sequence.pair = file.parts.sequence.single;
    if (!bert) file.parts.sequence.pair.push_back({.id = sep});
    for (const SequenceTemplate::Piece& piece : {SequenceTemplate::Piece{.text = 1}, {.id = sep}})
      file.parts.sequence.pair.push_back({piece.id, piece.text, bert ? 1 : 0});
  } else {
    check(type == "ByteLevel", ErrorCode::kUnsupported,
          "{}: post-processor {} (known: TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence)",
          where, type);
  }
}

}  // namespace octet
