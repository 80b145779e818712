// The text form: prints, parses and prints again identically. Grammar in docs/ir.md.
#pragma once

#include <cstdint>
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

// A hash of all that is printed of a program but the stages of its graphs: equal for programs of equal
// content, and as good as never for others. For noticing a change within one process, at a fraction of what printing
// costs; its value is not kept.
uint64_t fingerprint(const Program& program);
uint64_t computation_hash(const Node& node);  // of its op, inputs and attributes

}  // namespace octet
