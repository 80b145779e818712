// What commands that work through JSON lines by themselves, or a shard of them, have in common.
#pragma once

#include <chrono>
#include <string>

#include "corpus/work_folder.h"
#include "human.h"

namespace octet {

// Runs a Job (corpus/line_job.h) with a bar for each input, of all inputs where `shard` is empty; print(job, seconds)
// where nothing is left.
template <typename Job, typename Options, typename Print>
void run_line_job(Options options, const std::string& verb, const std::string& shard, const Print& print) {
  const auto start = std::chrono::steady_clock::now();
  StageProgress bar;
  options.lines.progress = [&](std::string_view file, const CorpusProgress& state) {
    bar.update(fmt::format("{} {}", verb, file), state);
  };
  Job job(options);
  if (!job.finished()) {
    job.run(shard.empty() ? Shard{} : parse_shard(shard));
    if (shard.empty()) job.finish();
  }
  bar.finish();
  if (job.finished()) print(job, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace octet
