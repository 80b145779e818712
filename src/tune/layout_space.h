// All layouts of a run that its given settings leave, and the rules that take out those that no run can have or that
// another layout is sure to beat.
#pragma once

#include "ir/target.h"
#include "tune/search.h"

namespace octet {

// Counts by rule, with an example of each.
class Rules {
 public:
  void add(const std::string& rule, const std::string& example, int64_t count = 1);
  void add(const std::string& rule, const RunLayout& example, int64_t count = 1);
  std::vector<RuleCount> sorted() const;
  int64_t count() const;

 private:
  std::map<std::string, RuleCount> rules_;
};

// Rules that depend on settings and model alone.
std::vector<RunLayout> list_layouts(const RunConfig& config, const SearchOptions& options, const Target& target,
                                    Rules& rules);

}  // namespace octet
