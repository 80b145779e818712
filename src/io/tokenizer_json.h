// Interface between the parts of the tokenizer.json reader: the entry and the models (tokenizer_json.cc), and the steps
// around the model (tokenizer_json_steps.cc). Unsupported settings that affect ids are errors that name them; none is
// ignored silently.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer_parts.h"

namespace octet {

// The begin and end tokens by their texts; "" = none.
struct TokenizerConfig {
  std::string bos, eos;
  std::optional<bool> adds_bos;
};
// From tokenizer_config.json; "" gives nothing.
TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& where);

// The whole file, parsed: parts without their model, and what else its model needs.
struct TokenizerFile {
  TokenizerParts parts;
  bool byte_level = false;                                                  // a pre-tokenizer is ByteLevel
  std::vector<std::string> decoders;                                        // names of all steps, outermost first
  std::vector<std::function<std::string(std::string)>> decoders_of_tokens;  // applied to each token
  TokenizerConfig special;
  std::string source, config;  // the files' texts
};

void read_normalizer(const nlohmann::json& object, TextNormalizer& out, const std::string& where);
void read_pre_tokenizer(const nlohmann::json& object, TokenizerFile& out, const std::string& where);
void read_decoder(const nlohmann::json& object, TokenizerFile& out, const std::string& where);
void read_post_processor(const nlohmann::json& object, TokenizerFile& out, const std::string& where);

// "type" of a step or a model.
std::string json_type(const nlohmann::json& object);
// Whether `object` has `key` and it is not null.
bool json_present(const nlohmann::json& object, const char* key);

}  // namespace octet
