#include "tune/measure.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

extern char** environ;

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kWarmUp = 2;  // steps that are not counted

// Seconds of the steps that a run has logged so far.
std::vector<double> logged_steps(const std::string& path) {
  std::vector<double> seconds;
  if (!path_exists(path)) return seconds;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) break;  // not yet whole
    const nlohmann::json row = parse_json(line, path);
    if (row.value("kind", "") == "step") seconds.push_back(json_get<double>(row, "seconds", path));
  }
  return seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string last_line(const std::string& path) {
  std::istringstream lines(read_file(path));
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  constexpr size_t kShown = 400;
  return last.substr(0, kShown);
}

// A program in a process group of its own, which ends with this object.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::string& output) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const int failed = posix_spawn(&id_, command[0].c_str(), &files, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    check(failed == 0, ErrorCode::kIo, "{}: cannot be run: {}", command[0], std::strerror(failed));
  }
  Process(const Process&) = delete;
  ~Process() { end(); }

  bool runs() {
    if (ended_) return false;
    ended_ = waitpid(id_, &status_, WNOHANG) == id_;
    return !ended_;
  }
  // With all that it has started.
  void end() {
    kill(-id_, SIGKILL);
    while (!ended_ && waitpid(id_, &status_, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
  }
  std::string how() const {
    if (WIFSIGNALED(status_)) return fmt::format("ended by signal {}", WTERMSIG(status_));
    return fmt::format("exit code {}", WEXITSTATUS(status_));
  }

 private:
  pid_t id_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

class Measuring {
 public:
  Measuring(const RunConfig& config, const MeasureOptions& options) : config_(config), options_(options) {
    check(!config.train_data.empty() || config.workload != "language", ErrorCode::kInvalidArgument,
          "--measure runs `octet train`, which needs data.train: set it, or leave --measure out");
    check(options.steps > kWarmUp, ErrorCode::kInvalidArgument, "{} steps (want more than {}, which are not counted)",
          options.steps, kWarmUp);
    make_folders(options.folder);
    read_kept();
  }

  Measurement measure(const PlannedLayout& candidate) {
    Measurement made{.layout = candidate.layout, .planned = candidate.plan.seconds()};
    const std::string key = key_of(candidate.layout);
    if (const auto found = kept_.find(key); found != kept_.end()) {
      made.measured = found->second.first, made.reason = found->second.second, made.kept = true;
      return made;
    }
    const bool finished = run(made);
    if (finished) {
      const nlohmann::json row = {{"key", key}, {"step_seconds", made.measured}, {"reason", made.reason}};
      AppendFile(results()).append(row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    }
    return made;
  }

 private:
  // All settings of the run but where it lies.
  std::string key_of(const RunLayout& layout) const {
    RunConfig own = with_layout({}, {}), run = with_layout(config_, layout);
    const SettingsTable table = settings_of(own);
    run.out = own.out, run.steps = options_.steps;
    own = run;
    return table.changed_line();
  }
  std::string results() const { return options_.folder + "/measured.jsonl"; }

  void read_kept() {
    if (!path_exists(results())) return;
    std::istringstream lines(read_file(results()));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json row = parse_json(line, results());
      kept_[json_get<std::string>(row, "key", results())] = {json_get<double>(row, "step_seconds", results()),
                                                             json_get<std::string>(row, "reason", results())};
    }
  }

  // False where it was stopped from outside.
  bool run(Measurement& made) const {
    const std::string own = options_.folder + "/run", settings = options_.folder + "/run.yaml",
                      output = options_.folder + "/run.log";
    remove_path(own);
    RunConfig few = config_;
    few.steps = options_.steps, few.epochs = 0, few.out = own, few.resume = "never", few.log_interval = 1;
    few.validation_data.clear(), few.eval_tasks.clear(), few.eval_tasks_data.clear();
    few.eval_tasks_limit = 0, few.eval_tasks_shots = -1, few.eval_target = 0, few.eval_patience = 0;
    few.checkpoint_interval = 0, few.restarts = 0, few.profile_timeline.clear(), few.dump_ir.clear();
    write_file(settings, layout_yaml(few, made.layout, ""));
    Process process({options_.program, "train", settings}, output);
    const auto begin = Clock::now();
    std::vector<double> seconds;
    std::string why;
    while (std::ssize(seconds) < options_.steps) {
      if (options_.stop && options_.stop()) return false;
      const bool runs = process.runs();  // before the log is read, which is whole where it does not
      seconds = logged_steps(own + "/log.jsonl");
      if (std::ssize(seconds) >= options_.steps) break;
      if (!runs) {
        why = fmt::format("{} after {} steps: {}", process.how(), seconds.size(), last_line(output));
        break;
      }
      if (std::chrono::duration<double>(Clock::now() - begin).count() > options_.limit_seconds) {
        why =
            fmt::format("{} of {} steps in {:g} s, its limit", seconds.size(), options_.steps, options_.limit_seconds);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    process.end();  // before it writes a checkpoint
    remove_path(own);
    made.reason = why;
    if (why.empty()) made.measured = median({seconds.begin() + kWarmUp, seconds.end()});
    return true;
  }

  const RunConfig& config_;
  const MeasureOptions& options_;
  std::map<std::string, std::pair<double, std::string>> kept_;  // by key: seconds, reason
};

}  // namespace

std::vector<Measurement> measure_layouts(const RunConfig& config, const std::vector<PlannedLayout>& best,
                                         const MeasureOptions& options) {
  Measuring measuring(config, options);
  std::vector<Measurement> all;
  for (const PlannedLayout& candidate : best) {
    if (std::ssize(all) == options.candidates || (options.stop && options.stop())) break;
    all.push_back(measuring.measure(candidate));
    if (options.report) options.report(to_text({all.back()}));
  }
  std::ranges::stable_sort(all, [](const Measurement& a, const Measurement& b) {
    if ((a.measured > 0) != (b.measured > 0)) return a.measured > 0;
    return a.measured < b.measured;
  });
  return all;
}

std::string to_text(const std::vector<Measurement>& measurements) {
  std::string text;
  for (const Measurement& m : measurements)
    text += m.measured > 0
                ? fmt::format("  {:.4g} s measured, {:.4g} planned ({:+.1f} %){}  {}\n", m.measured, m.planned,
                              100 * (m.planned / m.measured - 1), m.kept ? ", measured before" : "", to_text(m.layout))
                : fmt::format("  failed{}, {:.4g} s planned  {}: {}\n", m.kept ? " before" : "", m.planned,
                              to_text(m.layout), m.reason);
  return text;
}

}  // namespace octet
