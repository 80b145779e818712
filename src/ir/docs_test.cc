// The documents of the IR hold: docs/ops.md is the generated table (OCTET_UPDATE_GOLDENS=1 rewrites it), the example of
// docs/ir.md parses, the code blocks of docs/adding_an_op.md stand in the files they name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "ir/facts.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace octet {
namespace {

std::string source_file(const std::string& path) { return read_file(source_dir() + "/" + path); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string trim(const std::string& text) {
  size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string memory_facts(const OpFacts& facts) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (facts.view) add("view");
  for (size_t r = 0; r < facts.must_alias.size(); ++r) {
    add((r > 0 ? std::to_string(r) + " " : "") + "must alias input " + std::to_string(facts.must_alias[r]));
  }
  for (int input : facts.in_place) {
    if (!facts.view && std::ranges::find(facts.must_alias, input) == facts.must_alias.end())
      add("0 in place of " + std::to_string(input) + (facts.float32_in_place ? " in float32" : ""));
  }
  for (auto [result, input] : facts.in_place_others) {
    add(std::to_string(result) + " in place of " + std::to_string(input));
  }
  return text;
}

const char* precision_name(ResultPrecision precision) {
  constexpr const char* kNames[] = {"compute type", "float32", "unchanged"};
  return kNames[static_cast<size_t>(precision)];
}

std::string ops_document() {
  std::string text =
      "# The ops\n\nGenerated from `src/ir/ops.def` and the facts in `src/ir/ops/`; do not edit (docs/adding_an_op.md "
      "says how it is made\nagain). An operand with `?` may be absent, `...` is one or more. Without a default (`=`) "
      "an "
      "attribute is required, or with `?`\nmay be absent. \"From\" is the first stage an op may stand in; "
      "\"precision\" is what the precision pass does with each result\n(gives it the recipe's compute type, makes "
      "it float32, leaves its type; the last one repeats); \"memory\" names results and inputs by\nindex. What a row "
      "cannot say is "
      "in [ir.md](ir.md).\n";
  std::string_view family;
  for (const OpInfo& info : all_ops()) {
    if (family != info.family) {
      family = info.family;
      text += fmt::format(
          "\n## {}{}\n\n| op | operands, results | attributes | meaning | gradient | from | precision "
          "| memory |\n|---|---|---|---|---|---|---|---|\n",
          static_cast<char>(std::toupper(family[0])), family.substr(1));
    }
    const OpFacts& facts = op_facts(info.op);
    std::string precision;
    for (ResultPrecision p : facts.precision)
      precision += (precision.empty() ? "" : ", ") + std::string(precision_name(p));
    text +=
        fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} |\n", info.name, info.signature, cell(info.attributes),
                    cell(facts.meaning), facts.gradient != nullptr ? "yes" : facts.no_gradient, stage_name(info.stage),
                    precision, memory_facts(facts));
  }
  return text;
}

TEST(Documents, OpsTableIsTheGeneratedOne) {
  const std::string generated = ops_document();
  if (std::getenv("OCTET_UPDATE_GOLDENS") != nullptr) write_file(source_dir() + "/docs/ops.md", generated);
  EXPECT_EQ(source_file("docs/ops.md"), generated) << "if intended, run with OCTET_UPDATE_GOLDENS=1";
}

// The fenced blocks of a document that open with ```language, each with the last `path` named before it.
struct Block {
  std::string path, text;
};
std::vector<Block> blocks_of(const std::string& document, const std::string& language) {
  std::vector<Block> blocks;
  std::string path;
  bool inside = false;
  for (const std::string& line : lines_of(document)) {
    if (line.starts_with("```")) {
      inside = !inside && line == "```" + language;
      if (inside) blocks.push_back({path, ""});
    } else if (inside) {
      blocks.back().text += line + "\n";
    } else {
      for (size_t at = 0; (at = line.find("`src/", at)) != std::string::npos; ++at) {
        path = line.substr(at + 1, line.find('`', at + 1) - at - 1);
      }
    }
  }
  return blocks;
}

TEST(Documents, TheExampleOfTheSpecificationParsesAndPrintsAsItStands) {
  std::vector<Block> blocks = blocks_of(source_file("docs/ir.md"), "text");
  ASSERT_FALSE(blocks.empty());
  for (const Block& block : blocks) {
    Program program = parse_program(block.text, "docs/ir.md");
    verify(program);
    EXPECT_EQ(print(program), block.text);
  }
}

TEST(Documents, CodeOfTheWalkThroughStandsInTheFilesItNames) {
  std::vector<Block> blocks = blocks_of(source_file("docs/adding_an_op.md"), "cpp");
  ASSERT_GE(blocks.size(), 5u);
  for (const Block& block : blocks) {
    SCOPED_TRACE(block.path);
    ASSERT_NE(block.path, "");
    std::vector<std::string> file = lines_of(source_file(block.path)), wanted = lines_of(block.text);
    bool found = false;
    for (size_t i = 0; !found && i + wanted.size() <= file.size(); ++i) {
      size_t k = 0;
      while (k < wanted.size() && trim(file[i + k]) == trim(wanted[k])) ++k;
      found = k == wanted.size();
    }
    EXPECT_TRUE(found) << "not in the file:\n" << block.text;
  }
}

}  // namespace
}  // namespace octet
