// ONNX casts, FP8 quantization, gathers and cache scatters in terms of ours.
#include <cmath>

#include "golden_ops/golden_run.h"

namespace octet {

std::string check_precision(const OnnxCase& c) {
  const OnnxTensor &x = *c.inputs[0], &y = *c.outputs[0];
  if (is_fp8(*y.dtype) && c.number("saturate", 1) == 0) return "skip: saturate=0 (Octet's codecs saturate)";
  const GoldenTensor values = golden(*x.dtype, {1, x.elements()}, x.values);
  if (c.op == "Cast" || c.op == "CastLike") {
    if (!is_float(*x.dtype) || !is_float(*y.dtype)) return "skip: integer cast";
    return compare(run_op(Op::kCast, {values}, {{"to", std::string(dtype_name(*y.dtype))}})[0].values, y, 0, 0);
  }
  const bool quantize = c.op == "QuantizeLinear";
  const DType codes = quantize ? *y.dtype : *x.dtype;
  if (!is_fp8(codes)) return "skip: integer codes";
  if (c.inputs[1]->elements() != 1) return "skip: scales per axis or of other blocks";
  const double scale = c.inputs[1]->values[0];
  if (!quantize) {
    return compare(run_op(Op::kDequantize, {values, golden(DType::kF32, {1}, {scale})},
                          {{"scaling", std::string("tensor")}, {"to", std::string(dtype_name(*y.dtype))}})[0]
                       .values,
                   y, 0, 0);
  }
  // ONNX divides by the scale; its cases' scales have exact reciprocals.
  const Attrs attrs = {{"format", std::string(dtype_name(codes))}, {"scaling", std::string("tensor")}, {"pow2", false}};
  return compare(run_op(Op::kQuantize, {values, golden(DType::kF32, {1}, {1 / scale})}, attrs)[0].values, y, 0, 0);
}

std::string check_rows(const OnnxCase& c) {
  const OnnxTensor &x = *c.inputs[0], &y = *c.outputs[0];
  if (c.op == "Gather") {
    if (c.number("axis", 0) != 0) return "skip: gather along another axis";
    for (double index : c.inputs[1]->values) {
      if (index < 0) return "skip: negative indices";
    }
    const int64_t rows = x.dims[0], count = c.inputs[1]->elements();
    const GoldenTensor table = golden(DType::kF32, {rows, x.elements() / rows}, x.values);
    const GoldenTensor ids = golden(DType::kI32, {count}, c.inputs[1]->values);
    const std::string message = compare(run_op(Op::kEmbedding, {ids, table})[0].values, y, 0, 0);
    return message.empty() ? compare(run_op(Op::kSelectRows, {table, ids})[0].values, y, 0, 0) : message;
  }
  // TensorScatter: a batch's rows are written from its index on, around the end when circular: slots of scatter_rows.
  const size_t rank = x.dims.size();
  if (static_cast<int64_t>(c.number("axis", -2)) != -2) return "skip: scatter along another axis";
  const int64_t heads = x.product(1, rank - 2), slots = x.dims[rank - 2], width = x.dims[rank - 1];
  const int64_t updates = c.inputs[1]->dims[rank - 2];
  std::vector<double> targets;
  for (int64_t b = 0; b < x.dims[0]; ++b) {
    const int64_t start = c.has_input(2) ? static_cast<int64_t>(c.inputs[2]->values[static_cast<size_t>(b)]) : 0;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t u = 0; u < updates; ++u)
        targets.push_back(static_cast<double>((b * heads + h) * slots + (start + u) % slots));
    }
  }
  const auto count = static_cast<int64_t>(targets.size());
  return compare(run_op(Op::kScatterRows, {golden(DType::kF32, {x.elements() / width, width}, x.values),
                                           golden(DType::kF32, {count, width}, c.inputs[1]->values),
                                           golden(DType::kI32, {count}, targets)})[0]
                     .values,
                 y, 0, 0);
}

}  // namespace octet
