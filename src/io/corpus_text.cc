// The texts of documents in a batch (corpus.h).
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "io/corpus.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using Json = nlohmann::json;

// Extracts the string of one key of the outermost object; everything else is validated and dropped.
class KeyFinder : public nlohmann::json_sax<Json> {
 public:
  explicit KeyFinder(const std::string& key) : key_(key) {}
  std::string text;
  bool found = false, wrong_type = false, is_object = false, overflow = false;
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
    overflow = error.id == kNumberOverflow;
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

KeyFinder find_key(std::string_view line, const std::string& key) {
  KeyFinder finder(key);
  if (Json::sax_parse(line, &finder) || !finder.overflow) return finder;
  KeyFinder again(key);
  Json::sax_parse(with_finite_numbers(line), &again);
  return again;
}

// The string under `key` of the object in one JSON line; throws with `where` in front otherwise.
std::string json_line_text(std::string_view line, const std::string& key, const std::string& where) {
  KeyFinder finder = find_key(line, key);
  check(finder.problem.empty(), ErrorCode::kCorrupt, "{}: {}", where, finder.problem);
  check(finder.is_object, ErrorCode::kCorrupt, "{}: the line is not a JSON object", where);
  check(!finder.wrong_type, ErrorCode::kCorrupt, "{}: key \"{}\" is not a string", where, key);
  check(finder.found, ErrorCode::kCorrupt, "{}: no key \"{}\" (--key names the text's, --prompt-key the prompt's)",
        where, key);
  return std::move(finder.text);
}

void note_invalid(TextCounts& counts, const std::string& where) {
  if (counts.invalid_places++ == 0) counts.first_invalid = where;
}

using LineBody = std::function<void(std::string_view line, const std::string& where)>;

void each_line(std::string_view bytes, const CorpusSegment& segment, const CorpusFile& file, const TextOptions& options,
               TextCounts& counts, const LineBody& body) {
  int64_t number = segment.position;
  for (; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file.path, number);
    std::string repaired;
    const size_t good = utf8_valid_prefix(line);
    if (good < line.size()) {
      check(options.utf8 != Utf8Policy::kError, ErrorCode::kInvalidArgument, "{}: invalid UTF-8 at byte {} of the line",
            where, good);
      note_invalid(counts, where);
      int64_t replaced = 0;
      repaired = utf8_replace_invalid(line, &replaced);
      line = repaired;
    }
    body(line, where);
  }
}

// The texts of a line: the prompt's, where there is one, and the text's.
void each_text_of_line(std::string_view line, const std::string& where, const TextOptions& options, TextCounts& counts,
                       const std::function<void(const TextPiece&)>& body) {
  std::string text, prompt;
  const bool prompted = !options.prompt_key.empty();
  try {
    text = json_line_text(line, options.json_key, where);
    if (prompted) prompt = json_line_text(line, options.prompt_key, where);
  } catch (const Error& error) {
    if (!options.skip_bad_lines) throw;
    return counts.skip(error.message());
  }
  counts.bytes += static_cast<int64_t>(prompt.size() + text.size());
  if (prompted) body({prompt, true, false, where, /*counts=*/false});
  body({text, !prompted, true, where});
}

}  // namespace

LineKind kind_of_line(std::string_view line, const std::string& key) {
  const KeyFinder finder = find_key(line, key);
  if (!finder.problem.empty() || !finder.is_object) return LineKind::kNoObject;
  return finder.found && !finder.wrong_type ? LineKind::kText : LineKind::kOtherObject;
}

void TextCounts::skip(const std::string& why) {
  if (skipped_lines++ == 0) first_skipped = why;
}

void TextCounts::add(const TextCounts& other) {
  if (first_invalid.empty()) first_invalid = other.first_invalid;
  if (first_skipped.empty()) first_skipped = other.first_skipped;
  bytes += other.bytes;
  invalid_places += other.invalid_places;
  skipped_lines += other.skipped_lines;
}

void each_json_line(const CorpusBatch& batch, const std::vector<CorpusFile>& files, const TextOptions& options,
                    TextCounts& counts, const LineBody& body) {
  for (const CorpusSegment& segment : batch.segments)
    each_line(std::string_view(batch.bytes).substr(segment.begin, segment.end - segment.begin), segment,
              files[segment.file], options, counts, body);
}

void each_text(const CorpusBatch& batch, const std::vector<CorpusFile>& files, const TextOptions& options,
               TextCounts& counts, const std::function<void(const TextPiece&)>& body) {
  for (const CorpusSegment& segment : batch.segments) {
    const CorpusFile& file = files[segment.file];
    const auto bytes = std::string_view(batch.bytes).substr(segment.begin, segment.end - segment.begin);
    if (segment.json_lines) {
      each_line(bytes, segment, file, options, counts, [&](std::string_view line, const std::string& where) {
        each_text_of_line(line, where, options, counts, body);
      });
      continue;
    }
    check(options.prompt_key.empty(), ErrorCode::kInvalidArgument,
          "--prompt-key {}: {} is plain text, which has no keys: give JSON lines", options.prompt_key, file.path);
    TextPiece piece{bytes, segment.begins_document, segment.ends_document, file.path};
    if (segment.position > 0) piece.where += fmt::format(" (from byte {})", segment.position);
    std::string repaired;
    const size_t good = utf8_valid_prefix(bytes);
    if (good < bytes.size()) {
      const std::string where = fmt::format("{}: byte {}", file.path, segment.position + static_cast<int64_t>(good));
      check(options.utf8 != Utf8Policy::kError, ErrorCode::kInvalidArgument, "{} (0x{:02x}) is not valid UTF-8", where,
            static_cast<uint8_t>(bytes[good]));
      note_invalid(counts, where);
      if (options.utf8 == Utf8Policy::kReplace) {
        int64_t replaced = 0;
        repaired = utf8_replace_invalid(bytes, &replaced);
        piece.text = repaired;
      }
    }
    counts.bytes += static_cast<int64_t>(piece.text.size());
    body(piece);
  }
}

}  // namespace octet
