// Published sizes. Sources: GPT-2 (OpenAI 2019), GPT-3 (arXiv 2005.14165, table 2.1), the activation-recomputation
// paper (arXiv 2205.05198, table 3), BLOOM (arXiv 2211.05100, table 3), BERT (arXiv 1810.04805), Llama 2 and 3 model
// cards. Where the heads of GPT-3's table do not fill the width (1.3b: 24 of 128 in 2048; 13b: 40 of 128 in 5140), the
// width and head size every later work took.
#include <fmt/ranges.h>

#include "base/error.h"
#include "model/model.h"

namespace octet {
namespace {

ModelConfig of_family(const char* family, int64_t layers, int64_t hidden, int64_t heads, int64_t vocab,
                      int64_t positions) {
  ModelConfig c = model_family(family);
  c.layers = layers, c.hidden = hidden, c.heads = heads, c.vocab_size = vocab, c.max_positions = positions;
  return c;
}

ModelConfig gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab = 50257, int64_t positions = 1024) {
  return of_family("gpt2", layers, hidden, heads, vocab, positions);
}

ModelConfig llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t intermediate, int64_t vocab,
                  int64_t positions, double theta) {
  ModelConfig c = of_family("llama", layers, hidden, heads, vocab, positions);
  c.kv_heads = kv_heads, c.intermediate = intermediate, c.rope.theta = theta;
  return c;
}

// 64 of 256 elements of a head are rotated, pair by pair.
ModelConfig gptj_6b() {
  ModelConfig c = of_family("gptj", 28, 4096, 16, 50400, 2048);
  c.rope.rotary_dim = 64;
  return c;
}

// Sizes of the models' own config.json: google/gemma-2b; in the table facebook/opt-1.3b,
// mosaicml/mpt-1b-redpajama-200b.
ModelConfig gemma_2b() {
  ModelConfig c = of_family("gemma", 18, 2048, 8, 256000, 8192);
  c.kv_heads = 1, c.head_dim = 256, c.intermediate = 16384;
  return c;
}

// mistralai/Mixtral-8x7B-v0.1, Qwen/Qwen3-30B-A3B, allenai/OLMoE-1B-7B-0924.
ModelConfig mixtral_8x7b() {
  ModelConfig c = of_family("mixtral", 32, 4096, 32, 32000, 32768);
  c.kv_heads = 8, c.intermediate = 14336;
  return c;
}
ModelConfig qwen3_30b_a3b() {
  ModelConfig c = of_family("qwen3_moe", 48, 2048, 32, 151936, 40960);
  c.kv_heads = 4, c.head_dim = 128, c.intermediate = 6144, c.norm_eps = 1e-6, c.rope.theta = 1e6;
  c.experts.renormalize = true;
  return c;
}
ModelConfig olmoe_1b_7b() {
  ModelConfig c = of_family("olmoe", 16, 2048, 16, 50304, 4096);
  c.intermediate = 1024;
  return c;
}

struct Named {
  std::string name;
  ModelConfig config;
};

const std::vector<Named>& table() {
  static const std::vector<Named> rows = {
      {"gpt2-nano", gpt(4, 128, 4, 65, 64)},
      {"gpt2-124m", gpt(12, 768, 12)},
      {"gpt2-350m", gpt(24, 1024, 16)},
      {"gpt2-774m", gpt(36, 1280, 20)},
      {"gpt2-1558m", gpt(48, 1600, 25)},
      {"gpt3-125m", gpt(12, 768, 12, 51200, 2048)},
      {"gpt3-350m", gpt(24, 1024, 16, 51200, 2048)},
      {"gpt3-760m", gpt(24, 1536, 16, 51200, 2048)},
      {"gpt3-1.3b", gpt(24, 2048, 16, 51200, 2048)},
      {"gpt3-2.7b", gpt(32, 2560, 32, 51200, 2048)},
      {"gpt3-5b", gpt(24, 4096, 32, 51200, 2048)},
      {"gpt3-6.7b", gpt(32, 4096, 32, 51200, 2048)},
      {"gpt3-13b", gpt(40, 5120, 40, 51200, 2048)},
      {"gpt3-20b", gpt(44, 6144, 48, 51200, 2048)},
      {"gpt3-22b", gpt(48, 6144, 64, 51200, 2048)},
      {"gpt3-175b", gpt(96, 12288, 96, 51200, 2048)},
      {"gpt3-530b", gpt(105, 20480, 128, 51200, 2048)},
      {"gpt3-1t", gpt(128, 25600, 160, 51200, 2048)},
      {"bloom-176b", of_family("bloom", 70, 14336, 112, 250880, 2048)},
      {"opt-1.3b", of_family("opt", 24, 2048, 32, 50272, 2048)},
      {"mpt-1b", of_family("mpt", 24, 2048, 16, 50432, 2048)},
      {"gemma-2b", gemma_2b()},
      {"gptj-6b", gptj_6b()},
      {"llama-1b", llama(22, 2048, 32, 4, 5632, 32000, 2048, 10000)},  // the sizes of TinyLlama
      {"llama2-7b", llama(32, 4096, 32, 32, 11008, 32000, 4096, 10000)},
      {"llama2-13b", llama(40, 5120, 40, 40, 13824, 32000, 4096, 10000)},
      {"llama2-70b", llama(80, 8192, 64, 8, 28672, 32000, 4096, 10000)},
      {"llama3-8b", llama(32, 4096, 32, 8, 14336, 128256, 8192, 500000)},
      {"mixtral-8x7b", mixtral_8x7b()},
      {"qwen3-30b-a3b", qwen3_30b_a3b()},
      {"olmoe-1b-7b", olmoe_1b_7b()},
      {"bert-base", of_family("bert", 12, 768, 12, 30522, 512)},
      {"bert-large", of_family("bert", 24, 1024, 16, 30522, 512)},
      {"llama3-70b", llama(80, 8192, 64, 8, 28672, 128256, 8192, 500000)},
  };
  return rows;
}

}  // namespace

std::vector<std::string> named_models() {
  std::vector<std::string> names;
  for (const Named& row : table()) names.push_back(row.name);
  return names;
}

ModelConfig named_model(const std::string& name) {
  for (const Named& row : table())
    if (row.name == name) return row.config;
  fail(ErrorCode::kInvalidArgument, "model: no size is named '{}' ({}all: {})", name,
       if_near(name, named_models(), "nearest: {}; "), fmt::join(named_models(), ", "));
}

}  // namespace octet
