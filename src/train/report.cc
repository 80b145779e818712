#include "train/report.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/html_chart.h"

namespace octet {

namespace {

using nlohmann::json;

constexpr size_t kMaxPoints = 1500, kMaxRounds = 250;  // of a curve; of a tensor's statistics and of the map

// Entries of one kind in the order of steps; a resumed run takes back what came after its checkpoint.
struct Series {
  std::vector<std::pair<int64_t, json>> entries;
  void take_back(int64_t after) {
    std::erase_if(entries, [&](const auto& entry) { return entry.first > after; });
  }
  // About `most` entries at most, evenly spaced, including the last.
  json thinned(size_t most) const {
    json list = json::array();
    size_t every = entries.size() / most + 1;
    for (size_t i = 0; i < entries.size(); ++i)
      if (i % every == 0 || i + 1 == entries.size()) list.push_back(entries[i].second);
    return list;
  }
};

class Report {
 public:
  void read(const json& line, const std::string& where) {
    auto kind = json_get<std::string>(line, "kind", where);
    auto step = json_get<int64_t>(line, "step", where);
    if (kind == "step") {
      for (const auto& [name, value] : line.items())
        if (name.ends_with(kRate)) unit_ = name.substr(0, name.size() - kRate.size());
      loss_.entries.push_back({step, {step, line.value("loss", json())}});
    } else if (kind == "eval") {
      evaluation_.entries.push_back({step, {step, line.value("loss", json())}});
    } else if (kind == "switch") {
      switches_.entries.push_back({step, {step, line.at("gemm"), line.at("from"), line.at("to"), line.at("reason")}});
    } else if (kind == "rungs") {
      read_levels(step, json_get<std::string>(line, "text", where));
    } else if (kind == "statistics") {
      json values = {step};
      for (const char* name : kNames) values.push_back(line.value(name, json()));
      tensors_[json_get<std::string>(line, "tensor", where)].entries.push_back({step, std::move(values)});
    } else if (kind == "resume" || kind == "start") {
      if (kind == "start") step = -1;  // another run before it
      for (Series* series : {&loss_, &evaluation_, &switches_, &levels_}) series->take_back(step);
      for (auto& [name, series] : tensors_) series.take_back(step);
    }
  }

  std::string text() const {
    json tensors = json::object();
    for (const auto& [name, series] : tensors_) tensors[name] = series.thinned(kMaxRounds);
    json data = {{"unit", unit_},
                 {"loss", loss_.thinned(kMaxPoints)},
                 {"eval", evaluation_.thinned(kMaxPoints)},
                 {"gemms", gemms_},
                 {"rungs", levels_.thinned(kMaxRounds)},
                 {"switches", switches_.thinned(switches_.entries.size() + 1)},
                 {"names", kNames},
                 {"tensors", std::move(tensors)}};
    std::string result = data.dump();
    for (size_t at = 0; (at = result.find('<', at)) != std::string::npos;) result.replace(at, 1, "\\u003c");
    return result;
  }

 private:
  static constexpr const char* kNames[] = {"amax",          "not_finite",        "binades",
                                           "block_binades", "underflow",         "saturation",
                                           "snr_db",        "block_underflow",   "block_saturation",
                                           "block_snr_db",  "block_t_underflow", "block_t_saturation",
                                           "block_t_snr_db"};
  static constexpr std::string_view kRate = "s_per_second";

  // "layers.0.attn.q/fprop=0 ...": the GEMMs are the same in every line of a run.
  void read_levels(int64_t step, const std::string& text) {
    std::string digits;
    gemms_.clear();
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(text.find(' ', begin), text.size()), equals = text.rfind('=', end);
      if (equals == std::string::npos || equals < begin || equals + 1 >= end) break;
      gemms_.push_back(text.substr(begin, equals - begin));
      digits += text[equals + 1];
      begin = end + 1;
    }
    levels_.entries.push_back({step, {step, digits}});
  }

  Series loss_, evaluation_, switches_, levels_;
  std::string unit_ = "token";
  std::vector<std::string> gemms_;
  std::map<std::string, Series> tensors_;
};

// The page of a report: HTML, style and the script that draws the data, in one file without external resources.
constexpr const char* kHead = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Octet run</title>
<style>
)html";

constexpr const char* kBody = R"html(</style></head><body>
<h1 id="title"></h1><p id="summary"></p>
<h2>Loss</h2><div id="loss"></div>
<div id="auto">
<h2>Precision of every GEMM over time</h2>
<p class="key"><i style="background:#2a9d68"></i>FP8, one scale<i style="background:#e9a63a"></i>FP8, 128-blocks
<i style="background:#5a6c9e"></i>bf16. One row a GEMM; point at it for its name.</p><div id="map" class="scroll"></div>
<h2>Switches</h2><div id="switches" class="scroll"></div>
<h2>Statistics of a tensor</h2><p><select id="tensor"></select></p><div id="charts" class="grid"></div>
</div>
<script>
const DATA = )html";

constexpr const char* kScript = R"html(const RUNGS = ['#2a9d68', '#e9a63a', '#5a6c9e'];
function drawMap(parent) {
  const rounds = DATA.rungs, n = DATA.gemms.length, W = 1000, L = 64, h = n > 150 ? 4 : 8;
  const svg = element('svg', {viewBox: `0 0 ${W} ${n * h}`, 'shape-rendering': 'crispEdges'}, parent);
  const first = rounds[0][0], span = Math.max(1, rounds[rounds.length - 1][0] - first) * (1 + 1 / rounds.length);
  const at = step => L + (step - first) / span * (W - L);
  const layer = gemm => +(/^layers\.(\d+)\./.exec(gemm) || [0, -1])[1];
  const order = [...DATA.gemms.keys()].sort((a, b) => layer(DATA.gemms[a]) - layer(DATA.gemms[b]) ||
                                                      (DATA.gemms[a] < DATA.gemms[b] ? -1 : 1));
  order.forEach((g, row) => {
    const gemm = DATA.gemms[g];
    if (!row || layer(gemm) !== layer(DATA.gemms[order[row - 1]])) {
      element('text', {x: 4, y: row * h + 10}, svg, layer(gemm) < 0 ? '' : 'layer ' + layer(gemm));
      if (row) element('line', {x1: 0, x2: L, y1: row * h, y2: row * h, stroke: '#c9ced6'}, svg);
    }
    for (let i = 0; i < rounds.length;) {
      let j = i + 1;
      while (j < rounds.length && rounds[j][1][g] === rounds[i][1][g]) ++j;
      const end = j < rounds.length ? at(rounds[j][0]) : W;
      const cell = element('rect', {x: at(rounds[i][0]), y: row * h, width: Math.max(1, end - at(rounds[i][0])),
                                    height: h - 0.5, fill: RUNGS[+rounds[i][1][g]]}, svg);
      element('title', {}, cell, `${gemm}, from step ${rounds[i][0]}`);
      i = j;
    }
  });
}
function drawTensor(name) {
  const parent = document.getElementById('charts'), rounds = DATA.tensors[name];
  parent.replaceChildren();
  const curve = (label, field, factor) => ({name: label, points: rounds.map(r => {
    const v = r[1 + DATA.names.indexOf(field)];
    return [r[0], isNumber(v) ? v * (factor || 1) : NaN];
  })});
  const three = (field, factor) => [curve('one scale', field, factor), curve('blocks', 'block_' + field, factor),
                                    curve('blocks of transpose', 'block_t_' + field, factor)];
  chart(parent, 'signal to noise, dB', three('snr_db'));
  chart(parent, 'underflow, %', three('underflow', 100));
  chart(parent, 'saturation, %', three('saturation', 100));
  chart(parent, 'range, binades', [curve('tensor', 'binades'), curve('block', 'block_binades')]);
  chart(parent, 'amax', [curve('amax', 'amax')]);
  chart(parent, 'not finite, %', [curve('not finite', 'not_finite', 100)]);
}
document.getElementById('title').textContent = TITLE;
const last = DATA.loss[DATA.loss.length - 1];
document.getElementById('summary').textContent = last
    ? `step ${last[0]}, loss ${isNumber(last[1]) ? last[1].toFixed(4) : last[1]}` : 'no steps yet';
const curves = [{name: 'training', points: DATA.loss}];
if (DATA.eval.length) curves.push({name: 'validation', points: DATA.eval});
chart(document.getElementById('loss'), `mean loss a ${DATA.unit}`, curves, 220);
if (!DATA.gemms.length) {
  document.getElementById('auto').remove();
} else {
  drawMap(document.getElementById('map'));
  const list = document.getElementById('switches');
  if (!DATA.switches.length) html('p', list, 'none');
  const table = html('table', list), head = html('tr', table);
  for (const title of ['step', 'GEMM', 'from', 'to', 'reason']) html('th', head, title);
  for (const entry of DATA.switches) {
    const row = html('tr', table);
    for (const value of entry) html('td', row, value);
  }
  const select = document.getElementById('tensor');
  for (const name in DATA.tensors) html('option', select, name);
  select.onchange = () => drawTensor(select.value);
  if (select.value) drawTensor(select.value);
}
</script></body></html>
)html";

std::string report_page(const std::string& title, const std::string& json) {
  std::string quoted;
  for (char c : title) {
    bool plain = static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\' && c != '<';
    quoted += plain ? std::string(1, c) : fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
  }
  return std::string(kHead) + chart_style() + kBody + json + fmt::format(";\nconst TITLE = \"{}\";\n", quoted) +
         chart_script() + kScript;
}

}  // namespace

std::string write_report(const std::string& run_folder) {
  const std::string path = run_folder + "/log.jsonl";
  std::string to = run_folder + "/report.html";
  check(path_exists(path), ErrorCode::kNotFound, "{} does not exist: {} is not a folder that `octet train` wrote", path,
        run_folder);
  const std::string log = read_file(path);
  Report report;
  int64_t number = 0;
  for (size_t begin = 0; begin < log.size();) {
    size_t end = std::min(log.find('\n', begin), log.size());
    std::string where = fmt::format("{}:{}", path, ++number);
    if (end > begin) report.read(parse_json(std::string_view(log).substr(begin, end - begin), where), where);
    begin = end + 1;
  }
  write_file(to, report_page(run_folder, report.text()));
  return to;
}

}  // namespace octet
