// The lines of JSON lines in batches of a corpus, with their numbers.
#pragma once

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "io/corpus.h"

namespace octet {

// Calls body(line, number) for each line of the batch that is not blank; numbers count from 1 in the file. The lines
// are as they stand in the file, without their ends. Throws kCorrupt for one of more than `longest` bytes.
template <typename Body>
void each_json_line(const CorpusBatch& batch, const std::string& path, int64_t longest, Body body) {
  for (const CorpusSegment& segment : batch.segments) {
    std::string_view bytes = std::string_view(batch.bytes).substr(segment.begin, segment.end - segment.begin);
    for (int64_t number = segment.position; !bytes.empty(); ++number) {
      const size_t end = std::min(bytes.find('\n'), bytes.size());
      const std::string_view line = bytes.substr(0, end);
      bytes.remove_prefix(std::min(end + 1, bytes.size()));
      check(static_cast<int64_t>(end) <= longest, ErrorCode::kCorrupt,
            "{}:{}: a line of {} bytes, more than {}: --max-line allows longer ones", path, number, end, longest);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) body(line, number);
    }
  }
}

// One file of JSON lines, in batches.
inline CorpusReader open_json_lines(const CorpusFile& file, int64_t longest) {
  return CorpusReader({file}, {.format = CorpusFormat::kJsonLines, .longest_line = longest});
}

// A name DIR/STEM.jsonl for each file, from its name without .gz, .zst, .jsonl, .ndjson, .json; equal names are
// numbered (a.jsonl, a-2.jsonl).
std::vector<std::string> output_names(const std::vector<CorpusFile>& files);

}  // namespace octet
