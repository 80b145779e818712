// Style and script of Octet's HTML pages: curves as SVG, without external resources.
#pragma once

namespace octet {

// For a <style> element.
const char* chart_style();
// For a <script> element: chart(parent, title, [{name, points: [[x, y], ...]}], height, axis) and its helpers
// (element, html, isNumber, brief).
const char* chart_script();

}  // namespace octet
