// Cases of the KV cache: slots that are not stored, prefill, decode and mixed steps over shuffled block tables.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

struct Problem {
  std::string name;
  std::vector<double> starts, lengths;  // queries' segments, keys per sequence
  int64_t tokens, heads, kv_heads, dim, block_size, blocks_per_sequence;
  int64_t window = 0;
  std::optional<DType> cache = {};  // none: the type of q
  bool scales = false;
  bool freed = false;  // blocks outside the window have no table entry
  double alibi = 0, alibi_scale = 1;
  int64_t first_head = 0, all_heads = 0;  // of a part: biases are those of the whole
  bool large = false;
};

void add(std::vector<Case>& cases, const Problem& p) {
  const auto sequences = static_cast<int64_t>(p.lengths.size());
  const int64_t table = sequences * p.blocks_per_sequence, slots = (table + 1) * p.block_size;
  std::vector<double> blocks;  // a permutation of 1 .. table: block 0 is unused
  for (int64_t i = 0; i < table; ++i) blocks.push_back(static_cast<double>((i * 7 + 3) % table + 1));
  // 7 must not divide the table for a permutation; the sizes below keep to that.
  for (int64_t i = 0; p.freed && i < table; ++i) {
    const auto s = static_cast<size_t>(i / p.blocks_per_sequence);
    const auto queries = p.starts[s + 1] - p.starts[s], oldest = p.lengths[s] - queries - static_cast<double>(p.window);
    if (static_cast<double>((i % p.blocks_per_sequence + 1) * p.block_size) <= oldest + 1)
      blocks[static_cast<size_t>(i)] = -1;
  }
  const bool row_scales = p.cache == DType::kI8;
  CaseInput cache = row_scales ? codes(DType::kI8, {slots, p.kv_heads * p.dim}) : x({slots, p.kv_heads * p.dim});
  cache.dtype = p.cache;
  std::vector<CaseInput> inputs = {x({p.tokens, p.heads * p.dim}),
                                   cache,
                                   cache,
                                   given(DType::kI32, {sequences + 1}, p.starts),
                                   given(DType::kI32, {sequences}, p.lengths),
                                   given(DType::kI32, {sequences, p.blocks_per_sequence}, blocks)};
  // Keeps values small: tolerances of kernels that round probabilities scale with the sum of P |v|.
  if (row_scales) {
    const CaseInput scale_inv = uniform(DType::kF32, {slots, p.kv_heads}, 0.002, 0.01);
    inputs.insert(inputs.end(), {scale_inv, scale_inv});
  } else if (p.scales) {
    inputs.insert(inputs.end(), {given(DType::kF32, {1}, {1.5}), given(DType::kF32, {1}, {0.75})});
  }
  cases.push_back({.op = Op::kPagedAttention,
                   .name = p.name,
                   .inputs = std::move(inputs),
                   .attrs = {{"heads", p.heads},
                             {"kv_heads", p.kv_heads},
                             {"head_dim", p.dim},
                             {"scale", 1 / std::sqrt(static_cast<double>(p.dim))},
                             {"window", p.window},
                             {"block_size", p.block_size}},
                   .tolerance = {.relative = 1e-5,
                                 .absolute = 5e-6,
                                 .reason = "float32 dot products over head_dim, exp, and sums over up to 2500 keys"},
                   .large = p.large,
                   .gradient = false});
  if (p.alibi == 0) return;
  cases.back().attrs.set("alibi", p.alibi);
  cases.back().attrs.set("alibi_scale", p.alibi_scale);
  if (p.all_heads == 0) return;
  cases.back().attrs.set("first_head", p.first_head);
  cases.back().attrs.set("all_heads", p.all_heads);
}

}  // namespace

std::vector<Case> inference_cases() {
  std::vector<Case> cases;
  const auto append = [&](const std::string& name, CaseInput cache, CaseInput rows, std::vector<double> slots) {
    const auto count = static_cast<int64_t>(slots.size());
    cases.push_back({.op = Op::kScatterRows,
                     .name = name,
                     .inputs = {std::move(cache), std::move(rows), given(DType::kI32, {count}, std::move(slots))},
                     .gradient = false});
  };
  append("scattered", x({12, 5}), x({4, 5}), {7, -1, 0, 11});
  append("nowhere", x({3, 8}), x({2, 8}), {-1, -1});
  append("to_e4m3", codes(DType::kE4M3, {8, 6}), x({3, 6}, 100.0), {5, 2, -1});
  cases.push_back({.op = Op::kScatterRows,
                   .name = "scaled",
                   .inputs = {codes(DType::kE4M3, {8, 6}), x({3, 6}, 100.0), given(DType::kI32, {3}, {5, 2, -1}),
                              given(DType::kF32, {1}, {0.25})},
                   .gradient = false});
  // A group of zeros, one of one element, heads of 8 and of more than a warp's lanes.
  const auto append_codes = [&](const std::string& name, CaseInput rows, int64_t groups, std::vector<double> slots) {
    const auto count = static_cast<int64_t>(slots.size());
    cases.push_back({.op = Op::kScatterCodes,
                     .name = name,
                     .inputs = {codes(DType::kI8, {8, rows.shape.cols()}), std::move(rows),
                                given(DType::kI32, {count}, std::move(slots)), normal(DType::kF32, {8, groups})},
                     .tolerance = exact(),
                     .gradient = false});
  };
  append_codes("heads", x({3, 24}, 100.0), 3, {5, -1, 0});
  append_codes("heads_of_5", x({3, 15}), 3, {1, 7, 2});
  append_codes("heads_of_160", x({2, 320}, 0.01), 2, {6, 3});
  append_codes("zeros", given_x({1, 6}, {0, 0, 0, 1, -2, 0.5}), 2, {4});
  append_codes("elements", x({2, 4}), 4, {4, -1});
  cases.push_back({.op = Op::kScatterRows,
                   .name = "token_ids",
                   .inputs = {integers(DType::kI32, {6, 1}, 0, 99), integers(DType::kI32, {3, 1}, 0, 99),
                              given(DType::kI32, {3}, {4, -1, 0})},
                   .dtypes = {DType::kF32},
                   .gradient = false});
  cases.push_back(
      {.op = Op::kScatterRows,
       .name = "codes_as_they_are",
       .inputs = {codes(DType::kE4M3, {6, 5}), codes(DType::kE4M3, {3, 5}), given(DType::kI32, {3}, {4, -1, 0})},
       .dtypes = {DType::kF32},
       .gradient = false});
  for (auto [name, cache] : {std::pair{"plain", x({12, 5})},
                             {"codes", codes(DType::kE4M3, {12, 32})},
                             {"int8", codes(DType::kI8, {12, 32})}}) {
    cases.push_back({.op = Op::kCopyBlocks,
                     .name = name,
                     .inputs = {cache, given(DType::kI32, {4, 2}, {3, 1, -1, 0, 2, 5, 4, -1})},
                     .attrs = {{"block_size", int64_t{2}}},
                     .gradient = false});
  }
  append("to_bf16", normal(DType::kBF16, {8, 6}), x({3, 6}), {0, 7, -1});
  add(cases, {.name = "prefill",
              .starts = {0, 3, 8},
              .lengths = {3, 5},
              .tokens = 8,
              .heads = 2,
              .kv_heads = 2,
              .dim = 4,
              .block_size = 4,
              .blocks_per_sequence = 2});
  add(cases, {.name = "decode",
              .starts = {0, 1, 2, 3},
              .lengths = {1, 9, 16},
              .tokens = 3,
              .heads = 6,
              .kv_heads = 2,
              .dim = 8,
              .block_size = 8,
              .blocks_per_sequence = 2});
  add(cases, {.name = "mixed_padded",
              .starts = {0, 4, 5, 5, 5},
              .lengths = {11, 30, 0, 0},
              .tokens = 9,
              .heads = 4,
              .kv_heads = 1,
              .dim = 5,
              .block_size = 16,
              .blocks_per_sequence = 2});
  add(cases, {.name = "window",
              .starts = {0, 3, 4},
              .lengths = {20, 13},
              .tokens = 4,
              .heads = 2,
              .kv_heads = 1,
              .dim = 4,
              .block_size = 4,
              .blocks_per_sequence = 5,
              .window = 6});
  add(cases, {.name = "long",
              .starts = {0, 1},
              .lengths = {64},
              .tokens = 1,
              .heads = 2,
              .kv_heads = 1,
              .dim = 64,
              .block_size = 16,
              .blocks_per_sequence = 4});
  // Longer than the fast kernels' tiles: prefill after cached keys, a few queries, one query; and a window.
  add(cases, {.name = "tiles",
              .starts = {0, 70, 73, 74},
              .lengths = {150, 131, 200},
              .tokens = 75,
              .heads = 4,
              .kv_heads = 2,
              .dim = 24,
              .block_size = 8,
              .blocks_per_sequence = 25});
  add(cases, {.name = "tiles_window",
              .starts = {0, 70, 73, 74},
              .lengths = {150, 131, 200},
              .tokens = 75,
              .heads = 4,
              .kv_heads = 2,
              .dim = 24,
              .block_size = 8,
              .blocks_per_sequence = 25,
              .window = 66});
  add(cases, {.name = "alibi",
              .starts = {0, 3, 4},
              .lengths = {20, 13},
              .tokens = 5,
              .heads = 6,
              .kv_heads = 2,
              .dim = 8,
              .block_size = 4,
              .blocks_per_sequence = 5,
              .alibi = 8,
              .alibi_scale = 0.5});
  add(cases, {.name = "tiles_alibi",
              .starts = {0, 70, 73, 74},
              .lengths = {150, 131, 200},
              .tokens = 75,
              .heads = 4,
              .kv_heads = 4,
              .dim = 24,
              .block_size = 8,
              .blocks_per_sequence = 25,
              .alibi = 8});
  add(cases, {.name = "tiles_alibi_part",
              .starts = {0, 70, 73, 74},
              .lengths = {150, 131, 200},
              .tokens = 75,
              .heads = 4,
              .kv_heads = 4,
              .dim = 24,
              .block_size = 8,
              .blocks_per_sequence = 25,
              .alibi = 8,
              .first_head = 4,
              .all_heads = 12});
  for (DType cache : {DType::kBF16, DType::kE4M3, DType::kI8}) {
    add(cases, {.name = std::string("cache_") + dtype_name(cache),
                .starts = {0, 2, 3},
                .lengths = {7, 12},
                .tokens = 3,
                .heads = 4,
                .kv_heads = 2,
                .dim = 8,
                .block_size = 4,
                .blocks_per_sequence = 3,
                .cache = cache});
  }
  add(cases, {.name = "scales",
              .starts = {0, 2, 3, 13},
              .lengths = {7, 150, 60},
              .tokens = 13,
              .heads = 6,
              .kv_heads = 2,
              .dim = 48,
              .block_size = 16,
              .blocks_per_sequence = 10,
              .cache = DType::kE4M3,
              .scales = true});
  add(cases, {.name = "tiles_window_i8",
              .starts = {0, 70, 73, 74},
              .lengths = {150, 131, 200},
              .tokens = 75,
              .heads = 4,
              .kv_heads = 2,
              .dim = 24,
              .block_size = 8,
              .blocks_per_sequence = 25,
              .window = 66,
              .cache = DType::kI8,
              .freed = true,
              .alibi = 8});
  // Heads of multiples of 16 bytes in every cache type.
  for (DType cache : {DType::kBF16, DType::kE4M3, DType::kE5M2, DType::kI8}) {
    for (int64_t dim : {48, 80}) {
      add(cases, {.name = fmt::format("cache_{}_{}", dtype_name(cache), dim),
                  .starts = {0, 2, 3, 13},
                  .lengths = {7, 150, 60},
                  .tokens = 13,
                  .heads = 6,
                  .kv_heads = 2,
                  .dim = dim,
                  .block_size = 16,
                  .blocks_per_sequence = 10,
                  .cache = cache});
    }
  }
  // Heads, groups and blocks of the models: Llama, GPT-J, Phi, Falcon; one query and a few, prompt chunks after
  // cached ones, sequences without queries, rows beyond the last; a table with room for more than the lengths.
  struct Family {
    const char* name;
    int64_t heads, kv_heads, dim, block_size, window;
    double alibi = 0;
    int64_t first_head = 0, all_heads = 0;
  };
  const Family families[] = {{"mha_128", 4, 4, 128, 16, 0},
                             {"gqa4_128", 16, 4, 128, 32, 0},
                             {"gqa8_64", 16, 2, 64, 64, 0},
                             {"gqa16_128", 16, 1, 128, 16, 0},
                             {"mqa71_64", 71, 1, 64, 16, 0},
                             {"mha_256", 4, 4, 256, 16, 0},
                             {"gqa2_256", 4, 2, 256, 128, 0},
                             {"mha_96", 8, 8, 96, 16, 0},
                             {"gqa4_window", 8, 2, 128, 16, 40},
                             {"mha_256_window", 4, 4, 256, 32, 33},
                             {"mha_64_alibi", 8, 8, 64, 16, 0, 8},
                             {"gqa3_128_alibi", 6, 2, 128, 16, 50, 4},
                             {"mha_64_part", 8, 8, 64, 16, 0, 8, 8, 24}};
  for (const Family& f : families) {
    for (DType cache : {DType::kBF16, DType::kE4M3, DType::kE5M2, DType::kI8}) {
      if (cache == DType::kE5M2 && f.dim != 128 && f.dim != 256) continue;
      add(cases, {.name = fmt::format("{}_{}", f.name, dtype_name(cache)),
                  .starts = {0, 1, 2, 3, 7, 7, 8, 85, 86},
                  .lengths = {1, 17, 250, 131, 0, 256, 203, 64},
                  .tokens = 89,
                  .heads = f.heads,
                  .kv_heads = f.kv_heads,
                  .dim = f.dim,
                  .block_size = f.block_size,
                  .blocks_per_sequence = 256 / f.block_size,
                  .window = f.window,
                  .cache = cache,
                  .scales = f.kv_heads > 1,
                  .freed = f.window > 0,
                  .alibi = f.alibi,
                  .alibi_scale = 0.5,
                  .first_head = f.first_head,
                  .all_heads = f.all_heads});
    }
  }
  // Prompt chunks over several query and key tiles.
  for (DType cache : {DType::kBF16, DType::kE4M3, DType::kI8}) {
    for (int64_t dim : {64, 128, 256}) {
      add(cases, {.name = fmt::format("chunks_{}_{}", dim, dtype_name(cache)),
                  .starts = {0, 150, 451},
                  .lengths = {300, 301},
                  .tokens = 451,
                  .heads = 2,
                  .kv_heads = 1,
                  .dim = dim,
                  .block_size = 16,
                  .blocks_per_sequence = 19,
                  .cache = cache});
    }
  }
  // Many short sequences and one long one.
  for (DType cache : {DType::kBF16, DType::kE4M3, DType::kI8}) {
    std::vector<double> many = {0}, uneven;
    for (int i = 0; i < 60; ++i) many.push_back(i + 1), uneven.push_back(i == 37 ? 500 : 1 + i * 5 % 23);
    add(cases, {.name = fmt::format("uneven_{}", dtype_name(cache)),
                .starts = many,
                .lengths = uneven,
                .tokens = 66,
                .heads = 8,
                .kv_heads = 4,
                .dim = 32,
                .block_size = 16,
                .blocks_per_sequence = 32,
                .cache = cache});
  }
  // Contexts split into more pieces than one reduction step combines.
  for (DType cache : {DType::kBF16, DType::kE4M3, DType::kI8}) {
    for (int64_t dim : {64, 256}) {
      add(cases, {.name = fmt::format("long_{}_{}", dim, dtype_name(cache)),
                  .starts = {0, 2, 3},
                  .lengths = {2200, 2500},
                  .tokens = 3,
                  .heads = 4,
                  .kv_heads = 1,
                  .dim = dim,
                  .block_size = 16,
                  .blocks_per_sequence = 160,
                  .cache = cache});
    }
  }
  std::vector<double> starts = {0}, lengths;
  for (int i = 0; i < 16; ++i) starts.push_back(i + 1), lengths.push_back(1000 + i);
  add(cases, {.name = "decode_16x1000_32x128_kv8",
              .starts = starts,
              .lengths = lengths,
              .tokens = 16,
              .heads = 32,
              .kv_heads = 8,
              .dim = 128,
              .block_size = 16,
              .blocks_per_sequence = 64,
              .large = true});
  return cases;
}

}  // namespace octet::cpu
