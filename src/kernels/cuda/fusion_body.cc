#include "kernels/cuda/fusion_body.h"

namespace octet::cuda {

const Node* FusionBody::member(Op op) const {
  for (const Node& node : body_.nodes()) {
    if (node.op == op) return &node;
  }
  return nullptr;
}

int FusionBody::input(const Node& member, size_t slot) const {
  if (slot >= member.inputs.size() || !member.inputs[slot].exists()) return -1;
  return alone_ ? static_cast<int>(slot) : input(member.inputs[slot]);
}

int FusionBody::input(Value value) const {
  if (!value.exists()) return -1;
  int leaves = 0;
  for (int32_t i = 0; i < body_.size(); ++i) {
    if (body_.node(NodeId{i}).op != Op::kInput) continue;
    if (value.node == NodeId{i}) return leaves;
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
  if (alone_) return result;
  for (size_t i = 0; i < body_.outputs().size(); ++i) {
    if (body_.outputs()[i].value == Value{id(member), result}) return static_cast<int>(i);
  }
  return -1;
}

bool FusionBody::reads(const Node& member, size_t slot, const Node& maker) const {
  return slot < member.inputs.size() && member.inputs[slot] == Value{id(maker), 0};
}

SinkPlaces::SinkPlaces(const FusionBody& body, const Sinks& sinks)
    : amax(body.result(sinks.amax)), column_sums(body.result(sinks.column_sum)) {
  if (sinks.quantize == nullptr) return;
  scale = body.input(*sinks.quantize, 1);
  codes = body.result(sinks.quantize, 0), scale_inv = body.result(sinks.quantize, 1);
  codes_t = body.result(sinks.quantize, 2), scale_inv_t = body.result(sinks.quantize, 3);
  amax = body.result(sinks.quantize, 4);
}

void SinkPlaces::put_results(const KernelArgs& args, QuantizeJob& job) const {
  job.codes = at<uint8_t>(args.out, codes), job.codes_t = at<uint8_t>(args.out, codes_t);
  job.scale_inv = at<float>(args.out, scale_inv), job.scale_inv_t = at<float>(args.out, scale_inv_t);
  job.amax = at<float>(args.out, amax);
}

ScaleFormula scale_formula(const Node& node, DType format) {
  return {.max = static_cast<float>(dtype_max(format)),
          .margin = static_cast<int>(node.attr<int64_t>("margin")),
          .pow2 = node.attr<bool>("pow2")};
}

}  // namespace octet::cuda
