// What built-in tasks make of the documents of published files: the harness does it by Python (process_docs of its
// tasks) or gets them from the Hub in this form.
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "io/tokenizer_steps.h"
#include "tasks/python_regex.h"
#include "tasks/python_text.h"
#include "tasks/task_documents.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

const std::string& text_of(const ordered_json& doc, const char* field, const std::string& where) {
  const auto found = doc.find(field);
  check(found != doc.end() && found->is_string(), ErrorCode::kInvalidArgument, "{}: no text '{}': {}", where, field,
        doc.dump(-1, ' ', false, ordered_json::error_handler_t::replace).substr(0, 200));
  return found->get_ref<const std::string&>();
}

// Marks of WikiHow's pages are taken out.
std::string hellaswag_text(std::string_view text) {
  static const PythonRegex brackets("\\[.*?\\]", "hellaswag");
  return replace_all(brackets.replace(replace_all(std::string(strip(text)), " [title]", ". "), ""), "  ", " ");
}

// str.capitalize(), but for a first letter that is not ASCII's.
std::string capitalized(const std::string& text) {
  std::string out = lowercase(text);
  if (!out.empty() && out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] ^ 0x20);
  return out;
}

void add_hellaswag(ordered_json& doc, const std::string& where) {
  const std::string context = text_of(doc, "ctx_a", where) + " " + capitalized(text_of(doc, "ctx_b", where));
  doc["query"] = hellaswag_text(text_of(doc, "activity_label", where) + ": " + context);
  const ordered_json& endings = doc["endings"];
  check(endings.is_array() && !endings.empty(), ErrorCode::kInvalidArgument, "{}: no list 'endings'", where);
  ordered_json choices = ordered_json::array();
  for (const ordered_json& ending : endings) choices.push_back(hellaswag_text(ending.get<std::string>()));
  doc["choices"] = std::move(choices);
}

// NAME-labels.lst beside NAME.jsonl: a number a line.
void add_piqa(std::vector<ordered_json>& docs, const std::string& path) {
  if (docs.empty() || docs[0].contains("label")) return;
  const std::string labels = path.substr(0, path.rfind('.')) + "-labels.lst";
  std::istringstream lines(read_file(labels));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string_view number = strip(line);
    check(number == "0" || number == "1", ErrorCode::kInvalidArgument, "{}:{}: '{}' (want 0 or 1)", labels, count + 1,
          line);
    if (count < docs.size()) docs[count]["label"] = number == "1" ? 1 : 0;
  }
  check(count == docs.size(), ErrorCode::kInvalidArgument, "{}: {} labels for the {} documents of {}", labels, count,
        docs.size(), path);
}

// {"question": {"stem", "choices": [{"text", "label"}]}} as the Hub has it.
void add_stem(ordered_json& doc, const std::string& where) {
  if (doc.contains("question_stem")) doc["question"] = doc["question_stem"];
  if (!doc["question"].is_object()) return;
  const ordered_json question = doc["question"];
  ordered_json texts = ordered_json::array(), labels = ordered_json::array();
  for (const ordered_json& choice : question.value("choices", ordered_json::array())) {
    texts.push_back(text_of(choice, "text", where));
    labels.push_back(text_of(choice, "label", where));
  }
  doc["question"] = text_of(question, "stem", where);
  doc["choices"] = {{"text", std::move(texts)}, {"label", std::move(labels)}};
}

void add_boolq(ordered_json& doc, const std::string& where) {
  const char* field = doc.contains("label") ? "label" : "answer";
  const ordered_json value = doc.value(field, ordered_json());
  check(value.is_boolean() || value.is_number_integer(), ErrorCode::kInvalidArgument, "{}: {}: {} (want true or false)",
        where, field, value.dump());
  doc["label"] = value.is_boolean() ? static_cast<int64_t>(value.get<bool>()) : value.get<int64_t>();
}

// {choice: 1 or 0} as {"choices", "labels"}.
void add_truthfulqa(ordered_json& doc, const std::string& where) {
  for (const char* field : {"mc1_targets", "mc2_targets"}) {
    check(doc.contains(field) && doc[field].is_object(), ErrorCode::kInvalidArgument, "{}: no object '{}'", where,
          field);
    if (doc[field].contains("choices")) continue;
    ordered_json choices = ordered_json::array(), labels = ordered_json::array();
    for (const auto& [choice, label] : doc[field].items()) choices.push_back(choice), labels.push_back(label);
    doc[field] = {{"choices", std::move(choices)}, {"labels", std::move(labels)}};
  }
}

// The pages of wiki.test.raw, each from its heading " = Title = " on.
std::vector<ordered_json> wikitext_pages(const std::string& text) {
  std::vector<ordered_json> pages;
  std::string page;
  bool begun = false;
  const auto end_page = [&] {
    if (!strip(page).empty()) pages.push_back({{"page", page}});
    page.clear(), begun = false;
  };
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const std::string marks = replace_all(replace_all(line, "= = =", "==="), "= =", "==");
    const std::string_view heading = strip(marks);
    if (heading.starts_with("= ") && heading.ends_with(" =")) end_page();
    if (begun) page += '\n';
    page += line, begun = true;
    at = end + 1;
  }
  end_page();
  return pages;
}

}  // namespace

std::string wikitext_detokenized(const std::string& page) {
  static const std::pair<const char*, const char*> kMarks[] = {{"s '", "s'"}};
  static const std::pair<const char*, const char*> kSpaces[] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."},
                                                                {" : ", ": "},  {" ; ", "; "},  {" . ", ". "},
                                                                {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
  static const std::pair<PythonRegex, const char*> kPairs[] = {
      {PythonRegex(R"(\(\s*([^\)]*?)\s*\))", "wikitext"), R"((\1))"},
      {PythonRegex(R"(\[\s*([^\]]*?)\s*\])", "wikitext"), R"([\1])"},
      {PythonRegex(R"({\s*([^}]*?)\s*})", "wikitext"), R"({\1})"},
      {PythonRegex(R"("\s*([^"]*?)\s*")", "wikitext"), R"("\1")"},
      {PythonRegex(R"('\s*([^']*?)\s*')", "wikitext"), R"('\1')"}};
  static const std::pair<const char*, const char*> kRest[] = {{"= = = =", "===="},    {"= = =", "==="}, {"= =", "=="},
                                                              {" \u00b0 ", "\u00b0"}, {" \n", "\n"},    {"\n ", "\n"},
                                                              {" N ", " 1 "},         {" 's", "'s"}};
  static const PythonRegex year("/' [0-9]/", "wikitext");
  std::string text = page;
  for (const auto& [from, to] : kMarks) text = replace_all(std::move(text), from, to);
  text = year.replace(text, "/'[0-9]/");
  for (const auto& [from, to] : kSpaces) text = replace_all(std::move(text), from, to);
  for (const auto& [from, to] : kPairs) text = from.replace(text, to);
  for (const auto& [from, to] : kRest) text = replace_all(std::move(text), from, to);
  return text;
}

void apply_hook(TaskHook hook, std::vector<ordered_json>& docs, const std::string& path) {
  if (hook == TaskHook::kPiqa) return add_piqa(docs, path);
  if (hook == TaskHook::kWikitext) {
    if (docs.size() == 1 && !path.ends_with(".jsonl")) docs = wikitext_pages(text_of(docs[0], "page", path));
    for (ordered_json& doc : docs) doc["text"] = wikitext_detokenized(text_of(doc, "page", path));
    return;
  }
  for (size_t i = 0; i < docs.size(); ++i) {
    const std::string where = fmt::format("{}: document {}", path, i);
    if (hook == TaskHook::kHellaswag) add_hellaswag(docs[i], where);
    if (hook == TaskHook::kStem) add_stem(docs[i], where);
    if (hook == TaskHook::kBoolq) add_boolq(docs[i], where);
    if (hook == TaskHook::kTruthfulqa || hook == TaskHook::kTruthfulqaMass) add_truthfulqa(docs[i], where);
  }
}

}  // namespace octet
