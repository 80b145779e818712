// Interface between the parts of the tokenizer.json reader: the entry (tokenizer_json.cc), the steps around the
// model (tokenizer_json_steps.cc) and the models that are not byte-level (tokenizer_json_models.cc). Unsupported
// settings that affect ids are errors that name them; none is ignored silently.
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

struct PreTokenizerSteps {
  bool byte_level = false;
  bool prefix_space = false;
  std::vector<SplitRule> before_prefix, splits;
  std::optional<Metaspace> metaspace;
};

struct DecoderSteps {
  std::vector<std::string> names;                                   // of all steps, outermost first
  std::vector<std::function<std::string(std::string)>> for_tokens;  // applied to each token
  FirstSpace first_space = FirstSpace::kKept;
};

// The whole file, parsed; `special` names the begin and end tokens.
struct TokenizerFile {
  TextNormalizer normalizer;
  PreTokenizerSteps pre_tokenizer;
  DecoderSteps decoder;
  std::vector<AddedToken> added;
  TokenizerConfig special;
  std::string source, config;  // the files' texts
};

void read_normalizer(const nlohmann::json& object, TextNormalizer& out, const std::string& where);
void read_pre_tokenizer(const nlohmann::json& object, PreTokenizerSteps& out, const std::string& where);
void read_decoder(const nlohmann::json& object, DecoderSteps& out, const std::string& where);
void read_post_processor(const nlohmann::json& object, TokenizerConfig& out, const std::string& where);

// "type" of a step or a model.
std::string json_type(const nlohmann::json& object);
// Whether `object` has `key` and it is not null.
bool json_present(const nlohmann::json& object, const char* key);

// {"token": id}, into a list by id; ids no token has stay "".
void read_vocabulary(const nlohmann::json& vocab, std::vector<std::string>& tokens, const std::string& where);
// Ids are bounded: an invalid one must not allocate the machine's memory.
int32_t checked_id(const nlohmann::json& value, const std::string& token, const std::string& where);
void read_merges(const nlohmann::json& merges, std::vector<std::pair<std::string, std::string>>& out,
                 const std::string& where);

// BPE over characters, Unigram and WordPiece.
std::unique_ptr<Tokenizer> read_subword_model(const nlohmann::json& model, TokenizerFile file,
                                              const std::string& where);

}  // namespace octet
