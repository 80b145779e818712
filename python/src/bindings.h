// The parts of the module _octet.
#pragma once

#include <nanobind/nanobind.h>

namespace octet::python {

void bind_generation(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_tokenizer(nanobind::module_& module);
void bind_runs(nanobind::module_& module);
void bind_graph(nanobind::module_& module);
void bind_builder(nanobind::module_& module);
void bind_compile(nanobind::module_& module);
void bind_serve(nanobind::module_& module);
void bind_quantize(nanobind::module_& module);

}  // namespace octet::python
