#include "model/model.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "model/families.h"

namespace octet {
namespace {

constexpr int64_t kMaxLayers = 10'000;  // ten times any known model: a damaged config must not be compiled for hours

struct Family {
  const char* name;
  Value (*logits)(Builder&, const ModelConfig&, const BatchShape&);
};
constexpr Family kFamilies[] = {{"gpt2", gpt2_logits}, {"llama", llama_logits}};

const Family& find_family(const std::string& name) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (name == family.name) return family;
    names.push_back(family.name);
  }
  fail(ErrorCode::kUnsupported, "model.architecture: '{}' is not one of {} (nearest: {})", name, fmt::join(names, ", "),
       nearest_name(name, names));
}

}  // namespace

void validate(const ModelConfig& c) {
  find_family(c.architecture);
  auto positive = [](const char* field, int64_t value) {
    check(value > 0, ErrorCode::kInvalidArgument, "model.{}: {} (want a positive number)", field, value);
  };
  positive("vocab_size", c.vocab_size);
  positive("max_positions", c.max_positions);
  positive("hidden", c.hidden);
  positive("layers", c.layers);
  positive("heads", c.heads);
  check(c.layers <= kMaxLayers, ErrorCode::kInvalidArgument, "model.layers: {} (at most {})", c.layers, kMaxLayers);
  check(c.vocab_size <= INT32_MAX, ErrorCode::kInvalidArgument, "model.vocab_size: {} exceeds int32", c.vocab_size);
  check(c.head_dim > 0 || c.hidden % c.heads == 0, ErrorCode::kInvalidArgument,
        "model.heads: {} does not divide model.hidden {}; set model.head_dim or change one of them", c.heads, c.hidden);
  check(c.kv_heads >= 0 && c.heads % c.kv_head_count() == 0, ErrorCode::kInvalidArgument,
        "model.kv_heads: {} does not divide model.heads {}", c.kv_heads, c.heads);
  check(c.architecture != "llama" || c.head_size() % 2 == 0, ErrorCode::kInvalidArgument,
        "model.head_dim: {} is odd; rotary positions need an even one", c.head_size());
  check(c.dropout >= 0 && c.dropout < 1, ErrorCode::kInvalidArgument, "model.dropout: {} (want 0 <= p < 1)", c.dropout);
  check(c.norm_eps > 0, ErrorCode::kInvalidArgument, "model.norm_eps: {} (want > 0)", c.norm_eps);
}

AttentionOptions attention_options(const ModelConfig& config, const BatchShape& shape) {
  return {.heads = config.heads,
          .kv_heads = config.kv_head_count(),
          .head_dim = config.head_size(),
          .max_length = shape.max_length,
          .equal_length = shape.equal_length,
          .dropout = shape.training ? config.dropout : 0.0};
}

Value output_head(Builder& b, Value hidden, Value table, const ModelConfig& config) {
  if (!config.tie_embeddings)
    table =
        b.param("head.weight", {config.vocab_size, config.hidden}, {.std = config.init_std, .split = Split::kVocab});
  return b.head(hidden, table, "head");
}

Value build_logits(Builder& b, const ModelConfig& config, const BatchShape& shape) {
  validate(config);
  check(shape.tokens > 0 && shape.max_segments > 0 && shape.max_length > 0, ErrorCode::kInvalidArgument,
        "batch: tokens {}, sequences {}, longest {} (all must be positive)", shape.tokens, shape.max_segments,
        shape.max_length);
  check(shape.max_length <= config.max_positions || config.architecture == "llama", ErrorCode::kInvalidArgument,
        "sequence length {} exceeds model.max_positions {}: shorten data.sequence_length or raise model.max_positions",
        shape.max_length, config.max_positions);
  return find_family(config.architecture).logits(b, config, shape);
}

void build_loss(Builder& b, const ModelConfig& config, const BatchShape& shape) {
  Value logits = build_logits(b, config, shape);
  Builder::Loss loss = b.cross_entropy(logits, b.targets(shape.tokens));
  b.output("loss", b.reduce(loss.per_token, "sum", "all"));
  if (!shape.training) b.output("loss_per_token", loss.per_token);
}

}  // namespace octet
