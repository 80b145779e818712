#include "base/json_cost.h"

#include <vector>

#include "base/error.h"

namespace octet {

void check_json_cost(std::string_view text, const std::string& where, int64_t depth) {
  constexpr int64_t kMaxPairs = 20'000'000;  // of names in objects: about 0.1 s
  std::vector<int64_t> members;              // of each open object; -1: an array
  int64_t pairs = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      members.push_back(c == '{' ? 0 : -1);
      check(std::ssize(members) <= depth, ErrorCode::kInvalidArgument, "{} is nested deeper than {} levels", where,
            depth);
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ',' && !members.empty() && members.back() >= 0) {
      pairs += ++members.back();
      check(pairs <= kMaxPairs, ErrorCode::kInvalidArgument, "{} has objects of too many members ({} in one)", where,
            members.back());
    }
  }
}

}  // namespace octet
