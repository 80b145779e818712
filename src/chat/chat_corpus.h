// Files of chat records on their way to a prepared set: conversations of at most a row's tokens, packed whole, with
// answers as the only targets; and the same records printed, a line each.
#pragma once

#include <cstdio>
#include <mutex>

#include "chat/chat_data.h"
#include "io/corpus.h"

namespace octet {

struct ChatCorpusOptions {
  enum class Long { kCutRight, kCutLeft, kDrop };
  std::string tokenizer_path;      // a folder or a file in it
  std::string chat_template;       // a file; "auto": the folder's own
  int64_t sequence_length = 1024;  // of a row
  Long too_long = Long::kCutRight;
  bool pairs = false;  // records are pairs of answers; a row is one, both behind their prompt
};

struct ChatCounts {
  int64_t conversations = 0;           // kept; or pairs
  int64_t targets = 0;                 // their tokens of answers
  int64_t truncated = 0, dropped = 0;  // longer than a row
  int64_t without_answer = 0;          // dropped: nothing to learn, or only in what was cut off
};

class ChatCorpus {
 public:
  // Throws kInvalidArgument where there is no template.
  ChatCorpus(const Tokenizer& tokenizer, const ChatCorpusOptions& options);

  // Makes prepare_corpus() read conversations. This must outlive it.
  void prepare(PrepareOptions& options);
  const ChatCounts& counts() const { return counts_; }

  // Prints {"ids", "mask"}, of a pair {"prompt_ids", "chosen_ids", "rejected_ids"}, or {"error"} for every record of
  // the files that `options` names, in order.
  void print(const PrepareOptions& options, std::FILE* to) const;

 private:
  std::string line_of(std::string_view json) const;
  void encode(const PrepareOptions& options, const CorpusBatch& batch, const std::vector<CorpusFile>& files,
              EncodedBatch& out);
  int32_t end_of_answer(const ChatTokens& tokens, size_t i) const;
  bool fit(ChatTokens& tokens, ChatCounts& counts) const;
  bool fit(PairTokens& pair, ChatCounts& counts) const;
  ChatTokens pair_document(const ChatRecord& record, ChatCounts& counts) const;
  void write_files(const std::string& folder) const;

  ChatCorpusOptions options_;
  std::string path_, source_;  // of the template
  std::unique_ptr<const ChatEncoder> encoder_;
  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  ChatCounts counts_;
  int32_t answer_end_ = kNotSeen;  // the special token that ends all answers, -1: there is none
  static constexpr int32_t kNotSeen = -2;
};

}  // namespace octet
