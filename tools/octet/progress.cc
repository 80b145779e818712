// See progress.h.
#include "progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/console.h"

namespace octet {
namespace {

std::string scaled(double value, const char* unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (std::abs(value) >= 1000 && prefix + 1 < std::size(kPrefixes)) value /= 1000, ++prefix;
  const int digits = prefix == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  const char* space = prefix == 0 && *unit == '\0' ? "" : " ";
  return fmt::format("{:.{}f}{}{}{}", value, digits, space, kPrefixes[prefix], unit);
}

}  // namespace

std::string human_bytes(double bytes) { return scaled(bytes, "B"); }
std::string human_count(double count) { return scaled(count, ""); }

std::string human_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

ProgressLine::~ProgressLine() { console_set_status(""); }

void ProgressLine::update(int64_t done, int64_t total, const std::string& text) {
  const auto now = Clock::now();
  if (now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  const double part = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  constexpr int kWidth = 24;
  const int full = static_cast<int>(part * kWidth);
  std::string bar(static_cast<size_t>(full), '=');
  if (full < kWidth) bar += '>';
  bar.resize(kWidth, ' ');
  std::string line = fmt::format("{} [{}] {:3.0f}%", title_, bar, part * 100);
  if (!text.empty()) line += "  " + text;
  if (part > 0) line += fmt::format("  {} left", human_seconds(seconds() * (1 - part) / part));
  console_set_status(line);
}

}  // namespace octet
