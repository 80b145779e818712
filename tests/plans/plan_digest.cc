#include "plans/plan_digest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "ir/fusion.h"
#include "ir/text.h"
#include "passes/text_passes.h"

namespace octet {
namespace {

// The computations of a graph, each as the hash of its op, attributes, types and what it reads; sorted.
std::vector<uint64_t> computations(const Graph& graph) {
  std::vector<uint64_t> hashes, by_node;
  const auto value_text = [&](Value value) {
    return value.exists() ? fmt::format("{:x}.{}", by_node[static_cast<size_t>(index(value.node))], value.result) : "_";
  };
  for (const Node& node : graph.nodes()) {
    std::string text = op_name(node.op);
    if (node.op == Op::kInput || node.op == Op::kParam || node.op == Op::kState) text += " @" + node.name;
    for (Value input : node.inputs) text += " " + value_text(input);
    for (const auto& [key, attr] : node.attrs.entries()) {
      text += " " + key + "=" + std::visit([](const auto& value) { return fmt::format("{}", value); }, attr);
    }
    for (const TensorType& type : node.results) text += " " + to_string(type);
    if (node.body != nullptr) text += fmt::format(" {:x}", fmt::join(computations(*node.body), " "));
    by_node.push_back(hash_text(text));
  }
  hashes = by_node;
  for (const NamedValue& output : graph.outputs()) {
    hashes.push_back(hash_text("output " + output.name + " " + value_text(output.value)));
  }
  for (const NamedValue& update : graph.updates()) {
    hashes.push_back(hash_text("update " + update.name + " " + value_text(update.value)));
  }
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

std::string program_computations(const Program& program) {
  std::vector<std::string> lines;
  for (const Graph& graph : program.graphs()) {
    lines.push_back(fmt::format("graph {} {:x}", graph.name(), fmt::join(computations(graph), " ")));
  }
  for (const StateEntry& entry : program.states()) {
    lines.push_back(fmt::format("state {} {} {} {} {} {}", entry.name, to_string(entry.type),
                                state_role_name(entry.role), entry.param, entry.index, entry.initial));
    for (const Placement& at : entry.placements)
      lines.push_back(fmt::format("{} holds {} {} at {}", entry.name, at.param, to_string(at.box()), at.offset));
  }
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string kinds_of(const Program& program) {
  std::map<std::string, int> fusions, others;
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      ++(node.op == Op::kFusion ? fusions : others)[node_label(node)];
    }
  }
  std::vector<std::string> words;
  for (const auto& [kind, count] : fusions) words.push_back(fmt::format("{} x{}", kind, count));
  std::string text = "fusions: " + (words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "))) + "; ops:";
  for (const auto& [op, count] : others) text += fmt::format(" {} x{}", op, count);
  return text;
}

// Names of the nodes by number; of nodes of one name and op the later ones are numbered.
std::vector<std::string> labels(const Graph& graph) {
  std::map<std::string, int> seen;
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    std::string name = node.name.empty() ? op_name(node.op) : node.name + "." + op_name(node.op);
    const int before = seen[name]++;
    names.push_back(before == 0 ? name : fmt::format("{}-{}", name, before));
  }
  return names;
}

// Replaces "%12" by the label of node 12 in lines of the graph's own nodes; those of bodies stand further right.
std::string with_labels(const std::string& text, const Program& program) {
  std::map<std::string, std::vector<std::string>> by_graph;
  for (const Graph& graph : program.graphs()) by_graph[graph.name()] = labels(graph);
  const std::vector<std::string>* names = nullptr;
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); out += '\n') {
    if (line.starts_with("graph ")) {
      const size_t begin = line.find_first_not_of("@\"", 6);
      names = &by_graph.at(line.substr(begin, line.find_first_of(" :\"", begin) - begin));
    }
    const bool own = line.starts_with("  ") && line.size() > 2 && line[2] != ' ';
    for (size_t at = 0; at < line.size();) {
      size_t end = at + 1;
      if (own && line[at] == '%') {
        while (end < line.size() && std::isdigit(static_cast<unsigned char>(line[end]))) ++end;
      }
      const bool id = end > at + 1;
      out += id ? "%" + names->at(std::stoul(line.substr(at + 1, end - at - 1))) : line.substr(at, 1);
      at = end;
    }
  }
  return out;
}

}  // namespace

uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

PlanDigest digest(const Plan& plan) {
  return {.computes = hash_text(program_computations(plan.program)),
          .text = hash_text(print(plan.program)),
          .memory = hash_text(print(plan)),
          .kinds = kinds_of(plan.program)};
}

std::string readable(const Plan& plan) {
  return with_labels(print(plan.program), plan.program) + with_labels(print(plan), plan.program);
}

}  // namespace octet
