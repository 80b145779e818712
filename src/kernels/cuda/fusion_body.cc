#include "kernels/cuda/fusion_body.h"

namespace octet::cuda {

const Node* FusionBody::member(std::string_view name) const {
  for (const Node& node : body_.nodes()) {
    if (node.op != Op::kInput && node.name == name) return &node;
  }
  return nullptr;
}

int FusionBody::input(const Node& member, size_t slot) const {
  if (slot >= member.inputs.size() || !member.inputs[slot].exists()) return -1;
  int leaves = 0;
  for (int32_t i = 0; i < body_.size(); ++i) {
    if (body_.node(NodeId{i}).op != Op::kInput) continue;
    if (member.inputs[slot].node == NodeId{i}) return leaves;
    ++leaves;
  }
  return -1;
}

FusionBody::Columns FusionBody::columns(const Node& member, size_t slot) const {
  if (slot >= member.inputs.size() || !member.inputs[slot].exists()) return {};
  const Value value = member.inputs[slot];
  const Node& maker = body_.node(value);
  if (maker.op == Op::kSlice && maker.attrs.get<int64_t>("axis") == 1)
    return {input(maker, 0), maker.attrs.get<int64_t>("begin"), body_.shape(maker.inputs[0]).cols()};
  return {input(member, slot), 0, body_.shape(value).cols()};
}

int FusionBody::result(const Node& member, int32_t result) const {
  for (size_t i = 0; i < body_.outputs().size(); ++i) {
    if (body_.outputs()[i].value == Value{id(member), result}) return static_cast<int>(i);
  }
  return -1;
}

bool FusionBody::reads(const Node& member, size_t slot, const Node& maker) const {
  return slot < member.inputs.size() && member.inputs[slot] == Value{id(maker), 0};
}

}  // namespace octet::cuda
