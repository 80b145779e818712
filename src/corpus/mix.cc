// See mix.h.
#include "corpus/mix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/threads.h"
#include "corpus/json_line.h"
#include "corpus/lines.h"
#include "corpus/words.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

MixOptions checked(MixOptions options) {
  check(!options.output.empty(), ErrorCode::kInvalidArgument, "want a folder for the output (--out DIR)");
  check(!options.sets.empty(), ErrorCode::kInvalidArgument, "want sets to mix (--set NAME=FILES)");
  double sum = 0;
  for (const MixSet& set : options.sets) {
    check(set.weight > 0 && std::isfinite(set.weight), ErrorCode::kInvalidArgument,
          "set {} has the weight {} (want one above 0 for each: --weight {}=0.5)", set.name, set.weight, set.name);
    sum += set.weight;
  }
  for (MixSet& set : options.sets) set.weight /= sum;
  check(options.size >= 0, ErrorCode::kInvalidArgument, "--size {} (want 0 or more)", options.size);
  check((options.unit == MixUnit::kTokens) != options.tokenizer.empty(), ErrorCode::kInvalidArgument,
        "{} are counted {} tokenizer: want --tokenizer with --by tokens, and with it alone",
        mix_unit_name(options.unit), options.tokenizer.empty() ? "without a" : "by no");
  return options;
}

std::string job_of(const MixOptions& options) {
  Json sets = Json::array();
  for (const MixSet& set : options.sets)
    sets.push_back({{"name", set.name}, {"files", set.files}, {"weight", set.weight}});
  return Json{{"command", "data mix"},          {"sets", sets},
              {"key", options.text_key},        {"by", mix_unit_name(options.unit)},
              {"tokenizer", options.tokenizer}, {"size", options.size},
              {"seed", options.seed},           {"skip_bad_lines", options.skip_bad_lines}}
      .dump();
}

// What a worker makes of a batch: its lines, each behind the one before, and their documents' sizes.
struct ReadBatch {
  std::string lines;
  std::vector<size_t> ends;
  std::vector<int64_t> sizes;
  int64_t bad_lines = 0, disk_bytes = 0;
  std::string first_bad;
};

}  // namespace

const char* mix_unit_name(MixUnit unit) {
  constexpr const char* kNames[] = {"documents", "tokens", "bytes"};
  return kNames[static_cast<size_t>(unit)];
}

Mix::Mix(MixOptions options)
    : options_(checked(std::move(options))),
      files_([this] {
        std::vector<CorpusFile> all;
        for (size_t s = 0; s < options_.sets.size(); ++s) {
          const std::vector<CorpusFile> files = list_corpus(options_.sets[s].files);
          for (size_t i = 0; i < files.size(); ++i) sets_.push_back(s), places_.push_back(i);
          all.insert(all.end(), files.begin(), files.end());
        }
        return all;
      }()),
      folder_(options_.output, job_of(options_), files_) {}
Mix::~Mix() = default;

std::string Mix::counts_path(size_t file) const { return folder_.path(fmt::format("sizes-{:06}.bin", file)); }

std::vector<uint32_t> Mix::counts_of(size_t file) const {
  check(path_exists(counts_path(file)), ErrorCode::kNotFound,
        "the sizes of {} (input {}) are not there: run --stage count for every shard first", files_[file].path, file);
  const std::string bytes = read_file(counts_path(file));
  std::vector<uint32_t> counts(bytes.size() / sizeof(uint32_t));
  std::memcpy(counts.data(), bytes.data(), counts.size() * sizeof(uint32_t));
  return counts;
}

// Of a document by its place in the inputs of its set: another set beside it, or other shards, change nothing.
uint64_t Mix::key_of(size_t file, int64_t document) const {
  const uint64_t set = hash_bytes(options_.sets[sets_[file]].name, options_.seed);
  return mix64(mix64(set + places_[file]) + static_cast<uint64_t>(document));
}

// take() of each sound line in order, with its document's size where it is `measured`.
void Mix::each_document(size_t file, bool measured, const std::string& stage, int64_t* bad_lines, const Take& take) {
  const std::string& path = files_[file].path;
  CorpusReader reader = open_json_lines(files_[file], options_.longest_line);
  const int threads = options_.threads > 0 ? options_.threads : thread_count();
  CorpusProgress progress{.total_disk_bytes = reader.total_disk_bytes()};
  bool warned = !measured;
  run_over_corpus(reader, threads, [&](int, const CorpusBatch& batch) -> std::function<void()> {
    auto out = std::make_shared<ReadBatch>();
    out->disk_bytes = batch.disk_bytes;
    std::string unescaped;
    std::vector<int32_t> ids;
    const auto size_of = [&](std::string_view escaped) -> int64_t {
      if (!measured || options_.unit == MixUnit::kDocuments) return 1;
      const std::string_view text = unescape_json(escaped, unescaped);
      if (options_.unit == MixUnit::kBytes) return std::ssize(text);
      ids.clear();
      tokenizer_->encode_to(text, {}, ids);
      return std::ssize(ids) + (tokenizer_->eos_id() >= 0 ? 1 : 0);
    };
    each_json_line(batch, path, options_.longest_line, [&](std::string_view line, int64_t number) {
      try {
        const JsonLine found = scan_json_line(line, options_.text_key, "", fmt::format("{}:{}", path, number));
        out->sizes.push_back(size_of(found.text));
        out->lines.append(line) += '\n';
        out->ends.push_back(out->lines.size());
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kCorrupt) throw;
        if (!options_.skip_bad_lines)
          throw Error(error.code(), error.message() + "; --skip-bad-lines leaves such lines out");
        if (out->bad_lines++ == 0) out->first_bad = error.message();
      }
    });
    return [&, out] {
      size_t begin = 0;
      for (size_t i = 0; i < out->ends.size(); begin = out->ends[i++])
        take(std::string_view(out->lines).substr(begin, out->ends[i] - begin), out->sizes[i]);
      if (bad_lines != nullptr) *bad_lines += out->bad_lines;
      if (out->bad_lines > 0 && !std::exchange(warned, true)) log_warning("{}: left out", out->first_bad);
      progress.disk_bytes = out->disk_bytes;
      if (options_.progress) options_.progress(stage + " " + path, progress);
    };
  });
}

void Mix::count(Shard shard) {
  if (options_.unit == MixUnit::kTokens) tokenizer_ = load_tokenizer(options_.tokenizer);
  for (auto file = static_cast<size_t>(shard.index); file < files_.size(); file += static_cast<size_t>(shard.count)) {
    if (path_exists(counts_path(file))) continue;
    FileWriter counts(counts_path(file));
    int64_t bad_lines = 0;
    each_document(file, /*measured=*/true, "counting", &bad_lines, [&](std::string_view, int64_t size) {
      check(size <= std::numeric_limits<uint32_t>::max(), ErrorCode::kUnsupported, "{}: a document of {} {}",
            files_[file].path, size, mix_unit_name(options_.unit));
      const auto stored = static_cast<uint32_t>(size);
      counts.write(&stored, sizeof stored);
    });
    write_file(counts_path(file) + ".bad", std::to_string(bad_lines));
    counts.commit();  // last: its presence says that both are there
  }
}

void Mix::plan() {
  if (path_exists(folder_.path("plan.json"))) return;
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> documents(options_.sets.size());  // key, size
  std::vector<int64_t> totals(options_.sets.size());
  int64_t bad_lines = 0;
  for (size_t file = 0; file < files_.size(); ++file) {
    const std::vector<uint32_t> counts = counts_of(file);
    for (size_t i = 0; i < counts.size(); ++i) {
      documents[sets_[file]].emplace_back(key_of(file, static_cast<int64_t>(i)), counts[i]);
      totals[sets_[file]] += counts[i];
    }
    bad_lines += std::stoll(read_file(counts_path(file) + ".bad"));
  }
  double size = options_.size > 0 ? static_cast<double>(options_.size) : std::numeric_limits<double>::infinity();
  for (size_t s = 0; s < totals.size(); ++s) {
    check(totals[s] > 0, ErrorCode::kInvalidArgument, "set {} has no {}", options_.sets[s].name,
          mix_unit_name(options_.unit));
    if (options_.size == 0) size = std::min(size, static_cast<double>(totals[s]) / options_.sets[s].weight);
  }
  Json sets = Json::array();
  int64_t taken_of_all = 0;
  for (size_t s = 0; s < totals.size(); ++s) {
    const int64_t wanted = std::llround(size * options_.sets[s].weight), passes = wanted / totals[s],
                  rest = wanted % totals[s];
    std::ranges::sort(documents[s]);
    int64_t sum = 0, count = 0;  // of the last pass, as near to the rest as whole documents come
    for (const auto& [key, own] : documents[s]) {
      if (2 * sum + own > 2 * rest) break;
      sum += own, ++count;
    }
    const bool all = count == std::ssize(documents[s]);
    const int64_t taken = passes * totals[s] + sum;
    taken_of_all += taken;
    sets.push_back({{"name", options_.sets[s].name},
                    {"weight", options_.sets[s].weight},
                    {"documents", documents[s].size()},
                    {"size", totals[s]},
                    {"taken_documents", passes * std::ssize(documents[s]) + count},
                    {"taken_size", taken},
                    {"epochs", static_cast<double>(taken) / static_cast<double>(totals[s])},
                    {"passes", all ? passes + 1 : passes},
                    {"below", all ? 0 : documents[s][static_cast<size_t>(count)].first}});
  }
  for (Json& set : sets)
    set["share"] = set.at("taken_size").get<double>() / static_cast<double>(std::max<int64_t>(taken_of_all, 1));
  const Json plan = {
      {"unit", mix_unit_name(options_.unit)}, {"size", taken_of_all}, {"bad_lines", bad_lines}, {"sets", sets}};
  write_file(folder_.path("plan.json"), plan.dump());
}

void Mix::write(Shard shard) {
  const std::string path = folder_.path("plan.json");
  check(path_exists(path), ErrorCode::kNotFound, "{} is not there: run --stage plan first", path);
  const Json plan = parse_json<Json>(read_file(path), path);
  for (auto file = static_cast<size_t>(shard.index); file < files_.size(); file += static_cast<size_t>(shard.count)) {
    if (path_exists(folder_.kept(file))) continue;
    const Json& set = plan.at("sets").at(sets_[file]);
    const auto passes = set.at("passes").get<int64_t>();
    const auto below = set.at("below").get<uint64_t>();
    FileWriter kept(folder_.kept(file));
    for (int64_t pass = 0; pass < passes + (below > 0 ? 1 : 0); ++pass) {
      int64_t document = 0;
      each_document(file, /*measured=*/false, "writing", nullptr, [&](std::string_view line, int64_t) {
        if (pass < passes || key_of(file, document) < below) kept.write(line);
        ++document;
      });
    }
    kept.commit();
  }
}

void Mix::finish() {
  Json report = parse_json<Json>(read_file(folder_.path("plan.json")), folder_.path("plan.json"));
  for (Json& set : report.at("sets")) set.erase("passes"), set.erase("below");
  for (size_t file = 0; file < files_.size(); ++file) {
    check(path_exists(folder_.kept(file)), ErrorCode::kNotFound, "{} is not there: run --stage write for every shard",
          folder_.kept(file));
    report["files"].push_back(
        {{"set", options_.sets[sets_[file]].name}, {"input", files_[file].path}, {"output", folder_.kept(file)}});
  }
  folder_.finish(report.dump());
  std::error_code others;
  std::filesystem::remove(options_.output + "/dropped", others);  // of other jobs over documents, empty here
}

}  // namespace octet
