// The page of a report: HTML, style and the script that draws the data, in one file without external resources.
#include "base/error.h"
#include "io/html_chart.h"
#include "train/report.h"

namespace octet {
namespace {

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
chart(document.getElementById('loss'), 'mean loss a token', curves, 220);
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

}  // namespace

std::string report_page(const std::string& title, const std::string& json) {
  std::string quoted;
  for (char c : title) {
    bool plain = static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\' && c != '<';
    quoted += plain ? std::string(1, c) : fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
  }
  return std::string(kHead) + chart_style() + kBody + json + fmt::format(";\nconst TITLE = \"{}\";\n", quoted) +
         chart_script() + kScript;
}

}  // namespace octet
