// See line_job.h.
#include "corpus/line_job.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "corpus/json_line.h"
#include "corpus/lines.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

std::string with_options(const std::string& job, const LineJobOptions& options) {
  check(!options.output.empty(), ErrorCode::kInvalidArgument, "want a folder for the output (--out DIR)");
  Json described = Json::parse(job);
  described["key"] = options.text_key;
  described["id"] = options.id_key;
  described["skip_bad_lines"] = options.skip_bad_lines;
  return described.dump();
}

struct FilteredBatch {
  std::string kept, dropped;
  LineCounts counts;
  std::string first_bad;
  int64_t disk_bytes = 0;
};

void append_valid(std::string& out, std::string_view text) {
  int64_t replaced = 0;
  append_json_string(
      out, utf8_valid_prefix(text) == text.size() ? text : std::string_view(utf8_replace_invalid(text, &replaced)));
}
void open_dropped(const std::string& path, int64_t line, std::string_view id, std::string_view reason,
                  std::string& out) {
  out += "{\"file\": ";
  append_valid(out, path);
  out += fmt::format(", \"line\": {}", line);
  if (!id.empty()) out.append(", \"id\": ").append(id);
  out.append(", \"reason\": \"").append(reason) += '"';
}

// One for each worker.
class LineFilter {
 public:
  LineFilter(const LineJobOptions& options, std::unique_ptr<DocumentFilter> filter)
      : options_(options), filter_(std::move(filter)) {}

  void add(std::string_view line, int64_t number, const std::string& path, FilteredBatch& out) {
    JsonLine found;
    try {
      found = scan_json_line(line, options_.text_key, options_.id_key, fmt::format("{}:{}", path, number));
    } catch (const Error& error) {
      if (!options_.skip_bad_lines) throw Error(error.code(), error.message() + "; --skip-bad-lines drops such lines");
      if (out.first_bad.empty()) out.first_bad = error.message();
      ++out.counts["dropped.bad_line"];
      open_dropped(path, number, {}, "bad_line", out.dropped);
      out.dropped += ", \"text\": ";
      append_valid(out.dropped, line);
      out.dropped += "}\n";
      return;
    }
    ++out.counts["documents"];
    const std::string_view original = unescape_json(found.text, unescaped_);
    out.counts["bytes_in"] += std::ssize(original);
    std::string_view text = original;
    const DocumentFilter::Verdict verdict = filter_->judge(text, out.counts);
    if (!verdict.reason.empty()) {
      ++out.counts["dropped." + std::string(verdict.reason)];
      open_dropped(path, number, found.id, verdict.reason, out.dropped);
      out.dropped += verdict.fields + ", \"text\": ";
      append_valid(out.dropped, original);
      out.dropped += "}\n";
      return;
    }
    ++out.counts["kept"];
    out.counts["bytes_out"] += std::ssize(text);
    if (text == original) {
      out.kept += line;
    } else {
      out.kept.append(line.substr(0, found.begin));
      append_json_string(out.kept, text);
      out.kept.append(line.substr(found.end));
    }
    out.kept += '\n';
  }

 private:
  const LineJobOptions& options_;
  std::unique_ptr<DocumentFilter> filter_;
  std::string unescaped_;
};

}  // namespace

LineJob::LineJob(LineJobOptions options, const std::string& job,
                 std::function<std::unique_ptr<DocumentFilter>()> filter)
    : options_(std::move(options)),
      filter_(std::move(filter)),
      files_(list_corpus(options_.inputs)),
      folder_(options_.output, with_options(job, options_), files_) {}

std::string LineJob::counts_path(size_t file) const { return folder_.path(fmt::format("counts-{:06}.json", file)); }

void LineJob::run(Shard shard) {
  for (auto file = static_cast<size_t>(shard.index); file < files_.size(); file += static_cast<size_t>(shard.count))
    if (!path_exists(folder_.kept(file))) run_file(file);
}

void LineJob::run_file(size_t file) {
  const std::string& path = files_[file].path;
  FileWriter kept(folder_.kept(file)), dropped(folder_.dropped(file));
  CorpusReader reader = open_json_lines(files_[file], options_.longest_line);
  const int threads = options_.threads > 0 ? options_.threads : thread_count();
  std::vector<LineFilter> filters;
  for (int worker = 0; worker < threads; ++worker) filters.emplace_back(options_, filter_());
  CorpusProgress progress{.total_disk_bytes = reader.total_disk_bytes()};
  LineCounts counts;
  bool warned = false;
  run_over_corpus(reader, threads, [&](int worker, const CorpusBatch& batch) -> std::function<void()> {
    auto out = std::make_shared<FilteredBatch>();
    out->disk_bytes = batch.disk_bytes;
    each_json_line(batch, path, options_.longest_line, [&](std::string_view line, int64_t number) {
      filters[static_cast<size_t>(worker)].add(line, number, path, *out);
    });
    return [&, out] {
      kept.write(out->kept);
      dropped.write(out->dropped);
      for (const auto& [name, count] : out->counts) counts[name] += count;
      if (!out->first_bad.empty() && !std::exchange(warned, true)) log_warning("{}: dropped", out->first_bad);
      progress.disk_bytes = out->disk_bytes;
      if (options_.progress) options_.progress(path, progress);
    };
  });
  dropped.commit();
  write_file(counts_path(file), Json(counts).dump());
  kept.commit();  // last: its presence says that all are there
}

void LineJob::finish() {
  Json report;
  LineCounts totals;
  for (const char* name : {"documents", "kept", "bytes_in", "bytes_out"}) totals[name] = 0;
  for (size_t file = 0; file < files_.size(); ++file) {
    check(path_exists(folder_.kept(file)), ErrorCode::kNotFound, "{} is not there: run every shard first",
          folder_.kept(file));
    const auto counts = parse_json(read_file(counts_path(file)), counts_path(file)).get<LineCounts>();
    for (const auto& [name, count] : counts) totals[name] += count;
    report["files"].push_back({{"input", files_[file].path}, {"output", folder_.kept(file)}, {"counts", counts}});
  }
  report["counts"] = totals;
  folder_.finish(report.dump());
}

LineCounts LineJob::totals() const {
  return parse_json(folder_.report(), options_.output + "/report.json").at("counts").get<LineCounts>();
}

}  // namespace octet
