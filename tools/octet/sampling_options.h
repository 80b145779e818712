// Options of sampling that commands share.
#pragma once

#include <CLI/CLI.hpp>

#include "octet/engine.h"

namespace octet {

void add_sampling_options(CLI::App& command, GenerationRequest& request, std::vector<std::string>& logit_bias);
// Words of --logit-bias: "15:-2.5", "0:-inf".
void parse_biases(const std::vector<std::string>& words, SamplingOptions& sampling);

}  // namespace octet
