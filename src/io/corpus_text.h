// Converts batches to the texts of documents: JSON lines are parsed, invalid UTF-8 is handled by the chosen policy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/corpus_reader.h"

namespace octet {

enum class Utf8Policy {
  kKeep,     // bytes are passed to the tokenizer unchanged (in JSON text they are replaced), counted
  kReplace,  // each invalid sequence becomes U+FFFD, counted
  kError,    // an error with file and byte or line
};

struct TextOptions {
  std::string json_key = "text";
  std::string
      prompt_key;  // of JSON lines: a text before it, in the same document, whose tokens are no targets; "" none
  Utf8Policy utf8 = Utf8Policy::kKeep;
  bool skip_bad_lines = false;  // skip and count lines of damaged JSON or without the key
};

struct TextCounts {
  int64_t bytes = 0;           // of text returned
  int64_t invalid_places = 0;  // pieces of text with invalid UTF-8
  int64_t skipped_lines = 0;
  std::string first_invalid, first_skipped;  // where and why
  void add(const TextCounts& other);
};

struct TextPiece {
  std::string_view text;
  bool begins_document = true, ends_document = true;
  std::string where;   // for errors: file, or file:line
  bool counts = true;  // its tokens are targets
};

// Calls body for every piece of text of the batch, in order.
void each_text(const CorpusBatch& batch, const std::vector<CorpusFile>& files, const TextOptions& options,
               TextCounts& counts, const std::function<void(const TextPiece&)>& body);

// The string under `key` of the object in one JSON line; throws with `where` in front otherwise.
std::string json_line_text(std::string_view line, const std::string& key, const std::string& where);

}  // namespace octet
