// Text in, text out: every file of testdata/ is a case. Its head says what to run ("# pass: autodiff", "# recompute:
// full", "# recipe: bf16"), then comes the input, a line "----" and exactly what must come out. After an intended
// change run with OCTET_UPDATE_GOLDENS=1 and read the difference.
#include "passes/text_passes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/test_data.h"

namespace octet {
namespace {

std::string folder() { return source_dir() + "/src/passes/testdata"; }

std::string header(const std::string& text, const std::string& key, const std::string& fallback) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && line.starts_with("#");) {
    if (line.starts_with("# " + key + ": ")) return line.substr(key.size() + 4);
  }
  return fallback;
}

class TextPasses : public testing::TestWithParam<std::string> {};

TEST_P(TextPasses, PrintsWhatTheFileSays) {
  const std::string path = folder() + "/" + GetParam(), text = read_file(path);
  constexpr std::string_view kSeparator = "\n----\n";
  size_t split = text.find(kSeparator);
  ASSERT_NE(split, std::string::npos) << path << " has no line \"----\"";
  std::string input = text.substr(0, split + 1), expected = text.substr(split + kSeparator.size());
  std::vector<std::string> passes;
  std::istringstream names(header(input, "pass", ""));
  for (std::string name; std::getline(names, name, ',');) passes.push_back(name);
  const Target target = header(input, "target", "interpreter") == "h200" ? h200_target() : interpreter_target();
  std::string printed = run_passes(input, GetParam(), passes,
                                   {.target = target,
                                    .recipe = parse_recipe(header(input, "recipe", "fp32")),
                                    .recompute = parse_recompute(header(input, "recompute", "none"), target)});
  if (std::getenv("OCTET_UPDATE_GOLDENS") != nullptr) {
    write_file(path, input + "----\n" + printed);
    return;
  }
  EXPECT_EQ(printed, expected) << "if intended, run with OCTET_UPDATE_GOLDENS=1";
}

INSTANTIATE_TEST_SUITE_P(Files, TextPasses, testing::ValuesIn(list_folder(folder())),
                         [](const auto& info) { return info.param.substr(0, info.param.find('.')); });

TEST(RunPasses, SaysWhatIsWrong) {
  const std::string graph = "graph @main stage model\n  %0 = input : f32[2] @x\n  output @y %0\nend\n";
  EXPECT_EQ(run_passes(graph, "t", {}, {}), graph);
  EXPECT_THROW(run_passes(graph, "t", {"autodif"}, {}), Error);
  EXPECT_THROW(run_passes(graph, "t", {"plan_memory", "fuse"}, {}), Error);
  EXPECT_THROW(run_passes("graph @main stage", "t", {}, {}), Error);
}

}  // namespace
}  // namespace octet
