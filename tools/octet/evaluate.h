// Loss and perplexity of a model on texts or prepared tokens: what `octet eval` and Python's octet.evaluate run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/commands.h"

namespace octet {

struct EvaluateOptions {
  std::string model, data;  // data: PREFIX of prepared tokens, in place of texts
  EngineOptions engine;
  std::vector<std::string> texts;
  int64_t length = 0, stride = 0, windows = 4, max_tokens = 0;  // length 0: the model's context
  bool bos = true;                                              // in front of texts whose vocabulary wants it
  std::optional<bool> separate_documents;                       // of data; default: as it was packed or trained on
  TextOptions text;
};

// Throws kInvalidArgument for a loss that is not finite. `on_progress` may throw: that ends the evaluation.
PerplexityResult evaluate_texts(const EvaluateOptions& options, const TokensDone& on_progress);

}  // namespace octet
