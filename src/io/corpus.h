// Corpora: reading them as a stream of batches of about a megabyte, text files (one document each) or JSON lines (one
// document a line), both plain, .gz or .zst, told apart by what they hold; the texts of the documents in a batch, with
// invalid UTF-8 handled by the chosen policy; and preparing them for training: a reader, tokenising workers and one
// ordered writer over bounded queues, so that memory depends on the number of workers and not on the corpus, and the
// result does not depend on the number of workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer.h"

namespace octet {

struct CorpusFile {
  enum class Packing { kPlain, kGzip, kZstd };
  std::string path;
  Packing packing = Packing::kPlain;
  bool json_lines = false;
  bool named_json = false;   // .json
  bool from_folder = false;  // found by walking a folder: skipped when it is binary
  int64_t bytes = 0;         // on disk
};

// Files, folders (walked in name order; hidden entries left out) and globs; .gz and .zst are unpacked. What octet
// writes (sets, vocabularies, runs) and the path `tokenizer` are left out, with a warning. No match, a missing path or
// a device is an error.
std::vector<CorpusFile> list_corpus(const std::vector<std::string>& inputs, const std::string& tokenizer = "");

// A part of a batch that comes from one place of one file.
struct CorpusSegment {
  size_t begin = 0, end = 0;  // in CorpusBatch::bytes
  size_t file = 0;            // in the list of files
  int64_t position = 0;       // text: byte offset in the (unpacked) file; JSON lines: number of its first line, from 1
  bool json_lines = false;
  bool begins_document = true, ends_document = true;  // text only
};

struct CorpusBatch {
  int64_t number = 0;  // 0, 1, 2, ...
  std::string bytes;
  std::vector<CorpusSegment> segments;
  int64_t disk_bytes = 0;  // consumed from disk up to the end of this batch, over all files
};

enum class Utf8Policy {
  kKeep,     // bytes are passed to the tokenizer unchanged (in JSON text they are replaced), counted
  kReplace,  // each invalid sequence becomes U+FFFD, counted
  kError,    // an error with file and byte or line
};

enum class CorpusFormat {
  kAuto,  // JSON lines where a file is named .jsonl or .ndjson, or its first line is an object with the key; else text
  kText,
  kJsonLines,
};

struct TextOptions {
  CorpusFormat format = CorpusFormat::kAuto;
  std::string json_key = "text";
  std::string
      prompt_key;  // of JSON lines: a text before it, in the same document, whose tokens are no targets; "" none
  Utf8Policy utf8 = Utf8Policy::kKeep;
  bool skip_bad_lines = false;              // skip and count lines of damaged JSON or without the key
  int64_t longest_line = int64_t{1} << 30;  // bytes of JSON; a longer one is an error
};

class TokenDataset;
class ByteSource;  // one opened file, unpacked

class CorpusReader {
 public:
  explicit CorpusReader(std::vector<CorpusFile> files, TextOptions options = {}, size_t batch_bytes = 1 << 20);
  ~CorpusReader();

  // False at the end. Throws on unreadable files and truncated or damaged compression, naming file and byte; on files
  // that hold no UTF-8 text, and on JSON that is neither lines with the key nor asked for as text, naming the kind.
  bool next(CorpusBatch& batch);
  const std::vector<CorpusFile>& files() const { return files_; }
  int64_t total_disk_bytes() const { return total_; }
  int64_t binary_files_skipped() const { return binary_skipped_; }

 private:
  bool open_next();
  bool settle_format(CorpusFile& file);
  void take_from_file(CorpusBatch& batch);

  std::vector<CorpusFile> files_;
  TextOptions options_;
  size_t batch_bytes_;
  size_t current_ = 0, opened_ = 0;
  std::unique_ptr<ByteSource> source_;
  std::string pending_;   // unpacked bytes not yet returned
  int64_t position_ = 0;  // of pending_[0]: byte offset or line number
  bool at_document_start_ = true;
  bool file_ended_ = false;
  int64_t batches_ = 0, done_bytes_ = 0, total_ = 0, binary_skipped_ = 0;
};

// Position to cut a long text so that pre-tokenisation is unchanged: between a letter and a space followed by a letter,
// else after a newline, else between characters. 0 if there is no such position and `must` is false.
size_t find_text_cut(std::string_view text, bool must);

// What a line holds: a JSON object with a text under `key`, another one, or something else.
enum class LineKind { kText, kOtherObject, kNoObject };
LineKind kind_of_line(std::string_view line, const std::string& key);

struct TextCounts {
  int64_t bytes = 0;           // of text returned
  int64_t invalid_places = 0;  // pieces of text with invalid UTF-8
  int64_t skipped_lines = 0;
  std::string first_invalid, first_skipped;  // where and why
  void skip(const std::string& why);         // a line
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

// Calls body for every line of JSON lines of the batch, in order; lines are valid UTF-8.
void each_json_line(const CorpusBatch& batch, const std::vector<CorpusFile>& files, const TextOptions& options,
                    TextCounts& counts,
                    const std::function<void(std::string_view line, const std::string& where)>& body);

struct CorpusProgress {
  int64_t disk_bytes = 0, total_disk_bytes = 0;  // input bytes read, and total
  int64_t text_bytes = 0, documents = 0, tokens = 0;
};

// Runs `work(worker, batch)` on every batch of `reader` in `threads` threads, and the closure it returns on the calling
// thread, in batch order. The first failing batch's error is thrown; later batches are abandoned.
using CorpusWork = std::function<std::function<void()>(int worker, const CorpusBatch& batch)>;
void run_over_corpus(CorpusReader& reader, int threads, const CorpusWork& work);

// Tokens of the documents in a batch.
struct EncodedBatch {
  struct Piece {
    size_t end = 0;  // in ids
    int64_t bytes = 0;
    bool ends_document = true;
    bool counts = true;  // its tokens are targets
    float weight = 1;    // of each of them
  };
  std::vector<int32_t> ids;
  std::vector<Piece> pieces;
  TextCounts counts;
  int64_t unknown_places = 0;
  std::string first_unknown;
  int64_t disk_bytes = 0;
};

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output;          // PREFIX
  std::string tokenizer_path;  // recorded; the tokenizer is also copied to PREFIX_tokenizer/
  TextOptions text;
  UnknownText::Policy unknown = UnknownText::Policy::kToken;  // for text without a token
  bool prepend_bos = true;       // put the begin token, where the tokenizer does so, in front of each document
  bool append_eod = true;        // append the tokenizer's eos, if it has one, to each document
  std::vector<double> split;     // fractions of train, validation [, test]; empty = one set named PREFIX
  bool split_by_tokens = false;  // contiguous parts of the token stream instead of whole documents
  int threads = 0;               // 0 = all cores
  std::function<void(const CorpusProgress&)> progress;  // called about once a megabyte, from the calling thread
  // Instead of the texts that `text` names: encodes a batch, from any thread.
  std::function<void(const CorpusBatch&, const std::vector<CorpusFile>&, EncodedBatch&)> encode;
  int64_t row_length = 0;  // > 0: documents are packed whole into rows of so many tokens
  bool pairs = false;      // of these each is two sequences (pair_rows in dataset.h), and a row of its own
  // More files of PREFIX_tokenizer/, and more members of PREFIX.json (`"name": value, ...`), once all is encoded.
  std::function<void(const std::string& folder)> write_files;
  std::function<std::string()> more_record;
};

struct SplitInfo {
  std::string name, prefix;                      // "train", "PREFIX_train"
  int64_t documents = 0, tokens = 0, bytes = 0;  // bytes of text, without end tokens
  int64_t rows = 0;                              // of a packed set
};

struct PrepareResult {
  std::vector<SplitInfo> splits;
  TextCounts text;
  int64_t prompt_tokens = 0;   // that are no targets
  int64_t unknown_places = 0;  // without a token
  std::string first_unknown;   // with its file, or file:line
  int64_t binary_files_skipped = 0;
  std::string dtype;
};

// Writes PREFIX.bin/.idx (or PREFIX_train.., PREFIX_val.., PREFIX_test..), PREFIX_tokenizer/ and PREFIX.json. Throws
// kInvalidArgument while another process writes PREFIX, and where PREFIX.json is an input.
PrepareResult prepare_corpus(const Tokenizer& tokenizer, const PrepareOptions& options);

// Contents of PREFIX.json; `prefix` may be that of a split (PREFIX_train).
struct DatasetInfo {
  std::string base;  // PREFIX
  std::string tokenizer_path, tokenizer_fingerprint;
  int64_t vocab_size = 0;
  int32_t eos_id = -1;
  std::optional<int32_t> begin_id;  // of the token in front of documents, -1: there is none; nothing: not recorded
  int64_t row_length = 0;           // > 0: the sets are packed
  bool pairs = false;               // a row is two sequences: a chosen answer and a rejected one
  int32_t answer_end = -1;          // the special token that ends all answers of chat data, -1: there is none
  std::vector<SplitInfo> splits;
};
DatasetInfo read_dataset_info(const std::string& prefix);
// Nothing for a .bin/.idx pair made elsewhere, which has no record of its tokenizer.
std::optional<DatasetInfo> find_dataset_info(const std::string& prefix);

// A set, with what its record says of begin tokens. Throws kInvalidArgument where the record describes another set than
// the one that is there; warns where documents lack the begin token that their vocabulary puts in front of texts.
std::shared_ptr<const TokenDataset> open_prepared_set(const std::string& prefix, int64_t vocab_size = 0);

// The tokens of texts (list_corpus), each document behind the token `begin_id` where it is >= 0: all, or at least the
// first `most` > 0.
std::vector<int32_t> encode_corpus(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                                   const TextOptions& options, int32_t begin_id, int64_t most);

}  // namespace octet
