// Text in, text out: every file of testdata/ is a case. Its head says what to run ("# pass: autodiff", "# disable:
// fold_sums", "# recompute: full", "# recipe: bf16") and on which Target ("# target: h200", or the interpreter's with
// "# fuse: norm residual amax, gated core" and "# vocab_multiple: 4"; "# micro_batches: 3" of a step), then comes the
// input, a line "----" and exactly what must come out. After an intended change run with OCTET_UPDATE_GOLDENS=1 and
// read the difference.
#include "passes/text_passes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"

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

std::vector<std::string> words(const std::string& text, char separator) {
  std::vector<std::string> list;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) list.push_back(word);
  return list;
}

Target target_of(const std::string& input) {
  if (header(input, "target", "interpreter") == "h200") return h200_target();
  Target target = interpreter_target();
  for (const std::string& rule : words(header(input, "fuse", ""), ',')) allow_fusions(target, rule);
  target.vocab_multiple = std::stoll(header(input, "vocab_multiple", "1"));
  return target;
}

class TextPasses : public testing::TestWithParam<std::string> {};

TEST_P(TextPasses, PrintsWhatTheFileSays) {
  const std::string path = folder() + "/" + GetParam(), text = read_file(path);
  constexpr std::string_view kSeparator = "\n----\n";
  size_t split = text.find(kSeparator);
  ASSERT_NE(split, std::string::npos) << path << " has no line \"----\"";
  std::string input = text.substr(0, split + 1), expected = text.substr(split + kSeparator.size());
  const Target target = target_of(input);
  const std::vector<std::string> disabled = words(header(input, "disable", ""), ',');
  std::string printed = run_passes(input, GetParam(), words(header(input, "pass", ""), ','),
                                   {.target = target,
                                    .parallel = {.micro_batches = std::stoi(header(input, "micro_batches", "1"))},
                                    .recipe = parse_recipe(header(input, "recipe", "fp32")),
                                    .recompute = parse_recompute(header(input, "recompute", "none"), target),
                                    .disabled = {disabled.begin(), disabled.end()}},
                                   parse_serving_sizes(words(header(input, "serving", ""), ' ')));
  if (std::getenv("OCTET_UPDATE_GOLDENS") != nullptr) {
    write_file(path, input + "----\n" + printed);
    return;
  }
  EXPECT_EQ(printed, expected) << "if intended, run with OCTET_UPDATE_GOLDENS=1";
}

INSTANTIATE_TEST_SUITE_P(Files, TextPasses, testing::ValuesIn(list_folder(folder())),
                         [](const auto& info) { return info.param.substr(0, info.param.find('.')); });

// Passes and steps by the names that --list shows.
TEST(RunPasses, EveryNameRunsAndEveryStepIsLeftOut) {
  const std::string graph = "graph @main stage model\n  %0 = input : i32[2] @ids\n  output @y %0\nend\n";
  for (const Pass& pass : pipeline_passes()) {
    EXPECT_NE(list_passes().find(pass.name + "\n"), std::string::npos);
    EXPECT_NO_THROW(run_passes(graph, "t", {pass.name}, {.disabled = {pass.name}}));
    for (const Step& step : pass.steps) {
      EXPECT_NE(list_passes().find(fmt::format("  {}\n", step.name)), std::string::npos);
      EXPECT_NO_THROW(run_passes(graph, "t", {step.name}, {.disabled = {step.name}}));
      EXPECT_EQ(find_pass(step.name).stage, pass.stage);
    }
  }
}

TEST(RunPasses, SaysWhatIsWrong) {
  const std::string graph = "graph @main stage model\n  %0 = input : f32[2] @x\n  output @y %0\nend\n";
  EXPECT_EQ(run_passes(graph, "t", {}, {}), graph);
  EXPECT_THROW(run_passes(graph, "t", {"autodif"}, {}), Error);
  EXPECT_THROW(run_passes(graph, "t", {"fuse"}, {.disabled = {"merge_sum"}}), Error);
  EXPECT_THROW(parse_serving_sizes({"block_sise=4"}), Error);
  EXPECT_THROW(run_passes(graph, "t", {"plan_memory", "fuse"}, {}), Error);
  EXPECT_THROW(run_passes("graph @main stage", "t", {}, {}), Error);
}

}  // namespace
}  // namespace octet
