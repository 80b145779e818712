// Ranges of numbers on the command line, said as elsewhere: "--max-tokens: -5 (want >= 0)". CLI11's own PositiveNumber
// answers with the largest double in full, and lets nan through; its integers beyond 64 bits become the largest there
// is, and negative ones wrap around where the option is unsigned.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>

namespace octet {

inline CLI::Validator number_range(const std::string& name, const std::string& want, bool (*good)(double)) {
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

// A word that an integer of 64 bits does not hold as it stands.
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

// Gives every integer option of the command and of those below it this check. Called when all options are there.
inline void check_whole_numbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();  // "INT:NONNEGATIVE"
    if (type.starts_with("INT") || type.starts_with("UINT")) option->check(whole_number(type.starts_with("INT")));
  }
  for (CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) check_whole_numbers(*below);
}

}  // namespace octet
