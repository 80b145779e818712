// What a search found, as text and as JSON.
#pragma once

#include "train/token_budget.h"
#include "tune/search.h"

namespace octet {

std::string to_text(const SearchResult& result, const Target& target, const TokenBudget& budget);
std::string to_json(const SearchResult& result, const Target& target, const TokenBudget& budget);

// A plan as members of a JSON object, without braces: "bytes", "step_seconds", "time", "memory", ...
std::string plan_json(const Prediction& plan, const ModelFacts& model);

}  // namespace octet
