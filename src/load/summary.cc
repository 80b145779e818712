// A summary as text, JSON and an HTML page: one file without external resources; io/html_chart.h has the chart script.
#include "load/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/json.h"
#include "io/html_chart.h"

namespace octet {
namespace {

bool is_finished(const RequestRecord& record) {
  return record.finished == FinishReason::kLength || record.finished == FinishReason::kStop;
}

double mean_of(const std::vector<float>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string row(const char* name, const Spread& s, double scale, const char* unit) {
  return fmt::format("{:<22}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}  {}\n", name, s.mean * scale,
                     s.p50 * scale, s.p90 * scale, s.p95 * scale, s.p99 * scale, s.max * scale, unit);
}

nlohmann::json json_of(const Spread& s) {
  return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p95", s.p95}, {"p99", s.p99}, {"max", s.max}};
}

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

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
  };
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {.mean = mean, .p50 = at(0.5), .p90 = at(0.9), .p95 = at(0.95), .p99 = at(0.99), .max = values.back()};
}

LoadSummary summarize(const DriveResult& result, const Objectives& objectives, double price_per_hour) {
  LoadSummary s{.requests = static_cast<int64_t>(result.records.size()), .seconds = result.seconds};
  std::vector<double> first, inter, whole, rates, each;
  int64_t good = 0;
  for (const RequestRecord& record : result.records) {
    s.prompt_tokens += record.prompt_tokens;
    s.cached_tokens += record.cached_tokens;
    s.output_tokens += record.output_tokens;
    s.preemptions += record.preemptions;
    if (!is_finished(record)) {
      ++s.failed;
      if (s.first_error.empty()) s.first_error = record.error;
      continue;
    }
    ++s.finished;
    if (record.first_token < 0) continue;
    const double ttft = record.first_token - record.submitted, gap = mean_of(record.gaps);
    const double time = record.last_token - record.submitted;
    first.push_back(ttft);
    inter.insert(inter.end(), record.gaps.begin(), record.gaps.end());
    whole.push_back(time);
    if (record.output_tokens > 1) each.push_back((time - ttft) / static_cast<double>(record.output_tokens - 1));
    if (gap > 0) rates.push_back(1 / gap);
    good += (objectives.first_token <= 0 || ttft <= objectives.first_token) &&
            (objectives.inter_token <= 0 || gap <= objectives.inter_token) &&
            (objectives.end_to_end <= 0 || time <= objectives.end_to_end);
  }
  s.first_token = spread_of(std::move(first));
  s.inter_token = spread_of(std::move(inter));
  s.end_to_end = spread_of(std::move(whole));
  s.per_token = spread_of(std::move(each));
  s.request_output_rate = spread_of(std::move(rates));
  if (s.seconds > 0) {
    s.output_rate = static_cast<double>(s.output_tokens) / s.seconds;
    s.total_rate = static_cast<double>(s.output_tokens + s.prompt_tokens) / s.seconds;
    s.request_rate = static_cast<double>(s.finished) / s.seconds;
    s.goodput = static_cast<double>(good) / s.seconds;
  }
  if (s.requests > 0) s.good_share = static_cast<double>(good) / static_cast<double>(s.requests);
  if (result.joules >= 0 && s.output_tokens > 0)
    s.joules_per_token = result.joules / static_cast<double>(s.output_tokens);
  if (price_per_hour > 0 && s.output_rate > 0) s.cost_per_million_tokens = price_per_hour / 3600 / s.output_rate * 1e6;
  s.steps = result.after.steps - result.before.steps;
  if (s.steps > 0) {
    const auto steps = static_cast<double>(s.steps);
    s.host_seconds_per_step = (result.after.host_seconds - result.before.host_seconds) / steps;
    s.step_seconds = (result.after.seconds - result.before.seconds) / steps;
  }
  s.drafts = result.after.drafts - result.before.drafts;
  s.drafted_tokens = result.after.drafted_tokens - result.before.drafted_tokens;
  s.accepted_tokens = result.after.accepted_tokens - result.before.accepted_tokens;
  for (size_t i = 0; i < result.after.accepted_at.size(); ++i)
    s.accepted_at.push_back(result.after.accepted_at[i] - result.before.accepted_at[i]);
  while (!s.accepted_at.empty() && s.accepted_at.back() == 0) s.accepted_at.pop_back();
  const int64_t padded = result.after.padded_tokens - result.before.padded_tokens + result.padded_tokens;
  const int64_t real = s.prompt_tokens - s.cached_tokens + s.output_tokens;
  if (padded + real > 0) s.padding = static_cast<double>(padded) / static_cast<double>(padded + real);
  return s;
}

std::string to_text(const LoadSummary& s) {
  std::string text = fmt::format(
      "{} of {} requests finished in {:.2f} s: {} prompt tokens ({} from the cache), {} output tokens\n"
      "output {:.1f} tok/s, prompt and output {:.1f} tok/s, {:.2f} requests/s\n"
      "goodput {:.2f} requests/s ({:.1f} % met the objectives)\n",
      s.finished, s.requests, s.seconds, s.prompt_tokens, s.cached_tokens, s.output_tokens, s.output_rate, s.total_rate,
      s.request_rate, s.goodput, 100 * s.good_share);
  text += fmt::format("{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "", "mean", "p50", "p90", "p95", "p99", "max");
  text += row("first token (TTFT)", s.first_token, 1e3, "ms");
  text += row("between tokens (ITL)", s.inter_token, 1e3, "ms");
  text += row("per token (TPOT)", s.per_token, 1e3, "ms");
  text += row("end to end (E2EL)", s.end_to_end, 1e3, "ms");
  text += row("a request's rate", s.request_output_rate, 1, "tok/s");
  if (s.steps > 0) {  // of an engine in this process
    text += fmt::format("{} steps of {:.2f} ms, host {:.3f} ms a step, padding {:.1f} %, {} preemptions\n", s.steps,
                        s.step_seconds * 1e3, s.host_seconds_per_step * 1e3, 100 * s.padding, s.preemptions);
    text += s.joules_per_token < 0 ? "energy: not known on this device\n"
                                   : fmt::format("energy {:.3f} J an output token\n", s.joules_per_token);
  }
  if (s.drafts > 0) {
    const auto share = [](int64_t part, int64_t whole) {
      return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
    };
    text += fmt::format("{} times {:.2f} tokens drafted, {:.1f} % accepted; by place", s.drafts,
                        share(s.drafted_tokens, s.drafts), 100 * share(s.accepted_tokens, s.drafted_tokens));
    for (const int64_t accepted : s.accepted_at) text += fmt::format(" {:.2f}", share(accepted, s.drafts));
    text += "\n";
  }
  if (s.cost_per_million_tokens >= 0)
    text += fmt::format("cost {:.3f} a million output tokens\n", s.cost_per_million_tokens);
  if (s.failed > 0) text += fmt::format("{} requests failed, the first: {}\n", s.failed, s.first_error);
  return text;
}

std::string to_json(const LoadSummary& s, const Facts& facts) {
  nlohmann::json json = {{"requests", s.requests},
                         {"finished", s.finished},
                         {"failed", s.failed},
                         {"seconds", s.seconds},
                         {"prompt_tokens", s.prompt_tokens},
                         {"cached_tokens", s.cached_tokens},
                         {"output_tokens", s.output_tokens},
                         {"preemptions", s.preemptions},
                         {"steps", s.steps},
                         {"output_tokens_per_second", s.output_rate},
                         {"total_tokens_per_second", s.total_rate},
                         {"requests_per_second", s.request_rate},
                         {"goodput_requests_per_second", s.goodput},
                         {"good_share", s.good_share},
                         {"first_token_seconds", json_of(s.first_token)},
                         {"inter_token_seconds", json_of(s.inter_token)},
                         {"per_token_seconds", json_of(s.per_token)},
                         {"end_to_end_seconds", json_of(s.end_to_end)},
                         {"request_tokens_per_second", json_of(s.request_output_rate)},
                         {"step_seconds", s.step_seconds},
                         {"host_seconds_per_step", s.host_seconds_per_step},
                         {"padding_share", s.padding},
                         {"drafts", s.drafts},
                         {"drafted_tokens", s.drafted_tokens},
                         {"accepted_tokens", s.accepted_tokens},
                         {"accepted_by_place", s.accepted_at}};
  for (const auto& [name, value] : facts) json["run"][name] = value;
  if (s.joules_per_token >= 0) json["joules_per_token"] = s.joules_per_token;
  if (s.cost_per_million_tokens >= 0) json["cost_per_million_tokens"] = s.cost_per_million_tokens;
  if (!s.first_error.empty()) json["first_error"] = s.first_error;
  return json.dump(1) + "\n";
}

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
