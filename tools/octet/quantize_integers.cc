// octet quantize --to int4, int8: calibrated layer by layer (compress/compress_folder.h).
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "compress/compress_folder.h"
#include "octet/quantize.h"

namespace octet {
namespace {

ColumnOrder order_of(const std::string& name) {
  return name == "off"     ? ColumnOrder::kAsStored
         : name == "group" ? ColumnOrder::kActivation
                           : ColumnOrder::kActivationStatic;
}

CompressRule rule_of(const QuantizeOptions& options, DType rest) {
  const bool four = options.to == "int4";
  const std::string method = !options.method.empty() ? options.method : four ? "gptq" : "smoothquant";
  check(four || !options.asymmetric, ErrorCode::kInvalidArgument, "8-bit codes are symmetric: leave out --asymmetric");
  CodeRule codes{.bits = four ? 4 : 8, .group = 0, .symmetric = !options.asymmetric, .scale_type = rest};
  if (four && options.group != "row") codes.group = std::stoll(options.group);
  if (!four) codes.scale_type = DType::kF32;
  return {.method = parse_compress_method(method),
          .codes = codes,
          .alpha = options.alpha,
          .damping = options.damping,
          .order = order_of(options.order),
          .bound = options.bound,
          .keep = options.keep};
}

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

}  // namespace

void quantize_to_integers(const QuantizeOptions& options, const WeightSource& weights, const std::string& folder) {
  CompressFolderOptions job{.rule = rule_of(options, DType::kBF16),
                            .target = target_of(resolve_device(options.engine.device))};
  check_compress_options(weights, job.rule);
  check(!options.calibration.empty(), ErrorCode::kInvalidArgument,
        "--to {} needs a calibration text: give one with --calibration FILE", options.to);
  const bool named = !options.engine.tokenizer.empty();
  std::unique_ptr<Tokenizer> tokenizer;
  if (named || !options.text.empty() || !options.calibration.ends_with(".bin"))
    tokenizer = load_tokenizer(named ? options.engine.tokenizer : folder);
  job.length = std::min(options.length, weights.config().max_positions);
  const EvalTokens text = read_tokens(options.calibration, tokenizer.get(), options, weights, folder, 0);
  job.ids = choose_windows(ids_of(text, 0), options.samples, job.length, options.seed, text.begin_id);

  std::optional<PerplexityResult> before;
  EvalTokens measured;
  if (!options.text.empty()) {
    measured = read_tokens(options.text, tokenizer.get(), options, weights, folder,
                           tokens_needed({.length = options.length, .windows = 1, .max_tokens = options.max_tokens}));
    before = measure_on("before", weights, options, job.target, measured, tokenizer.get());
  }
  if (has_interrupted_run(options.out)) fmt::print("{}: continuing an interrupted run\n", options.out);
  Progress progress({.title = "quantize", .unit = "layer", .total = weights.config().layers});
  const auto report =
      compress_folder(weights, named ? "" : folder, options.out, job,
                      [&](int64_t done, int64_t, const std::string& text) { progress.update(done, text); });
  if (named) tokenizer->save(options.out);
  progress.finish();
  print_errors(report);
  print_worst(report, options.bound);
  if (!before) {
    fmt::print("{}: written; pass --text FILE to measure its perplexity\n", options.out);
    return;
  }
  print_perplexities(options.out, *before,
                     measure_on("after", *open_weights(options.out), options, job.target, measured, tokenizer.get()));
}

}  // namespace octet
