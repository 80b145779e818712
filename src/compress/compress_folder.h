// Writes a model as a folder of integer codes, layer by layer over a calibration text. One file a layer, each complete
// or absent, and a journal beside them: an interrupted run goes on at the layer it left. config.json comes last.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compress/compress_layer.h"
#include "weights/weights.h"

namespace octet {

struct CompressFolderOptions {
  CompressRule rule = {};
  std::vector<int32_t> ids = {};  // of the calibration text: whole windows (choose_windows)
  int64_t length = 512;           // tokens of a window
  DType rest = DType::kBF16;      // of embeddings, norms, biases, head and linears that are kept; and of scales
  Target target = {};             // what layers run on
};

// Before anything runs: throws kInvalidArgument or kUnsupported for what the model or the options do not allow, naming
// the linear.
void check_compress_options(const WeightSource& source, const CompressRule& rule);

// Whether a folder holds a run that was interrupted.
bool has_interrupted_run(const std::string& folder);

// Every linear's report, in the order of the graph. `on_layer` gets layers done, of how many, and what to say of the
// last. A folder with an interrupted run must be given the same model and options: else kInvalidArgument names what
// differs. GPTQ reads what quantized layers make, the other methods what the model's own layers make.
std::vector<LinearReport> compress_folder(
    const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
    const CompressFolderOptions& options,
    const std::function<void(int64_t, int64_t, const std::string&)>& on_layer = {});

}  // namespace octet
