#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace octet::serve {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void Histogram::observe(double value, int64_t times) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

Metrics::Family& Metrics::family(const std::string& name, const std::string& help, const char* type) {
  const auto found = std::ranges::find(families_, name, &Family::name);
  if (found == families_.end()) return families_.emplace_back(Family{.name = name, .help = help, .type = type});
  check(found->type == type, ErrorCode::kInternal, "metric {} is a {} and a {}", name, found->type, type);
  return *found;
}

Counter& Metrics::counter(const std::string& name, const std::string& help, const std::string& labels) {
  Counter& counter = counters_.emplace_back();
  family(name, help, "counter").series.push_back({labels, [&counter] { return counter.value(); }});
  return counter;
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help, std::vector<double> bounds) {
  Histogram& histogram = histograms_.emplace_back(std::move(bounds));
  family(name, help, "histogram").series.push_back({.histogram = &histogram});
  return histogram;
}

void Metrics::gauge(const std::string& name, const std::string& help, std::function<double()> read,
                    const std::string& labels) {
  family(name, help, "gauge").series.push_back({labels, std::move(read)});
}

void Metrics::total(const std::string& name, const std::string& help, std::function<double()> read,
                    const std::string& labels) {
  family(name, help, "counter").series.push_back({labels, std::move(read)});
}

void Metrics::info(const std::string& name, const std::string& help, std::function<std::string()> labels,
                   std::function<double()> read) {
  family(name, help, "gauge").series.push_back({.read = std::move(read), .made_labels = std::move(labels)});
}

std::string Metrics::print() const {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const Family& family : families_) {
    const std::string name = prefix_ + family.name;
    fmt::format_to(out, "# HELP {} {}\n# TYPE {} {}\n", name, family.help, name, family.type);
    for (const Series& series : family.series) {
      if (const Histogram* histogram = series.histogram) {
        int64_t count = 0;
        for (size_t i = 0; i < histogram->counts_.size(); ++i) {
          count += histogram->counts_[i].load(std::memory_order_relaxed);
          const bool last = i == histogram->bounds_.size();
          fmt::format_to(out, "{}_bucket{{le=\"{}\"}} {}\n", name, last ? "+Inf" : number(histogram->bounds_[i]),
                         count);
        }
        fmt::format_to(out, "{}_sum {}\n{}_count {}\n", name, number(histogram->sum_.load()), name, count);
      } else if (series.made_labels) {
        fmt::format_to(out, "{}{{{}}} {}\n", name, series.made_labels(), number(series.read()));
      } else if (series.labels.empty()) {
        fmt::format_to(out, "{} {}\n", name, number(series.read()));
      } else {
        fmt::format_to(out, "{}{{{}}} {}\n", name, series.labels, number(series.read()));
      }
    }
  }
  return text;
}

std::string metric_label(std::string_view name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  for (char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

}  // namespace octet::serve
