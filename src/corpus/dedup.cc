// See dedup.h: the stages that read and write documents. Pairs and groups are in dedup_groups.cc.
#include "corpus/dedup.h"

#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "corpus/dedup_groups.h"
#include "corpus/json_line.h"
#include "corpus/lines.h"
#include "corpus/min_hash.h"
#include "corpus/signatures.h"
#include "corpus/words.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestName = 1024;  // of an id; longer ones are left out

DedupOptions checked(DedupOptions options) {
  check(options.bands >= 1 && options.rows >= 1 && options.bands <= 4096 / options.rows, ErrorCode::kInvalidArgument,
        "{} bands of {} rows (want at least 1 of each, and at most 4096 hashes)", options.bands, options.rows);
  check(options.verify >= 0 && options.verify <= 1, ErrorCode::kInvalidArgument, "--verify {} (want 0 to 1)",
        options.verify);
  check(!options.output.empty(), ErrorCode::kInvalidArgument, "want a folder for the output (--out DIR)");
  return options;
}

std::string job_of(const DedupOptions& options) {
  return Json{{"command", "data dedup"},
              {"key", options.text_key},
              {"id", options.id_key},
              {"bands", options.bands},
              {"rows", options.rows},
              {"verify", options.verify},
              {"skip_bad_lines", options.skip_bad_lines}}
      .dump();
}

// What a worker makes of a batch.
struct SignedBatch {
  std::vector<uint64_t> rows;  // [documents, columns]; ends count from the beginning of the batch
  std::string names;
  std::vector<uint64_t> sets;
  int64_t bad_lines = 0;
  std::string first_bad;
  int64_t disk_bytes = 0;
};

// Signs documents; one for each worker.
class Signer {
 public:
  Signer(const DedupOptions& options, int64_t columns)
      : options_(options), columns_(static_cast<size_t>(columns)), hasher_(options.bands, options.rows) {}

  void add(std::string_view line, int64_t number, const std::string& path, SignedBatch& out) {
    JsonLine found;
    try {
      found = scan_json_line(line, options_.text_key, options_.id_key, fmt::format("{}:{}", path, number));
    } catch (const Error& error) {
      if (!options_.skip_bad_lines) throw Error(error.code(), error.message() + "; --skip-bad-lines drops such lines");
      if (out.bad_lines++ == 0) out.first_bad = error.message();
      return;
    }
    const std::string_view text = unescape_json(found.text, unescaped_);
    hash_words(text, words_);
    if (words_.empty()) words_.push_back(hash_bytes(text, /*seed=*/1));  // nothing but punctuation: equal or not
    hash_shingles(words_, shingles_);
    out.rows.resize(out.rows.size() + columns_);
    const std::span<uint64_t> row = std::span(out.rows).last(columns_);
    const TextHash hash = hash_text(words_);
    row[kLine] = static_cast<uint64_t>(number);
    row[kTextLow] = hash.low, row[kTextHigh] = hash.high;
    hasher_.band_keys(shingles_, row.subspan(kFirstBand));
    if (found.id.size() <= kLongestName) out.names += found.id;
    row[kNameEnd] = out.names.size();
    if (options_.verify > 0) {
      std::ranges::sort(shingles_);
      out.sets.insert(out.sets.end(), shingles_.begin(), std::unique(shingles_.begin(), shingles_.end()));
    }
    row[kSetEnd] = out.sets.size();
  }

 private:
  const DedupOptions& options_;
  size_t columns_;
  MinHasher hasher_;
  std::string unescaped_;
  std::vector<uint64_t> words_, shingles_;
};

std::string json_of(std::string_view text) {
  std::string quoted;
  int64_t replaced = 0;
  append_json_string(quoted, utf8_replace_invalid(text, &replaced));
  return quoted;
}

}  // namespace

Dedup::Dedup(DedupOptions options)
    : options_(checked(std::move(options))),
      files_(list_corpus(options_.inputs)),
      folder_(options_.output, job_of(options_), files_),
      threads_(options_.threads > 0 ? options_.threads : thread_count()) {}

int64_t Dedup::columns() const { return kFirstBand + options_.bands; }

std::string Dedup::signatures_path(size_t file) const {
  return folder_.path(fmt::format("signatures-{:06}.bin", file));
}

void Dedup::signatures(Shard shard) {
  for (auto file = static_cast<size_t>(shard.index); file < files_.size(); file += static_cast<size_t>(shard.count))
    if (!path_exists(signatures_path(file))) signatures_of(file);
}

void Dedup::signatures_of(size_t file) {
  const std::string& path = files_[file].path;
  SignatureWriter writer(signatures_path(file), columns());  // first: one process makes this input's files
  FileWriter names(folder_.path(fmt::format("names-{:06}.bin", file)));
  FileWriter sets(folder_.path(fmt::format("sets-{:06}.bin", file)));
  CorpusReader reader = open_json_lines(files_[file], options_.longest_line);
  std::vector<Signer> signers;
  for (int worker = 0; worker < threads_; ++worker) signers.emplace_back(options_, columns());
  CorpusProgress progress{.total_disk_bytes = reader.total_disk_bytes()};
  bool warned = false;
  run_over_corpus(reader, threads_, [&](int worker, const CorpusBatch& batch) -> std::function<void()> {
    auto out = std::make_shared<SignedBatch>();
    out->disk_bytes = batch.disk_bytes;
    each_json_line(batch, path, options_.longest_line, [&](std::string_view line, int64_t number) {
      signers[static_cast<size_t>(worker)].add(line, number, path, *out);
    });
    return [&, out] {
      const auto width = static_cast<size_t>(columns());
      const auto name_bytes = static_cast<uint64_t>(names.position());
      const auto set_words = static_cast<uint64_t>(sets.position()) / 8;
      for (size_t at = 0; at < out->rows.size(); at += width) {
        const std::span<uint64_t> row = std::span(out->rows).subspan(at, width);
        row[kNameEnd] += name_bytes, row[kSetEnd] += set_words;
        writer.add(row);
      }
      names.write(out->names);
      sets.write(out->sets.data(), std::ssize(out->sets) * 8);
      for (int64_t i = 0; i < out->bad_lines; ++i) writer.add_bad_line();
      if (out->bad_lines > 0 && !std::exchange(warned, true)) log_warning("{}: dropped", out->first_bad);
      progress.disk_bytes = out->disk_bytes;
      if (options_.progress) options_.progress("signatures of " + path, progress);
    };
  });
  names.commit();
  sets.commit();
  writer.commit();
}

DocumentTable Dedup::documents() const {
  DocumentTable table;
  for (size_t file = 0; file < files_.size(); ++file) {
    check(path_exists(signatures_path(file)), ErrorCode::kNotFound,
          "the signatures of {} (input {}) are not there: run --stage signatures for every shard first",
          files_[file].path, file);
    table.add(signatures_path(file), columns());
  }
  return table;
}

void Dedup::write(Shard shard) {
  const DocumentTable table = documents();
  check(path_exists(folder_.path("groups.bin")), ErrorCode::kNotFound, "{} is not there: run --stage groups first",
        folder_.path("groups.bin"));
  for (auto file = static_cast<size_t>(shard.index); file < files_.size(); file += static_cast<size_t>(shard.count))
    if (!path_exists(folder_.kept(file))) write_file_of(file, table);
}

void Dedup::write_file_of(size_t file, const DocumentTable& table) {
  const std::string& path = files_[file].path;
  const SignatureFile& own = table.file(file);
  const MappedFile groups(folder_.path("groups.bin"));
  const std::span<const uint64_t> firsts = groups_of(groups, table);
  std::map<size_t, MappedFile> names;  // of files that hold kept documents
  const auto write_id = [&](uint64_t document) -> std::string {
    const DocumentTable::Place place = table.place(document);
    auto& mapped =
        names.try_emplace(place.file, folder_.path(fmt::format("names-{:06}.bin", place.file))).first->second;
    const uint64_t begin = table.begin_of(place, kNameEnd), end = table.file(place.file).at(place.row, kNameEnd);
    const std::string_view all(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
    return begin < end ? fmt::format(", \"id\": {}", all.substr(begin, end - begin)) : "";
  };
  FileWriter kept(folder_.kept(file)), dropped(folder_.dropped(file));
  CorpusReader reader = open_json_lines(files_[file], options_.longest_line);
  CorpusProgress progress{.total_disk_bytes = reader.total_disk_bytes()};
  int64_t row = 0;
  std::string lines, reasons;
  for (CorpusBatch batch; reader.next(batch);) {
    lines.clear(), reasons.clear();
    each_json_line(batch, path, options_.longest_line, [&](std::string_view line, int64_t number) {
      const std::string place = fmt::format("{{\"file\": {}, \"line\": {}", json_of(path), number);
      if (row == own.totals().documents || own.at(row, kLine) != static_cast<uint64_t>(number)) {
        reasons += fmt::format("{}, \"reason\": \"bad line\", \"text\": {}}}\n", place, json_of(line));
        return;
      }
      const auto document = static_cast<uint64_t>(table.first(file) + row++);
      const uint64_t first = firsts[document] & ~kNearDuplicate;
      if (first == document) {
        lines.append(line) += '\n';
        return;
      }
      reasons +=
          fmt::format("{}{}, \"reason\": \"{}\", \"kept\": {{\"file\": {}, \"line\": {}{}}}, \"document\": {}}}\n",
                      place, write_id(document), firsts[document] & kNearDuplicate ? "near" : "exact",
                      json_of(files_[table.place(first).file].path), table.at(first, kLine), write_id(first),
                      line.substr(line.find('{')));
    });
    kept.write(lines);
    dropped.write(reasons);
    progress.disk_bytes = batch.disk_bytes;
    if (options_.progress) options_.progress("writing " + folder_.kept(file), progress);
  }
  check(row == own.totals().documents, ErrorCode::kCorrupt,
        "{}: {} documents where its signatures have {}: it changed meanwhile; remove {} and begin again", path, row,
        own.totals().documents, options_.output);
  dropped.commit();
  kept.commit();  // last: its presence says that both are there
}

void Dedup::finish() {
  const DocumentTable table = documents();
  const MappedFile groups(folder_.path("groups.bin"));
  const std::span<const uint64_t> firsts = groups_of(groups, table);
  Json report;
  DedupFile total;
  for (size_t file = 0; file < files_.size(); ++file) {
    check(path_exists(folder_.kept(file)), ErrorCode::kNotFound,
          "{} is not there: run --stage write for every shard first", folder_.kept(file));
    const SignatureTotals& totals = table.file(file).totals();
    int64_t exact = 0, near = 0;
    for (int64_t document = table.first(file); document < table.first(file) + totals.documents; ++document) {
      const uint64_t first = firsts[static_cast<size_t>(document)];
      if ((first & ~kNearDuplicate) != static_cast<uint64_t>(document)) ++(first & kNearDuplicate ? near : exact);
    }
    report["files"].push_back({{"input", files_[file].path},
                               {"output", folder_.kept(file)},
                               {"documents", totals.documents},
                               {"exact", exact},
                               {"near", near},
                               {"bad_lines", totals.bad_lines},
                               {"bytes", file_size(folder_.kept(file))}});
    total.documents += totals.documents, total.exact += exact, total.near += near;
    total.bad_lines += totals.bad_lines;
  }
  report["documents"] = total.documents;
  report["kept"] = total.documents - total.exact - total.near;
  report["exact"] = total.exact, report["near"] = total.near, report["bad_lines"] = total.bad_lines;
  folder_.finish(report.dump());
}

std::vector<DedupFile> Dedup::report() const {
  const Json report = parse_json<Json>(folder_.report(), options_.output + "/report.json");
  std::vector<DedupFile> files;
  for (const Json& file : report.at("files"))
    files.push_back({file.at("input"), file.at("output"), file.at("documents"), file.at("exact"), file.at("near"),
                     file.at("bad_lines"), file.at("bytes")});
  return files;
}

}  // namespace octet
