// Ranges of numbers on the command line, said as elsewhere: "--max-tokens: -5 (want >= 0)". CLI11's own PositiveNumber
// answers with the largest double in full, and lets nan through.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
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

}  // namespace octet
