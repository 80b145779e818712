// The printer of the text form (docs/ir.md has the grammar). Everything a graph holds is written; values are numbered
// by their node, so that the text of a parsed text is the same text.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ir/text.h"
#include "ir/text_words.h"

namespace octet {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// As it is when it reads back as one word, else quoted.
std::string word(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, text::is_word_char) ? std::string(text) : quoted(text);
}

std::string name_text(std::string_view name) { return "@" + word(name); }

struct AttrText {
  std::string operator()(int64_t value) const { return std::to_string(value); }
  // The shortest text that reads back as the same double, and is no integer.
  std::string operator()(double value) const {
    std::string text = fmt::format("{}", value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<int64_t>& list) const { return fmt::format("[{}]", fmt::join(list, ",")); }
};

std::string value_text(Value value) {
  if (!value.exists()) return "_";
  const std::string node = fmt::format("%{}", index(value.node));
  return value.result == 0 ? node : fmt::format("{}.{}", node, value.result);
}

std::string type_text(const TensorType& type) { return dtype_name(type.dtype) + AttrText()(type.shape.dims); }

// The texts of the items with ", " between them, and `before` in front when there are any.
template <typename Item, typename Text>
std::string list_text(const char* before, const std::vector<Item>& items, const Text& text) {
  std::string out;
  for (const Item& item : items) out += (out.empty() ? before : ", ") + text(item);
  return out;
}

std::string types_text(const std::vector<TensorType>& types, const std::vector<Layout>& layouts) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    text += i == 0 ? " : " : ", ";
    text += layouts.empty() || layouts[i].copies() ? type_text(types[i]) : print(types[i], layouts[i]);
  }
  return text;
}

std::string mesh_text(const Mesh& mesh) {
  std::string text;
  for (Axis axis : kAllAxes)
    if (mesh[axis] > 1) text += fmt::format(" {}={}", axis_name(axis), mesh[axis]);
  return text.empty() ? text : " mesh" + text;
}

void put_graph(std::string& out, const Graph& graph, const std::string& indent);

void put_node(std::string& out, const Graph& graph, NodeId id, const std::string& indent) {
  const Node& node = graph.node(id);
  out += fmt::format("{}%{} = {}", indent, index(id), op_name(node.op));
  out += list_text(" ", node.inputs, value_text);
  out += list_text(" {", node.attrs.entries(),
                   [](const auto& entry) { return word(entry.first) + "=" + print(entry.second); });
  if (!node.attrs.entries().empty()) out += "}";
  out += types_text(node.results, node.layouts);
  if (!node.name.empty()) out += " " + name_text(node.name);
  if (node.layer >= 0) out += fmt::format(" layer {}", node.layer);
  if (node.phase != Phase::kForward) out += fmt::format(" phase {}", phase_name(node.phase));
  out += node.body != nullptr ? " body\n" : "\n";
  if (node.body != nullptr) put_graph(out, *node.body, indent + "  ");
}

void put_graph(std::string& out, const Graph& graph, const std::string& indent) {
  out += fmt::format("{}graph {}", indent, name_text(graph.name()));
  if (graph.role() != graph_role(graph.name()))
    out += fmt::format(" role {}", graph.role() == GraphRole::kNone ? "none" : graph_role_name(graph.role()));
  out += mesh_text(graph.mesh()) + fmt::format(" stage {}\n", stage_name(graph.stage()));
  for (int32_t i = 0; i < graph.size(); ++i) put_node(out, graph, NodeId{i}, indent + "  ");
  for (const NamedValue& output : graph.outputs())
    out += fmt::format("{}  output {} {}\n", indent, name_text(output.name), value_text(output.value));
  for (const NamedValue& update : graph.updates())
    out += fmt::format("{}  update {} {}\n", indent, name_text(update.name), value_text(update.value));
  out += indent + "end\n";
}

std::string placement_text(const Placement& placement) {
  std::string text = fmt::format(" holds {} {}", name_text(placement.param), AttrText()(placement.shape.dims));
  if (placement.offset != 0) text += fmt::format(" at {}", placement.offset);
  if (placement.dims == place_rows("", placement.shape).dims) return text;
  return text + list_text(" as ", placement.dims, [](const PlacedDim& dim) {
           return AttrText()(std::vector<int64_t>{dim.origin, dim.extent, dim.run, dim.stride, dim.run_stride});
         });
}

}  // namespace

std::string print(const Attr& attr) { return std::visit(AttrText(), attr); }

std::string print(const Graph& graph) {
  std::string out;
  put_graph(out, graph, "");
  return out;
}

std::string print(const Program& program) {
  std::string out = fmt::format("program {}\n", name_text(program.name));
  for (const StateEntry& entry : program.states()) {
    out += "state " + name_text(entry.name) + types_text({entry.type}, {entry.layout});
    out += fmt::format(" role {}", state_role_name(entry.role));
    if (entry.index != 0) out += fmt::format(" index {}", entry.index);
    if (!entry.param.empty()) out += " of " + name_text(entry.param);
    if (entry.update != Update::kDense) out += entry.update == Update::kNone ? " update none" : " update rows";
    if (entry.slots != 1) out += fmt::format(" slots {}", entry.slots);
    for (const Placement& placement : entry.placements) out += placement_text(placement);
    if (entry.initial != 0 || std::signbit(entry.initial)) out += " initial " + AttrText()(entry.initial);
    out += "\n";
  }
  for (const Graph& graph : program.graphs()) put_graph(out, graph, "");
  return out;
}

}  // namespace octet
