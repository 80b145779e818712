// Cases of rope: both pairings, partial rotation, the context-extension formulas, and the inverse.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

std::vector<Case> position_cases() {
  const Tolerance tolerance{
      .relative = 1e-6,
      .absolute = 1e-6,
      .reason = "sine and cosine rounded to float32 (angles reduced in double), two products and a sum"};
  std::vector<Case> cases;
  const auto rope = [&](const std::string& name, int64_t tokens, int64_t heads, int64_t dim, Attrs extra,
                        bool large = false) {
    Attrs attrs = {{"heads", heads},          {"head_dim", dim},
                   {"rotary_dim", dim},       {"theta", 10000.0},
                   {"interleaved", false},    {"scaling", std::string("none")},
                   {"factor", 1.0},           {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0}, {"original_max_positions", int64_t{8192}},
                   {"truncate", true},        {"attention_factor", 1.0}};
    for (const auto& [key, value] : extra.entries()) attrs.set(key, value);
    cases.push_back({.op = Op::kRope,
                     .name = name,
                     .inputs = {x({tokens, heads * dim}), integers(DType::kI32, {tokens}, 0, 5000)},
                     .attrs = attrs,
                     .tolerance = tolerance,
                     .large = large});
  };
  rope("halves", 7, 2, 8, {});
  rope("interleaved", 7, 3, 6, {{"interleaved", true}});
  rope("partial", 5, 2, 10, {{"rotary_dim", int64_t{4}}});
  rope("partial_interleaved", 5, 2, 10, {{"rotary_dim", int64_t{6}}, {"interleaved", true}});
  rope("inverse", 5, 2, 8, {{"inverse", true}});
  rope("linear", 4, 1, 16, {{"scaling", std::string("linear")}, {"factor", 4.0}});
  rope("llama3", 9, 2, 64, {{"scaling", std::string("llama3")}, {"factor", 8.0}, {"theta", 500000.0}});
  const Attrs yarn = {{"scaling", std::string("yarn")},
                      {"factor", 4.0},
                      {"high_freq_factor", 32.0},
                      {"original_max_positions", int64_t{2048}},
                      {"attention_factor", 1.1386294}};
  rope("yarn", 9, 2, 64, yarn);
  Attrs part = yarn;
  part.set("truncate", false), part.set("rotary_dim", int64_t{32});
  part.set("interleaved", true), part.set("inverse", true);
  rope("yarn_interleaved_partial", 5, 2, 64, part);
  rope("wide", 3, 2, 40, {{"rotary_dim", int64_t{32}}});  // pairs and remainder in 16-byte pieces
  rope("wide_interleaved", 3, 2, 40, {{"rotary_dim", int64_t{32}}, {"interleaved", true}});
  rope("1024_32x128", 1024, 32, 128, {}, true);
  return cases;
}

}  // namespace octet::cpu
