// Cases of the ops that move elements, and of reductions.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

std::vector<Case> shape_cases() {
  std::vector<Case> cases;
  const double inf = INFINITY, nan = NAN;
  const std::vector<DType> floats = {DType::kF32, DType::kBF16};
  const std::vector<DType> with_codes = {DType::kF32, DType::kBF16, DType::kE4M3, DType::kI32};
  const auto ax = [](int64_t axis) { return std::pair<std::string, Attr>{"axis", axis}; };
  const auto shuffled = [](int64_t cols) {
    return CaseInput{.dtype = DType::kI32, .shape = {cols}, .fill = [](Philox& random, std::vector<double>& values) {
                       for (size_t i = 0; i < values.size(); ++i) {
                         const auto j = static_cast<size_t>(random.below(i + 1));
                         values[i] = values[j], values[j] = static_cast<double>(i);
                       }
                     }};
  };
  for (const auto& [rows, cols] : {std::pair{3, 7}, std::pair{1, 96}, std::pair{5, 640}})
    cases.push_back({.op = Op::kTakeColumns,
                     .name = fmt::format("{}x{}", rows, cols),
                     .inputs = {x({rows, cols}, 9), shuffled(cols)},
                     .dtypes = {DType::kF32, DType::kBF16, DType::kE4M3, DType::kI8},
                     .gradient = false});
  cases.push_back({.op = Op::kReshape,
                   .name = "6x4_to_3x8",
                   .inputs = {x({6, 4})},
                   .attrs = {{"shape", std::vector<int64_t>{3, 8}}}});
  cases.push_back({.op = Op::kSlice,
                   .name = "cols",
                   .inputs = {x({5, 12}, 9)},
                   .attrs = {ax(1), {"begin", int64_t{3}}, {"end", int64_t{10}}},
                   .dtypes = with_codes});
  cases.push_back({.op = Op::kSlice,
                   .name = "rows",
                   .inputs = {x({7, 5}, 9)},
                   .attrs = {ax(0), {"begin", int64_t{2}}, {"end", int64_t{7}}},
                   .dtypes = with_codes});
  cases.push_back({.op = Op::kSlice,
                   .name = "rank1",
                   .inputs = {x({9})},
                   .attrs = {ax(0), {"begin", int64_t{8}}, {"end", int64_t{9}}}});
  cases.push_back({.op = Op::kConcat, .name = "cols", .inputs = {x({3, 4}), x({3, 1}), x({3, 6})}, .attrs = {ax(1)}});
  cases.push_back({.op = Op::kConcat, .name = "rows", .inputs = {x({3, 5}), x({1, 5})}, .attrs = {ax(0)}});
  cases.push_back({.op = Op::kConcat, .name = "single", .inputs = {x({2, 3})}, .attrs = {ax(1)}});
  cases.push_back({.op = Op::kTranspose,
                   .name = "7x33",
                   .inputs = {x({7, 33}, 9)},
                   .dtypes = {DType::kF32, DType::kBF16, DType::kE4M3}});
  // Words of two and four elements, tiles with edges in both directions.
  cases.push_back({.op = Op::kTranspose,
                   .name = "132x76",
                   .inputs = {x({132, 76}, 9)},
                   .dtypes = {DType::kF32, DType::kBF16, DType::kE4M3},
                   .gradient = false});
  cases.push_back({.op = Op::kTranspose, .name = "301x200", .inputs = {x({301, 200})}, .gradient = false});
  cases.push_back({.op = Op::kSlice,
                   .name = "300x520_cols",
                   .inputs = {x({300, 520})},
                   .attrs = {ax(1), {"begin", int64_t{130}}, {"end", int64_t{391}}},
                   .gradient = false});
  // Whole 16-byte pieces of rows.
  cases.push_back({.op = Op::kSlice,
                   .name = "140x384_cols",
                   .inputs = {x({140, 384})},
                   .attrs = {ax(1), {"begin", int64_t{128}}, {"end", int64_t{256}}},
                   .gradient = false});
  cases.push_back({.op = Op::kConcat,
                   .name = "140_cols",
                   .inputs = {x({140, 128}), x({140, 64}), x({140, 8})},
                   .attrs = {ax(1)},
                   .gradient = false});
  cases.push_back({.op = Op::kConcat,
                   .name = "300_cols",
                   .inputs = {x({300, 130}), x({300, 131})},
                   .attrs = {ax(1)},
                   .gradient = false});
  cases.push_back({.op = Op::kTranspose, .name = "1x5", .inputs = {x({1, 5})}});
  cases.push_back({.op = Op::kTranspose, .name = "1024x1024", .inputs = {x({1024, 1024})}, .large = true});
  cases.push_back(
      {.op = Op::kSelectRows, .name = "repeated", .inputs = {x({6, 9}), given(DType::kI32, {4}, {5, 0, 3, 3})}});
  cases.push_back({.op = Op::kSelectRows,
                   .name = "none",
                   .inputs = {x({6, 9}), given(DType::kI32, {4}, {5, -1, 3, -1})},
                   .gradient = false});
  cases.push_back({.op = Op::kSelectRows,
                   .name = "512_of_4096x1024",
                   .inputs = {x({4096, 1024}), integers(DType::kI32, {512}, 0, 4096)},
                   .large = true});
  cases.push_back({.op = Op::kSegmentMean,
                   .name = "13x37",
                   .inputs = {x({13, 37}), given(DType::kI32, {5}, {0, 4, 5, 5, 11})},
                   .tolerance = accumulated(6),
                   .dtypes = floats,
                   .gradient = false});
  cases.push_back({.op = Op::kSegmentMean,
                   .name = "500x264",
                   .inputs = {x({500, 264}), given(DType::kI32, {3}, {3, 300, 500})},
                   .tolerance = accumulated(300),
                   .dtypes = floats,
                   .gradient = false});
  for (const char* kind : {"sum", "max", "amax"}) {
    for (const char* axis : {"rows", "all"}) {
      const Attrs attrs = {{"reduction", std::string(kind)}, {"axis", std::string(axis)}};
      const bool sum = std::string(kind) == "sum", all = std::string(axis) == "all";
      const std::string name = std::string(kind) + "_" + axis;
      cases.push_back({.op = Op::kReduce,
                       .name = name + "_11x37",
                       .inputs = {x({11, 37})},
                       .attrs = attrs,
                       .tolerance = sum ? accumulated(all ? 11 * 37 : 11) : exact(),
                       .dtypes = floats,
                       .gradient = sum});
      cases.push_back({.op = Op::kReduce,
                       .name = name + "_1x1",
                       .inputs = {given_x({1, 1}, {-2.5})},
                       .attrs = attrs,
                       .gradient = sum});
      cases.push_back({.op = Op::kReduce,
                       .name = name + "_nan",
                       .inputs = {given_x({2, 3}, {1, nan, -inf, 2, 5, 3})},
                       .attrs = attrs,
                       .gradient = false});
      cases.push_back({.op = Op::kReduce,
                       .name = name + "_400x301",
                       .inputs = {x({400, 301})},
                       .attrs = attrs,
                       .tolerance = sum ? accumulated(all ? 400 * 301 : 400) : exact(),
                       .gradient = false});
      cases.push_back({.op = Op::kReduce,
                       .name = name + "_301x272",
                       .inputs = {x({301, 272})},
                       .attrs = attrs,
                       .tolerance = sum ? accumulated(all ? 301 * 272 : 301) : exact(),
                       .gradient = false});
      cases.push_back(
          {.op = Op::kReduce, .name = name + "_1024x1024", .inputs = {x({1024, 1024})}, .attrs = attrs, .large = true});
    }
  }
  return cases;
}

}  // namespace octet::cpu
