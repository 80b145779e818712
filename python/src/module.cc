// The extension module octet._octet; its public names are those of the package octet.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "bindings.h"
#include "build_info.h"
#include "errors.h"
#include "process.h"

NB_MODULE(_octet, module) {
  using namespace octet;
  namespace nb = nanobind;
  nb::set_leak_warnings(false);  // what a script leaves to the interpreter's end
  python::translate_errors();
  python::bind_generation(module);
  python::bind_engine(module);
  python::bind_tokenizer(module);
  python::bind_runs(module);
  python::bind_graph(module);
  python::bind_builder(module);
  python::bind_compile(module);
  python::bind_serve(module);
  python::bind_quantize(module);
  module.def(
      "version_text", [] { return version_text("octet"); }, "commit, compiler, CPU and CUDA of this build");
  module.def(
      "set_log_level",
      [](const std::string& name) {
        const std::vector<std::string> names = {"debug", "info", "warning", "error", "off"};
        const auto found = std::ranges::find(names, name);
        check(found != names.end(), ErrorCode::kInvalidArgument,
              "log level '{}' (want debug, info, warning, error or off)", name);
        set_log_level(static_cast<LogLevel>(found - names.begin()));
      },
      nb::arg("name"), "which lines are written to stderr: debug, info, warning, error or off");
  module.def("set_threads", &set_thread_count, nb::arg("count"), "CPU threads; 0: all cores");
  module.def("_end", &python::end_all);
}
