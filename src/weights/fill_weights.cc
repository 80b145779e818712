// Filling the states of an executor: from a source of weights, with fresh values, or with values of no meaning.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/threads.h"
#include "exec/logical_states.h"
#include "weights/fill_nf4.h"
#include "weights/weights.h"

namespace octet {
namespace {

// Adds the names of cache scales that the source lacks to `absent`: they become 1.
void load_scale(const WeightSource& source, const LogicalState& entry, Executor& executor,
                std::vector<std::string>& absent) {
  std::optional<float> value = source.scale(entry.role, entry.param, entry.index);
  if (!value && entry.role != StateRole::kScale) {
    if (entry.role == StateRole::kCacheScale) absent.push_back(entry.name);
    value = 1.0f;
  }
  check(value.has_value(), ErrorCode::kInvalidArgument,
        "the recipe needs {} ({}), a static scale kept from training in fp8-delayed or made by octet quantize; this "
        "folder has none: choose fp8-current",
        entry.name, to_string(entry.type));
  check(std::isfinite(*value) && *value > 0, ErrorCode::kCorrupt, "{} is {}: scales must be positive and finite",
        entry.name, *value);
  write_logical(executor, entry, std::as_bytes(std::span(&*value, 1)));
}

// Makes the rows of a tensor's state in pieces of whole `grain`s: make(first row, rows, to).
template <typename Make>
void fill_rows(Executor& executor, const LogicalState& tensor, int64_t rows, int64_t grain, const Make& make) {
  const int64_t row_bytes = tensor.type.bytes() / std::max<int64_t>(rows, 1);
  fill_logical(executor, tensor, grain * row_bytes, [&](int64_t at, std::span<std::byte> to) {
    make(at / row_bytes, static_cast<int64_t>(to.size()) / row_bytes, to.data());
  });
}

// Some columns of a matrix, as a rank of a mesh has them: they alone are read, row by row.
bool fill_columns(Executor& executor, const LogicalState& tensor, const ParamView& view) {
  const DType dtype = tensor.type.dtype;
  const bool plain = view.packing == Packing::kNone && view.columns.empty() && !view.computed &&
                     (view.scale_inv.empty() || view.dtype == dtype) && dtype != DType::kI4;
  if (!plain || tensor.at.dims.size() != 2 || tensor.at.dims[1].extent == tensor.type.shape[1]) return false;
  if (view.cols != tensor.type.shape[1]) return false;  // a view of its elements, one below the other
  const PlacedDim &rows = tensor.at.dims[0], &columns = tensor.at.dims[1];
  if (rows.stride != columns.extent || rows.run != rows.extent || columns.run != columns.extent) return false;
  ParamView part = view;
  const int64_t skipped = columns.origin * view.col_stride * dtype_bytes(view.dtype);
  part.data += skipped;
  for (const std::byte*& run : part.runs) run += skipped;
  part.cols = columns.extent;
  const int64_t row_bytes = dtype_bytes(dtype) * columns.extent;
  executor.fill_state_part(tensor.state, dtype_bytes(dtype) * tensor.at.offset, rows.extent * row_bytes, row_bytes,
                           [&](int64_t at, std::span<std::byte> to) {
                             const int64_t first = rows.origin + at / row_bytes, count = std::ssize(to) / row_bytes;
                             parallel_for(count, row_grain(part), [&](int64_t begin, int64_t end) {
                               read_rows(part, first + begin, end - begin, dtype, to.data() + begin * row_bytes);
                             });
                           });
  return true;
}

void fill_values(Executor& executor, const LogicalState& tensor, const ParamView& view) {
  if (fill_columns(executor, tensor, view)) return;
  const DType dtype = tensor.type.dtype;
  const int64_t row_bytes = storage_bytes(dtype, view.cols);
  fill_rows(executor, tensor, view.rows, 1, [&](int64_t first, int64_t rows, std::byte* to) {
    parallel_for(rows, row_grain(view), [&](int64_t begin, int64_t end) {
      read_rows(view, first + begin, end - begin, dtype, to + begin * row_bytes);
    });
  });
}

// Zero points and the order of columns of codes: as they are stored, or of codes made here.
void fill_beside(Executor& executor, const QuantizedParam& param, const ParamView* stored) {
  if (param.zero) {
    std::vector<int8_t> zero(static_cast<size_t>(param.zero->type.shape.elements()), 0);
    if (stored != nullptr && !stored->zero.empty()) zero = stored->zero;
    write_logical(executor, *param.zero, std::as_bytes(std::span(zero)));
  }
  if (param.columns) {
    std::vector<int32_t> columns(static_cast<size_t>(param.cols()));
    std::iota(columns.begin(), columns.end(), 0);
    if (stored != nullptr && !stored->columns.empty()) columns = stored->columns;
    write_logical(executor, *param.columns, std::as_bytes(std::span(columns)));
  }
}

// Codes as they are stored where they are what is wanted, else quantized on the way.
void fill_quantized(Executor& executor, const QuantizedParam& param, const ParamView& view) {
  const QuantizeRule& rule = param.rule;
  const bool one_order = view.columns.empty() || (param.columns && std::ssize(view.columns) == view.cols);
  const bool beside = (view.zero.empty() || param.zero) && one_order;
  const bool as_stored = view.dtype == rule.format && !view.scale_inv.empty() && view.layout == rule.layout && beside;
  fill_beside(executor, param, as_stored ? &view : nullptr);
  if (as_stored) {
    fill_values(executor, param.codes, view);
    return write_scales(executor, param, view.scale_inv);
  }
  std::optional<float> amax;
  if (rule.layout == ScaleLayout::kTensor) amax = largest_magnitude(view);
  MatrixQuantizer quantizer(
      view.rows, view.cols, rule, row_grain(view),
      [&](int64_t first, int64_t rows, float* to) { read_rows(view, first, rows, DType::kF32, to); }, amax);
  fill_rows(executor, param.codes, view.rows, quantizer.row_grain(),
            [&](int64_t first, int64_t rows, std::byte* to) { quantizer.make_codes(first, rows, to); });
  write_scales(executor, param, quantizer.scale_inv());
}

}  // namespace

std::vector<float> initial_values(const Node& node, int64_t count, uint64_t seed, uint64_t stream) {
  const std::string& init = node.attrs.get<std::string>("init");
  std::vector<float> values(static_cast<size_t>(count), init == "ones" ? 1.0f : 0.0f);
  if (init == "normal") {
    double std = node.attrs.get_or<double>("std", 0.02);
    parallel_for((count + 1) / 2, 1 << 13, [&](int64_t begin, int64_t end) {  // two values are of one block
      Philox rng(seed, stream, static_cast<uint64_t>(begin));
      for (int64_t i = 2 * begin; i < std::min(2 * end, count); ++i)
        values[static_cast<size_t>(i)] = static_cast<float>(std * rng.normal());
    });
  }
  if (init == "truncated_normal") {  // what lies beyond two standard deviations is drawn again
    const double std = node.attrs.get_or<double>("std", 0.02);
    parallel_for((count + 1) / 2, 1 << 13, [&](int64_t begin, int64_t end) {
      Philox rng(seed, stream, static_cast<uint64_t>(begin));
      for (int64_t i = 2 * begin; i < std::min(2 * end, count); ++i) {
        double value = rng.normal();
        Philox again(~seed, stream, static_cast<uint64_t>(16 * i));
        while (std::abs(value) > 2) value = again.normal();
        values[static_cast<size_t>(i)] = static_cast<float>(std * value);
      }
    });
  }
  if (init == "uniform") {  // Philox gives 24 bits of a value in [0, 1)
    const double bound = std::sqrt(3.0) * node.attrs.get_or<double>("std", 0.02);
    Philox rng(seed, stream);
    for (float& value : values) value = static_cast<float>(bound * (2.0 * rng.uniform() - 1));
  }
  return values;
}

namespace {

constexpr int64_t kPool = 4'194'301;  // a prime: the rows of a matrix differ

// Where a param begins in the pool, by its name (FNV-1a): two that began alike would give results that point alike.
// Even: codes of 4 bits begin at whole bytes.
int64_t pool_start(const std::string& param) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : param) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return static_cast<int64_t>(hash % kPool / 2 * 2);
}

// Integer codes have steps of one where floats of 0.02 would all be zeros: their scale_inv makes up for it.
float integer_scale(DType dtype) { return dtype == DType::kI8 ? 1000 : dtype == DType::kI4 ? 100 : 1; }

// Every element of a norm's weight, a bias or scales.
double vector_value(const Program& program, const LogicalState& tensor) {
  if (tensor.role == StateRole::kMagnitudeOffsets) return 0.06;  // of values of deviation 0.02, about
  if (tensor.role == StateRole::kScaleInv)
    return 1 / integer_scale(find_logical_state(program, tensor.param, StateRole::kCodes).type.dtype);
  const Node* leaf = find_leaf(program, tensor.state);
  return leaf != nullptr && leaf->attrs.get_or<std::string>("init", "") == "ones" ? 1 : 0;
}

}  // namespace

void load_weights(const WeightSource& source, Executor& executor, const BytesLoaded& loaded) {
  // A training program makes its own scales as it goes (and a checkpoint restores them itself).
  const LoggedTime time("weights");
  std::vector<std::string> absent;
  const bool needs_scales = !is_training(executor.program());
  for (const LogicalState& tensor : logical_states(executor.program())) {
    if (tensor.role == StateRole::kMaster) {
      fill_values(executor, tensor, source.view(tensor.param, tensor.type.shape));
      if (loaded) loaded(tensor.type.bytes());
    }
    const bool is_static = tensor.role == StateRole::kScale || tensor.role == StateRole::kCacheScale ||
                           tensor.role == StateRole::kCacheScaleInv;
    if (is_static && needs_scales) load_scale(source, tensor, executor, absent);
  }
  if (!absent.empty())
    log_warning("the folder has no scale for {} of the KV cache's tensors, {} the first: using 1", absent.size(),
                absent[0]);
  for (const QuantizedParam& param : quantized_params(executor.program())) {
    fill_quantized(executor, param, source.view(param.param, param.codes.type.shape));
    if (loaded) loaded(param.codes.type.bytes());
  }
  for (const Nf4Param& param : nf4_params(executor.program())) {
    fill_nf4(executor, param, source.view(param.param, param.codes.type.shape));
    if (loaded) loaded(param.codes.type.bytes());
  }
  finish_filling(executor);
}

void initialize_weights(Executor& executor, uint64_t seed) {
  const LoggedTime time("weights");
  uint64_t stream = 0;
  for (const LogicalState& tensor : logical_states(executor.program())) {
    if (tensor.role != StateRole::kMaster) continue;
    ++stream;
    if (executor.program().find_state(tensor.state)->slots == 0) continue;  // another stage's
    const Node* node = find_leaf(executor.program(), tensor.state);
    check(node != nullptr, ErrorCode::kInternal, "state {} has no param leaf to take its initial values from",
          tensor.state);
    const std::vector<float> values = initial_values(*node, tensor.type.shape.elements(), seed, stream);
    fill_values(executor, tensor, view_of(DType::kF32, values.data(), std::ssize(values), 1));
  }
  for (const QuantizedParam& param : quantized_params(executor.program()))
    write_quantized(executor, param, initial_values(*param.leaf, param.codes.type.shape.elements(), seed, ++stream));
  for (const Nf4Param& param : nf4_params(executor.program())) {
    const Shape& shape = param.codes.type.shape;
    const std::vector<float> values = initial_values(*param.leaf, shape.elements(), seed, ++stream);
    fill_nf4(executor, param, view_of(DType::kF32, values.data(), shape[0], shape[1], param.param));
  }
  finish_filling(executor);
}

std::unique_ptr<Executor> load_graph(Graph graph, const CompileOptions& options, const WeightSource& source,
                                     const CudaOptions& cuda, Communicator* ranks) {
  Program program;
  program.name = graph.name();
  program.add_graph(std::move(graph));
  return load_program(std::move(program), options, source, cuda, ranks);
}

std::unique_ptr<Executor> load_program(Program program, const CompileOptions& options, const WeightSource& source,
                                       const CudaOptions& cuda, Communicator* ranks) {
  auto executor = make_executor(compile(std::move(program), options), cuda, ranks);
  load_weights(source, *executor);
  return executor;
}

void fill_random_weights(Executor& executor, uint64_t seed) {
  Philox rng(seed, 0);
  std::vector<float> normal(kPool);
  for (float& value : normal) value = static_cast<float>(0.02 * rng.normal());
  std::map<std::pair<DType, std::string>, std::vector<std::byte>> pools;  // by type and order of codes
  for (const LogicalState& tensor : logical_states(executor.program())) {
    const bool scales = tensor.role == StateRole::kScaleInv || is_of_nf4(tensor.role);
    if (tensor.role != StateRole::kMaster && tensor.role != StateRole::kCodes && !scales) continue;
    if (executor.program().find_state(tensor.state)->slots == 0) continue;  // another stage's
    const DType dtype = tensor.type.dtype;
    if (tensor.type.shape.rank() == 1 || scales) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.type.bytes()));
      const double value = vector_value(executor.program(), tensor);
      for (int64_t i = 0; i < tensor.type.shape.elements(); ++i) store_element(dtype, bytes.data(), i, value);
      write_logical(executor, tensor, bytes);
      continue;
    }
    const Node* leaf = find_leaf(executor.program(), tensor.state);
    const std::string order = leaf != nullptr ? leaf->attrs.get_or<std::string>("order", "") : "";
    std::vector<std::byte>& pool = pools[{dtype, order}];
    if (pool.empty()) {
      const int64_t count = dtype == DType::kI4 ? kPool - 1 : kPool;
      pool.resize(static_cast<size_t>(storage_bytes(dtype, count)));
      std::vector<float> scaled = normal;
      for (float& value : scaled) value *= integer_scale(dtype);
      convert(DType::kF32, scaled.data(), dtype, pool.data(), count);
      encode_for_order(order, pool);
    }
    const int64_t width = dtype == DType::kI4 ? 1 : dtype_bytes(dtype),
                  offset = storage_bytes(dtype, pool_start(tensor.param) + tensor.at.offset);
    fill_logical(executor, tensor, width, [&](int64_t at, std::span<std::byte> to) {
      for (size_t done = 0; done < to.size();) {
        const size_t from = (static_cast<size_t>(offset + at) + done) % pool.size();
        const size_t piece = std::min(to.size() - done, pool.size() - from);
        std::memcpy(to.data() + done, pool.data() + from, piece);
        done += piece;
      }
    });
  }
  executor.prepare();
}

}  // namespace octet
