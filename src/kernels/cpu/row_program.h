// Row-wise ops (row kernels) and programs of them: they run the elementwise, norm and reduction kernels, and every
// fusion whose members are row-wise.
//
// A RowKernel computes some rows of one node from the same rows of its inputs. A RowProgram runs the kernels of one
// node, or of all the nodes of a fusion's body, over the rows one tile at a time: values internal to a fusion are
// kept in a tile of scratch in their declared type, so fused and unfused results are equal bit for bit. Rows are split
// into chunks by shape, not by thread count: sums over rows are computed per chunk and combined in order, independent
// of the number of threads. No op is known here; row_kernels.h lists them.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/kernel.h"

namespace octet::cpu {

// Relation of an operand to the rows of a call.
enum class OperandMapping : uint8_t {
  kRows,   // the call's rows; the pointer is at the call's first row
  kWhole,  // the whole operand at every call: weights, scales; as a result: written at row-dependent positions
  kSum,    // result: float32 sums over rows, accumulated by every call
  kMax,    // result: float32 maxima over rows, raised by every call; starts at -infinity
  kAmax,   // result: maxima of magnitudes; starts at 0
};

struct RowCall {
  const void* const* in;  // null for absent inputs
  void* const* out;       // null for unused results; at least one is used
  int64_t first_row, rows;
  float* scratch;  // of RowKernel::scratch_floats
};

struct RowKernel {
  int64_t rows = 0;  // number of rows, equal for all kernels of a program
  std::vector<OperandMapping> in, out;
  std::function<void(const RowCall&)> run;
  int64_t scratch_floats = 0;
  int64_t row_alignment = 1;  // first rows of calls are multiples of this
};

// Whether a kernel runs alone (elementwise kernels then get each element as a row) or inside a fusion.
enum class RowUse : uint8_t { kAlone, kFused };

// The row kernel of a node, or none (from row_kernels.cc).
std::optional<RowKernel> make_row_kernel(const Graph& graph, const Node& node, RowUse use);

class RowProgram {
 public:
  static std::optional<RowProgram> of_node(const Graph& graph, const Node& node);
  // None if a node of the body has no row kernel or the nodes have different rows.
  static std::optional<RowProgram> of_body(const Graph& body);

  void run(const KernelArgs& args) const;

 private:
  // Location of an operand: an input or result of the node, or a tile of scratch.
  struct Operand {
    enum class Place : uint8_t { kNone, kInput, kResult };
    Place place = Place::kNone;
    OperandMapping follow = OperandMapping::kRows;
    int32_t index = -1;     // of the input or result
    int64_t row_bytes = 0;  // kRows
    int32_t tile = -1;      // scratch slot of a value that is read again, for when it has no memory
    int64_t partial = -1;   // offset in floats into a chunk's partial results
  };
  struct Step {
    RowKernel kernel;
    std::vector<Operand> in, out;
  };
  struct Partial {
    int32_t result;
    OperandMapping follow;
    DType dtype;
    int64_t offset, count;
  };
  struct Tile {
    int64_t row_bytes, offset = 0;
  };
  using Located = std::unordered_map<Value, Operand, ValueHash>;

  bool add_step(const Graph& graph, const Node& node, NodeId id, RowUse use, Located& values,
                const std::unordered_map<Value, int32_t, ValueHash>& results, const std::vector<int32_t>& uses);
  void lay_out();
  void run_chunk(const KernelArgs& args, int64_t chunk, std::byte* tiles, float* partials) const;
  void finish_partials(const KernelArgs& args, float* partials) const;

  std::vector<Step> steps_;
  std::vector<Partial> partials_;
  std::vector<Tile> tiles_;
  int64_t rows_ = -1, row_bytes_ = 0, row_elements_ = 1, alignment_ = 1;
  int64_t chunk_rows_ = 0, chunks_ = 0, tile_rows_ = 0;
  int64_t scratch_floats_ = 0, thread_bytes_ = 0, partial_floats_ = 0;
};

}  // namespace octet::cpu
