// JSON of the corpus tools: one key of a JSON line without building the object, and the record beside a prepared set.
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/corpus.h"
#include "io/corpus_text.h"

namespace octet {
namespace {

using Json = nlohmann::json;

// Extracts the string of one key of the outermost object; everything else is validated and dropped.
class KeyFinder : public nlohmann::json_sax<Json> {
 public:
  explicit KeyFinder(const std::string& key) : key_(key) {}
  std::string text;
  bool found = false, wrong_type = false, is_object = false;
  std::string problem;

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool string(string_t& value) override {
    if (!take_) return true;
    take_ = false;
    found = true;
    text = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    take_ = depth_ == 1 && name == key_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    problem = error.what();
    return false;
  }

 private:
  bool scalar() {
    if (take_) wrong_type = true;
    take_ = false;
    return true;
  }
  bool open(bool object) {
    if (depth_ == 0) is_object = object;
    ++depth_;
    return scalar();
  }
  const std::string& key_;
  int depth_ = 0;
  bool take_ = false;
};

}  // namespace

std::string json_line_text(std::string_view line, const std::string& key, const std::string& where) {
  KeyFinder finder(key);
  Json::sax_parse(line, &finder);
  check(finder.problem.empty(), ErrorCode::kCorrupt, "{}: {}", where, finder.problem);
  check(finder.is_object, ErrorCode::kCorrupt, "{}: the line is not a JSON object", where);
  check(!finder.wrong_type, ErrorCode::kCorrupt, "{}: key \"{}\" is not a string", where, key);
  check(finder.found, ErrorCode::kCorrupt, "{}: no key \"{}\" (--key names the text's, --prompt-key the prompt's)",
        where, key);
  return std::move(finder.text);
}

DatasetInfo read_dataset_info(const std::string& prefix) {
  namespace fs = std::filesystem;
  std::string base = prefix;
  if (base.ends_with(".bin") || base.ends_with(".idx")) base.resize(base.size() - 4);
  const size_t split = base.rfind('_');
  std::error_code error;
  if (!fs::exists(base + ".json", error) && split != std::string::npos) base.resize(split);
  const std::string path = base + ".json";
  try {
    const Json root = parse_json(read_file(path), path);
    DatasetInfo info;
    const Json& tokenizer = root.at("tokenizer");
    const fs::path folder = fs::path(path).parent_path();
    info.tokenizer_path = (folder / tokenizer.at("path").get<std::string>()).string();
    info.tokenizer_fingerprint = tokenizer.at("fingerprint").get<std::string>();
    info.vocab_size = json_get<int64_t>(tokenizer, "vocab_size", path);
    info.eos_id = json_get<int32_t>(tokenizer, "eos_id", path);
    for (const Json& each : root.at("splits")) {
      info.splits.push_back({each.at("name").get<std::string>(),
                             (folder / each.at("prefix").get<std::string>()).string(),
                             json_get<int64_t>(each, "documents", path), json_get<int64_t>(each, "tokens", path),
                             json_get<int64_t>(each, "bytes", path)});
    }
    return info;
  } catch (const Json::exception& problem) {
    fail(ErrorCode::kCorrupt, "{}: not the record of a prepared set: {}", path, problem.what());
  }
}

}  // namespace octet
