// Range checks for numbers on the command line: "--max-tokens: -5 (want >= 0)". CLI11's PositiveNumber prints the
// largest double in full and accepts nan; its integers beyond 64 bits saturate, and negative ones wrap around if the
// option is unsigned.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

namespace octet {

inline CLI::Validator number_range(const std::string& name, const std::string& want,
                                   const std::function<bool(double)>& good) {
  const auto judge = [want, good](std::string& word) -> std::string {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(word, value);
    return number && good(value) ? std::string() : fmt::format("{} (want {})", word, want);
  };
  return {judge, name};
}

// std::isfinite is false for nan.
inline CLI::Validator not_negative() {
  return number_range("NONNEGATIVE", ">= 0", [](double value) { return value >= 0 && std::isfinite(value); });
}
inline CLI::Validator positive() {
  return number_range("POSITIVE", "> 0", [](double value) { return value > 0 && std::isfinite(value); });
}

// Whether a word does not fit a 64-bit integer.
inline CLI::Validator whole_number(bool is_signed) {
  const auto judge = [is_signed](std::string& word) -> std::string {
    char* end = nullptr;
    errno = 0;
    is_signed ? static_cast<void>(std::strtoll(word.c_str(), &end, 0))
              : static_cast<void>(std::strtoull(word.c_str(), &end, 0));
    const bool whole = !word.empty() && *end == '\0' && errno == 0;
    if (whole && (is_signed || word.find('-') == std::string::npos)) return "";
    if (is_signed) return fmt::format("{} (want a whole number, -2^63 to 2^63 - 1)", word);
    return fmt::format("{} (want a whole number, 0 to 2^64 - 1)", word);
  };
  return {judge, ""};
}

// Adds this check to every integer option of the command and its subcommands. Call after all options are added.
inline void check_whole_numbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();  // "INT:NONNEGATIVE"
    if (type.starts_with("INT") || type.starts_with("UINT")) option->check(whole_number(type.starts_with("INT")));
  }
  for (CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) check_whole_numbers(*below);
}

}  // namespace octet
