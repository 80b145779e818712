// Graphs as objects of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "ir/program.h"
#include "ir/text.h"

namespace octet::python {

namespace nb = nanobind;

struct PyGraph {
  std::shared_ptr<Graph> graph;
  std::string text() const { return print(*graph); }
  static PyGraph parse(const std::string& text) { return {std::make_shared<Graph>(parse_graph(text, "octet.Graph"))}; }
};
struct PyProgram {
  Program program;
  std::string text() const { return print(program); }
  static PyProgram parse(const std::string& text) { return {parse_program(text, "octet.Program")}; }
};

nb::object type_to_python(const TensorType& type);  // ("f32", (8, 16))

}  // namespace octet::python
