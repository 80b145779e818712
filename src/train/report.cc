#include "train/report.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr size_t kMaxPoints = 1500, kMaxRounds = 250;  // of a curve; of a tensor's statistics and of the map

// Entries of one kind in the order of steps; a resumed run takes back what came after its checkpoint.
struct Series {
  std::vector<std::pair<int64_t, json>> entries;
  void take_back(int64_t after) {
    std::erase_if(entries, [&](const auto& entry) { return entry.first > after; });
  }
  // About `most` entries at most, evenly spaced, including the last.
  json thinned(size_t most) const {
    json list = json::array();
    size_t every = entries.size() / most + 1;
    for (size_t i = 0; i < entries.size(); ++i)
      if (i % every == 0 || i + 1 == entries.size()) list.push_back(entries[i].second);
    return list;
  }
};

class Report {
 public:
  void read(const json& line, const std::string& where) {
    auto kind = json_get<std::string>(line, "kind", where);
    auto step = json_get<int64_t>(line, "step", where);
    if (kind == "step") {
      loss_.entries.push_back({step, {step, line.value("loss", json())}});
    } else if (kind == "eval") {
      evaluation_.entries.push_back({step, {step, line.value("loss", json())}});
    } else if (kind == "switch") {
      switches_.entries.push_back({step, {step, line.at("gemm"), line.at("from"), line.at("to"), line.at("reason")}});
    } else if (kind == "rungs") {
      read_levels(step, json_get<std::string>(line, "text", where));
    } else if (kind == "statistics") {
      json values = {step};
      for (const char* name : kNames) values.push_back(line.value(name, json()));
      tensors_[json_get<std::string>(line, "tensor", where)].entries.push_back({step, std::move(values)});
    } else if (kind == "resume") {
      for (Series* series : {&loss_, &evaluation_, &switches_, &levels_}) series->take_back(step);
      for (auto& [name, series] : tensors_) series.take_back(step);
    }
  }

  std::string text() const {
    json tensors = json::object();
    for (const auto& [name, series] : tensors_) tensors[name] = series.thinned(kMaxRounds);
    json data = {{"loss", loss_.thinned(kMaxPoints)},
                 {"eval", evaluation_.thinned(kMaxPoints)},
                 {"gemms", gemms_},
                 {"rungs", levels_.thinned(kMaxRounds)},
                 {"switches", switches_.thinned(switches_.entries.size() + 1)},
                 {"names", kNames},
                 {"tensors", std::move(tensors)}};
    std::string result = data.dump();
    for (size_t at = 0; (at = result.find('<', at)) != std::string::npos;) result.replace(at, 1, "\\u003c");
    return result;
  }

 private:
  static constexpr const char* kNames[] = {"amax",          "not_finite",        "binades",
                                           "block_binades", "underflow",         "saturation",
                                           "snr_db",        "block_underflow",   "block_saturation",
                                           "block_snr_db",  "block_t_underflow", "block_t_saturation",
                                           "block_t_snr_db"};

  // "layers.0.attn.q/fprop=0 ...": the GEMMs are the same in every line of a run.
  void read_levels(int64_t step, const std::string& text) {
    std::string digits;
    gemms_.clear();
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(text.find(' ', begin), text.size()), equals = text.rfind('=', end);
      if (equals == std::string::npos || equals < begin || equals + 1 >= end) break;
      gemms_.push_back(text.substr(begin, equals - begin));
      digits += text[equals + 1];
      begin = end + 1;
    }
    levels_.entries.push_back({step, {step, digits}});
  }

  Series loss_, evaluation_, switches_, levels_;
  std::vector<std::string> gemms_;
  std::map<std::string, Series> tensors_;
};

}  // namespace

std::string write_report(const std::string& run_folder) {
  const std::string path = run_folder + "/log.jsonl", to = run_folder + "/report.html";
  check(path_exists(path), ErrorCode::kNotFound, "{} is not there: {} is no folder `octet train` wrote", path,
        run_folder);
  const std::string log = read_file(path);
  Report report;
  int64_t number = 0;
  for (size_t begin = 0; begin < log.size();) {
    size_t end = std::min(log.find('\n', begin), log.size());
    std::string where = fmt::format("{}:{}", path, ++number);
    if (end > begin) report.read(parse_json(std::string_view(log).substr(begin, end - begin), where), where);
    begin = end + 1;
  }
  write_file(to, report_page(run_folder, report.text()));
  return to;
}

}  // namespace octet
