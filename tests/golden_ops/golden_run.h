// Runs one Octet op through the interpreter on values, and compares with an ONNX result.
#pragma once

#include <string>
#include <vector>

#include "golden_ops/onnx_case.h"
#include "ir/graph.h"
#include "kernels/cpu/kernel.h"

namespace octet {

using GoldenTensor = cpu::RefTensor;

GoldenTensor golden(DType dtype, Shape shape, std::vector<double> values);

// All results of the node. An input with a shape of rank 0 stands for an absent one.
std::vector<GoldenTensor> run_op(Op op, std::vector<GoldenTensor> inputs, Attrs attrs = {});

// "" or the first element off by more than absolute + relative |expected|.
std::string compare(const std::vector<double>& actual, const OnnxTensor& expected, double relative = 1e-5,
                    double absolute = 1e-6);

// Runs one case on Octet's ops: "" if it agrees, "skip: why" if no op has its semantics, otherwise the difference.
std::string check_case(const OnnxCase& c);
bool has_check(const std::string& op);  // else the case is skipped

std::string check_attention(const OnnxCase& c);
std::string check_norm(const OnnxCase& c);
std::string check_rotary(const OnnxCase& c);
std::string check_loss(const OnnxCase& c);       // softmax, log-softmax, cross-entropy, log-sum-exp
std::string check_product(const OnnxCase& c);    // gemm, matmul
std::string check_precision(const OnnxCase& c);  // casts, quantize, dequantize
std::string check_adam(const OnnxCase& c);
std::string check_rows(const OnnxCase& c);  // gather, tensor scatter
std::string check_activation(const OnnxCase& c);

}  // namespace octet
