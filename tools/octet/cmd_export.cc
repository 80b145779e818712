// octet export: a folder for other programs: an adapter as PEFT has it, or a whole model, merged where there is one.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/threads.h"
#include "octet/commands.h"
#include "weights/adapter_folder.h"
#include "weights/export_folder.h"

namespace octet {
namespace {

struct Options {
  std::string model, out, base, dtype;
  bool merge = false;
  int threads = 0;
};

DType dtype_of(const std::string& name, DType otherwise) {
  return name.empty() ? otherwise : name == "f32" ? DType::kF32 : name == "bf16" ? DType::kBF16 : DType::kF16;
}

void export_model(const WeightSource& weights, const std::string& tokenizer, const Options& options) {
  Progress progress({.title = "export", .unit = "tensor"});
  export_folder(weights, tokenizer, options.out, dtype_of(options.dtype, DType::kBF16),
                [&](int64_t done, int64_t) { progress.update(done); });
  progress.finish();
}

void export_adapter(const Adapter& adapter, const std::string& base_folder, const Options& options) {
  const ModelConfig base = read_model_config(base_folder);
  // PEFT looks from its working folder, or for a repository of that name.
  const std::string& named = adapter.config.base;
  const bool is_name = !named.empty() && !is_folder(named) && !is_folder(adapter.folder + "/" + named);
  write_adapter(options.out, adapter.spec, base,
                [&](const std::string& name) { return read_floats(*adapter.find(name)); },
                {.base = is_name ? named : std::filesystem::canonical(base_folder).string(),
                 .dtype = dtype_of(options.dtype, DType::kF32)});
}

void run_export(const Options& options) {
  set_thread_count(options.threads);
  const std::string folder = model_folder(options.model);
  for (const char* taken : {"config.json", "adapter_config.json", "checkpoints"})
    check(!path_exists(options.out + "/" + taken), ErrorCode::kInvalidArgument,
          "{} already contains a {}: choose another folder", options.out,
          taken == std::string("checkpoints") ? "run" : "model or an adapter");
  const bool adapts = is_adapter_folder(folder);
  check(adapts || (!options.merge && options.base.empty()), ErrorCode::kInvalidArgument,
        "{}: {} is no adapter, so there is nothing to merge: leave it out", options.merge ? "--merge" : "--base",
        folder);
  if (!adapts) {
    export_model(*open_weights(folder), folder, options);
    fmt::print("{}: written\n", options.out);
    return;
  }
  const std::string base = options.base.empty() ? adapter_base(folder) : model_folder(options.base);
  Adapter adapter = read_adapter(folder, read_model_config(base));
  if (!options.merge) {
    export_adapter(adapter, base, options);
    fmt::print("{}: written, an adapter that PEFT loads\n", options.out);
    return;
  }
  check(adapter.spec.virtual_tokens == 0, ErrorCode::kUnsupported,
        "--merge: the {} virtual tokens of {} are no weights that can be merged: leave it out",
        adapter.spec.virtual_tokens, folder);
  const std::string tokenizer = options.base.empty() ? tokenizer_folder(folder) : base;
  export_model(*merge_adapter(open_weights(base), std::move(adapter)), tokenizer, options);
  fmt::print("{}: written\n", options.out);
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("export", "Write a model or an adapter for other programs");
  command->footer(R"(Examples:
  octet export out/run --out model                      a plain Hugging Face folder of its weights
  octet export out/run --out model --dtype f32
  octet export out/lora --out adapter                   the adapter that a run trained, as a folder of PEFT
  octet export out/lora --out merged --merge            merged into its base
  octet export ADAPTER --out adapter --dtype bf16       as a folder of PEFT
To merge into FP8 or integers: octet quantize ADAPTER --out DIR.)");
  add_model_option(*command, options->model);
  command->add_option("--out", options->out, "the folder to write")->required();
  command->add_flag("--merge", options->merge, "of an adapter: its base with it, a model without adapters");
  command->add_option("--base", options->base, "of an adapter: the folder of its base (default: as it says)");
  command->add_option("--dtype", options->dtype, "the type of the tensors (default: of models bf16, of adapters f32)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  add_threads_option(*command, options->threads);
  command->callback([options] { run_export(*options); });
}

}  // namespace octet
