// prepare_corpus (corpus.h): tokens of each batch in the workers, splits and files in the ordered sink; and the record
// beside the files.
#include "io/corpus.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "io/dataset.h"

namespace octet {

namespace fs = std::filesystem;

namespace {

std::vector<SplitInfo> name_splits(const PrepareOptions& options) {
  if (options.split.empty()) return {{"all", options.output}};
  check(options.split.size() <= 3, ErrorCode::kInvalidArgument, "--split names {} parts (want train, val [, test])",
        options.split.size());
  double sum = 0;
  std::vector<SplitInfo> splits;
  for (double fraction : options.split) {
    check(fraction > 0 && fraction < 1, ErrorCode::kInvalidArgument, "--split part {} (want between 0 and 1)",
          fraction);
    static constexpr const char* kNames[] = {"train", "val", "test"};
    const char* name = kNames[splits.size()];
    splits.push_back({name, options.output + "_" + name});
    sum += fraction;
  }
  check(std::abs(sum - 1) < 1e-6, ErrorCode::kInvalidArgument, "--split parts sum to {} (want 1)", sum);
  return splits;
}

// Assigns documents to splits: each goes to the split furthest below its fraction, the later one on a tie. Splits are
// then as exact as whole documents allow and spread evenly over the corpus.
class Dealer {
 public:
  explicit Dealer(std::vector<double> fractions) : fractions_(std::move(fractions)), given_(fractions_.size()) {}
  size_t next() {
    ++total_;
    size_t best = 0;
    double most = -1;
    for (size_t part = 0; part < fractions_.size(); ++part) {
      const double behind = fractions_[part] * total_ - given_[part];
      if (behind >= most - 1e-9) most = behind, best = part;
    }
    if (!given_.empty()) ++given_[best];
    return best;
  }

 private:
  std::vector<double> fractions_, given_;
  double total_ = 0;
};

std::string record_json(const Tokenizer& tokenizer, const PrepareOptions& options, const PrepareResult& result) {
  const std::string name = fs::path(options.output).filename().string();
  std::string json = fmt::format(
      "{{\n  \"tokenizer\": {{\"kind\": {}, \"fingerprint\": {}, \"vocab_size\": {}, \"eos_id\": {}, \"path\": {}, "
      "\"source\": {}, \"bos_id\": {}}},\n  \"dtype\": \"{}\",\n  \"begin_of_document\": {},\n  \"end_of_document\": "
      "{},\n  \"invalid_utf8_places\": {},\n"
      "  \"unknown_places\": {},\n  \"unknown_dropped\": {},\n  \"skipped_lines\": {},\n  \"splits\": [",
      json_quote(tokenizer.kind()), json_quote(tokenizer.fingerprint()), tokenizer.vocab_size(), tokenizer.eos_id(),
      json_quote(name + "_tokenizer"), json_quote(options.tokenizer_path), tokenizer.bos_id(), result.dtype,
      options.prepend_bos && tokenizer.adds_bos(), options.append_eod && tokenizer.eos_id() >= 0,
      result.text.invalid_places, result.unknown_places, options.unknown == UnknownText::Policy::kDrop,
      result.text.skipped_lines);
  const char* comma = "\n";
  for (const SplitInfo& split : result.splits) {
    json +=
        fmt::format("{}    {{\"name\": \"{}\", \"prefix\": {}, \"documents\": {}, \"tokens\": {}, \"bytes\": {}{}}}",
                    comma, split.name, json_quote(fs::path(split.prefix).filename().string()), split.documents,
                    split.tokens, split.bytes, split.rows > 0 ? fmt::format(", \"rows\": {}", split.rows) : "");
    comma = ",\n";
  }
  json += "\n  ],\n  \"inputs\": [";
  comma = "";
  for (const std::string& input : options.inputs) json += comma + json_quote(input), comma = ", ";
  json += "]";
  if (options.row_length > 0) json += fmt::format(",\n  \"row_length\": {}", options.row_length);
  if (options.pairs) json += ",\n  \"pairs\": true";
  if (options.more_record) json += ",\n  " + options.more_record();
  return json + "\n}\n";
}

// Cuts the token stream, written under a temporary name, into contiguous parts.
void cut_by_tokens(const Tokenizer& tokenizer, const std::string& whole, const PrepareOptions& options,
                   std::vector<SplitInfo>& splits, int64_t tokens) {
  std::vector<std::string> prefixes;
  std::vector<int64_t> counts;
  double sum = 0;
  int64_t taken = 0;
  for (size_t part = 0; part < splits.size(); ++part) {
    sum += options.split[part];
    const auto end = part + 1 == splits.size() ? tokens : static_cast<int64_t>(sum * static_cast<double>(tokens));
    counts.push_back(end - taken);
    taken = end;
    check(counts.back() > 0, ErrorCode::kInvalidArgument, "--split: {} tokens leave none for {}", tokens,
          splits[part].name);
    prefixes.push_back(splits[part].prefix);
  }
  const auto documents = cut_dataset(whole, prefixes, counts);
  for (size_t part = 0; part < splits.size(); ++part) {
    splits[part].documents = documents[part];
    splits[part].tokens = counts[part];
    const auto set = TokenDataset::open(prefixes[part], tokenizer.vocab_size());
    std::vector<int32_t> block(1 << 16);
    for (int64_t at = 0; at < set->tokens(); at += static_cast<int64_t>(block.size())) {
      block.resize(static_cast<size_t>(std::min<int64_t>(1 << 16, set->tokens() - at)));
      set->read(at, block);
      for (int32_t id : block) {
        if (id != tokenizer.eos_id() && id != tokenizer.bos_id())
          splits[part].bytes += static_cast<int64_t>(tokenizer.token_bytes(id).size());
      }
    }
  }
}

// Names sets under PREFIX that its record does not describe.
void warn_of_earlier_sets(const std::string& prefix, const std::vector<SplitInfo>& splits) {
  for (const char* name : {"", "_train", "_val", "_test"}) {
    const std::string other = prefix + name;
    const bool written = std::ranges::count(splits, other, &SplitInfo::prefix) > 0;
    if (!written && path_exists(other + ".idx") && (*name == 0 || !path_exists(other + ".json")))
      log_warning("{}.bin belongs to an earlier set, which {}.json does not describe: delete it", other, prefix);
  }
}

// Removes sets that are not the last form on scope exit.
struct ScratchSets {
  std::vector<std::string> prefixes;
  ~ScratchSets() {
    std::error_code ignored;
    for (const std::string& prefix : prefixes)
      for (const char* extension : {".bin", ".idx", ".mask", ".weights"}) fs::remove(prefix + extension, ignored);
  }
};

// Encodes the texts of a batch.
void encode_texts(const Tokenizer& tokenizer, const PrepareOptions& options, const CorpusBatch& batch,
                  const std::vector<CorpusFile>& files, EncodedBatch& encoded) {
  const int32_t begin = options.prepend_bos && tokenizer.adds_bos() ? tokenizer.bos_id() : -1;
  const int32_t eod = options.append_eod ? tokenizer.eos_id() : -1;
  encoded.ids.reserve(batch.bytes.size() / 3);
  each_text(batch, files, options.text, encoded.counts, [&](const TextPiece& piece) {
    UnknownText unknown{.policy = options.unknown};
    if (piece.begins_document && begin >= 0) encoded.ids.push_back(begin);
    try {
      tokenizer.encode_to(piece.text, {.text_start = piece.begins_document, .unknown = &unknown}, encoded.ids);
    } catch (const Error& error) {
      const char* way_on = unknown.refused ? "; --on-unknown-byte=drop leaves it out" : "";
      throw Error(error.code(), piece.where + ": " + error.message() + way_on);
    }
    if (encoded.unknown_places == 0 && unknown.places > 0) encoded.first_unknown = piece.where + ": " + unknown.first;
    encoded.unknown_places += unknown.places;
    if (piece.ends_document && eod >= 0) encoded.ids.push_back(eod);
    encoded.pieces.push_back(
        {encoded.ids.size(), static_cast<int64_t>(piece.text.size()), piece.ends_document, piece.counts});
  });
}

}  // namespace

PrepareResult prepare_corpus(const Tokenizer& tokenizer, const PrepareOptions& options) {
  PrepareResult result;
  result.splits = name_splits(options);
  const bool cut = options.split_by_tokens && !options.split.empty(), pack = options.row_length > 0;
  check(!cut || !pack, ErrorCode::kInvalidArgument, "--split-by tokens would cut documents that are packed whole");
  const TokenType type = token_type_for(tokenizer.vocab_size());
  result.dtype = type == TokenType::kU16 ? "u16" : "i32";
  check(fs::path(options.output).has_filename(), ErrorCode::kInvalidArgument,
        "the output '{}' names a folder: add a prefix of the file names, as in data/corpus", options.output);
  CorpusReader reader(list_corpus(options.inputs, options.tokenizer_path), options.text);
  const std::string record_path = options.output + ".json";
  std::error_code ignored;
  for (const CorpusFile& file : reader.files())
    for (const char* written : {".json", ".bin", ".idx", ".mask", ".weights"})
      check(!fs::equivalent(file.path, options.output + written, ignored), ErrorCode::kInvalidArgument,
            "--out {} would overwrite {}, which is an input: choose another PREFIX", options.output, file.path);
  make_folders(parent_folder(options.output));
  FileWriter record(record_path);  // from the beginning: one process at a time writes PREFIX

  ScratchSets scratch;
  if (cut) scratch.prefixes = {options.output + ".uncut.partial"};
  for (const SplitInfo& split : result.splits)
    if (pack) scratch.prefixes.push_back(split.prefix + ".unpacked.partial");
  std::vector<std::unique_ptr<DatasetWriter>> writers;
  for (const std::string& prefix : scratch.prefixes) writers.push_back(std::make_unique<DatasetWriter>(prefix, type));
  for (const SplitInfo& split : result.splits)
    if (scratch.prefixes.empty()) writers.push_back(std::make_unique<DatasetWriter>(split.prefix, type));
  const int threads = options.threads > 0 ? options.threads : thread_count();
  CorpusProgress progress{.total_disk_bytes = reader.total_disk_bytes()};
  int64_t document = 0;
  std::vector<int64_t> bytes(writers.size());
  Dealer dealer(cut ? std::vector<double>{} : options.split);
  size_t part = dealer.next();

  std::vector<uint8_t> zeros;  // the mask of a prompt
  std::vector<float> weights;
  const auto sink = [&](const EncodedBatch& encoded) {
    size_t at = 0;
    for (const EncodedBatch::Piece& piece : encoded.pieces) {
      if (!piece.counts) zeros.resize(std::max(zeros.size(), piece.end - at));
      weights.assign(piece.weight == 1 ? 0 : piece.end - at, piece.weight);
      writers[part]->append(std::span(encoded.ids).subspan(at, piece.end - at),
                            std::span(zeros).first(piece.counts ? 0 : piece.end - at), weights);
      if (!piece.counts) result.prompt_tokens += static_cast<int64_t>(piece.end - at);
      bytes[part] += piece.bytes;
      at = piece.end;
      if (!piece.ends_document) continue;
      writers[part]->end_document();
      ++document;
      part = dealer.next();
    }
    result.text.add(encoded.counts);
    if (result.unknown_places == 0) result.first_unknown = encoded.first_unknown;
    result.unknown_places += encoded.unknown_places;
    progress.disk_bytes = encoded.disk_bytes;
    progress.text_bytes = result.text.bytes;
    progress.documents = document;
    progress.tokens += static_cast<int64_t>(encoded.ids.size());
    if (options.progress) options.progress(progress);
  };
  run_over_corpus(reader, threads, [&](int, const CorpusBatch& batch) -> std::function<void()> {
    auto encoded = std::make_shared<EncodedBatch>();
    if (options.encode)
      options.encode(batch, reader.files(), *encoded);
    else
      encode_texts(tokenizer, options, batch, reader.files(), *encoded);
    encoded->disk_bytes = batch.disk_bytes;
    return [&sink, encoded] { sink(*encoded); };
  });
  check(result.text.bytes > 0, ErrorCode::kInvalidArgument, "the corpus is empty: no {} in {} file(s)",
        options.pairs    ? "pair of answers to learn from"
        : options.encode ? "conversation to learn from"
                         : "text",
        reader.files().size());
  result.binary_files_skipped = reader.binary_files_skipped();
  for (size_t i = 0; i < writers.size() && !cut; ++i) {
    SplitInfo& split = result.splits[i];
    check(writers[i]->tokens() > 0, ErrorCode::kInvalidArgument,
          "--split: {} document(s) leave none for {}; cut by tokens instead (--split-by tokens)", document, split.name);
    split.documents = writers[i]->documents();
    split.tokens = writers[i]->tokens();
    split.bytes = bytes[i];
  }
  fs::remove(record_path, ignored);  // an earlier record must not describe a mixture of old and new files
  for (auto& writer : writers) writer->commit();
  if (cut) cut_by_tokens(tokenizer, scratch.prefixes[0], options, result.splits, progress.tokens);
  for (size_t i = 0; i < result.splits.size() && pack; ++i) {
    result.splits[i].rows = options.pairs ? pair_rows(scratch.prefixes[i], result.splits[i].prefix)
                                          : pack_rows(scratch.prefixes[i], result.splits[i].prefix, options.row_length);
    if (options.pairs) result.splits[i].documents *= 2;  // sequences, as the set has them
  }
  tokenizer.save(options.output + "_tokenizer");
  if (options.write_files) options.write_files(options.output + "_tokenizer");
  record.write(record_json(tokenizer, options, result));
  record.commit();
  warn_of_earlier_sets(options.output, result.splits);
  return result;
}

DatasetInfo read_dataset_info(const std::string& prefix) {
  DatasetInfo info{.base = prefix};
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx")) info.base.resize(prefix.size() - 4);
  const size_t split = info.base.rfind('_');
  std::error_code error;
  if (!fs::exists(info.base + ".json", error) && split != std::string::npos) info.base.resize(split);
  const std::string path = info.base + ".json";
  try {
    const nlohmann::json root = parse_json(read_file(path), path);
    const nlohmann::json& tokenizer = root.at("tokenizer");
    const fs::path folder = fs::path(path).parent_path();
    info.tokenizer_path = (folder / tokenizer.at("path").get<std::string>()).string();
    info.tokenizer_fingerprint = tokenizer.at("fingerprint").get<std::string>();
    info.vocab_size = json_get<int64_t>(tokenizer, "vocab_size", path);
    info.eos_id = json_get<int32_t>(tokenizer, "eos_id", path);
    if (root.contains("begin_of_document"))
      info.begin_id =
          json_get<bool>(root, "begin_of_document", path) ? json_get<int32_t>(tokenizer, "bos_id", path) : -1;
    if (root.contains("row_length")) info.row_length = json_get<int64_t>(root, "row_length", path);
    if (root.contains("pairs")) info.pairs = json_get<bool>(root, "pairs", path);
    if (root.contains("answer_end")) info.answer_end = json_get<int32_t>(root, "answer_end", path);
    for (const nlohmann::json& each : root.at("splits")) {
      info.splits.push_back(
          {each.at("name").get<std::string>(), (folder / each.at("prefix").get<std::string>()).string(),
           json_get<int64_t>(each, "documents", path), json_get<int64_t>(each, "tokens", path),
           json_get<int64_t>(each, "bytes", path), each.contains("rows") ? json_get<int64_t>(each, "rows", path) : 0});
    }
    return info;
  } catch (const nlohmann::json::exception& problem) {
    fail(ErrorCode::kCorrupt, "{}: does not describe a prepared set: {}", path, problem.what());
  }
}

std::optional<DatasetInfo> find_dataset_info(const std::string& prefix) {
  try {
    return read_dataset_info(prefix);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    return std::nullopt;
  }
}

std::shared_ptr<const TokenDataset> open_prepared_set(const std::string& prefix, int64_t vocab_size) {
  const std::optional<DatasetInfo> info = find_dataset_info(prefix);
  auto set =
      TokenDataset::open(prefix, vocab_size, info ? info->begin_id.value_or(-1) : -1, info ? info->row_length : 0);
  if (!info) return set;
  const auto recorded = std::ranges::find_if(info->splits, [&](const SplitInfo& split) {
    return set->prefix() == info->base + (split.name == "all" ? "" : "_" + split.name);
  });
  check(recorded != info->splits.end() && recorded->tokens == set->tokens() && recorded->documents == set->documents(),
        ErrorCode::kInvalidArgument,
        "{}.bin ({} tokens, {} documents) does not belong to the set that {}.json records{}: it comes from an earlier "
        "one, perhaps of another tokenizer; prepare it again with octet data, or delete it",
        set->prefix(), set->tokens(), set->documents(), info->base,
        recorded == info->splits.end() ? "" : fmt::format(" ({} tokens)", recorded->tokens));
  if (!info->begin_id && path_exists(info->tokenizer_path) && load_tokenizer(info->tokenizer_path)->adds_bos())
    log_warning(
        "{}: its documents lack the begin token with which their vocabulary begins texts: prepare it again with octet "
        "data (--no-bos if that is on purpose)",
        set->prefix());
  return set;
}

std::vector<int32_t> encode_corpus(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                                   const TextOptions& options, int32_t begin_id, int64_t most) {
  std::vector<int32_t> ids;
  TextCounts counts;
  CorpusReader reader(list_corpus(inputs), options);
  const auto done = [&] { return most > 0 && std::ssize(ids) >= most; };
  for (CorpusBatch batch; !done() && reader.next(batch);) {
    each_text(batch, reader.files(), options, counts, [&](const TextPiece& piece) {
      if (done()) return;
      if (piece.begins_document && begin_id >= 0) ids.push_back(begin_id);
      const int64_t enough = most > 0 ? std::max<int64_t>(most - std::ssize(ids), 1) : 0;
      tokenizer.encode_to(piece.text, {.text_start = piece.begins_document, .enough = enough}, ids);
    });
  }
  return ids;
}

}  // namespace octet
