// The HTML page of a benchmark: one file without external resources; io/html_chart.h has the chart script.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "io/html_chart.h"
#include "load/summary.h"

namespace octet {
namespace {

constexpr size_t kPoints = 200;  // per curve

// Points [percentile, milliseconds] of a distribution.
nlohmann::json distribution(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  nlohmann::json points = nlohmann::json::array();
  if (seconds.empty()) return points;
  for (size_t i = 0; i <= kPoints; ++i) {
    const size_t at = i * (seconds.size() - 1) / kPoints;
    points.push_back({100.0 * static_cast<double>(i) / kPoints, 1e3 * seconds[at]});
  }
  return points;
}

// Output tokens per second and running requests over time.
void add_timeline(nlohmann::json& data, const DriveResult& result) {
  const double width = std::max(result.seconds, 1e-6) / kPoints;
  std::vector<double> tokens(kPoints + 1), running(kPoints + 1);
  auto slot = [&](double time) { return std::min(kPoints, static_cast<size_t>(std::max(0.0, time) / width)); };
  for (const RequestRecord& record : result.records) {
    if (record.first_token < 0) continue;
    double time = record.first_token;
    tokens[slot(time)] += 1;
    for (float gap : record.gaps) tokens[slot(time += static_cast<double>(gap))] += 1;
    for (size_t i = slot(record.submitted); i <= slot(record.last_token); ++i) running[i] += 1;
  }
  for (size_t i = 0; i < kPoints; ++i) {
    const double time = (static_cast<double>(i) + 0.5) * width;
    data["rate"].push_back({time, tokens[i] / width});
    data["running"].push_back({time, running[i]});
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

constexpr const char* kScript = R"html(;
const at = id => document.getElementById(id);
chart(at('rate'), 'output tokens a second', [{name: 'tokens/s', points: DATA.rate}], 220, 's ');
chart(at('running'), 'requests in the engine', [{name: 'requests', points: DATA.running}], 160, 's ');
chart(at('ttft'), 'first token, ms, by percentile', [{name: 'TTFT', points: DATA.ttft}], 190, 'p');
chart(at('itl'), 'between tokens, ms, by percentile', [{name: 'ITL', points: DATA.itl}], 190, 'p');
chart(at('e2e'), 'end to end, ms, by percentile', [{name: 'end to end', points: DATA.e2e}], 190, 'p');
</script></body></html>
)html";

}  // namespace

std::string to_page(const LoadSummary& summary, const DriveResult& result, const Facts& facts) {
  std::vector<double> first, inter, whole;
  for (const RequestRecord& record : result.records) {
    if (record.first_token < 0) continue;
    first.push_back(record.first_token - record.submitted);
    whole.push_back(record.last_token - record.submitted);
    inter.insert(inter.end(), record.gaps.begin(), record.gaps.end());
  }
  nlohmann::json data = {{"ttft", distribution(std::move(first))},
                         {"itl", distribution(std::move(inter))},
                         {"e2e", distribution(std::move(whole))},
                         {"rate", nlohmann::json::array()},
                         {"running", nlohmann::json::array()}};
  add_timeline(data, result);
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Octet load</title>\n<style>";
  page += chart_style();
  page += "</style></head><body>\n<h1>Octet under load</h1><table>";
  for (const auto& [name, value] : facts)
    page += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(value));
  page += fmt::format("</table>\n<pre>{}</pre>\n", escaped(to_text(summary)));
  page +=
      "<div id=\"rate\"></div><div id=\"running\"></div><div class=\"grid\"><div id=\"ttft\"></div>"
      "<div id=\"itl\"></div><div id=\"e2e\"></div></div>\n<script>\nconst DATA = ";
  return page + data.dump() + ";\n" + chart_script() + kScript;
}

}  // namespace octet
