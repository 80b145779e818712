// The text form: prints, parses and prints again identically. Grammar in docs/ir.md.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"
#include "ir/program.h"

namespace octet {

std::string print(const Attr& attr);
std::string print(const Graph& graph);
std::string print(const Program& program);  // the state table, then the graphs

// Throw kInvalidArgument with `where`:line:column, what was found and what was expected. Never crash on any bytes.
Graph parse_graph(std::string_view text, const std::string& where = "<text>");
Program parse_program(std::string_view text, const std::string& where = "<text>");

}  // namespace octet
