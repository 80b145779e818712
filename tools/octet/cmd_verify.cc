// octet verify: compares a folder's expected outputs with Octet's; exit code 1 if out of tolerance.
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "eval/verify.h"
#include "exec/executor.h"
#include "octet/commands.h"
#include "train/verify_golden.h"
#include "train/verify_training.h"
#include "weights/adapter_folder.h"
#include "weights/weights.h"

namespace octet {
namespace {

// A warning if the compared computation is not the one that inference runs.
void print_reference(bool eager) {
  if (!eager) return;
  fmt::print(
      "note: the expected values come from transformers' eager attention, whose linear biases differ from those of "
      "this model's config.json (docs/numerics.md); the comparison uses the former, the model itself runs with its "
      "own\n");
}

void report_inference(const std::string& folder, const std::string& base, const CompileOptions& options,
                      const LogitTolerance& tolerance) {
  constexpr int64_t kPrompt = 11;  // of greedy_ids
  VerifyReport report = verify_inference(folder, options.recipe, options.target, kPrompt, base);
  fmt::print("{}: {} compared, max abs error {:.3g}, mean {:.3g}, relative {:.3g} ({} tolerance of {}: {:.3g})\n",
             fmt::join(report.compared, ", "), report.logits, report.max_logit_error, report.mean_logit_error,
             report.relative_error, tolerance.relative ? "relative" : "absolute", options.recipe.name,
             tolerance.largest);
  if (report.greedy_tokens > 0)
    fmt::print("greedy: {} of {} tokens identical", report.greedy_equal, report.greedy_tokens);
  if (report.greedy_equal < report.greedy_tokens)
    fmt::print(", the logits of the others at most {:.3g} below the largest{}", report.greedy_gap,
               tolerance.relative ? fmt::format(" (tolerance {:.3g})", 2 * report.max_logit_error) : "");
  if (report.greedy_tokens > 0) fmt::print("\n");
  print_reference(report.eager_reference);
  fmt::print("{}: {} (recipe {}, tensor {})\n", folder, report.passed(tolerance) ? "passed" : "FAILED",
             options.recipe.name, report.worst);
  if (!report.passed(tolerance)) throw CLI::RuntimeError(1);
}

void report_training(const std::string& folder, const std::string& base, const CompileOptions& options,
                     const TrainingTolerance& tolerance, bool interpret) {
  TrainingReport report = verify_training(folder, options, interpret, base);
  fmt::print("step      loss  expected  grad norm  expected\n");
  for (size_t i = 0; i < report.losses.size(); ++i)
    fmt::print("{:4} {:9.6f} {:9.6f} {:10.6f} {:9.6f}\n", i + 1, report.losses[i], report.expected_losses[i],
               report.grad_norms[i], report.expected_grad_norms[i]);
  fmt::print("largest relative error: losses {:.3g}, gradient norms {:.3g}", report.max_loss_error,
             report.max_grad_norm_error);
  if (report.has_gradients)
    fmt::print(", first-step gradients {:.3g} ({})", report.max_gradient_error, report.worst_gradient);
  if (!report.worst_metric.empty())
    fmt::print(", rewards and reference {:.3g} ({})", report.max_metric_error, report.worst_metric);
  fmt::print(" (tolerance of {}: losses {:.3g}, gradients {:.3g})\n", options.recipe.name, tolerance.losses,
             tolerance.gradients);
  print_reference(report.eager_reference);
  const auto print_result = [&] {
    fmt::print("{}: {} (recipe {}, gradient {})\n", folder, report.passed(tolerance) ? "passed" : "FAILED",
               options.recipe.name, report.has_gradients ? report.worst_gradient : "norms");
  };
  if (report.passed(tolerance)) return print_result();
  const std::string sides = interpret ? "" : relu_inputs_on_other_sides(folder, options);
  if (!sides.empty()) fmt::print("rounding flips the sign of ReLU inputs near 0, where gradients differ: {}\n", sides);
  if (!interpret) fmt::print("(--interpret sums in float64: if it passes, the difference is rounding)\n");
  print_result();
  throw CLI::RuntimeError(1);
}

// A file of one run of any workload.
void report_golden(const std::string& path, const CompileOptions& options, std::optional<double> tolerance) {
  const GoldenReport report = verify_golden(path, options);
  const GoldenTolerance allowed =
      tolerance ? GoldenTolerance{*tolerance, *tolerance, *tolerance, *tolerance} : golden_tolerance(options.recipe);
  fmt::print("step      loss  expected\n");
  for (size_t i = 0; i < report.losses.size(); ++i)
    fmt::print("{:4} {:9.6f} {:9.6f}\n", i + 1, report.losses[i], report.expected_losses[i]);
  fmt::print(
      "largest error: {} logits {:.3g} (at most {:.3g}), gradients {:.3g} ({:.3g}; {}), losses {:.3g} ({:.3g}), "
      "weights "
      "after {} steps {:.3g} ({:.3g}; {})\n",
      report.logits, report.max_logit_error, allowed.logits, report.max_gradient_error, allowed.gradients,
      report.worst_gradient, report.max_loss_error, allowed.losses, report.losses.size(), report.max_weight_error,
      allowed.weights, report.worst_weight);
  fmt::print("{}: {} (model {}, recipe {})\n", path, report.passed(allowed) ? "passed" : "FAILED", report.model,
             options.recipe.name);
  if (!report.passed(allowed)) throw CLI::RuntimeError(1);
}

struct Options {
  std::string folder, base;
  EngineOptions engine = {.device = "cpu"};
  bool training = false, interpret = false;
  std::optional<double> tolerance;
};

void run_verify(const Options& options) {
  check(!options.tolerance || (*options.tolerance > 0 && std::isfinite(*options.tolerance)),
        ErrorCode::kInvalidArgument, "--tolerance {} (want > 0)", options.tolerance.value_or(0));
  if (options.training && options.folder.ends_with(".safetensors")) {
    check(options.base.empty() && !options.interpret, ErrorCode::kInvalidArgument,
          "--{} is of folders: leave it out for a file", options.interpret ? "interpret" : "base");
    const std::string recipe = options.engine.recipe.empty() ? "fp32" : options.engine.recipe;
    return report_golden(options.folder,
                         {.target = target_of(resolve_device(options.engine.device)), .recipe = parse_recipe(recipe)},
                         options.tolerance);
  }
  const std::string folder = model_folder(options.folder);
  const Target target = target_of(resolve_device(options.engine.device));
  const bool adapter = is_adapter_folder(folder);
  check(options.base.empty() || adapter, ErrorCode::kInvalidArgument,
        "--base {}: {} is no adapter of PEFT (it has no adapter_config.json, or weights of a model beside it)",
        options.base, folder);
  const std::string base = !adapter               ? (options.training ? trained_model(folder) : folder)
                           : options.base.empty() ? adapter_base(folder)
                                                  : model_folder(options.base);
  const CompileOptions compile{.target = target,
                               .recipe = serving_recipe(*open_weights(base), target, options.engine.recipe)};
  LogitTolerance logits = logit_tolerance(compile.recipe);
  TrainingTolerance training = training_tolerance(compile.recipe);
  if (options.tolerance) logits.largest = training.losses = training.gradients = *options.tolerance;
  if (options.training) return report_training(folder, adapter ? base : "", compile, training, options.interpret);
  report_inference(folder, adapter ? base : "", compile, logits);
}

}  // namespace

void add_verify_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SettingsTable engine = settings_of(options->engine);
  engine.row("recipe").info.meaning = recipe_help("fp32");
  auto* command = app.add_subcommand("verify", "Compare a model folder's expected outputs with Octet's");
  command->footer(R"(Examples:
  octet verify hf_goldens/gpt2                 logits and greedy tokens of expected.safetensors
  octet verify hf_goldens/bert                 hidden states, pooled vectors, logits: what it holds
  octet verify --training hf_goldens/gpt2      losses, gradient norms and gradients of expected_training.json
  octet verify --training model_goldens/bert_pretraining.safetensors    a file with inputs and weights of a run
  octet verify --training dpo_sigmoid          pairs of answers: rewards, margins and the reference's too
  octet verify ADAPTER --base llama            a folder of PEFT, merged into a base other than the one it names)");
  command
      ->add_option("folder", options->folder, "Hugging Face folder, or an adapter of PEFT, with expected.safetensors")
      ->required();
  command->add_option("--base", options->base, "of an adapter: the folder of its base (default: as it says)");
  command->add_flag("--training", options->training,
                    "replay expected_training.json, or a FILE.safetensors whose metadata `about` describes a run");
  command->add_flag("--interpret", options->interpret,
                    "with --training: run the interpreter, which sums in float64; slow");
  add_options(*command, engine, {"recipe", "device"});
  command->add_option("--tolerance", options->tolerance,
                      "maximum error (default: by recipe; logits: absolute 2e-4 in fp32, else relative; "
                      "training: relative)");
  command->callback([options] {
    try {
      run_verify(*options);
    } catch (const Error& error) {
      fail(error.code(), "{} under recipe {}: {}", options->folder,
           options->engine.recipe.empty() ? "its own" : options->engine.recipe, error.message());
    }
  });
}

}  // namespace octet
