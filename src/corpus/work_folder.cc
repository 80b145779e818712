// See work_folder.h.
#include "corpus/work_folder.h"

#include <sys/stat.h>

#include <charconv>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "corpus/lines.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

Json describe(const std::string& job, const std::vector<CorpusFile>& files) {
  Json described = Json::parse(job);
  for (const CorpusFile& file : files) {
    struct stat info {};
    check(stat(file.path.c_str(), &info) == 0, ErrorCode::kNotFound, "{}: is gone", file.path);
    described["inputs"].push_back({{"path", file.path}, {"bytes", info.st_size}, {"modified", info.st_mtime}});
  }
  return described;
}

// What two jobs differ in, for a person.
std::string difference(const Json& there, const Json& wanted) {
  for (const auto& [key, value] : wanted.items()) {
    const Json other = there.is_object() && there.contains(key) ? there.at(key) : Json();
    if (other == value) continue;
    if (key != "inputs") return fmt::format("its {} is {}, not {}", key, other.dump(), value.dump());
    if (other.size() != value.size()) return fmt::format("it has {} inputs, not {}", other.size(), value.size());
    for (size_t i = 0; i < value.size(); ++i)
      if (other[i] != value[i]) return fmt::format("its input {} is {}, not {}", i, other[i].dump(), value[i].dump());
  }
  return "it is of another kind";
}

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard shard;
  const size_t slash = text.find('/');
  const auto number = [&](std::string_view digits) {
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return problem == std::errc() && end == digits.data() + digits.size() ? value : -1;
  };
  if (slash != std::string::npos)
    shard = {number(std::string_view(text).substr(0, slash)), number(std::string_view(text).substr(slash + 1))};
  check(slash != std::string::npos && shard.index >= 0 && shard.index < shard.count, ErrorCode::kInvalidArgument,
        "--shard {} (want I/N with 0 <= I < N, as 0/4)", text);
  return shard;
}

WorkFolder::WorkFolder(std::string folder, const std::string& job, const std::vector<CorpusFile>& files)
    : folder_(std::move(folder)), names_(output_names(files)) {
  const Json wanted = describe(job, files);
  job_ = wanted.dump(2);
  const auto holds = [&](const std::string& file) {
    if (!path_exists(file)) return false;
    Json there = parse_json<Json>(read_file(file), file);
    if (there.contains("job")) there = Json(there.at("job"));
    check(there == wanted, ErrorCode::kInvalidArgument, "{} holds another job: {}; give another --out, or remove {}",
          folder_, difference(there, wanted), folder_);
    return true;
  };
  finished_ = holds(folder_ + "/report.json");
  if (finished_) remove_path(folder_ + "/.work");  // where the process ended in finish()
  if (finished_ || holds(path("job.json"))) return;
  for (size_t file = 0; file < files.size(); ++file)
    check(!path_exists(kept(file)) && !path_exists(dropped(file)), ErrorCode::kInvalidArgument,
          "{} is there already: give another --out, or remove it",
          path_exists(kept(file)) ? kept(file) : dropped(file));
  make_folders(folder_ + "/.work");
  make_folders(folder_ + "/dropped");
  // Shards that start together write the same text: under names of their own, renamed in any order.
  std::random_device random;
  const std::string own = path(fmt::format("job.{:08x}{:08x}", random(), random()));
  write_file(own, job_);
  rename_path(own, path("job.json"));
}

std::string WorkFolder::report() const { return read_file(folder_ + "/report.json"); }

void WorkFolder::finish(const std::string& report) {
  Json text = Json::parse(report);
  text["job"] = Json::parse(job_);
  write_file(folder_ + "/report.json", text.dump(2) + "\n");
  remove_path(folder_ + "/.work");
  finished_ = true;
}

}  // namespace octet
