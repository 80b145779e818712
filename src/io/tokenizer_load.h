// The readers behind load_tokenizer, one for each file kind. All take bytes already read and a name for errors, so that
// fuzzers and tests need no files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/bpe_tokenizer.h"
#include "io/tokenizer.h"

namespace octet {

// `config` is tokenizer_config.json beside it ("" = absent): names of the begin and end tokens, whether bos is added.
std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view json, std::string_view config,
                                               const std::string& where);
// `config` as above. A SentencePiece model.
std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, std::string_view config,
                                              const std::string& where);
std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocabulary_json, std::string_view merges_text,
                                           const std::string& where);
std::unique_ptr<Tokenizer> read_characters_json(std::string_view json, const std::string& where);
std::unique_ptr<Tokenizer> read_gguf(std::string_view bytes, const std::string& where);
std::unique_ptr<Tokenizer> read_llama2c(std::string_view bytes, const std::string& where);

}  // namespace octet
