// See clean.h.
#include "corpus/clean.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "corpus/json_line.h"
#include "corpus/lines.h"
#include "corpus/mask_personal.h"
#include "corpus/repair_text.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

std::string job_of(CleanOptions& options) {
  Json rules;
  const SettingsTable table = options.rules.table();
  for (const std::string& name : table.names()) rules[name] = table.get(name);
  return Json{{"command", "data clean"},
              {"key", options.text_key},
              {"id", options.id_key},
              {"repair", options.repair},
              {"languages", options.languages},
              {"language_model", options.language_model},
              {"language_threshold", options.language_threshold},
              {"quality_model", options.quality_model},
              {"quality_label", options.quality_label},
              {"quality_threshold", options.quality_threshold},
              {"mask", options.mask},
              {"skip_bad_lines", options.skip_bad_lines},
              {"rules", rules}}
      .dump();
}

CleanOptions checked(CleanOptions options) {
  check(!options.output.empty(), ErrorCode::kInvalidArgument, "want a folder for the output (--out DIR)");
  check(options.language_model.empty() || !options.languages.empty(), ErrorCode::kInvalidArgument,
        "--language-model {}: --language names the languages that stay", options.language_model);
  PersonalMasks masks(options.mask);
  return options;
}

struct CleanedBatch {
  std::string kept, dropped;
  CleanCounts counts;
  std::string first_bad;
  int64_t disk_bytes = 0;
};

// Cleans documents; one for each worker.
class Cleaner {
 public:
  Cleaner(const CleanOptions& options, const TextClassifier* language, const TextClassifier* quality)
      : options_(options), language_(language), quality_(quality), checker_(options.rules), masks_(options.mask) {}

  void add(std::string_view line, int64_t number, const std::string& path, CleanedBatch& out) {
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
    if (options_.repair) {
      note(repair_text(text, repaired_), out.counts);
      text = repaired_;
    }
    TextClass seen;
    const std::string_view reason = reason_to_drop(text, seen);
    if (!reason.empty()) {
      ++out.counts["dropped." + std::string(reason)];
      open_dropped(path, number, found.id, reason, out.dropped);
      if (seen.score >= 0 && (reason == "language" || reason == "quality"))
        out.dropped += fmt::format(", \"class\": \"{}\", \"score\": {:.6g}", seen.name, seen.score);
      out.dropped += ", \"text\": ";
      append_valid(out.dropped, original);
      out.dropped += "}\n";
      return;
    }
    MaskCounts masked;
    if (mask_personal(masks_, text, masked_, masked)) text = masked_;
    for (const auto& [name, count] :
         {std::pair{"masked.email", masked.emails}, {"masked.ip", masked.ips}, {"masked.phone", masked.phones}})
      if (count > 0) out.counts[name] += count;
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
  // May leave other text in `text`.
  std::string_view reason_to_drop(std::string_view& text, TextClass& seen) {
    if (text.empty()) return "empty";
    if (language_ != nullptr) {
      seen = language_->best(text);
      if (std::ranges::find(options_.languages, seen.name) == options_.languages.end() ||
          seen.score < options_.language_threshold)
        return "language";
    }
    const std::string_view reason = checker_.check(text, ruled_);
    if (!reason.empty() || quality_ == nullptr) return reason;
    seen = {options_.quality_label, quality_->score(text, options_.quality_label)};
    return seen.score < options_.quality_threshold ? "quality" : "";
  }
  static void note(const TextRepairs& repairs, CleanCounts& counts) {
    for (const auto& [name, done] : {std::pair{"repaired.mojibake", repairs.mojibake},
                                     {"repaired.invalid_utf8", repairs.invalid},
                                     {"repaired.controls", repairs.controls},
                                     {"repaired.white_space", repairs.white_space},
                                     {"repaired.nfc", repairs.composed}})
      if (done) ++counts[name];
  }
  static void append_valid(std::string& out, std::string_view text) {
    int64_t replaced = 0;
    append_json_string(
        out, utf8_valid_prefix(text) == text.size() ? text : std::string_view(utf8_replace_invalid(text, &replaced)));
  }
  static void open_dropped(const std::string& path, int64_t line, std::string_view id, std::string_view reason,
                           std::string& out) {
    out += "{\"file\": ";
    append_valid(out, path);
    out += fmt::format(", \"line\": {}", line);
    if (!id.empty()) out.append(", \"id\": ").append(id);
    out.append(", \"reason\": \"").append(reason) += '"';
  }

  const CleanOptions& options_;
  const TextClassifier *language_, *quality_;
  RuleChecker checker_;
  PersonalMasks masks_;
  std::string unescaped_, repaired_, ruled_, masked_;
};

}  // namespace

Clean::Clean(CleanOptions options)
    : options_(checked(std::move(options))),
      files_(list_corpus(options_.inputs)),
      folder_(options_.output, job_of(options_), files_) {
  if (!options_.languages.empty())
    language_ = options_.language_model.empty() ? open_cld2() : open_fasttext(options_.language_model);
  if (!options_.quality_model.empty()) {
    quality_ = open_fasttext(options_.quality_model);
    quality_->score("a", options_.quality_label);  // an error for a class that it does not have
  }
}

std::string Clean::counts_path(size_t file) const { return folder_.path(fmt::format("counts-{:06}.json", file)); }

void Clean::run(Shard shard) {
  for (auto file = static_cast<size_t>(shard.index); file < files_.size(); file += static_cast<size_t>(shard.count))
    if (!path_exists(folder_.kept(file))) clean_file(file);
}

void Clean::clean_file(size_t file) {
  const std::string& path = files_[file].path;
  FileWriter kept(folder_.kept(file)), dropped(folder_.dropped(file));
  CorpusReader reader = open_json_lines(files_[file], options_.longest_line);
  const int threads = options_.threads > 0 ? options_.threads : thread_count();
  std::vector<Cleaner> cleaners;
  for (int worker = 0; worker < threads; ++worker) cleaners.emplace_back(options_, language_.get(), quality_.get());
  CorpusProgress progress{.total_disk_bytes = reader.total_disk_bytes()};
  CleanCounts counts;
  bool warned = false;
  run_over_corpus(reader, threads, [&](int worker, const CorpusBatch& batch) -> std::function<void()> {
    auto out = std::make_shared<CleanedBatch>();
    out->disk_bytes = batch.disk_bytes;
    each_json_line(batch, path, options_.longest_line, [&](std::string_view line, int64_t number) {
      cleaners[static_cast<size_t>(worker)].add(line, number, path, *out);
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

void Clean::finish() {
  Json report;
  CleanCounts totals;
  for (const char* name : {"documents", "kept", "bytes_in", "bytes_out"}) totals[name] = 0;
  for (size_t file = 0; file < files_.size(); ++file) {
    check(path_exists(folder_.kept(file)), ErrorCode::kNotFound, "{} is not there: run every shard first",
          folder_.kept(file));
    const auto counts = parse_json(read_file(counts_path(file)), counts_path(file)).get<CleanCounts>();
    for (const auto& [name, count] : counts) totals[name] += count;
    report["files"].push_back({{"input", files_[file].path}, {"output", folder_.kept(file)}, {"counts", counts}});
  }
  report["counts"] = totals;
  folder_.finish(report.dump());
}

CleanCounts Clean::totals() const {
  return parse_json(folder_.report(), options_.output + "/report.json").at("counts").get<CleanCounts>();
}

}  // namespace octet
