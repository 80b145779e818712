// Logs of MLPerf Training: lines ":::MLLOG {...}" of a run, the keys that rules 3.0.0 want of each of their eight
// benchmarks as one table, and what a log has against them. Result files are anybody's: what does not parse is a fault,
// not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet {

inline constexpr std::string_view kMlperfToken = ":::MLLOG ";

// --- Writing

// A value of a line, as JSON text.
class MlperfValue {
 public:
  MlperfValue() = default;  // null
  MlperfValue(bool value) : json_(value ? "true" : "false") {}
  MlperfValue(int value) : MlperfValue(static_cast<int64_t>(value)) {}
  MlperfValue(int64_t value) : json_(std::to_string(value)) {}
  MlperfValue(double value);  // no finite number: Infinity, -Infinity or NaN, as Python's json has it
  MlperfValue(const char* text) : MlperfValue(std::string(text)) {}
  MlperfValue(const std::string& text);
  static MlperfValue of_json(std::string json);  // "[1, 2]"
  const std::string& json() const { return json_; }

 private:
  std::string json_ = "null";
};

using MlperfFields = std::vector<std::pair<std::string, MlperfValue>>;

// A result file, a write to the operating system a line: killed at any time, it holds whole lines. A thread of its own
// writes them, in order; their times are those of the calls. One thread at a time.
class MlperfLog {
 public:
  // Throws kInvalidArgument where the file exists: results are not overwritten. `now`: milliseconds since 1970.
  explicit MlperfLog(const std::string& path, std::function<int64_t()> now = {});
  ~MlperfLog();  // behind what waits; a line that could not be written is lost

  void event(const std::string& key, const MlperfValue& value, const MlperfFields& metadata = {},
             const char* file = __builtin_FILE(), int line = __builtin_LINE());
  void start(const std::string& key, const MlperfFields& metadata = {}, const char* file = __builtin_FILE(),
             int line = __builtin_LINE());
  void stop(const std::string& key, const MlperfFields& metadata = {}, const char* file = __builtin_FILE(),
            int line = __builtin_LINE());
  void flush();  // returns once all lines are written; throws kIo where one could not be

 private:
  class Writer;
  void write(const char* type, const std::string& key, const MlperfValue& value, const MlperfFields& metadata,
             const char* file, int line);
  std::unique_ptr<Writer> writer_;
  std::function<int64_t()> now_;
};

// --- Rules

struct MlperfBenchmark {
  const char* name;
  int runs;       // of a result; their mean leaves out `dropped` fastest and as many slowest
  int dropped;    // 1, of unet3d 4
  double target;  // of eval_accuracy; of maskrcnn of BBOX
  double limit;   // and what it is to stay within: the worst and the best that is believed
  bool higher_is_better;
};
std::span<const MlperfBenchmark> mlperf_benchmarks();
const MlperfBenchmark* find_mlperf_benchmark(std::string_view name);  // null: not one of the eight
// Of eval_accuracy as a JSON value: a number, of maskrcnn an object of BBOX and SEGM.
bool reaches_target(const MlperfBenchmark& benchmark, const MlperfValue& accuracy);

// A key of a closed run, besides those that every run has.
struct MlperfKey {
  std::string name;
  std::string rule;  // "": any value; else as in mlperf_log.cc
};
std::vector<MlperfKey> closed_keys(const MlperfBenchmark& benchmark, const std::string& optimizer = "");
bool obeys(const MlperfKey& key, const MlperfValue& value, int64_t global_batch);

// --- Reading

struct MlperfLine {
  int64_t number = 0;  // in the file, from 1
  int64_t time_ms = 0;
  std::string type, key;
  MlperfValue value;
  std::map<std::string, MlperfValue> metadata;
};
struct MlperfFault {
  int64_t line = 0;  // 0: of the whole
  std::string text;
  bool warning = false;  // an error under the checker's --werror only
};

// The lines of a file's text, also behind a prefix that launchers put in front of them. `faults`: those that are cut or
// no JSON.
std::vector<MlperfLine> parse_mlperf_log(std::string_view text, std::vector<MlperfFault>& faults);
// What the rules have against a log: missing and repeated keys, wrong values, order, the time of init, the target.
std::vector<MlperfFault> check_mlperf_log(std::string_view text);

}  // namespace octet
