// Python's `re` by PCRE2, as far as task files use it: findall and sub. \Z is Python's (the very end); the classes \w,
// \d, \s are Unicode's.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

class PythonRegex {
 public:
  // Throws kInvalidArgument with `where`, PCRE2's reason and the place.
  PythonRegex(const std::string& pattern, const std::string& where);
  ~PythonRegex();
  PythonRegex(PythonRegex&&) noexcept;

  // A list for each match: the match where the pattern has no groups, else its groups ("" for one not taken part).
  // Throws kInvalidArgument when the search gives up.
  std::vector<std::vector<std::string>> find_all(std::string_view text) const;
  // re.sub(): `with` may hold \1 .. \9.
  std::string replace(std::string_view text, std::string_view with) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octet
