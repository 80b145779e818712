#include "kernels/cuda/pair_cases.h"

namespace octet::cuda {
namespace {

struct Member {
  const char* name;
  Op op;
  std::vector<int> inputs;  // of the fusion; kFirst: result 0 of the first member
  Attrs attrs;
};
constexpr int kFirst = -1;

Graph make_body(const std::string& kind, const std::vector<TensorType>& types, const Member& first,
                const Member& second, const std::vector<std::string>& results) {
  Graph body(kind);
  std::vector<Value> leaves;
  for (const TensorType& type : types)
    leaves.push_back({body.add({.op = Op::kInput, .results = {type}, .name = fmt::format("in{}", leaves.size())}), 0});
  Value made;
  for (const Member* member : {&first, &second}) {
    Node node{.op = member->op, .attrs = member->attrs, .name = member->name};
    for (int i : member->inputs) node.inputs.push_back(i == kFirst ? made : leaves[static_cast<size_t>(i)]);
    const NodeId id = body.add(std::move(node));
    if (member == &first) made = {id, 0};
    for (size_t r = 0; r < body.node(id).results.size(); ++r) {
      const std::string name = fmt::format("{}.{}", member->name, r);
      if (std::find(results.begin(), results.end(), name) != results.end())
        body.outputs().push_back({name, {id, static_cast<int32_t>(r)}});
    }
  }
  return body;
}

}  // namespace

cpu::Case rope_amax_case(const RopeAmax& f) {
  return {
      .op = Op::kFusion,
      .name = fmt::format("rope_amax_{}_{}x{}{}", f.tokens, f.heads, f.head_dim, f.interleaved ? "_interleaved" : ""),
      .inputs = {cpu::x({f.tokens, f.heads * f.head_dim}), cpu::integers(DType::kI32, {f.tokens}, 0, 8192)},
      .body =
          [f](const std::vector<TensorType>& types) {
            const Member rope{"rope",
                              Op::kRope,
                              {0, 1},
                              {{"heads", f.heads},
                               {"head_dim", f.head_dim},
                               {"rotary_dim", f.rotary_dim},
                               {"theta", 500000.0},
                               {"inverse", true},
                               {"interleaved", f.interleaved}}};
            const Member amax{
                "amax", Op::kReduce, {kFirst}, {{"reduction", std::string("amax")}, {"axis", std::string("all")}}};
            return make_body("rope_amax", types, rope, amax, f.results);
          },
      .gradient = false};
}

cpu::Case scale_quantize_case(const ScaleQuantize& f) {
  return {.op = Op::kFusion,
          .name = fmt::format("scale_quantize_{}_{}x{}", f.format, f.rows, f.cols),
          .inputs = {cpu::x({f.rows, f.cols}), cpu::given(DType::kF32, {1}, {f.amax})},
          .body =
              [f](const std::vector<TensorType>& types) {
                const std::string format = f.format;
                const Member scale{
                    "scale", Op::kComputeScale, {1}, {{"format", format}, {"margin", f.margin}, {"pow2", f.pow2}}};
                const Member quantize{
                    "quantize", Op::kQuantize, {0, kFirst}, {{"format", format}, {"scaling", std::string("tensor")}}};
                return make_body("scale_quantize", types, scale, quantize, f.results);
              },
          .gradient = false};
}

}  // namespace octet::cuda
