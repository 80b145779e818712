// The printer of the text form (docs/ir.md has the grammar). Everything a graph holds is written; values are numbered
// by their node, so that the text of a parsed text is the same text.
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "ir/text.h"
#include "ir/text_words.h"

namespace octet {
namespace {

using Buffer = fmt::memory_buffer;

void put(Buffer& out, std::string_view text) { out.append(text.data(), text.data() + text.size()); }

template <typename... Args>
void put(Buffer& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

void put_quoted(Buffer& out, std::string_view text) {
  out.push_back('"');
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      put(out, "\\x{:02x}", byte);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

// As it is when it reads back as one word, else quoted.
void put_word(Buffer& out, std::string_view text) {
  bool plain = !text.empty();
  for (char c : text) plain = plain && text::is_word_char(c);
  plain ? put(out, text) : put_quoted(out, text);
}

void put_name(Buffer& out, std::string_view name) {
  out.push_back('@');
  put_word(out, name);
}

// The shortest text that reads back as the same double, and is no integer.
void put_double(Buffer& out, double value) {
  size_t begin = out.size();
  put(out, "{}", value);
  std::string_view text(out.data() + begin, out.size() - begin);
  if (text.find_first_of(".en") == std::string_view::npos) put(out, ".0");
}

struct PutAttr {
  Buffer& out;
  void operator()(int64_t value) const { put(out, "{}", value); }
  void operator()(double value) const { put_double(out, value); }
  void operator()(bool value) const { put(out, value ? std::string_view("true") : std::string_view("false")); }
  void operator()(const std::string& value) const { put_quoted(out, value); }
  void operator()(const std::vector<int64_t>& list) const {
    out.push_back('[');
    for (size_t i = 0; i < list.size(); ++i) put(out, "{}{}", i > 0 ? "," : "", list[i]);
    out.push_back(']');
  }
};

void put_attrs(Buffer& out, const Attrs& attrs) {
  if (attrs.entries().empty()) return;
  put(out, std::string_view(" {"));
  bool first = true;
  for (const auto& [key, value] : attrs.entries()) {
    if (!first) put(out, std::string_view(", "));
    first = false;
    put_word(out, key);
    out.push_back('=');
    std::visit(PutAttr{out}, value);
  }
  out.push_back('}');
}

void put_value(Buffer& out, Value value) {
  if (!value.exists()) {
    out.push_back('_');
  } else if (value.result == 0) {
    put(out, "%{}", index(value.node));
  } else {
    put(out, "%{}.{}", index(value.node), value.result);
  }
}

void put_type(Buffer& out, const TensorType& type, const Layout& layout) {
  if (layout.copies()) {
    put(out, dtype_name(type.dtype));
    PutAttr{out}(type.shape.dims);
  } else {
    put(out, print(type, layout));
  }
}

void put_types(Buffer& out, const std::vector<TensorType>& types, const std::vector<Layout>& layouts) {
  for (size_t i = 0; i < types.size(); ++i) {
    put(out, i == 0 ? std::string_view(" : ") : std::string_view(", "));
    put_type(out, types[i], layouts.empty() ? Layout() : layouts[i]);
  }
}

void put_mesh(Buffer& out, const Mesh& mesh) {
  if (mesh.ranks() == 1) return;
  put(out, std::string_view(" mesh"));
  for (Axis axis : kAllAxes)
    if (mesh[axis] > 1) put(out, " {}={}", axis_name(axis), mesh[axis]);
}

void put_graph(Buffer& out, const Graph& graph, size_t indent);

void put_node(Buffer& out, const Graph& graph, NodeId id, size_t indent) {
  const Node& node = graph.node(id);
  put(out, "{:{}}%{} = {}", "", indent, index(id), op_name(node.op));
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    put(out, i == 0 ? std::string_view(" ") : std::string_view(", "));
    put_value(out, node.inputs[i]);
  }
  put_attrs(out, node.attrs);
  put_types(out, node.results, node.layouts);
  if (!node.name.empty()) {
    out.push_back(' ');
    put_name(out, node.name);
  }
  if (node.layer >= 0) put(out, " layer {}", node.layer);
  if (node.phase != Phase::kForward) put(out, " phase {}", phase_name(node.phase));
  if (node.body != nullptr) {
    put(out, std::string_view(" body\n"));
    put_graph(out, *node.body, indent + 2);
  } else {
    out.push_back('\n');
  }
}

void put_graph(Buffer& out, const Graph& graph, size_t indent) {
  put(out, "{:{}}graph ", "", indent);
  put_name(out, graph.name());
  if (graph.role() != graph_role(graph.name()))
    put(out, " role {}", graph.role() == GraphRole::kNone ? "none" : graph_role_name(graph.role()));
  put_mesh(out, graph.mesh());
  put(out, " stage {}\n", stage_name(graph.stage()));
  for (int32_t i = 0; i < graph.size(); ++i) put_node(out, graph, NodeId{i}, indent + 2);
  auto put_named = [&](const std::vector<NamedValue>& list, const char* what) {
    for (const NamedValue& entry : list) {
      put(out, "{:{}}{} ", "", indent + 2, what);
      put_name(out, entry.name);
      out.push_back(' ');
      put_value(out, entry.value);
      out.push_back('\n');
    }
  };
  put_named(graph.outputs(), "output");
  put_named(graph.updates(), "update");
  put(out, "{:{}}end\n", "", indent);
}

void put_placement(Buffer& out, const Placement& placement) {
  put(out, std::string_view(" holds "));
  put_name(out, placement.param);
  out.push_back(' ');
  PutAttr{out}(placement.shape.dims);
  if (placement.offset != 0) put(out, " at {}", placement.offset);
  if (placement.dims == place_rows("", placement.shape).dims) return;
  for (size_t d = 0; d < placement.dims.size(); ++d) {
    const PlacedDim& dim = placement.dims[d];
    put(out, d == 0 ? std::string_view(" as ") : std::string_view(", "));
    PutAttr{out}(std::vector<int64_t>{dim.origin, dim.extent, dim.run, dim.stride, dim.run_stride});
  }
}

}  // namespace

std::string print(const Attr& attr) {
  Buffer out;
  std::visit(PutAttr{out}, attr);
  return fmt::to_string(out);
}

std::string print(const Graph& graph) {
  Buffer out;
  put_graph(out, graph, 0);
  return fmt::to_string(out);
}

std::string print(const Program& program) {
  Buffer out;
  put(out, std::string_view("program "));
  put_name(out, program.name);
  out.push_back('\n');
  for (const StateEntry& entry : program.states()) {
    put(out, std::string_view("state "));
    put_name(out, entry.name);
    put_types(out, {entry.type}, {entry.layout});
    put(out, " role {}", state_role_name(entry.role));
    if (entry.index != 0) put(out, " index {}", entry.index);
    if (!entry.param.empty()) {
      put(out, std::string_view(" of "));
      put_name(out, entry.param);
    }
    for (const Placement& placement : entry.placements) put_placement(out, placement);
    if (entry.initial != 0 || std::signbit(entry.initial)) {
      put(out, std::string_view(" initial "));
      put_double(out, entry.initial);
    }
    out.push_back('\n');
  }
  for (const Graph& graph : program.graphs()) put_graph(out, graph, 0);
  return fmt::to_string(out);
}

}  // namespace octet
