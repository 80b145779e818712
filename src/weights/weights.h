// Where weights come from and go to: Hugging Face folders (checkpoints of Octet are such folders too) and llama2.c
// files. Parameters are [out, in] for linears on this side, in whatever type they are stored; the executor's state may
// be of any float type.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "io/safetensors.h"
#include "model/hugging_face.h"
#include "model/model.h"
#include "passes/pass.h"
#include "precision/quantized_matrix.h"
#include "precision/recipe.h"

namespace octet {

// How integer codes lie in the int32 words of published folders, unsigned; bits are those of the view's dtype.
enum class Packing : uint8_t {
  kNone,
  kAlongInputs,   // words [K / n, N]: GPTQ
  kAlongOutputs,  // words [K, N / 8], outputs 0 2 4 6 1 3 5 7 from the lowest bits on: AWQ
  kRows,          // words [N, ceil(K / n)]: compressed-tensors
};

// Rows [first, first + count) of a parameter as float32 [count, cols].
using RowFunction = std::function<void(int64_t first, int64_t count, float* to)>;

struct FourBitCodes;  // weights/nf4_folder.h
struct FourBitRow {
  const FourBitCodes* codes = nullptr;
  int64_t first = 0;  // its first value among those of the codes
};

// A parameter where it lies in its source: a mapped file's tensor, some of its rows (q, k and v in one tensor), its
// columns (GPT-2's linears are stored [in, out]). Values are read by rows and converted on the way; no copy of a whole
// tensor is made. Functions of views are serial unless they say otherwise: callers split the rows.
struct ParamView {
  std::string name;                 // in errors: "FOLDER: layers.0.attn.q.weight"
  DType dtype = DType::kF32;        // as stored
  const std::byte* data = nullptr;  // of element [0, 0]
  int64_t rows = 0, cols = 1;       // of the parameter, [out, in]; a vector is one column
  // In elements. Rows lie in runs of run_rows; those of a run are row_stride apart, the beginnings of runs run_stride.
  int64_t row_stride = 1, col_stride = 1, run_rows = 0, run_stride = 0;
  std::vector<const std::byte*> runs = {};  // where each begins, of a parameter that lies in several tensors
  // Of codes: a value is a code, less its zero point, by its scale.
  ScaleLayout layout = ScaleLayout::kTensor;
  std::vector<float> scale_inv;
  // Of integer codes: zero points beside the scales, or none; which column of the parameter each column of codes is,
  // where they are sorted by group: of all rows, or of each of `runs` its own.
  std::vector<int8_t> zero;
  std::vector<int32_t> columns;
  // Packed: `data`, or each of `runs`, is the whole tensor's, of packed_rows outputs; strides count its rows, of which
  // first_row is ours.
  Packing packing = Packing::kNone;
  int64_t first_row = 0, packed_rows = 0;
  std::shared_ptr<const RowFunction> computed = nullptr;  // in place of `data`: what an adapter is merged into
  // Beside `computed`: where the codes of a row lie that it is made of.
  std::shared_ptr<const std::function<FourBitRow(int64_t row)>> four_bit = nullptr;

  int64_t elements() const { return rows * cols; }
  // Those of a row, or null: in order.
  const int32_t* columns_of(int64_t row) const {
    if (columns.empty()) return nullptr;
    return columns.data() + (static_cast<int64_t>(columns.size()) > cols ? row / run_rows * cols : 0);
  }
};

// Parameter i of a checkpoint tensor that lies as `tensor` says.
ParamView view_of(const CheckpointTensor& tensor, size_t i, const TensorView& stored, const std::string& name);
// Views of equal parts of one parameter, one below the other, with the scales that they have; throws kUnsupported where
// their types differ.
ParamView stacked(const std::vector<ParamView>& parts);
// A matrix in memory, row by row; and read by columns.
ParamView view_of(DType dtype, const void* data, int64_t rows, int64_t cols, const std::string& name = "");
ParamView transposed(const ParamView& view);

// Rows [first, first + count) as `to_dtype` [count, cols]: codes as they are (in their order of columns) where that is
// their type, else with scales applied. Throws kCorrupt naming the first value that is not finite, codes included.
void read_rows(const ParamView& view, int64_t first, int64_t count, DType to_dtype, void* to);
// All rows, by all threads.
void read_all(const ParamView& view, DType to_dtype, void* to);
std::vector<float> read_floats(const ParamView& view);
// Of `parts` equal parts of the rows, those of one: an expert's.
std::vector<float> read_part(const ParamView& view, int64_t part, int64_t parts);
// Rows a thread should read at once.
int64_t row_grain(const ParamView& view);

// The largest magnitude, by all threads, in the order the values are stored.
float largest_magnitude(const ParamView& view);

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  const ModelConfig& config() const { return config_; }
  const SpecialTokens& special() const { return special_; }
  // The parameter where it lies, as it is stored: in any float type, or in FP8 codes with scales. Throws kCorrupt for a
  // shape that disagrees with config(), naming tensor and shapes; reading it does for values that are not finite.
  virtual ParamView view(const std::string& param, const Shape& shape) const = 0;
  std::vector<float> read(const std::string& param, const Shape& shape) const {
    return read_floats(view(param, shape));
  }
  // How a source in FP8 wants to be run; nothing when any recipe will do.
  virtual std::optional<Recipe> recipe() const { return std::nullopt; }
  virtual bool has_kv_scales() const { return false; }
  // A static FP8 scale: kScale of "layers.0.mlp.up.x", kCacheScale or kCacheScaleInv of a side of an attention; nothing
  // when the source has none.
  virtual std::optional<float> scale(StateRole role, const std::string& tensor, int32_t index = 0) const {
    return std::nullopt;
  }

 protected:
  ModelConfig config_;
  SpecialTokens special_;
};

// The model of a folder with config.json. Where it says that the head is tied to the embedding and tensors of both are
// there, with other values, the head is the file's own, with a warning, as in transformers. The one reader of folders'
// sizes: a folder may still lack its weights.
ModelConfig read_model_config(const std::string& folder);

// Of config.json, and the ends that generation_config.json of the folder names besides.
SpecialTokens read_special_tokens(const std::string& folder);

// `path`: a folder with config.json and safetensors, one of PEFT's adapters, which is merged into its base as rows are
// read (weights/adapter_folder.h), or a llama2.c .bin file. Every tensor's presence, type and shape
// is checked here, before anything is allocated; unknown tensors are an error that names them.
std::unique_ptr<WeightSource> open_weights(const std::string& path);
// Model files of llama2.c (legacy layout, version 0): seven int32 sizes, then float32 tensors without names. Throws
// kCorrupt when the sizes are absurd or the file's length disagrees with them.
std::unique_ptr<WeightSource> open_llama2c(const std::string& path);

// The recipe of this name on a target; "": as the source is stored (its scheme, else `otherwise`). Recipes of weights
// by groups run a source's own codes where it has them, and a source of weights alone w4i8 on CPUs and w4a8 on GPUs;
// where the target has no products of its codes, bf16, into which they are dequantized as they are loaded: that is
// logged.
Recipe serving_recipe(const WeightSource& source, const Target& target, const std::string& name,
                      const std::string& otherwise = "fp32");

// Every param of the model; and the shape a checkpoint tensor must have, from its parameters'.
using ParamShapes = std::map<std::string, Shape>;
ParamShapes param_shapes(const ModelConfig& config);
Shape tensor_shape(const CheckpointTensor& tensor, const ParamShapes& params);
// The values of a tensor, in the order of its rows [N, K], of which read(i) gives those of parameter i; and as `dtype`
// in the order in which they are stored.
std::vector<float> join_params(const CheckpointTensor& tensor, int64_t elements,
                               const std::function<std::vector<float>(size_t)>& read);
std::vector<std::byte> stored_bytes(const CheckpointTensor& tensor, const Shape& stored,
                                    const std::vector<float>& values, DType dtype);

// One parameter among named tensors, as checkpoint_tensors() says: gradients in verification.
std::vector<float> read_parameter(const TensorSource& tensors, const ModelConfig& config, const std::string& param,
                                  const std::string& name_prefix);

// Fills every master of the executor's program from the source, piece by piece by all threads: copied, converted; FP8
// weights by stored codes or quantized on the way; scales from the source's static ones (a program that needs those of
// activations refuses a source without; scales of a KV cache stay 1). Then prepares. `loaded` gets the bytes of every
// state that has been filled.
using BytesLoaded = std::function<void(int64_t bytes)>;
void load_weights(const WeightSource& source, Executor& executor, const BytesLoaded& loaded = {});

// The executor of a program of one graph, with its weights: of the rank that `ranks` is, its parts of them.
std::unique_ptr<Executor> load_graph(Graph graph, const CompileOptions& options, const WeightSource& source,
                                     const CudaOptions& cuda = {}, Communicator* ranks = nullptr);
std::unique_ptr<Executor> load_program(Program program, const CompileOptions& options, const WeightSource& source,
                                       const CudaOptions& cuda = {}, Communicator* ranks = nullptr);

// Fills masters and codes with weights for benchmarks and tests of speed, distributed as fresh ones are, from one pool
// again and again, from a place of each param's own, because making billions of different values would take minutes:
// tables and matrices with normal values of deviation 0.02, vectors as they are initialized, scales with 1. Then
// prepares.
void fill_random_weights(Executor& executor, uint64_t seed);

// `count` values as the attrs of a param leaf say (init, std).
std::vector<float> initial_values(const Node& leaf, int64_t count, uint64_t seed, uint64_t stream);
// Fresh weights as the model's params say, from the seed; then prepares.
void initialize_weights(Executor& executor, uint64_t seed);

}  // namespace octet
