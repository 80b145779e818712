// octet-opt: runs named passes on a graph or program in text form and prints the result. For debugging single passes
// and reducing failures; --dump-ir of the octet program dumps the whole pipeline.
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/file.h"
#include "passes/text_passes.h"
#include "precision/recipe.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  octet-opt --list
  octet-opt --pass=autodiff train.txt
  octet-opt --pass=autodiff,precision,recompute --recipe=fp8-current --recompute=selective train.txt
  octet-opt --pass=fuse --target=h200.yaml - < precise.txt
  octet-opt --pass=fuse --disable=merge_sums --target=h200 precise.txt
  octet-opt --pass=kv_cache --serving block_size=16 --serving sequences=4 logits.txt
  octet-opt --pass=plan_memory train.txt
)";

octet::Target target_of(const std::string& name) {
  if (name == "interpreter") return octet::interpreter_target();
  if (name == "h200") return octet::h200_target();
  return octet::read_target(name);
}

std::string read_all(const std::string& path) {
  if (path != "-") return octet::read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs passes on a text graph or program and prints the result.", "octet-opt");
  app.footer(kExamples);
  std::vector<std::string> passes, disabled, serving;
  std::string file, target = "interpreter", recipe = "fp32", recompute = "none";
  bool list = false;
  app.add_option("--pass", passes, "passes or steps to run, in this order")->delimiter(',')->allow_extra_args(false);
  app.add_option("--target", target, "interpreter, h200, or a target file")->capture_default_str();
  app.add_option("--recipe", recipe, fmt::format("{}", fmt::join(octet::recipe_names(false), ", ")))
      ->capture_default_str();
  app.add_option("--recompute", recompute, "none, light, selective, full")->capture_default_str();
  app.add_option("--disable", disabled, "disable a pass or a step of one, by name")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--serving", serving, "a size of serving graphs, name=value")->allow_extra_args(false);
  app.add_flag("--list", list, "list the passes and their steps, in pipeline order");
  app.add_option("FILE", file, "the text form of a graph or program; - reads standard input");
  CLI11_PARSE(app, argc, argv);
  try {
    if (list) {
      std::fputs(octet::list_passes().c_str(), stdout);
      return 0;
    }
    octet::check(!file.empty(), octet::ErrorCode::kInvalidArgument, "no FILE given; try --help");
    const octet::Target on = target_of(target);
    octet::CompileOptions options{.target = on,
                                  .recipe = octet::parse_recipe(recipe),
                                  .recompute = octet::parse_recompute(recompute, on),
                                  .disabled = {disabled.begin(), disabled.end()}};
    std::string where = file == "-" ? "<stdin>" : file;
    const octet::ServingSizes sizes = octet::parse_serving_sizes(serving);
    std::fputs(octet::run_passes(read_all(file), where, passes, options, sizes).c_str(), stdout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "octet-opt: %s\n", error.what());
    return 1;
  }
  return 0;
}
