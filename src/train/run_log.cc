#include "train/run_log.h"

#include <fmt/format.h>

#include <cmath>

#include "io/logs.h"

namespace octet {

struct RunLog::Files {
  Files(const std::string& out, int64_t first, const TrainingWorkload& workload)
      : jsonl(out + "/log.jsonl"),
        events(out + "/events", first),
        first_step(first),
        unit(workload.unit().many()),
        metrics(workload.metrics()) {}
  JsonlLog jsonl;
  EventFile events;
  int64_t first_step;
  std::string unit;
  std::vector<Metric> metrics;
};

RunLog::RunLog(const std::string& out, int64_t first_step, const TrainingWorkload& workload)
    : files_(std::make_unique<Files>(out, first_step, workload)) {}
RunLog::~RunLog() = default;

void RunLog::step(const StepLog& e) {
  const std::string rate = files_->unit + "_per_second";
  LogFields fields = {{"kind", "step"},       {"step", e.step},           {files_->unit, e.units},
                      {"loss", e.loss},       {"grad_norm", e.grad_norm}, {"lr", e.lr},
                      {"seconds", e.seconds}, {rate, e.units_per_second}, {"data_seconds", e.data_seconds},
                      {"finite", e.finite}};
  std::vector<std::pair<std::string, double>> scalars = {{"train/loss", e.loss},
                                                         {"train/grad_norm", e.grad_norm},
                                                         {"train/lr", e.lr},
                                                         {"train/" + rate, e.units_per_second}};
  for (const auto& [name, value] : e.metrics) {
    fields.emplace_back(name, value);
    scalars.emplace_back("train/" + name, value);
  }
  files_->jsonl.write(fields);
  if (e.targets) files_->events.scalars(e.step, scalars);
}

void RunLog::tasks(int64_t step, const std::vector<std::pair<std::string, double>>& values, double seconds) {
  LogFields fields = {{"kind", "tasks"}, {"step", step}};
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : values) {
    fields.emplace_back(name, value);
    scalars.emplace_back("eval/" + name, value);
  }
  fields.emplace_back("seconds", seconds);
  files_->jsonl.write(fields);
  files_->events.scalars(step, scalars);
}

void RunLog::evaluation(int64_t step, std::span<const double> metrics, int64_t units, double seconds) {
  LogFields fields = {{"kind", "eval"}, {"step", step}};
  std::vector<std::pair<std::string, double>> scalars;
  for (size_t i = 0; i < metrics.size(); ++i) {
    fields.emplace_back(files_->metrics[i].name, metrics[i]);
    scalars.emplace_back("eval/" + files_->metrics[i].name, metrics[i]);
  }
  fields.insert(fields.end(), {{files_->unit, units}, {"seconds", seconds}});
  files_->jsonl.write(fields);
  if (units > 0) files_->events.scalars(step, scalars);
}

namespace {

// Five digits are enough to read, and keep the log small.
double rounded(double value) { return std::stod(fmt::format("{:.5g}", value)); }

}  // namespace

void RunLog::statistics(int64_t step, const StatsTable& stats) {
  for (const auto& [name, s] : stats) {
    LogFields fields = {{"kind", "statistics"},
                        {"step", step},
                        {"tensor", name},
                        {"amax", rounded(static_cast<double>(s[kStatAmax]))},
                        {"not_finite", rounded(static_cast<double>(s[kStatNotFinite]))},
                        {"binades", rounded(static_cast<double>(s[kStatBinades]))},
                        {"block_binades", rounded(static_cast<double>(s[kStatBlockBinades]))}};
    const std::pair<const char*, int> scalings[] = {
        {"", kStatTensor}, {"block_", kStatBlock}, {"block_t_", kStatBlockT}};
    for (const auto& [prefix, scaling] : scalings) {
      auto share = [&, &s = s, at = scaling](int what) {
        return rounded(static_cast<double>(s[static_cast<size_t>(at + what)]));
      };
      fields.emplace_back(std::string(prefix) + "underflow", share(kUnderflow));
      fields.emplace_back(std::string(prefix) + "saturation", share(kSaturation));
      fields.emplace_back(std::string(prefix) + "snr_db", rounded(snr_db(s, scaling)));
    }
    files_->jsonl.write(fields);
  }
}

void RunLog::switches(const std::vector<Switch>& made) {
  for (const Switch& s : made)
    files_->jsonl.write({{"kind", "switch"},
                         {"step", s.step},
                         {"gemm", s.gemm},
                         {"from", precision_level_name(s.from)},
                         {"to", precision_level_name(s.to)},
                         {"reason", s.reason}});
}

void RunLog::levels(int64_t step, const PrecisionPolicy& policy) {
  std::string text;
  double counts[3] = {};
  for (const PolicyGemm& gemm : policy.gemms()) {
    PrecisionLevel level = policy.level(gemm.key());
    ++counts[static_cast<size_t>(level)];
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", gemm.key(), static_cast<int>(level));
  }
  files_->jsonl.write({{"kind", "rungs"}, {"step", step}, {"text", text}});
  auto share = [&](PrecisionLevel level) {
    return counts[static_cast<size_t>(level)] / static_cast<double>(std::max<size_t>(1, policy.gemms().size()));
  };
  if (step < files_->first_step) return;  // charted when the checkpoint was written
  files_->events.scalars(step, {{"precision/fp8_tensor", share(PrecisionLevel::kTensor)},
                                {"precision/fp8_block", share(PrecisionLevel::kBlock)},
                                {"precision/bf16", share(PrecisionLevel::kHigh)}});
}

void RunLog::event(int64_t step, const std::string& kind, const std::string& text) {
  files_->jsonl.write({{"kind", kind}, {"step", step}, {"text", text}});
}

}  // namespace octet
