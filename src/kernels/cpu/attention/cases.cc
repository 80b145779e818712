// Cases of attention: packed segments of several lengths, padding at the end, grouped heads, windows, dropout,
// heads that are some of the whole's.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

const Tolerance kAttention{.relative = 1e-5,
                           .absolute = 5e-6,
                           .reason = "float32 dot products over head_dim, exp, and sums over up to 200 keys"};
const Tolerance kAttentionGrad{
    .relative = 3e-5,
    .absolute = 2e-5,
    .reason = "as forward, then sums over queries and grouped heads of differences dP - delta"};

void forward_results(const Node& node, std::vector<RefTensor>& inputs) {
  Node forward = node;
  forward.op = Op::kAttention;
  std::vector<const RefTensor*> in = {&inputs[0], &inputs[1], &inputs[2], &inputs[3]};
  if (inputs.size() > 7) in.push_back(&inputs[7]);
  std::vector<RefTensor> out = {inputs[4], inputs[5]};
  for (RefTensor& tensor : out) std::fill(tensor.values.begin(), tensor.values.end(), 0.0);
  reference::attention(forward, in, out);
  inputs[4].values = out[0].values;
  inputs[5].values = out[1].values;
}

struct Problem {
  std::string name;
  int64_t tokens, heads, kv_heads, dim;
  std::vector<double> starts;
  int64_t window = 0, equal_length = 0;
  double dropout = 0;
  double alibi = 0, alibi_scale = 1;
  int64_t first_head = 0, all_heads = 0;
  bool causal = true, large = false, gradient = true;
  int64_t bits = 32;  // of dropout
};

void add(std::vector<Case>& cases, const Problem& p) {
  double longest = 0;
  for (size_t s = 0; s + 1 < p.starts.size(); ++s) longest = std::fmax(longest, p.starts[s + 1] - p.starts[s]);
  Attrs attrs = {{"heads", p.heads},
                 {"kv_heads", p.kv_heads},
                 {"head_dim", p.dim},
                 {"scale", 1 / std::sqrt(static_cast<double>(p.dim))},
                 {"window", p.window},
                 {"max_length", static_cast<int64_t>(longest)},
                 {"equal_length", p.equal_length},
                 {"dropout", p.dropout}};
  if (!p.causal) attrs.set("causal", false);
  if (p.bits != 32) attrs.set("bits", p.bits);
  if (p.alibi > 0) {
    attrs.set("alibi", p.alibi);
    attrs.set("alibi_scale", p.alibi_scale);
  }
  if (p.all_heads > 0) {
    attrs.set("first_head", p.first_head);
    attrs.set("all_heads", p.all_heads);
  }
  const CaseInput q = x({p.tokens, p.heads * p.dim}), kv = x({p.tokens, p.kv_heads * p.dim});
  const CaseInput segments = given(DType::kI32, {static_cast<int64_t>(p.starts.size())}, p.starts);
  Case forward{.op = Op::kAttention,
               .name = p.name,
               .inputs = {q, kv, kv, segments},
               .attrs = attrs,
               .tolerance = kAttention,
               .large = p.large,
               .gradient = p.gradient};
  Case backward{.op = Op::kAttentionGrad,
                .name = p.name,
                .inputs = {q, kv, kv, segments, q, normal(DType::kF32, {p.tokens, p.heads}), q},
                .attrs = attrs,
                .tolerance = kAttentionGrad,
                .prepare = forward_results,
                .large = p.large};
  if (p.dropout > 0) {
    for (Case* c : {&forward, &backward}) {
      c->attrs.set("key", int64_t{9});
      c->inputs.push_back(rng_state());
    }
  }
  cases.push_back(forward);
  cases.push_back(backward);
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  add(cases, {.name = "one_token", .tokens = 1, .heads = 1, .kv_heads = 1, .dim = 4, .starts = {0, 1}});
  add(cases, {.name = "segments", .tokens = 13, .heads = 2, .kv_heads = 2, .dim = 5, .starts = {0, 4, 5, 13}});
  add(cases, {.name = "padding", .tokens = 12, .heads = 2, .kv_heads = 1, .dim = 8, .starts = {0, 3, 9, 9, 9}});
  add(cases, {.name = "grouped", .tokens = 10, .heads = 6, .kv_heads = 2, .dim = 4, .starts = {0, 10}});
  add(cases, {.name = "window", .tokens = 17, .heads = 2, .kv_heads = 1, .dim = 4, .starts = {0, 11, 17}, .window = 3});
  add(cases, {.name = "equal",
              .tokens = 24,
              .heads = 2,
              .kv_heads = 2,
              .dim = 16,
              .starts = {0, 8, 16, 24},
              .equal_length = 8});
  add(cases,
      {.name = "dropout", .tokens = 9, .heads = 2, .kv_heads = 1, .dim = 4, .starts = {0, 5, 9}, .dropout = 0.3});
  add(cases, {.name = "long", .tokens = 64, .heads = 2, .kv_heads = 1, .dim = 64, .starts = {0, 64}});
  add(cases, {.name = "empty_first", .tokens = 6, .heads = 1, .kv_heads = 1, .dim = 4, .starts = {0, 0, 6}});
  // Every token sees the later ones of its segment too.
  add(cases, {.name = "not_causal",
              .tokens = 13,
              .heads = 4,
              .kv_heads = 2,
              .dim = 4,
              .starts = {0, 5, 6, 11},
              .causal = false});
  add(cases, {.name = "not_causal_window",
              .tokens = 12,
              .heads = 2,
              .kv_heads = 2,
              .dim = 4,
              .starts = {0, 12},
              .window = 3,
              .dropout = 0.2,
              .alibi = 8,
              .causal = false});
  add(cases, {.name = "not_causal_tiles",
              .tokens = 215,
              .heads = 2,
              .kv_heads = 1,
              .dim = 32,
              .starts = {0, 9, 150, 210},
              .causal = false,
              .gradient = false});
  add(cases, {.name = "not_causal_tiles_window",
              .tokens = 150,
              .heads = 2,
              .kv_heads = 2,
              .dim = 64,
              .starts = {0, 140, 150},
              .window = 40,
              .dropout = 0.2,
              .causal = false,
              .gradient = false});
  // Longer than the tiles of the fast kernels, with ends inside a tile.
  add(cases, {.name = "tiles",
              .tokens = 215,
              .heads = 4,
              .kv_heads = 2,
              .dim = 24,
              .starts = {0, 140, 141, 210},
              .gradient = false});
  add(cases, {.name = "tiles_window",
              .tokens = 200,
              .heads = 2,
              .kv_heads = 1,
              .dim = 32,
              .starts = {0, 200},
              .window = 70,
              .gradient = false});
  add(cases, {.name = "tiles_dropout",
              .tokens = 131,
              .heads = 2,
              .kv_heads = 2,
              .dim = 16,
              .starts = {0, 131},
              .dropout = 0.2,
              .gradient = false});
  // Linear biases: few heads, counts that are not powers of two, a scaled bias, several tiles.
  add(cases, {.name = "alibi", .tokens = 11, .heads = 4, .kv_heads = 4, .dim = 4, .starts = {0, 4, 11}, .alibi = 8});
  add(cases, {.name = "alibi_scaled",
              .tokens = 9,
              .heads = 6,
              .kv_heads = 2,
              .dim = 8,
              .starts = {0, 9},
              .dropout = 0.2,
              .alibi = 8,
              .alibi_scale = 0.25});
  add(cases, {.name = "tiles_alibi",
              .tokens = 215,
              .heads = 6,
              .kv_heads = 3,
              .dim = 24,
              .starts = {0, 140, 141, 210},
              .alibi = 8,
              .gradient = false});
  add(cases, {.name = "tiles_alibi_window",
              .tokens = 200,
              .heads = 3,
              .kv_heads = 1,
              .dim = 32,
              .starts = {0, 200},
              .window = 70,
              .alibi = 4,
              .alibi_scale = 0.5,
              .gradient = false});
  add(cases, {.name = "alibi_dim_264",
              .tokens = 40,
              .heads = 2,
              .kv_heads = 1,
              .dim = 264,
              .starts = {0, 33},
              .alibi = 8,
              .gradient = false});
  // Head dims between and above the tile widths.
  add(cases, {.name = "dim_136",
              .tokens = 70,
              .heads = 2,
              .kv_heads = 1,
              .dim = 136,
              .starts = {0, 5, 70},
              .gradient = false});
  add(cases, {.name = "dim_257",
              .tokens = 9,
              .heads = 2,
              .kv_heads = 1,
              .dim = 257,
              .starts = {0, 7},
              .window = 4,
              .dropout = 0.25,
              .gradient = false});
  // Dropout with segments that begin inside a Philox block, and grouped heads.
  add(cases, {.name = "dropout_segments",
              .tokens = 150,
              .heads = 4,
              .kv_heads = 2,
              .dim = 72,
              .starts = {0, 3, 90, 141},
              .dropout = 0.3,
              .gradient = false});
  // Heads of a part: biases and dropout's elements are those of the whole.
  add(cases, {.name = "part_alibi",
              .tokens = 11,
              .heads = 2,
              .kv_heads = 2,
              .dim = 4,
              .starts = {0, 4, 11},
              .alibi = 8,
              .first_head = 2,
              .all_heads = 6,
              .gradient = false});
  add(cases, {.name = "part_dropout",
              .tokens = 9,
              .heads = 2,
              .kv_heads = 1,
              .dim = 8,
              .starts = {0, 5, 9},
              .dropout = 0.3,
              .first_head = 4,
              .all_heads = 8,
              .gradient = false});
  add(cases, {.name = "part_plain",
              .tokens = 64,
              .heads = 2,
              .kv_heads = 1,
              .dim = 64,
              .starts = {0, 64},
              .first_head = 2,
              .all_heads = 4,
              .gradient = false});
  for (const int64_t dim : {24, 72, 257}) {
    add(cases, {.name = fmt::format("tiles_part_{}", dim),
                .tokens = 153,
                .heads = 4,
                .kv_heads = 2,
                .dim = dim,
                .starts = {0, 3, 90, 141},
                .dropout = 0.2,
                .alibi = 8,
                .first_head = 4,
                .all_heads = 12,
                .gradient = false});
  }
  // Dropout by bytes: several tiles of both sides, of which segments begin anywhere, and thresholds on both sides of
  // 128.
  add(cases, {.name = "bytes",
              .tokens = 9,
              .heads = 2,
              .kv_heads = 1,
              .dim = 4,
              .starts = {0, 5, 9},
              .dropout = 0.3,
              .bits = 8});
  for (const bool causal : {true, false}) {
    for (const int64_t dim : {24, 64, 128, 264}) {
      add(cases, {.name = fmt::format("tiles_bytes_{}{}", dim, causal ? "" : "_not_causal"),
                  .tokens = 230,
                  .heads = 4,
                  .kv_heads = 2,
                  .dim = dim,
                  .starts = {0, 3, 140, 141, 217},
                  .dropout = 0.1,
                  .causal = causal,
                  .gradient = false,
                  .bits = 8});
    }
  }
  add(cases, {.name = "tiles_bytes_window",
              .tokens = 330,
              .heads = 2,
              .kv_heads = 2,
              .dim = 64,
              .starts = {0, 320},
              .window = 90,
              .dropout = 0.6,
              .gradient = false,
              .bits = 8});
  add(cases, {.name = "tiles_bytes_part",
              .tokens = 153,
              .heads = 4,
              .kv_heads = 2,
              .dim = 72,
              .starts = {0, 3, 90, 141},
              .dropout = 0.2,
              .alibi = 8,
              .first_head = 4,
              .all_heads = 12,
              .gradient = false,
              .bits = 8});
  add(cases, {.name = "tiles_not_causal_wide",
              .tokens = 300,
              .heads = 2,
              .kv_heads = 1,
              .dim = 128,
              .starts = {0, 9, 150, 290},
              .causal = false,
              .gradient = false});
  std::vector<double> eighths;
  for (int i = 0; i <= 8; ++i) eighths.push_back(128.0 * i);
  add(cases, {.name = "8x128_12x64",
              .tokens = 1024,
              .heads = 12,
              .kv_heads = 12,
              .dim = 64,
              .starts = eighths,
              .equal_length = 128,
              .large = true});
  add(cases, {.name = "4x64_12x64",
              .tokens = 256,
              .heads = 12,
              .kv_heads = 12,
              .dim = 64,
              .starts = {0, 64, 128, 192, 256},
              .equal_length = 64,
              .large = true});
  add(cases, {.name = "1024_12x64",
              .tokens = 1024,
              .heads = 12,
              .kv_heads = 12,
              .dim = 64,
              .starts = {0, 1024},
              .equal_length = 1024,
              .large = true});
  add(cases, {.name = "1024_32x128_kv8",
              .tokens = 1024,
              .heads = 32,
              .kv_heads = 8,
              .dim = 128,
              .starts = {0, 1024},
              .large = true});
  return cases;
}

}  // namespace octet::cpu
