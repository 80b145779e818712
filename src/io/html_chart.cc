#include "io/html_chart.h"

namespace octet {

const char* chart_style() {
  return R"html(body{font:14px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1100px;padding:0 16px;color:#1c2430;background:#fff}
h1{font-size:20px}h2{font-size:16px;margin:28px 0 8px}
svg{display:block;width:100%;background:#f7f8fa;border:1px solid #dde1e7}
svg text{font:11px system-ui,sans-serif;fill:#56606e}
table{border-collapse:collapse;width:100%;font-size:13px}
td,th{border-bottom:1px solid #e4e7ec;padding:3px 8px;text-align:left;vertical-align:top}
select{font:inherit;padding:2px}.key i{display:inline-block;width:12px;height:12px;margin:0 4px 0 12px}
.grid{display:grid;grid-template-columns:1fr 1fr;gap:12px}.scroll{max-height:420px;overflow:auto}
)html";
}

const char* chart_script() {
  return R"html(const NS = 'http://www.w3.org/2000/svg';
const INKS = ['#1f6fb2', '#d0563c', '#2a9d68'];
function element(name, attributes, parent, text) {
  const e = document.createElementNS(NS, name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
}
function html(name, parent, text) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e);
  return e;
}
const isNumber = v => typeof v === 'number' && isFinite(v);
const brief = v => Math.abs(v) >= 1e4 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(1) : String(+v.toPrecision(4));
// Curves [{name, points: [[x, value], ...]}] in one frame; `axis` names x.
function chart(parent, title, curves, height, axis) {
  const W = 520, H = height || 190, L = 54, R = 12, T = 24, B = 22;
  const svg = element('svg', {viewBox: `0 0 ${W} ${H}`}, parent);
  element('text', {x: L, y: 15}, svg, title);
  const points = curves.flatMap(c => c.points).filter(p => isNumber(p[1]));
  if (!points.length) return element('text', {x: L, y: H / 2}, svg, 'no values');
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
  const range = list => list.reduce((r, v) => [Math.min(r[0], v), Math.max(r[1], v)], [Infinity, -Infinity]);
  let [x0, x1] = range(xs), [y0, y1] = range(ys);
  if (x1 === x0) x1 = x0 + 1;
  if (y1 === y0) { y1 += Math.abs(y1) * 0.1 || 1; y0 -= Math.abs(y0) * 0.1; }
  const x = v => L + (v - x0) / (x1 - x0) * (W - L - R), y = v => H - B - (v - y0) / (y1 - y0) * (H - T - B);
  for (let i = 0; i <= 4; ++i) {
    const v = y0 + (y1 - y0) * i / 4;
    element('line', {x1: L, x2: W - R, y1: y(v), y2: y(v), stroke: '#e1e5ea'}, svg);
    element('text', {x: L - 5, y: y(v) + 4, 'text-anchor': 'end'}, svg, brief(v));
  }
  element('text', {x: L, y: H - 6}, svg, (axis || 'step ') + brief(x0));
  element('text', {x: W - R, y: H - 6, 'text-anchor': 'end'}, svg, brief(x1));
  curves.forEach((curve, i) => {
    const good = curve.points.filter(p => isNumber(p[1]));
    const d = good.map((p, k) => (k ? 'L' : 'M') + x(p[0]).toFixed(1) + ' ' + y(p[1]).toFixed(1)).join('');
    element('path', {d, fill: 'none', stroke: INKS[i % 3], 'stroke-width': 1.4}, svg);
    if (good.length < 40) good.forEach(p => element('circle', {cx: x(p[0]), cy: y(p[1]), r: 2, fill: INKS[i % 3]}, svg));
    if (curves.length > 1)
      element('text', {x: W - R - 110 * (curves.length - 1 - i), y: 15, 'text-anchor': 'end', style: `fill:${INKS[i % 3]}`},
              svg, curve.name);
  });
}
)html";
}

}  // namespace octet
