// octet quantize --to int4, int8: calibrated layer by layer (compress/compress_folder.h).
#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
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

}  // namespace

QuantizeReport quantize_to_integers(const QuantizeOptions& options, const WeightSource& weights,
                                    const std::string& folder, const std::function<void()>& alive) {
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

  QuantizeReport made;
  EvalTokens measured;
  if (!options.text.empty()) {
    measured = read_tokens(options.text, tokenizer.get(), options, weights, folder,
                           tokens_needed({.length = options.length, .windows = 1, .max_tokens = options.max_tokens}));
    made.before = measure_on("before", weights, options, job.target, measured, tokenizer.get(), alive);
  }
  Progress progress({.title = "quantize", .unit = "layer", .total = weights.config().layers});
  made.linears =
      compress_folder(weights, named ? "" : folder, options.out, job,
                      [&](int64_t done, int64_t, const std::string& text) { progress.update(done, text), alive(); });
  if (named) tokenizer->save(options.out);
  progress.finish();
  if (made.before)
    made.after = measure_on("after", *open_weights(options.out), options, job.target, measured, tokenizer.get(), alive);
  return made;
}

}  // namespace octet
