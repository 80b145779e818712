// Logical tensors in and out of an executor, wherever pack put them (ir/program.h, logical_states): loaders, fills and
// checkpoints go through here, so that padding and merged weights never leave the executor.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "precision/quantized_matrix.h"

namespace octet {

// `bytes` are the whole tensor, or the part at `offset` of it, in row-major order. What a rank does not hold is passed
// over. Codes in a physical order are read in rows; they are written before finish_filling puts them in order.
void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset = 0);
void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes,
                   int64_t offset = 0);

// Bytes [offset, offset + bytes) of a tensor; null: nothing.
struct TensorPart {
  const LogicalState* tensor = nullptr;
  int64_t offset = 0, bytes = 0;
};
// All ranks of a mesh call it together: `wanted`, by rank, is the same on all, and each gets what it wants from those
// that hold it; of copies, from its own replica. A rank holds for a while what the others want of its states.
void read_together(Executor& executor, std::span<const TensorPart> wanted, std::span<std::byte> mine);

// The whole tensor from pieces that `make` writes: Executor::fill_state_part, where `at` counts from the tensor's
// start.
void fill_logical(Executor& executor, const LogicalState& tensor, int64_t grain, Executor::MakeBytes make);

// Once all states are filled: codes that lie in a physical order (kernels/common/code_order.h) are put into it, piece
// by piece; then Executor::prepare.
void finish_filling(Executor& executor);

// Codes, in place, as this order writes them ("": row after row): for random ones, whose places do not matter.
void encode_for_order(std::string_view order, std::span<std::byte> codes);

// Weights in codes of an inference program: parameters it holds as codes and scales only, and how they are filled.
struct QuantizedParam {
  std::string param;           // [N, K]
  QuantizeRule rule;           // what the recipe wants
  const Node* leaf = nullptr;  // of the codes, in the program: has the attrs of the param
  LogicalState codes, scale_inv;
  std::optional<LogicalState> zero, columns;  // of integer codes
  int64_t rows() const { return codes.type.shape[0]; }
  int64_t cols() const { return codes.type.shape[1]; }
};

// In the order of the state table, without those in NF4; empty where the program has none.
std::vector<QuantizedParam> quantized_params(const Program& program);

// A frozen parameter of a training program that is held in NF4 (ir/nf4.h); of a pipeline, of
// this stage.
struct Nf4Param {
  std::string param;
  const Node* leaf = nullptr;  // of the codes
  LogicalState codes, magnitudes, scales, offsets;
};
std::vector<Nf4Param> nf4_params(const Program& program);

// The scales of a parameter's codes. One scale a tensor fills a state of one scale a row (merged siblings).
void write_scales(Executor& executor, const QuantizedParam& param, std::vector<float> scale_inv);
// Codes and scales of `values` [N, K] by the parameter's rule.
void write_quantized(Executor& executor, const QuantizedParam& param, std::span<const float> values);

}  // namespace octet
