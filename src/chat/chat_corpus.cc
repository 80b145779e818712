#include "chat/chat_corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "io/chat_template_file.h"

namespace octet {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string folder_of(const std::string& tokenizer_path) {
  return is_folder(tokenizer_path) ? tokenizer_path : std::filesystem::path(tokenizer_path).parent_path().string();
}

}  // namespace

// The special token that ends the answer whose last token is the i-th, at most a line end behind it; -1: none does.
int32_t ChatCorpus::end_of_answer(const ChatTokens& tokens, size_t i) const {
  const std::string_view last = tokenizer_.token_bytes(tokens.ids[i]);
  if (last.find_first_not_of(" \r\n") == std::string_view::npos && i > 0 && tokens.mask[i - 1] != 0) --i;
  return tokenizer_.is_special(tokens.ids[i]) ? tokens.ids[i] : -1;
}

ChatCorpus::ChatCorpus(const Tokenizer& tokenizer, const ChatCorpusOptions& options)
    : options_(options), path_(options.chat_template), tokenizer_(tokenizer) {
  const std::string folder = folder_of(options.tokenizer_path);
  const bool own = options.chat_template == "auto";
  source_ = own ? find_chat_template(folder, "default", path_) : read_file(options.chat_template);
  check(!source_.empty(), ErrorCode::kInvalidArgument, "{}: give the file of a Jinja template with --chat FILE",
        own ? fmt::format("--chat auto: {} has no chat template (chat_template.jinja, or in tokenizer_config.json)",
                          folder)
            : fmt::format("--chat {}: the file is empty", path_));
  encoder_ = std::make_unique<ChatEncoder>(tokenizer, source_, path_, read_token_texts(folder), seconds_now());
}

void ChatCorpus::prepare(PrepareOptions& options) {
  options.text.format = CorpusFormat::kJsonLines;
  options.prepend_bos = options.append_eod = false;  // the template writes them
  options.row_length = options_.sequence_length, options.pairs = options_.pairs;
  const PrepareOptions given = options;
  options.encode = [this, given](const CorpusBatch& batch, const std::vector<CorpusFile>& files, EncodedBatch& out) {
    encode(given, batch, files, out);
  };
  options.write_files = [this](const std::string& folder) { write_files(folder); };
  options.more_record = [this] { return fmt::format("\"answer_end\": {}", std::max(answer_end_, -1)); };
}

// Cuts what is longer than a row; false: the conversation is dropped.
bool ChatCorpus::fit(ChatTokens& tokens, ChatCounts& counts) const {
  if (const auto over = std::ssize(tokens.ids) - options_.sequence_length; over > 0) {
    if (options_.too_long == ChatCorpusOptions::Long::kDrop) return ++counts.dropped, false;
    ++counts.truncated;
    const auto cut = [&](auto& values) {
      const bool left = options_.too_long == ChatCorpusOptions::Long::kCutLeft;
      const auto begin = left ? values.begin() : values.end() - over;
      values.erase(begin, begin + over);
    };
    cut(tokens.ids), cut(tokens.mask);
    if (!tokens.weights.empty()) cut(tokens.weights);
  }
  if (!tokens.has_targets()) return ++counts.without_answer, false;
  return true;
}

// Cuts a pair whose both sequences are longer than a row: ends of the longer answer, then of both; or the beginning of
// the prompt, of both alike.
bool ChatCorpus::fit(PairTokens& pair, ChatCounts& counts) const {
  const int64_t prompt = std::ssize(pair.prompt), row = options_.sequence_length;
  const int64_t chosen = prompt + std::ssize(pair.chosen), rejected = prompt + std::ssize(pair.rejected);
  if (const int64_t over = chosen + rejected - row; over > 0) {
    if (options_.too_long == ChatCorpusOptions::Long::kDrop) return ++counts.dropped, false;
    ++counts.truncated;
    if (options_.too_long == ChatCorpusOptions::Long::kCutLeft) {
      pair.prompt.erase(pair.prompt.begin(), pair.prompt.begin() + std::min(prompt, (over + 1) / 2));
    } else {
      const int64_t most = std::max(row / 2, row - std::min(chosen, rejected));
      for (std::vector<int32_t>* answer : {&pair.chosen, &pair.rejected})
        answer->resize(static_cast<size_t>(std::clamp<int64_t>(most - prompt, 0, std::ssize(*answer))));
    }
    if (std::ssize(pair.chosen) + std::ssize(pair.rejected) + 2 * std::ssize(pair.prompt) > row) pair.chosen.clear();
  }
  if (pair.prompt.empty() || pair.chosen.empty() || pair.rejected.empty()) return ++counts.without_answer, false;
  return true;
}

// Both sequences, one after the other; nothing of a pair that is dropped.
ChatTokens ChatCorpus::pair_document(const ChatRecord& record, ChatCounts& counts) const {
  check(record.is_pair(), ErrorCode::kInvalidArgument,
        "no pair of answers (prompt, chosen, rejected), and --pairs takes nothing else");
  PairTokens pair = encoder_->encode_pair(record);
  check(!pair.prompt.empty(), ErrorCode::kInvalidArgument, "the prompt of the pair has no tokens");
  ChatTokens tokens;
  if (!fit(pair, counts)) return tokens;
  for (const std::vector<int32_t>* answer : {&pair.chosen, &pair.rejected}) {
    tokens.ids.insert(tokens.ids.end(), pair.prompt.begin(), pair.prompt.end());
    tokens.ids.insert(tokens.ids.end(), answer->begin(), answer->end());
    tokens.mask.resize(tokens.mask.size() + pair.prompt.size(), 0);
    tokens.mask.resize(tokens.mask.size() + answer->size(), 1);
  }
  return tokens;
}

void ChatCorpus::encode(const PrepareOptions& options, const CorpusBatch& batch, const std::vector<CorpusFile>& files,
                        EncodedBatch& out) {
  ChatCounts counts;
  int32_t answer_end = kNotSeen;
  each_json_line(batch, files, options.text, out.counts, [&](std::string_view line, const std::string& where) {
    ChatTokens tokens;
    try {
      const ChatRecord record = read_chat_record(line);
      check(options_.pairs || !record.is_pair(), ErrorCode::kInvalidArgument,
            "a pair of answers (prompt, chosen, rejected): --pairs makes a set of such, --print prints them");
      tokens = options_.pairs ? pair_document(record, counts) : encoder_->encode(record);
      if (options_.pairs && tokens.ids.empty()) return;
    } catch (const Error& error) {
      const std::string message = where + ": " + error.message();
      if (!options.text.skip_bad_lines) throw Error(error.code(), message + " (--skip-bad-lines skips such lines)");
      return out.counts.skip(message);
    }
    for (size_t i = 0; i < tokens.ids.size(); ++i) {
      if (tokens.mask[i] == 0 || (i + 1 < tokens.ids.size() && tokens.mask[i + 1] != 0)) continue;
      const int32_t end = end_of_answer(tokens, i);
      answer_end = answer_end == kNotSeen || answer_end == end ? end : -1;
    }
    if (!options_.pairs && !fit(tokens, counts)) return;
    ++counts.conversations;
    counts.targets += std::count(tokens.mask.begin() + 1, tokens.mask.end(), 1);
    out.counts.bytes += static_cast<int64_t>(line.size());
    const auto weight = [&](size_t i) { return tokens.weights.empty() ? 1.0f : tokens.weights[i]; };
    for (size_t begin = 0, end = 0; begin < tokens.ids.size(); begin = end) {
      while (end < tokens.ids.size() && tokens.mask[end] == tokens.mask[begin] && weight(end) == weight(begin)) ++end;
      const bool last = end == tokens.ids.size();
      out.pieces.push_back({out.ids.size() + end, last ? static_cast<int64_t>(line.size()) : 0, last,
                            tokens.mask[begin] != 0, weight(begin)});
    }
    out.ids.insert(out.ids.end(), tokens.ids.begin(), tokens.ids.end());
  });
  const std::lock_guard lock(mutex_);
  counts_.conversations += counts.conversations, counts_.targets += counts.targets;
  counts_.truncated += counts.truncated, counts_.dropped += counts.dropped;
  counts_.without_answer += counts.without_answer;
  if (answer_end != kNotSeen) answer_end_ = answer_end_ == kNotSeen || answer_end_ == answer_end ? answer_end : -1;
}

// The template, and the texts it writes, where the vocabulary's own files do not name them.
void ChatCorpus::write_files(const std::string& folder) const {
  write_file(folder + "/chat_template.jinja", source_);
  const std::string path = folder + "/tokenizer_config.json";
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  if (path_exists(path)) config = parse_json<nlohmann::ordered_json>(read_file(path), path);
  for (const auto& [key, text] : encoder_->trusted().items())
    if (!config.contains(key)) config[key] = text;
  write_file(path, config.dump(2) + "\n");
}

std::string ChatCorpus::line_of(std::string_view json) const {
  try {
    const ChatRecord record = read_chat_record(json);
    if (record.is_pair()) {
      const PairTokens pair = encoder_->encode_pair(record);
      return fmt::format("{{\"prompt_ids\": {}, \"chosen_ids\": {}, \"rejected_ids\": {}}}\n", pair.prompt, pair.chosen,
                         pair.rejected);
    }
    const ChatTokens tokens = encoder_->encode(record);
    const std::string weights =
        tokens.weights.empty() ? "" : fmt::format(", \"weights\": [{}]", fmt::join(tokens.weights, ", "));
    return fmt::format("{{\"ids\": {}, \"mask\": {}{}}}\n", tokens.ids, tokens.mask, weights);
  } catch (const Error& error) {
    return fmt::format("{{\"error\": {}}}\n", json_quote(error.message()));
  }
}

void ChatCorpus::print(const PrepareOptions& options, std::FILE* to) const {
  TextOptions text = options.text;
  text.format = CorpusFormat::kJsonLines;
  CorpusReader reader(list_corpus(options.inputs, options.tokenizer_path), text);
  const int threads = options.threads > 0 ? options.threads : thread_count();
  run_over_corpus(reader, threads, [&](int, const CorpusBatch& batch) -> std::function<void()> {
    std::string lines;
    TextCounts counts;
    each_json_line(batch, reader.files(), text, counts,
                   [&](std::string_view line, const std::string&) { lines += line_of(line); });
    return [lines = std::move(lines), to] { std::fwrite(lines.data(), 1, lines.size(), to); };
  });
}

}  // namespace octet
