// Model files of llama2.c.
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "weights/weights.h"

namespace octet {
namespace {

struct Sizes {
  int32_t dim, hidden_dim, layers, heads, kv_heads, vocab, length;
};

class Llama2cWeights : public WeightSource {
 public:
  explicit Llama2cWeights(const std::string& path) : file_(path) {
    Sizes sizes{};
    check(file_.size() >= static_cast<int64_t>(sizeof sizes), ErrorCode::kCorrupt,
          "{}: {} bytes are not a llama2.c model (want a folder with config.json, or a llama2.c .bin)", path,
          file_.size());
    std::memcpy(&sizes, file_.bytes().data(), sizeof sizes);
    bool tied = sizes.vocab > 0;  // llama2.c marks an own output table by a negative vocabulary
    int64_t vocab = tied ? sizes.vocab : -static_cast<int64_t>(sizes.vocab);
    auto sane = [](int64_t value) { return value > 0 && value < (1 << 24); };
    check(sane(sizes.dim) && sane(sizes.hidden_dim) && sane(sizes.layers) && sane(sizes.heads) &&
              sane(sizes.kv_heads) && sane(vocab) && sane(sizes.length) && sizes.layers < 4096,
          ErrorCode::kCorrupt, "{}: not a llama2.c model: sizes {} {} {} {} {} {} {}", path, sizes.dim,
          sizes.hidden_dim, sizes.layers, sizes.heads, sizes.kv_heads, sizes.vocab, sizes.length);
    config_ = model_family("llama");
    config_.vocab_size = vocab, config_.max_positions = sizes.length, config_.hidden = sizes.dim;
    config_.layers = sizes.layers, config_.heads = sizes.heads, config_.kv_heads = sizes.kv_heads;
    config_.intermediate = sizes.hidden_dim, config_.tie_embeddings = tied;
    config_.norm_eps = 1e-5;
    config_.rope.interleaved = true;
    validate(config_);
    special_ = {.bos = 1, .eos = {2}, .pad = -1};
    lay_out();
  }

  ParamView view(const std::string& param, const Shape& shape) const override {
    auto it = offsets_.find(param);
    check(it != offsets_.end(), ErrorCode::kCorrupt, "{}: holds no {}", file_.path(), param);
    const int64_t rows = shape.rank() > 0 ? shape[0] : 1;
    return view_of(DType::kF32, file_.bytes().data() + it->second, rows, shape.elements() / rows,
                   file_.path() + ": " + param);
  }

 private:
  // Tensor by tensor for all layers at once: embeddings, norms, q, k, v, o, norms, gate, down, up, norm, rope tables.
  void lay_out() {
    const ModelConfig& c = config_;
    int64_t at = sizeof(Sizes), kv = c.kv_head_count() * c.head_size();
    auto one = [&](const std::string& param, int64_t elements) {
      offsets_[param] = at;
      at += elements * static_cast<int64_t>(sizeof(float));
    };
    auto all_layers = [&](const char* param, int64_t elements) {
      for (int64_t i = 0; i < c.layers; ++i) one(fmt::format("layers.{}.{}.weight", i, param), elements);
    };
    one("embed.weight", c.vocab_size * c.hidden);
    all_layers("norm1", c.hidden);
    all_layers("attn.q", c.hidden * c.hidden);
    all_layers("attn.k", c.hidden * kv);
    all_layers("attn.v", c.hidden * kv);
    all_layers("attn.o", c.hidden * c.hidden);
    all_layers("norm2", c.hidden);
    all_layers("mlp.gate", c.hidden * c.intermediate);
    all_layers("mlp.down", c.hidden * c.intermediate);
    all_layers("mlp.up", c.hidden * c.intermediate);
    one("norm.weight", c.hidden);
    at += c.max_positions * c.head_size() * static_cast<int64_t>(sizeof(float));  // cosines and sines, computed here
    if (!c.tie_embeddings) one("head.weight", c.vocab_size * c.hidden);
    check(at == file_.size(), ErrorCode::kCorrupt, "{}: {} bytes, its sizes give {}", file_.path(), file_.size(), at);
  }

  MappedFile file_;
  std::map<std::string, int64_t> offsets_;
};

}  // namespace

std::unique_ptr<WeightSource> open_llama2c(const std::string& path) { return std::make_unique<Llama2cWeights>(path); }

}  // namespace octet
