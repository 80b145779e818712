// A parameter where it lies in its source: a mapped file's tensor, some of its rows (q, k and v in one tensor), its
// columns (GPT-2's linears are stored [in, out]). Values are read by rows and converted on the way; no copy of a whole
// tensor is made. Functions here are serial unless they say otherwise: callers split the rows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/hugging_face.h"
#include "precision/quantized_matrix.h"

namespace octet {

struct ParamView {
  std::string name;                 // in errors: "FOLDER: layers.0.attn.q.weight"
  DType dtype = DType::kF32;        // as stored
  const std::byte* data = nullptr;  // of element [0, 0]
  int64_t rows = 0, cols = 1;       // of the parameter, [out, in]; a vector is one column
  // In elements. Rows lie in runs of run_rows; those of a run are row_stride apart, the beginnings of runs run_stride.
  int64_t row_stride = 1, col_stride = 1, run_rows = 0, run_stride = 0;
  // Of FP8 codes: a value is a code by its scale.
  ScaleLayout layout = ScaleLayout::kTensor;
  std::vector<float> scale_inv;

  int64_t elements() const { return rows * cols; }
};

// Parameter i of a checkpoint tensor that lies as `tensor` says.
ParamView view_of(const CheckpointTensor& tensor, size_t i, const TensorView& stored, const std::string& name);
// A matrix in memory, row by row; and read by columns.
ParamView view_of(DType dtype, const void* data, int64_t rows, int64_t cols, const std::string& name = "");
ParamView transposed(const ParamView& view);

// Rows [first, first + count) as `to_dtype` [count, cols]: as they are where that is their type, else with scales
// applied. Throws kCorrupt naming the first value that is not finite, codes included.
void read_rows(const ParamView& view, int64_t first, int64_t count, DType to_dtype, void* to);
// All rows, by all threads.
void read_all(const ParamView& view, DType to_dtype, void* to);
std::vector<float> read_floats(const ParamView& view);
// Rows a thread should read at once.
int64_t row_grain(const ParamView& view);

// The largest magnitude, by all threads, in the order the values are stored.
float largest_magnitude(const ParamView& view);

}  // namespace octet
