// octet.quantize: what `octet quantize` runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/error.h"
#include "base/threads.h"
#include "bindings.h"
#include "convert.h"
#include "infer/engine_settings.h"
#include "octet/quantize.h"
#include "process.h"

namespace octet::python {
namespace {

struct Options {
  QuantizeOptions quantize;
  int64_t seed = 1, threads = 0;
  std::string format = "auto";
  bool bos = true;
};

SettingsTable table_of(Options& options) {
  QuantizeOptions& o = options.quantize;
  SettingsTable engine = settings_of(o.engine), table;
  table.add("to", &o.to, {.meaning = "the format", .choices = {"fp8", "int8", "int4", "nf4"}});
  table.add("weights", &o.weights,
            {.meaning = "fp8: a scale for each output channel (row), tensor or 128x128 block",
             .choices = {"row", "tensor", "block"}});
  table.add("activations", &o.activations,
            {.meaning = "fp8: scales by token (default), or static from the calibration",
             .choices = {"", "token", "static"}});
  table.add("kv", &o.kv, {.meaning = "fp8: scales for an FP8 KV cache", .choices = {"", "fp8"}});
  table.add("calibration", &o.calibration, {.meaning = "what to calibrate on: a text file, or a .bin of octet data"});
  table.add("text", &o.text, {.meaning = "text file, or .bin, to measure perplexity on, before and after"});
  table.add("max_tokens", &o.max_tokens, {.meaning = "tokens used of each text; 0: all", .min = 0});
  table.add("length", &o.length, {.meaning = "tokens per window", .min = 1});
  table.add("format", &options.format, {.meaning = "of texts", .choices = {"auto", "text", "jsonl"}});
  table.add("key", &o.read.json_key, {.meaning = "key of the text in JSON lines"});
  table.add("bos", &options.bos, {.meaning = "a begin token in front of a text's windows"});
  table.add("method", &o.method,
            {.meaning = "int4, int8: how codes are found (default: int4 gptq, int8 smoothquant)",
             .choices = {"", "rtn", "smoothquant", "awq", "gptq"}});
  table.add("group", &o.group,
            {.meaning = "int4: inputs that share a scale, or row", .choices = {"32", "64", "128", "row"}});
  table.add("asymmetric", &o.asymmetric, {.meaning = "int4: with zero points"});
  table.add("samples", &o.samples, {.meaning = "int4, int8: windows of the calibration text", .min = 1});
  table.add("seed", &options.seed, {.meaning = "chooses the windows", .min = 0});
  table.add("act_order", &o.order,
            {.meaning = "gptq: inputs of most energy first, groups in that order (group) or as stored (static)",
             .choices = {"off", "group", "static"}});
  table.add(
      "damping", &o.damping,
      {.meaning = "gptq: added to the diagonal of the inputs' second moments, of its mean", .min = 1e-6, .max = 10});
  table.add("alpha", &o.alpha,
            {.meaning = "smoothquant: how much of the inputs' range goes into the weights", .min = 0, .max = 1});
  table.add("keep", &o.keep, {.meaning = "int4, int8: linears that stay as they are: layers.0, mlp.down ..."});
  table.add("bound", &o.bound,
            {.meaning = "int4, int8: linears whose outputs change by more than this part stay too; 0: all change",
             .min = 0,
             .max = 10});
  table.add("threads", &options.threads, {.meaning = "CPU threads; 0: as before", .min = 0, .max = 4096});
  for (const char* name : {"tokenizer", "device"}) table.add(name, engine.row(name).target, engine.row(name).info);
  return table;
}

nb::object quantize(nb::handle model, nb::handle out, nb::kwargs values) {
  enter();
  Options options;
  SettingsTable table = table_of(options);
  set_all(table, values, "octet.quantize");
  QuantizeOptions& o = options.quantize;
  o.model = path_of(model), o.out = path_of(out), o.seed = static_cast<uint64_t>(options.seed);
  o.threads = options.threads > 0 ? static_cast<int>(options.threads) : thread_count();
  o.no_bos = !options.bos;
  o.read.format = options.format == "text"    ? CorpusFormat::kText
                  : options.format == "jsonl" ? CorpusFormat::kJsonLines
                                              : CorpusFormat::kAuto;
  const auto report = std::make_shared<QuantizeReport>();
  run_apart(
      [report, o](const std::atomic<bool>& stop) {
        *report = quantize_model(o, [&] { check(!stop, ErrorCode::kInternal, "interrupted"); });
      },
      /*patient=*/false);
  nb::dict d;
  d["folder"] = o.out;
  const auto perplexity = [](const std::optional<PerplexityResult>& of) -> nb::object {
    if (!of) return nb::none();
    return nb::float_(of->perplexity());
  };
  d["perplexity_before"] = perplexity(report->before), d["perplexity_after"] = perplexity(report->after);
  d["tokens"] = report->after ? report->after->tokens : 0;
  nb::list linears;
  for (const LinearReport& one : report->linears) {
    nb::dict linear;
    linear["name"] = one.gemm, linear["error"] = one.error, linear["kept"] = one.kept;
    linears.append(linear);
  }
  d["linears"] = linears;
  return d;
}

}  // namespace

void bind_quantize(nb::module_& module) {
  static Options defaults;
  static const SettingsTable table = table_of(defaults);
  static const std::string signature = "def quantize(model: str | os.PathLike[str], out: str | os.PathLike[str]" +
                                       signature_of(table) + ") -> dict[str, Any]";
  static const std::string doc =
      "Writes a model's linears in FP8, INT8, INT4 or NF4 into the folder `out`, as `octet quantize` does.\n\n" +
      doc_of(table) +
      "\nThe report has folder, perplexity_before and perplexity_after (of text=), tokens, and of int4 and int8 the "
      "linears with their errors.";
  module.def("quantize", &quantize, nb::arg("model"), nb::arg("out"), nb::arg("options"), nb::sig(signature.c_str()),
             doc.c_str());
}

}  // namespace octet::python
