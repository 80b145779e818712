// The proof of a search: `octet train` runs its best layouts for a few steps each, every one in a process of its own
// with a time limit. One that fails, hangs or runs out of memory costs itself alone. What has been measured is kept in
// a file as it comes: a measurement that was ended goes on where it was.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tune/search.h"

namespace octet {

struct MeasureOptions {
  std::string program;                                       // that has the command `train`
  std::string folder;                                        // of the settings, logs and results
  int64_t candidates = 3;                                    // of the table, the fastest first
  int64_t steps = 8;                                         // of each; the first two are not counted
  double limit_seconds = 300;                                // of each
  std::function<bool()> stop = {};                           // true: the run at hand is ended, and no more begun
  std::function<void(const std::string& line)> report = {};  // of each, as it ends
};

struct Measurement {
  RunLayout layout;
  double planned = 0, measured = 0;  // seconds of a step; measured 0: it failed
  std::string reason = {};           // why
  bool kept = false;                 // from an earlier call
};

// Fastest first, failed ones last.
std::vector<Measurement> measure_layouts(const RunConfig& config, const std::vector<PlannedLayout>& best,
                                         const MeasureOptions& options);
std::string to_text(const std::vector<Measurement>& measurements);

}  // namespace octet
