#include "tune/evaluate.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "train/plan_report.h"
#include "tune/paper_plan.h"
#include "tune/run_layout.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// A value as `name=value` on a command line has it.
std::string word_of(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  check(value.is_array(), ErrorCode::kInvalidArgument, "{}: {} (want text, a number, true, false or a list)", name,
        value.dump());
  std::string words;
  for (const Json& one : value) words += (words.empty() ? "" : ",") + word_of(name, one);
  return words;
}

RunConfig config_of(const Json& row) {
  const auto workload = row.find("workload");
  RunConfig config = default_settings(workload == row.end() ? "language" : word_of("workload", *workload));
  SettingsTable settings = settings_of(config);
  bool data = false;
  for (const auto& [name, value] : row.items()) {
    if (name == "id" || name == "gpus") continue;
    settings.set(name, word_of(name, value), "row");
    data |= name == "parallel.data";
  }
  const auto gpus = row.find("gpus");
  check(gpus != row.end() && gpus->is_number_integer() && *gpus >= 1, ErrorCode::kInvalidArgument,
        "gpus: {} (want a whole number from 1 on)", gpus == row.end() ? "not given" : gpus->dump());
  const auto count = gpus->get<int64_t>(), others = config.tensor * config.context * config.pipeline;
  check(others > 0, ErrorCode::kInvalidArgument, "parallel.tensor and parallel.context: 0 (want numbers)");
  if (!data || config.data_ranks == 0) {
    check(count % others == 0, ErrorCode::kInvalidArgument,
          "gpus {} are no multiple of parallel.tensor x context x pipeline = {}", count, others);
    config.data_ranks = count / others;
  }
  check(config.data_ranks * others == count, ErrorCode::kInvalidArgument,
        "parallel.data x tensor x context x pipeline are {} ranks, and gpus is {}: leave parallel.data out, or set it "
        "to {}",
        config.data_ranks * others, count, count % others == 0 ? std::to_string(count / others) : "another");
  if (config.global_batch == 0) config.global_batch = config.micro_batch * config.data_ranks;
  validate(config);
  return config;
}

}  // namespace

void evaluate_rows(std::istream& rows, const Target& target, const RowOptions& options,
                   const std::function<void(const std::string&)>& answer) {
  PaperPlanner planner(target);
  const auto limit = static_cast<int64_t>(static_cast<double>(target.memory_bytes) * (1 - options.memory_margin));
  int64_t number = 0;
  for (std::string line; std::getline(rows, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", options.where, number);
    const auto row = parse_json<Json>(line, where, /*unique_keys=*/true);
    check(row.is_object(), ErrorCode::kCorrupt, "{}: {} (want an object)", where, row.dump());
    Json made = {{"id", row.contains("id") ? row["id"] : Json()},
                 {"fits", false},
                 {"memory_bytes", nullptr},
                 {"step_seconds", nullptr},
                 {"tokens_per_second", nullptr},
                 {"reason", ""}};
    try {
      const RunConfig config = config_of(row);
      const Prediction plan = planner.plan_whole(config);
      const bool fits = target.memory_bytes == 0 || plan.bytes() <= limit;
      made["fits"] = fits, made["memory_bytes"] = plan.bytes(), made["step_seconds"] = plan.seconds();
      made["tokens_per_second"] = plan.units_per_second();
      if (!fits)
        made["reason"] = fmt::format("{} bytes of {} are missing: {}", plan.bytes() - limit, limit,
                                     plan.stages > 1 ? fmt::format("stage {} needs {}", plan.stage, plan.bytes())
                                                     : fmt::format("a rank needs {}", plan.bytes()));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      made["reason"] = error.message();
    }
    answer(made.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

}  // namespace octet
