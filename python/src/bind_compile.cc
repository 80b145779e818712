// octet.compile: a graph on a device. Arrays go into the memory that the graph reads, or are that memory.
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "arrays.h"
#include "base/error.h"
#include "bind_graph.h"
#include "bindings.h"
#include "convert.h"
#include "exec/executor.h"
#include "exec/logical_states.h"
#include "passes/pass.h"
#include "process.h"
#include "weights/weights.h"

namespace octet::python {
namespace {

constexpr const char* kGraph = "main";

// Calls of several threads wait for each other: the executor is one thread's at a time.
class Compiled {
 public:
  Compiled(const Graph& graph, const std::string& recipe_name, const std::string& device_name) : source_(graph) {
    const nb::gil_scoped_release release;
    const CompileOptions options{.target = target_of(resolve_device(device_name)), .recipe = parse_recipe(recipe_name)};
    check(!graph.outputs().empty() || !graph.updates().empty(), ErrorCode::kInvalidArgument,
          "octet.compile: graph {} has no output: name one by Builder.output()", graph.name());
    Graph own = graph;
    own.set_role(GraphRole::kNone, kGraph);
    Program program;
    program.add_graph(std::move(own));
    Plan plan = compile(std::move(program), options);
    bytes_ = plan.total_bytes();
    executor_ = make_executor(std::move(plan));
    for (const LogicalState& one : logical_states(executor_->program())) {
      check(one.role != StateRole::kScale, ErrorCode::kUnsupported,
            "octet.compile: recipe {} wants scales that training keeps: choose fp8-current", recipe_name);
      if (one.role == StateRole::kMaster) masters_[one.param] = one;
    }
    for (const QuantizedParam& one : quantized_params(executor_->program())) {
      quantized_.emplace(one.param, one);
      ordered_ = ordered_ || !one.leaf->attrs.get_or<std::string>("order", "").empty();
    }
    for (const auto& [name, state] : masters_) missing_.insert(name);
    for (const auto& [name, state] : quantized_) missing_.insert(name);
  }

  // Writes the arrays, runs, and gives the outputs: views of the memory that they were computed in, or copies.
  nb::object run(nb::handle self, const nb::kwargs& arrays, bool views) {
    enter();
    std::vector<std::pair<std::string, ArrayIn>> given;
    for (const auto& [key, value] : arrays) {
      const std::string name = text_of(key);
      given.emplace_back(name, ArrayIn(value, "array " + name));
    }
    std::vector<std::vector<std::byte>> copies;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      write_all(given);
      executor_->run(kGraph);
      for (const NamedValue& output : compiled().outputs()) {
        if (views) break;
        const auto bytes = executor_->output(kGraph, output.name);
        copies.emplace_back(bytes.begin(), bytes.end());
      }
    }
    nb::dict all;
    for (size_t i = 0; i < compiled().outputs().size(); ++i) {
      const NamedValue& output = compiled().outputs()[i];
      const TensorType& type = compiled().type(output.value);
      all[output.name.c_str()] = views ? array_over(executor_->output(kGraph, output.name).data(), type, self, false)
                                       : array_of(std::move(copies[i]), type);
    }
    return all;
  }

  // The memory that inputs are read from.
  nb::dict inputs(nb::handle self) {
    nb::dict all;
    for (const NodeId id : compiled().inputs()) {
      const Node& node = compiled().node(id);
      all[node.name.c_str()] = array_over(executor_->input(kGraph, node.name).data(), node.results[0], self, true);
    }
    return all;
  }

  nb::object state(const std::string& name) {
    const StateEntry* entry = executor_->program().find_state(name);
    check(entry != nullptr && entry->role == StateRole::kBuffer, ErrorCode::kNotFound,
          "octet.compile: no state '{}' (there are: {})", name, fmt::join(names_of(Op::kState), ", "));
    std::vector<std::byte> bytes(static_cast<size_t>(entry->type.bytes()));
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      executor_->read_state(name, bytes);
    }
    return array_of(std::move(bytes), entry->type);
  }

  int64_t bytes() const { return bytes_; }
  std::string text() const { return print(executor_->program()); }

 private:
  const Graph& compiled() const { return executor_->program().graph(kGraph); }

  std::vector<std::string> names_of(Op op) const {
    std::vector<std::string> names;
    for (const Node& node : source_.nodes())
      if (node.op == op) names.push_back(node.name);
    return names;
  }

  // Checks everything before it writes anything.
  void write_all(const std::vector<std::pair<std::string, ArrayIn>>& given) {
    std::set<std::string> left = missing_, inputs;
    bool params = false;
    for (const NodeId id : compiled().inputs()) inputs.insert(compiled().node(id).name);
    for (const auto& [name, array] : given) {
      const Value leaf = source_.find_leaf(name);
      if (!leaf.exists()) fail_unknown(name);
      const Node& node = source_.node(leaf);
      const TensorType& type = node.results[0];
      const bool param = node.op == Op::kParam;
      check(array.shape() == type.shape, ErrorCode::kInvalidArgument, "array {} has shape {} (want {})", name,
            to_string(array.shape()), to_string(type.shape));
      check(array.dtype() == type.dtype || (param && is_float(array.dtype()) && !is_fp8(array.dtype())),
            ErrorCode::kInvalidArgument, "array {} is of {} (want {})", name, dtype_name(array.dtype()),
            param ? "f32, f64, f16 or bf16" : dtype_name(type.dtype));
      check(!param || !ordered_ || missing_.contains(name), ErrorCode::kUnsupported,
            "parameter {} is given again, and integer codes are laid out once: compile the graph anew", name);
      params = params || param, left.erase(name), inputs.erase(name);
    }
    check(left.empty(), ErrorCode::kInvalidArgument, "parameters are missing: {} (they are kept from call to call)",
          fmt::join(left, ", "));
    for (const std::string& name : inputs)
      check(written_.contains(name), ErrorCode::kInvalidArgument, "input {} is missing (want {})", name,
            to_string(source_.node(source_.find_leaf(Op::kInput, name)).results[0]));
    for (const auto& [name, array] : given) write(name, array);
    if (params) finish_filling(*executor_);
    missing_.clear();
  }

  void write(const std::string& name, const ArrayIn& array) {
    const Node& node = source_.node(source_.find_leaf(name));
    if (node.op == Op::kInput) {
      const Value leaf = compiled().find_leaf(Op::kInput, name);
      if (!leaf.exists()) return;  // nothing reads it
      const std::span<std::byte> to = executor_->input(kGraph, name);
      if (to.data() == array.data()) return;
      return convert_into(array, compiled().dtype(leaf), to);
    }
    if (const auto found = quantized_.find(name); found != quantized_.end()) {
      std::vector<float> values(static_cast<size_t>(array.elements()));
      convert_into(array, DType::kF32, std::as_writable_bytes(std::span(values)));
      return write_quantized(*executor_, found->second, values);
    }
    const auto master = masters_.find(name);
    const StateEntry* entry = executor_->program().find_state(name);
    if (master == masters_.end() && entry == nullptr) return;
    const TensorType& type = master != masters_.end() ? master->second.type : entry->type;
    std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
    convert_into(array, type.dtype, bytes);
    master != masters_.end() ? write_logical(*executor_, master->second, bytes) : executor_->write_state(name, bytes);
  }

  static void convert_into(const ArrayIn& array, DType to_dtype, std::span<std::byte> to) {
    if (array.dtype() == to_dtype) return array.read(to);
    std::vector<std::byte> bytes(static_cast<size_t>(storage_bytes(array.dtype(), array.elements())));
    array.read(bytes);
    convert(array.dtype(), bytes.data(), to_dtype, to.data(), array.elements());
  }

  [[noreturn]] void fail_unknown(const std::string& name) const {
    std::vector<std::string> names;
    for (const Op op : {Op::kInput, Op::kState, Op::kParam}) std::ranges::copy(names_of(op), std::back_inserter(names));
    fail(ErrorCode::kInvalidArgument, "no input, state or parameter is named '{}'{} (there are: {})", name,
         if_near(name, names, ", nearest: {}"), fmt::join(names, ", "));
  }

 public:
  // Inputs whose memory a caller has and may have filled.
  void mark_written() {
    for (const NodeId id : compiled().inputs()) written_.insert(compiled().node(id).name);
  }

 private:
  const Graph source_;
  std::unique_ptr<Executor> executor_;
  std::mutex mutex_;
  std::map<std::string, LogicalState> masters_;
  std::map<std::string, QuantizedParam> quantized_;
  std::set<std::string> missing_;  // parameters that no call has given
  std::set<std::string> written_;
  bool ordered_ = false;
  int64_t bytes_ = 0;
};

}  // namespace

void bind_compile(nb::module_& module) {
  nb::class_<Compiled>(
      module, "Compiled",
      "A graph on a device: called with arrays for its inputs, parameters and states by name, it gives "
      "a dict of its outputs. Parameters and states are kept from call to call.")
      .def(
          "__call__",
          [](nb::handle self, nb::kwargs arrays) {
            return nb::cast<Compiled&>(self).run(self, arrays, /*views=*/false);
          },
          nb::sig("def __call__(self, **arrays: Any) -> dict[str, Any]"))
      .def(
          "run",
          [](nb::handle self, nb::kwargs arrays) {
            return nb::cast<Compiled&>(self).run(self, arrays, /*views=*/true);
          },
          nb::sig("def run(self, **arrays: Any) -> dict[str, Any]"),
          "The same without copies: the outputs are read-only views of the memory that they were computed in, which "
          "the next run uses again.")
      .def_prop_ro(
          "inputs",
          [](nb::handle self) {
            auto& compiled = nb::cast<Compiled&>(self);
            compiled.mark_written();
            return compiled.inputs(self);
          },
          nb::sig("def inputs(self) -> dict[str, Any]"),
          "arrays over the memory that inputs are read from, to be filled in place: then a call needs none")
      .def("state", &Compiled::state, nb::arg("name"), nb::sig("def state(self, name: str) -> Any"),
           "what a state holds")
      .def_prop_ro("bytes", &Compiled::bytes, "planned memory: parameters, states, inputs, values on the way")
      .def("__str__", &Compiled::text);
  module.def(
      "compile",
      [](const PyGraph& graph, const std::string& recipe, const std::string& device) {
        enter();
        return std::make_unique<Compiled>(*graph.graph, recipe, device);
      },
      nb::arg("graph"), nb::kw_only(), nb::arg("recipe") = "fp32", nb::arg("device") = "auto",
      nb::sig("def compile(graph: Graph, *, recipe: str = 'fp32', device: str = 'auto') -> Compiled"),
      "Compiles a graph in a recipe for cpu, cuda or auto.");
}

}  // namespace octet::python
