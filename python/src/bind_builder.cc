// octet.Builder: its methods, their signatures and their docs are those of ir/builder_calls.h.
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "bind_graph.h"
#include "bindings.h"
#include "convert.h"
#include "ir/builder_calls.h"

namespace octet::python {
namespace {

// Calls that go into a graph.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::shared_ptr<Graph> graph) : graph_(std::move(graph)), builder_(*graph_) {}

  std::vector<Value> call(const BuilderMethod& method, std::span<const Argument> arguments) {
    const std::string param = named_param(builder_, method, arguments);
    check(param.empty() || !graph_->find_leaf(Op::kParam, param).exists(), ErrorCode::kInvalidArgument,
          "{}: parameter {} is named twice: keep the value of the first call, or give another name", method.name,
          param);
    return octet::call(builder_, method, arguments);
  }
  TensorType type(Value value) const { return graph_->type(value); }
  void enter(const std::string& name, std::optional<int> layer) {
    scopes_.push_back(std::make_unique<Builder::Scope>(builder_, name, layer));
  }
  void leave() { scopes_.pop_back(); }

 private:
  const std::shared_ptr<Graph> graph_;
  Builder builder_;
  std::vector<std::unique_ptr<Builder::Scope>> scopes_;
};

struct PyBuilder {
  std::shared_ptr<GraphBuilder> calls;
};
struct PyValue {
  std::shared_ptr<GraphBuilder> builder;
  Value value;
};
struct PyScope {
  std::shared_ptr<GraphBuilder> builder;
  std::string name;
  std::optional<int> layer = {};
};

Attr attr_of(nb::handle value, const std::string& where) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (nb::isinstance<nb::str>(value)) return text_of(value);
  if (is_whole(value)) return static_cast<int64_t>(PyNumber_AsSsize_t(value.ptr(), nullptr));
  if (PyFloat_Check(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  check(nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value), ErrorCode::kInvalidArgument,
        "{} is {} (want a bool, int, float, str or a list of ints)", where, text_of(nb::repr(value)));
  std::vector<int64_t> list;
  for (const nb::handle one : value) {
    check(is_whole(one), ErrorCode::kInvalidArgument, "{} has {} (want ints)", where, text_of(nb::repr(one)));
    list.push_back(PyNumber_AsSsize_t(one.ptr(), nullptr));
  }
  return list;
}

int64_t whole_of(nb::handle value, const std::string& where) {
  check(is_whole(value), ErrorCode::kInvalidArgument, "{} is {} (want a whole number)", where,
        text_of(nb::repr(value)));
  const nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
  check(overflow == 0, ErrorCode::kInvalidArgument, "{} is {}, which does not fit 64 bits", where,
        text_of(nb::str(whole)));
  return number;
}

Shape shape_of(nb::handle value, const std::string& where) {
  if (is_whole(value)) return {whole_of(value, where)};
  check(nb::isinstance<nb::tuple>(value) || nb::isinstance<nb::list>(value), ErrorCode::kInvalidArgument,
        "{} is {} (want a shape such as (8, 16))", where, text_of(nb::repr(value)));
  Shape shape;
  for (const nb::handle dim : value) shape.dims.push_back(whole_of(dim, where));
  return shape;
}

TensorType type_of(nb::handle value, const std::string& where) {
  const bool pair = nb::isinstance<nb::tuple>(value) && nb::len(value) == 2 && nb::isinstance<nb::str>(value[0]);
  check(pair, ErrorCode::kInvalidArgument, "{} is {} (want a type such as (\"f32\", (8, 16)))", where,
        text_of(nb::repr(value)));
  return {parse_dtype(text_of(value[0])), shape_of(value[1], where)};
}

struct Results {
  const BuilderMethod* method;
  std::vector<PyValue> values;

  nb::object get(const std::string& name) const {
    const auto& names = method->result_names;
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
      throw nb::attribute_error(fmt::format("{} gives {}, no {}", method->name, method->results, name).c_str());
    return nb::cast(values[static_cast<size_t>(found - names.begin())]);
  }
};

std::string python_type(const BuilderParameter& parameter) {
  constexpr const char* kTypes[] = {"Value",
                                    "Sequence[Value]",
                                    "bool",
                                    "int",
                                    "float",
                                    "str",
                                    "int | Sequence[int]",
                                    "tuple[str, Sequence[int]]",
                                    "Mapping[str, Any]"};
  const bool optional = parameter.fallback && std::holds_alternative<std::monostate>(*parameter.fallback);
  return std::string(kTypes[static_cast<size_t>(parameter.kind)]) + (optional ? " | None" : "");
}

Argument argument_of(nb::handle value, const BuilderParameter& parameter, const PyBuilder& self,
                     const std::string& where) {
  if (value.is_none()) return {};
  const auto value_of = [&](nb::handle one) {
    check(nb::isinstance<PyValue>(one), ErrorCode::kInvalidArgument, "{} is {} (want a value that the builder gave)",
          where, text_of(nb::repr(one)));
    const auto& made = nb::cast<const PyValue&>(one);
    check(made.builder == self.calls, ErrorCode::kInvalidArgument, "{} is a value of another builder", where);
    return made.value;
  };
  switch (parameter.kind) {
    case ArgumentKind::kValue: return value_of(value);
    case ArgumentKind::kValues: {
      check(nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value), ErrorCode::kInvalidArgument,
            "{} is {} (want a list of values)", where, text_of(nb::repr(value)));
      std::vector<Value> all;
      for (const nb::handle one : value) all.push_back(value_of(one));
      return all;
    }
    case ArgumentKind::kBool:
      if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
      break;
    case ArgumentKind::kInt: return whole_of(value, where);
    case ArgumentKind::kFloat:
      if (PyFloat_Check(value.ptr()) || is_whole(value)) return PyFloat_AsDouble(value.ptr());
      break;
    case ArgumentKind::kString:
      if (nb::isinstance<nb::str>(value)) return text_of(value);
      break;
    case ArgumentKind::kShape: return shape_of(value, where);
    case ArgumentKind::kType: return type_of(value, where);
    case ArgumentKind::kAttrs: {
      if (!nb::isinstance<nb::dict>(value)) break;
      Attrs attrs;
      for (const auto& [key, one] : nb::borrow<nb::dict>(value))
        attrs.set(text_of(nb::str(key)), attr_of(one, where + ": " + text_of(nb::str(key))));
      return attrs;
    }
  }
  fail(ErrorCode::kInvalidArgument, "{} is {} (want {})", where, text_of(nb::repr(value)), python_type(parameter));
}

nb::object call_method(const PyBuilder& self, const BuilderMethod& method, nb::args args, nb::kwargs kwargs) {
  const auto& parameters = method.parameters;
  check(args.size() <= parameters.size(), ErrorCode::kInvalidArgument, "{}: {} arguments (it takes {}: {})",
        method.name, args.size(), parameters.size(), method.signature);
  std::vector<Argument> arguments(parameters.size());
  const auto put = [&](size_t i, nb::handle value) {
    arguments[i] = argument_of(value, parameters[i], self, fmt::format("{}: {}", method.name, parameters[i].name));
  };
  for (size_t i = 0; i < args.size(); ++i) put(i, args[i]);
  for (const auto& [key, value] : kwargs) {
    const std::string name = text_of(key);
    const auto found = std::ranges::find(parameters, name, &BuilderParameter::name);
    std::vector<std::string> names;
    for (const BuilderParameter& one : parameters) names.push_back(one.name);
    check(found != parameters.end(), ErrorCode::kInvalidArgument, "{}: no parameter '{}'{} (it takes: {})", method.name,
          name, if_near(name, names, ", nearest: {}"), method.signature);
    const auto i = static_cast<size_t>(found - parameters.begin());
    check(i >= args.size(), ErrorCode::kInvalidArgument, "{}: {} is given twice", method.name, name);
    put(i, value);
  }
  const std::vector<Value> results = self.calls->call(method, arguments);
  if (results.empty()) return nb::none();
  if (results.size() == 1 && method.result_names[0] != "...") return nb::cast(PyValue{self.calls, results[0]});
  Results made{&method, {}};
  for (const Value value : results) made.values.push_back({self.calls, value});
  return nb::cast(std::move(made));
}

std::string default_text(const BuilderParameter& parameter) {
  struct Text {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool value) const { return value ? "True" : "False"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return fmt::format("{}", value); }
    std::string operator()(const std::string& value) const { return "'" + value + "'"; }
    std::string operator()(const Shape&) const { return "(1,)"; }
    std::string operator()(const Attrs&) const { return "{}"; }
    std::string operator()(Value) const { return ""; }  // these have no defaults
    std::string operator()(const std::vector<Value>&) const { return ""; }
    std::string operator()(const TensorType&) const { return ""; }
  };
  return std::visit(Text(), *parameter.fallback);
}

std::string signature_of(const BuilderMethod& method) {
  std::string text = fmt::format("def {}(self", method.name);
  for (const BuilderParameter& one : method.parameters) {
    text += fmt::format(", {}: {}", one.name, python_type(one));
    if (one.fallback) text += " = " + default_text(one);
  }
  const bool one = method.result_names.size() == 1 && method.result_names[0] != "...";
  return text + (method.result_names.empty() ? ") -> None" : one ? ") -> Value" : ") -> Results");
}

}  // namespace

void bind_builder(nb::module_& module) {
  nb::class_<PyValue>(module, "Value", "A result of a builder's call.")
      .def_prop_ro(
          "shape",
          [](const PyValue& self) -> nb::object {
            const nb::object type = type_to_python(self.builder->type(self.value));
            return type[1];
          },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("dtype", [](const PyValue& self) { return dtype_name(self.builder->type(self.value).dtype); })
      .def("__repr__",
           [](const PyValue& self) {
             return fmt::format("<octet.Value {}>", to_string(self.builder->type(self.value)));
           })
      .def("__bool__", [](const PyValue&) -> bool {
        fail(ErrorCode::kInvalidArgument, "a value is known only when its graph runs: a builder cannot branch on it");
      });
  nb::class_<Results>(module, "Results", "Results of a call that gives several: by name, by index, unpacked.")
      .def("__len__", [](const Results& self) { return self.values.size(); })
      .def("__getitem__",
           [](const Results& self, int64_t i) {
             if (i < 0) i += std::ssize(self.values);
             if (i < 0 || i >= std::ssize(self.values)) throw nb::index_error();
             return self.values[static_cast<size_t>(i)];
           })
      .def(
          "__iter__",
          [](nb::handle self) {
            nb::list all;
            for (const PyValue& one : nb::cast<const Results&>(self).values) all.append(nb::cast(one));
            return nb::object(all.attr("__iter__")());
          },
          nb::sig("def __iter__(self) -> Iterator[Value]"))
      .def("__getattr__", &Results::get, nb::arg("name"), nb::sig("def __getattr__(self, name: str) -> Value"));
  nb::class_<PyScope>(module, "Scope", "A prefix of names, in a with block.")
      .def(
          "__enter__",
          [](nb::handle self) {
            const auto& scope = nb::cast<const PyScope&>(self);
            scope.builder->enter(scope.name, scope.layer);
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> Scope"))
      .def(
          "__exit__", [](const PyScope& self, nb::args) { self.builder->leave(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
  nb::class_<PyBuilder> builder(module, "Builder",
                                "Fills a graph: a method for each op that models have, and what several of them make "
                                "(docs/builder.md).");
  builder.def(
      "__init__",
      [](PyBuilder* self, const PyGraph& graph) { new (self) PyBuilder{std::make_shared<GraphBuilder>(graph.graph)}; },
      nb::arg("graph"), nb::sig("def __init__(self, graph: Graph) -> None"));
  builder.def(
      "scope",
      [](const PyBuilder& self, const std::string& name) {
        return PyScope{self.calls, name};
      },
      nb::arg("name"), "with builder.scope(\"attn\"): names inside begin with \"attn.\"");
  builder.def(
      "layer",
      [](const PyBuilder& self, int index) {
        return PyScope{self.calls, fmt::format("layers.{}", index), index};
      },
      nb::arg("index"), "scope(\"layers.INDEX\"), whose nodes are of this layer");
  static std::deque<std::string> kept;
  for (const BuilderMethod& method : builder_methods())
    builder.def(
        method.name,
        [&method](const PyBuilder& self, nb::args args, nb::kwargs kwargs) {
          return call_method(self, method, args, kwargs);
        },
        nb::sig(kept.emplace_back(signature_of(method)).c_str()), method.meaning);
}

}  // namespace octet::python
