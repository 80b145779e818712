// Weights of a run that trains an adapter: the frozen ones of its base, and the adapter's, fresh or from a checkpoint.
#pragma once

#include <string>

#include "exec/executor.h"
#include "ir/graph.h"
#include "model/adapter.h"
#include "weights/weights.h"

namespace octet {

// What a checkpoint has: what is trained, under its own names, in trained.safetensors; and the same as PEFT has it,
// which commands take as a model.
inline constexpr const char* kTrainedFile = "trained";

// Throws kInvalidArgument where the checkpoint's trained parameters are not those of this graph.
void check_same_adapter(const std::string& checkpoint, const Graph& loss);

// adapter_config.json and adapter_model.safetensors of `dtype` beside a checkpoint's own files; base: the model's
// folder. P-tuning's encoder has become the rows that it makes. A warning where PEFT has no form of the adapter.
void write_peft_files(const std::string& checkpoint, const AdapterSpec& adapter, const ModelConfig& model,
                      const std::string& base, DType dtype);

// Fills the executor's program, whose frozen parameters are the base's, and prepares. Trained ones come from
// `checkpoint`, which has them under their own names; "": the base's begin as they are there, an adapter's as its
// leaves say, magnitudes as the norms of the base's rows.
void load_adapted(const WeightSource& base, const AdapterSpec& adapter, const std::string& checkpoint, uint64_t seed,
                  Executor& executor, const BytesLoaded& loaded);

}  // namespace octet
