// octet.Graph and octet.Program: graphs as text, through passes.
#include "bind_graph.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>

#include "base/error.h"
#include "bindings.h"
#include "convert.h"
#include "octet/commands.h"
#include "passes/text_passes.h"
#include "precision/recipe.h"

namespace octet::python {
namespace {

CompileOptions options_of(const std::string& recipe, const std::string& target, const std::string& recompute,
                          const std::vector<std::string>& disabled) {
  const Target on = target == "interpreter" ? interpreter_target()
                    : target == "h200"      ? h200_target()
                                            : find_target(target);
  return {.target = on,
          .recipe = parse_recipe(recipe),
          .recompute = parse_recompute(recompute, on),
          .disabled = {disabled.begin(), disabled.end()}};
}

// What came out: a Graph, a Program, or of plan_memory a text.
nb::object run_text(const std::string& text, const std::vector<std::string>& passes, const CompileOptions& options) {
  const std::string out = [&] {
    const nb::gil_scoped_release release;
    return run_passes(text, "octet.Graph", passes, options);
  }();
  if (out.starts_with("graph")) return nb::cast(PyGraph{std::make_shared<Graph>(parse_graph(out))});
  if (out.starts_with("program")) return nb::cast(PyProgram{parse_program(out)});
  return nb::cast(out);
}

constexpr const char* kPassesSignature =
    "def run(self, *passes: str, recipe: str = 'fp32', target: str = 'interpreter', recompute: str = 'none', disabled: "
    "Sequence[str] = ()) -> Any";
constexpr const char* kPassesDoc =
    "Runs passes or steps by name, as octet-opt does; octet.pass_names() lists them. A Graph while it is alone, else a "
    "Program; of a last \"plan_memory\" its text.";

template <typename Class>
void bind_passes(nb::class_<Class>& type) {
  type.def(
      "run",
      [](const Class& self, nb::args names, nb::kwargs options) {
        std::string recipe = "fp32", target = "interpreter", recompute = "none";
        std::vector<std::string> passes, disabled;
        for (const nb::handle name : names) passes.push_back(setting_text(name, "run: passes"));
        for (const auto& [key, value] : options) {
          const std::string name = text_of(key);
          std::string* to = name == "recipe"      ? &recipe
                            : name == "target"    ? &target
                            : name == "recompute" ? &recompute
                                                  : nullptr;
          if (name == "disabled")
            for (const nb::handle one : value) disabled.push_back(setting_text(one, "run: disabled"));
          else if (to != nullptr)
            *to = setting_text(value, "run: " + name);
          else
            fail(ErrorCode::kInvalidArgument, "run: no option '{}' (want recipe, target, recompute or disabled)", name);
        }
        return run_text(self.text(), passes, options_of(recipe, target, recompute, disabled));
      },
      nb::sig(kPassesSignature), kPassesDoc);
  type.def("__str__", &Class::text);
  type.def(
      "__eq__",
      [](const Class& self, nb::handle other) {
        return nb::isinstance<Class>(other) && self.text() == nb::cast<const Class&>(other).text();
      },
      nb::sig("def __eq__(self, other: object) -> bool"));
  type.def("__hash__", [](const Class& self) { return std::hash<std::string>()(self.text()); });
  type.def("__getstate__", &Class::text, nb::sig("def __getstate__(self) -> str"));
  type.def(
      "__setstate__", [](Class& self, const std::string& text) { new (&self) Class(Class::parse(text)); },
      nb::sig("def __setstate__(self, state: str) -> None"));
}

nb::dict leaves(const Graph& graph, Op op) {
  nb::dict all;
  for (const Node& node : graph.nodes())
    if (node.op == op) all[node.name.c_str()] = type_to_python(node.results[0]);
  return all;
}

constexpr const char* kLeavesSignature = "def {}(self) -> dict[str, tuple[str, tuple[int, ...]]]";

}  // namespace

nb::object type_to_python(const TensorType& type) {
  nb::list dims;
  for (const int64_t dim : type.shape.dims) dims.append(dim);
  return nb::make_tuple(dtype_name(type.dtype), nb::tuple(dims));
}

void bind_graph(nb::module_& module) {
  nb::class_<PyGraph> graph(
      module, "Graph", "A graph of ops; Builder(graph) fills it. str() is its text (docs/ir.md), which parse() reads.");
  graph.def(
      "__init__",
      [](PyGraph* self, const std::string& name) {
        new (self) PyGraph{std::make_shared<Graph>(name, graph_role(name))};
      },
      nb::arg("name") = "main");
  graph.def_static("parse", &PyGraph::parse, nb::arg("text"), nb::sig("def parse(text: str) -> Graph"));
  graph.def("__len__", [](const PyGraph& self) { return self.graph->size(); });
  graph.def("__repr__", [](const PyGraph& self) {
    return fmt::format("<octet.Graph {} of {} nodes>", self.graph->name(), self.graph->size());
  });
  graph.def_prop_ro("name", [](const PyGraph& self) { return self.graph->name(); });
  static std::deque<std::string> kept;
  for (const auto& [name, op, doc] : {std::tuple("inputs", Op::kInput, "name and type of every input"),
                                      {"params", Op::kParam, "of every parameter"},
                                      {"states", Op::kState, "of every state"}})
    graph.def_prop_ro(
        name, [op = op](const PyGraph& self) { return leaves(*self.graph, op); },
        nb::sig(kept.emplace_back(fmt::format(fmt::runtime(kLeavesSignature), name)).c_str()), doc);
  graph.def_prop_ro(
      "outputs",
      [](const PyGraph& self) {
        nb::dict all;
        for (const NamedValue& output : self.graph->outputs())
          all[output.name.c_str()] = type_to_python(self.graph->type(output.value));
        return all;
      },
      nb::sig(kept.emplace_back(fmt::format(fmt::runtime(kLeavesSignature), "outputs")).c_str()), "of every output");
  bind_passes(graph);

  nb::class_<PyProgram> program(module, "Program", "Several graphs over one table of states, as passes make them.");
  program.def_static("parse", &PyProgram::parse, nb::arg("text"), nb::sig("def parse(text: str) -> Program"));
  program.def_prop_ro(
      "graphs",
      [](const PyProgram& self) {
        std::vector<PyGraph> all;
        for (const Graph& one : self.program.graphs()) all.push_back({std::make_shared<Graph>(one)});
        return all;
      },
      nb::sig("def graphs(self) -> list[Graph]"));
  bind_passes(program);
  module.def(
      "pass_names",
      [] {
        std::vector<std::string> names;
        const std::string list = list_passes();
        for (size_t begin = 0, end = 0; (end = list.find('\n', begin)) != std::string::npos; begin = end + 1)
          names.push_back(list.substr(list.find_first_not_of(' ', begin), end - list.find_first_not_of(' ', begin)));
        return names;
      },
      nb::sig("def pass_names() -> list[str]"), "passes and their steps, in the order of the pipeline");
}

}  // namespace octet::python
