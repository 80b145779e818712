// Compiled plans of a corpus (families x recipes x targets x training and serving) as hashes in plans.txt: a change of
// the compiler shows here exactly which plans it changes and in what (plan_digest.h). After an intended change run with
// OCTET_UPDATE_GOLDENS=1 and read the difference. The plans themselves are written to a new folder then, and on a
// mismatch: the folders of two builds are compared with `diff -r`.
//
// Targets are data and no device is queried, so the hashes are equal on every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "exec/executor.h"
#include "infer/serving_program.h"
#include "kernels/cpu/kernel.h"
#include "plans/plan_digest.h"
#include "train/language_model.h"
#include "train/stepper.h"

namespace octet {
namespace {

constexpr const char* kAlternating = "qwen3-window";  // a layer with a window, a layer without

// Two layers with the features of the family: fewer kv heads, rotary dims, windows, dropout; a vocabulary
// that is no multiple of the GPU's, and widths its FP8 products and blocks of 128 take.
ModelConfig tiny_model(const std::string& family) {
  const bool alternating = family == kAlternating;
  ModelConfig c = model_family(alternating ? "qwen3" : family);
  c.vocab_size = 200, c.max_positions = 64, c.hidden = 128, c.layers = 2, c.heads = 4, c.intermediate = 256;
  if (c.gated && c.kv_heads == 0) c.kv_heads = 2;
  if (family == "gptj" || family == "gpt_neox" || family == "phi" || family == "glm") c.rope.rotary_dim = 16;
  if (family == "mistral") c.window = {16};
  if (alternating) c.window = {16, 0};
  if (family == "gemma") c.head_dim = 64;
  if (family == "gpt2") c.dropout = 0.1;
  validate(c);
  return c;
}

struct Case {
  std::string name;
  std::function<Plan()> compile;
};

// Ranks of a mesh, and how they lie.
struct Way {
  const char* name = "";
  Parallel parallel = {};
};
const Way kWays[] = {
    {" tp2 sequence", {.mesh = {{1, 1, 1, 2}}, .sequence = true}},
    {" cp2 gradients", {.mesh = {{1, 1, 2, 1}}, .level = ShardLevel::kGradients}},
    {" dp2 cp2 tp2 parameters", {.mesh = {{1, 2, 2, 2}}, .level = ShardLevel::kParameters}},
};

Case training_case(const std::string& family, const std::string& recipe, const Target& target,
                   const std::string& remake, const Way& way = {}) {
  return {fmt::format("train {} {} {} {}{}", family, recipe, target.name, remake, way.name), [=] {
            Program program = training_program(LanguageModel(tiny_model(family), 4, 32), {});
            if (target.device == Device::kCuda) allow_library_masks(program);
            return compile(std::move(program), {.target = target,
                                                .parallel = way.parallel,
                                                .recipe = parse_recipe(recipe),
                                                .recompute = parse_recompute(remake, target)});
          }};
}

Case serving_case(const std::string& family, const std::string& recipe, const Target& target, int64_t tensor = 1) {
  return {fmt::format("serve {} {} {}{}", family, recipe, target.name, tensor > 1 ? " tp2" : ""), [=] {
            ServingOptions options{.engine = {.tensor = tensor,
                                              .max_sequences = 4,
                                              .max_step_tokens = 32,
                                              .block_size = 16,
                                              .kv_cache_bytes = int64_t{1} << 20},
                                   .target = target,
                                   .recipe = parse_recipe(recipe),
                                   .max_entries = 256};
            const bool fp8 = recipe.starts_with("fp8");
            options.cache_dtype = fp8 ? DType::kE4M3 : options.recipe.compute;
            options.cache_scales = recipe == "fp8-current";
            return build_serving_program(tiny_model(family), options).plan;
          }};
}

std::vector<Case> corpus() {
  std::vector<Case> cases;
  Target cpu = cpu_target();
  const Target h200 = h200_target();
  cpu.workspace_bytes = cpu::kLeastWorkspace;  // whatever threads this machine has
  for (const std::string& family : architectures()) {
    for (const Target& target : {cpu, h200}) {
      for (const char* recipe : {"fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
        cases.push_back(training_case(family, recipe, target, "none"));
        const bool many = family == "gpt2" || family == "llama";  // the two kinds of MLP, with everything
        for (const char* remake : {"light", "selective", "full"}) {
          if (many) cases.push_back(training_case(family, recipe, target, remake));
        }
      }
      for (const char* recipe : {"fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block", "int8", "w4i8"}) {
        const Recipe parsed = parse_recipe(recipe);
        const DType codes = parsed.scaling == Scaling::kGroup ? parsed.weights.format : DType::kI8;
        if (!parsed.has_integer_weights() || target.find_product(parsed.forward_format, codes) != nullptr)
          cases.push_back(serving_case(family, recipe, target));
      }
    }
  }
  for (const Target& target : {cpu, h200}) {
    for (const char* recipe : {"bf16", "fp8-current"}) {
      cases.push_back(training_case(kAlternating, recipe, target, "none"));
      cases.push_back(serving_case(kAlternating, recipe, target));
    }
  }
  for (const char* family : {"gpt2", "llama"}) {
    for (const Target& target : {cpu, h200}) {
      cases.push_back(training_case(family, "tf32", target, "none"));
      cases.push_back(training_case(family, "auto", target, "auto"));
    }
  }
  for (const std::string& family : architectures()) {
    if (model_family(family).experts.count > 0) continue;
    for (const Way& way : kWays)
      if (way.parallel.mesh.ranks() == 2 || !model_family(family).qk_norm)
        cases.push_back(training_case(family, "fp8-current", h200, "none", way));
    cases.push_back(serving_case(family, "fp8-current", h200, 2));
  }
  return cases;
}

// Two lines of the file: hashes and bytes; kinds.
std::string record(const Plan& plan) {
  const PlanDigest d = digest(plan);
  return fmt::format("computes {:016x} text {:016x} memory {:016x} arena {} states {} inputs {}\n  {}", d.computes,
                     d.text, d.memory, plan.arena_bytes, plan.state_bytes, plan.input_bytes, d.kinds);
}

std::map<std::string, std::string> read_records(const std::string& path) {
  std::map<std::string, std::string> records;
  std::istringstream lines(read_file(path));
  std::string kinds;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("#") || !std::getline(lines, kinds)) continue;
    const size_t colon = line.find(": ");
    records[line.substr(0, colon)] = line.substr(colon + 2) + "\n" + kinds;
  }
  return records;
}

// A folder of its own for every run that needs one.
class Dump {
 public:
  void write(std::string name, const Plan& plan) {
    if (folder_.empty()) {
      folder_ = (std::filesystem::temp_directory_path() / "octet_plans_XXXXXX").string();
      check(mkdtemp(folder_.data()) != nullptr, ErrorCode::kIo, "cannot make a folder like {}", folder_);
    }
    std::replace(name.begin(), name.end(), ' ', '_');
    write_file(folder_ + "/" + name + ".txt", record(plan) + "\n" + readable(plan));
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

constexpr const char* kHead =
    "# Compiled plans of small models, written by octet_plans_test (tests/plans/plans_test.cc): do not edit.\n"
    "# computes: the computations, whatever their order and names. text: the printed program. memory: its places.\n";

TEST(Plans, AreThoseOfTheFile) {
  const std::string path = source_dir() + "/tests/plans/plans.txt";
  const bool update = std::getenv("OCTET_UPDATE_GOLDENS") != nullptr;
  std::map<std::string, std::string> expected;
  if (!update) expected = read_records(path);
  std::string file = kHead;
  std::vector<std::string> differing;
  Dump dump;
  for (const Case& c : corpus()) {
    const Plan plan = c.compile();
    const std::string found = record(plan);
    file += c.name + ": " + found + "\n";
    const auto known = expected.extract(c.name);
    if (update || known.empty() || known.mapped() != found) dump.write(c.name, plan);
    if (!update && known.empty()) differing.push_back(c.name + " is not in the file:\n  now " + found);
    if (!known.empty() && known.mapped() != found)
      differing.push_back(c.name + ":\n  was " + known.mapped() + "\n  now " + found);
  }
  for (const auto& [name, unused] : expected) differing.push_back(name + " is in the file and not in the corpus");
  if (update) {
    write_file(path, file);
    fmt::print("plans are in {}\n", dump.folder());
  }
  EXPECT_TRUE(differing.empty())
      << differing.size() << " plans of " << path << " differ; those of this build are in "
      << (dump.folder().empty() ? "no folder" : dump.folder())
      << "; if intended, run with OCTET_UPDATE_GOLDENS=1. Some of them:\n"
      << fmt::format("{}", fmt::join(differing.begin(),
                                     differing.begin() + std::min<ptrdiff_t>(std::ssize(differing), 8), "\n"));
}

// Two products of one input, in this order and under these names.
Plan products(const std::string& first, const std::string& second, double factor) {
  Graph graph("main");
  Builder b(graph);
  const Value x = b.input("x", {DType::kF32, {4, 8}});
  for (const std::string& name : {first, second}) {
    const bool product = name.starts_with("product");
    b.output(product ? "product" : "scaled", {product ? b.emit(Op::kMatmul, {x, x}, {{"trans_b", true}}, name)
                                                      : b.emit(Op::kScale, {x}, {{"value", factor}}, name),
                                              0});
  }
  Program program;
  program.add_graph(std::move(graph));
  return compile(std::move(program), {.target = interpreter_target(), .recipe = parse_recipe("fp32")});
}

TEST(Plans, ADigestSaysOfWhichKindAChangeIs) {
  const PlanDigest base = digest(products("product", "scaled", 2)), same = digest(products("product", "scaled", 2)),
                   renamed = digest(products("product.a", "scaled.b", 2)),
                   reordered = digest(products("scaled", "product", 2)),
                   changed = digest(products("product", "scaled", 3));
  EXPECT_EQ(base.computes, same.computes);
  EXPECT_EQ(base.text, same.text);
  EXPECT_EQ(base.memory, same.memory);
  EXPECT_EQ(base.computes, renamed.computes);
  EXPECT_NE(base.text, renamed.text);
  EXPECT_EQ(base.computes, reordered.computes);
  EXPECT_NE(base.text, reordered.text);
  EXPECT_NE(base.memory, reordered.memory);
  EXPECT_NE(base.computes, changed.computes);
  EXPECT_EQ(base.memory, changed.memory);
  EXPECT_EQ(base.kinds, "fusions: none; ops: input x1 matmul x1 scale x1");
  const std::string text = readable(products("product", "scaled", 2));
  EXPECT_NE(text.find("%product.matmul = matmul %x.input, %x.input"), std::string::npos) << text;
}

}  // namespace
}  // namespace octet
