// The fastest layouts of a training run on so many devices, found on paper. Layouts are listed, sorted by an estimate
// and planned from the fastest on, until those left are estimated to be slower than the best found by more than the
// estimate errs. The answer does not depend on the order of anything, nor on threads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tune/paper_plan.h"
#include "tune/run_layout.h"

namespace octet {

struct SearchOptions {
  int64_t devices = 1;
  std::set<std::string> given = {};  // settings that stay as the run has them, of layout_settings()
  double memory_margin = 0.05;       // of the target's memory that is left free
  int64_t rows = 10;                 // of the table
  std::function<void(int64_t done, int64_t total, const std::string& text)> progress = {};
};

struct PlannedLayout {
  RunLayout layout;
  Prediction plan;
};

// How many layouts a rule has taken out, and one of them.
struct RuleCount {
  std::string rule;
  int64_t count = 0;
  std::string example = {};
};

struct SearchResult {
  ModelFacts model;
  int64_t devices = 0, global_batch = 0, listed = 0, planned = 0, compiled = 0;
  int64_t memory_bytes = 0;         // that a plan may have; 0: the target does not say
  std::vector<PlannedLayout> best;  // fastest first, the first one planned whole; empty: none fits
  std::vector<RuleCount> rules;     // the most first
  int64_t least_missing = 0;        // bytes, of those planned that do not fit: of the one that misses the fewest
  std::optional<PlannedLayout> full_recompute;  // the fastest with recompute=full
  std::optional<PlannedLayout> smallest;        // where none fits: what needs the least
  double seconds = 0;                           // that the search took
};

// Throws kInvalidArgument where not one layout keeps all rules, with the nearest values that do.
SearchResult search_layouts(PaperPlanner& planner, const RunConfig& config, const SearchOptions& options);

}  // namespace octet
