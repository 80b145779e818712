// How a folder's embeddings are made: sentence-transformers' modules.json, 1_Pooling/config.json, 2_Normalize,
// sentence_bert_config.json and config_sentence_transformers.json, where they are there.
#pragma once

#include <string>

#include "infer/encoder_program.h"
#include "octet/engine.h"

namespace octet {

struct EncoderFolder {
  EncoderFacts facts;
  Pooling pooling = Pooling::kCls;
  int64_t max_length = 0;  // of a sequence: what the model allows, or less where the folder says so
  bool sigmoid = false;    // of a classifier's one value
};

// Without those files embeddings are of the first token, of decoders of the last one, and normalised, of texts up to
// the tokenizer's model_max_length. `pooling`: instead of the folder's; empty: none. Throws kUnsupported by name for
// modules and poolings that are not run.
EncoderFolder read_encoder_folder(const std::string& folder, const ModelConfig& model, const std::string& pooling);

}  // namespace octet
