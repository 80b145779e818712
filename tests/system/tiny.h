// A tiny corpus and run settings for tests that train: seconds, not minutes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "io/dataset.h"
#include "train/run_config.h"

namespace octet {

// Documents that count upwards modulo `vocab` from different starts: easy to learn, so losses fall within a few steps.
inline void write_tiny_corpus(const std::string& prefix, int64_t vocab = 64, int documents = 40) {
  DatasetWriter writer(prefix, TokenType::kU16);
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 50 + d; ++i) ids.push_back(static_cast<int32_t>((d * 7 + i * (1 + d % 3)) % vocab));
    writer.append(ids);
    writer.end_document();
  }
  writer.commit();
}

inline RunConfig tiny_config(const TempFolder& folder, const std::string& recipe, const std::string& family = "gpt2") {
  if (!path_exists(folder.file("corpus.idx"))) write_tiny_corpus(folder.file("corpus"));
  RunConfig config;
  config.model_size = family == "llama" ? "llama2-7b" : "gpt2-nano";
  config.vocab_size = 64;
  config.hidden = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = family == "llama" ? 2 : 0;
  config.intermediate = 64;
  config.max_positions = 32;
  config.train_data = config.validation_data = folder.file("corpus");
  config.sequence_length = 16;
  config.steps = 20;
  config.micro_batch = 2;
  config.global_batch = 4;
  config.optimizer.lr = 3e-3;
  config.optimizer.warmup_steps = 2;
  config.recipe = recipe;
  config.amax_history = 4;
  config.eval_interval = 10;
  config.eval_tokens = 256;
  config.log_interval = 1;
  config.checkpoint_interval = 10;
  config.out = folder.file("run");
  return config;
}

// Every tensor file of a checkpoint, byte for byte.
inline std::map<std::string, std::string> checkpoint_bytes(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const std::string& name : list_folder(folder))
    if (name.ends_with(".safetensors")) files[name] = read_file(folder + "/" + name);
  return files;
}

}  // namespace octet
