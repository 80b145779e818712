// octet quantize: writes a folder of codes that other programs read too; perplexity before and after.
#include <CLI/CLI.hpp>

#include <map>

#include "base/error.h"
#include "numbers.h"
#include "octet/quantize.h"

namespace octet {
namespace {

// Relative output errors in percent: a row a layer, a column a linear. '-': kept.
void print_errors(const std::vector<LinearReport>& report) {
  const auto split = [](const std::string& gemm) {  // "layers.0" and "attn.q"
    const size_t dot = gemm.find('.', gemm.find('.') + 1);
    return std::pair(gemm.substr(0, dot), gemm.substr(dot + 1));
  };
  std::vector<std::string> columns, rows;
  std::map<std::pair<std::string, std::string>, std::string> cells;
  for (const LinearReport& linear : report) {
    const auto place = split(linear.gemm);
    if (std::ranges::find(rows, place.first) == rows.end()) rows.push_back(place.first);
    if (std::ranges::find(columns, place.second) == columns.end()) columns.push_back(place.second);
    cells[place] = linear.kept ? "-" : fmt::format("{:.2f}", 100 * linear.error);
  }
  const auto print = [](const std::string& cell, const std::string& column) {
    fmt::print("{:>{}}", cell, std::max<size_t>(column.size(), 8) + 2);
  };
  fmt::print("error of outputs, %\n{:<12}", "");
  for (const std::string& column : columns) print(column, column);
  for (const std::string& row : rows) {
    fmt::print("\n{:<12}", row);
    for (const std::string& column : columns) print(cells[{row, column}], column);
  }
  fmt::print("\n");
}

void print_worst(std::vector<LinearReport> report, double bound) {
  const auto kept = std::ranges::count_if(report, &LinearReport::kept);
  std::ranges::sort(report, std::greater<>(), &LinearReport::error);
  fmt::print("worst:");
  for (size_t i = 0; i < std::min<size_t>(report.size(), 5); ++i)
    fmt::print(" {} {:.2f} %{}", report[i].gemm, 100 * report[i].error, report[i].kept ? " (kept)" : "");
  fmt::print("\n{} of {} linears in codes", std::ssize(report) - kept, report.size());
  if (kept > 0) fmt::print(", {} kept{}", kept, bound > 0 ? fmt::format(" (--bound {})", bound) : "");
  fmt::print("\n");
  int64_t unseen = 0;
  for (const LinearReport& linear : report) unseen += linear.unseen;
  if (unseen > 0)
    fmt::print(
        "{} expert matrices that no token of the text reached are rounded to nearest; more --samples reach more of "
        "them\n",
        unseen);
}

void print_perplexities(const std::string& folder, const PerplexityResult& before, const PerplexityResult& after) {
  fmt::print("{}: perplexity {:.4f} before, {:.4f} after ({:+.2f} %), on {} tokens\n", folder, before.perplexity(),
             after.perplexity(), 100 * (after.perplexity() / before.perplexity() - 1), after.tokens);
}

void run_quantize(const QuantizeOptions& options) {
  if (has_interrupted_run(options.out)) fmt::print("{}: continuing an interrupted run\n", options.out);
  const QuantizeReport report = quantize_model(options);
  if (!report.linears.empty()) print_errors(report.linears), print_worst(report.linears, options.bound);
  if (report.before && report.after) return print_perplexities(options.out, *report.before, *report.after);
  fmt::print("{}: written; pass --text FILE to measure its perplexity\n", options.out);
}

void add_integer_options(CLI::App& command, QuantizeOptions& options) {
  const std::string group = "int4 and int8";
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  option("--method", options.method, "how codes are found (default: int4 gptq, int8 smoothquant)")
      ->check(CLI::IsMember({"rtn", "smoothquant", "awq", "gptq"}));
  option("--group", options.group, "int4: inputs that share a scale, or row")
      ->check(CLI::IsMember({"32", "64", "128", "row"}));
  command.add_flag("--asymmetric,!--symmetric", options.asymmetric, "int4: with zero points (default: symmetric)")
      ->group(group);
  option("--samples", options.samples, "windows of the calibration text")->check(positive());
  option("--seed", options.seed, "chooses the windows");
  option("--act-order", options.order,
         "gptq: inputs of most energy first, groups in that order (group) or as stored "
         "(static)")
      ->check(CLI::IsMember({"off", "group", "static"}));
  option("--damping", options.damping, "gptq: added to the diagonal of the inputs' second moments, of its mean")
      ->check(CLI::Range(1e-6, 10.0));
  option("--alpha", options.alpha, "smoothquant: how much of the inputs' range goes into the weights")
      ->check(CLI::Range(0.0, 1.0));
  option("--keep", options.keep, "linears that stay as they are: layers.0, mlp.down, layers.3.attn.o ...");
  option("--bound", options.bound, "linears whose outputs change by more than this part stay too; 0 = all change")
      ->check(CLI::Range(0.0, 10.0));
}

}  // namespace

void add_quantize_command(CLI::App& app) {
  auto options = std::make_shared<QuantizeOptions>();
  SettingsTable engine = settings_of(options->engine);
  auto* command = app.add_subcommand(
      "quantize", "Write a model's linears in FP8, INT8 or INT4, in the compressed-tensors layout, or in NF4");
  command->footer(R"(Examples:
  octet quantize out/run --out model-fp8 --text wikitext.txt
  octet quantize llama --out llama-fp8 --activations static --kv fp8 --calibrate sample.txt
  octet quantize llama --out llama-fp8-block --weights block --text wikitext.txt
  octet quantize llama --out llama-int4 --to int4 --calibration sample.txt --text wikitext.txt
  octet quantize llama --out llama-awq --to int4 --method awq --asymmetric --group 64 --calibration sample.txt
  octet quantize llama --out llama-nf4 --to nf4 --text wikitext.txt
  octet quantize llama --out llama-int8 --to int8 --keep mlp.down --calibration corpus_train.bin
An interrupted run to int4 or int8 goes on when the same command is given again.)");
  add_model_option(*command, options->model);
  command->add_option("--out", options->out, "the folder to write")->required();
  command->add_option("--to", options->to, "the format")->check(CLI::IsMember({"fp8", "int8", "int4", "nf4"}));
  command->add_option("--weights", options->weights, "one scale per output channel (row), tensor or 128x128 block")
      ->check(CLI::IsMember({"row", "tensor", "block"}));
  command
      ->add_option("--activations", options->activations,
                   "activation scales: dynamic per token (token, the default), or static from --calibrate")
      ->check(CLI::IsMember({"token", "static"}));
  command->add_option("--kv", options->kv, "fp8: scales for an FP8 KV cache, from --calibrate")
      ->check(CLI::IsMember({"fp8"}));
  command->add_option("--calibrate,--calibration", options->calibration,
                      "what to calibrate on: a text file, or a .bin of octet data");
  command->add_option("--text", options->text, "text file, or .bin, to measure perplexity on, before and after");
  add_options(*command, engine, {"tokenizer"});
  command->add_option("--max-tokens", options->max_tokens, "tokens used of each text; 0 = all")->check(not_negative());
  command->add_option("--length", options->length, "tokens per window")->check(positive());
  add_text_options(*command, options->read);
  command->add_flag("--no-bos", options->no_bos, "no begin token in front of a text's windows");
  add_integer_options(*command, *options);
  add_options(*command, engine, {"device"});
  add_threads_option(*command, options->threads);
  command->callback([options] { run_quantize(*options); });
}

}  // namespace octet
