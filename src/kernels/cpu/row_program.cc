#include "kernels/cpu/row_program.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "base/threads.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kChunkElements = 8 * 1024;  // of the widest operand: enough work for a thread
constexpr int64_t kMaxChunks = 64;            // each has its own partial results
constexpr int64_t kTileBytes = 128 * 1024;    // all operands of a tile, to fit the L2 cache
constexpr size_t kMaxOperands = 16;

bool is_partial(OperandMapping follow) {
  return follow == OperandMapping::kSum || follow == OperandMapping::kMax || follow == OperandMapping::kAmax;
}

float identity(OperandMapping follow) {
  return follow == OperandMapping::kMax ? -std::numeric_limits<float>::infinity() : 0.0f;
}

}  // namespace

// Assigns places to the node's operands. `values`: places of values it may read; `results`: its results with memory;
// `uses`: number of readers of each result.
bool RowProgram::add_step(const Graph& graph, const Node& node, NodeId id, RowUse use, Located& values,
                          const std::unordered_map<Value, int32_t, ValueHash>& results,
                          const std::vector<int32_t>& uses) {
  std::optional<RowKernel> kernel = make_row_kernel(graph, node, use);
  if (!kernel || (rows_ >= 0 && kernel->rows != rows_) || kernel->rows <= 0) return false;
  if (node.inputs.size() > kMaxOperands || node.results.size() > kMaxOperands) return false;
  rows_ = kernel->rows;
  alignment_ = std::max(alignment_, kernel->row_alignment);
  scratch_floats_ = std::max(scratch_floats_, kernel->scratch_floats);
  Step step{std::move(*kernel), {}, {}};
  const auto row_bytes = [&](const TensorType& type) { return type.bytes() / rows_; };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    Operand operand;
    if (node.inputs[i].exists()) {
      operand = values.at(node.inputs[i]);
      const TensorType& type = graph.type(node.inputs[i]);
      const OperandMapping made = std::exchange(operand.follow, step.kernel.in[i]);
      // A result of an earlier node of the body is in rows, and read in rows.
      if (operand.place != Operand::Place::kInput &&
          (made != OperandMapping::kRows || operand.follow != OperandMapping::kRows)) {
        return false;
      }
      if (operand.follow == OperandMapping::kRows) {
        operand.row_bytes = row_bytes(type);
        row_bytes_ += operand.row_bytes;
        row_elements_ = std::max(row_elements_, type.shape.elements() / rows_);
      }
    }
    step.in.push_back(operand);
  }
  for (size_t i = 0; i < node.results.size(); ++i) {
    const Value value{id, static_cast<int32_t>(i)};
    const TensorType& type = node.results[i];
    Operand operand{.follow = step.kernel.out[i]};
    const auto found = results.find(value);
    const bool is_result = found != results.end();
    if (is_result) operand.place = Operand::Place::kResult, operand.index = found->second;
    if (operand.follow == OperandMapping::kRows && uses[i] > 0) {
      operand.row_bytes = row_bytes(type);
      row_bytes_ += operand.row_bytes;
      if (uses[i] > (is_result ? 1 : 0)) {  // read again
        operand.tile = static_cast<int32_t>(tiles_.size());
        tiles_.push_back({operand.row_bytes});
      }
    } else if (is_partial(operand.follow) && is_result) {
      if (type.dtype != DType::kF32 && type.dtype != DType::kBF16) return false;
      operand.partial = partial_floats_;
      partials_.push_back({operand.index, operand.follow, type.dtype, partial_floats_, type.shape.elements()});
      partial_floats_ += round_up(type.shape.elements(), kAlignment / 4);
    }
    values[value] = operand;
    step.out.push_back(operand);
  }
  steps_.push_back(std::move(step));
  return true;
}

std::optional<RowProgram> RowProgram::of_node(const Graph& graph, const Node& node) {
  RowProgram program;
  Located values;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    values[node.inputs[i]] = {.place = Operand::Place::kInput, .index = static_cast<int32_t>(i)};
  }
  const NodeId self{std::numeric_limits<int32_t>::max()};
  std::unordered_map<Value, int32_t, ValueHash> results;
  for (int32_t i = 0; i < static_cast<int32_t>(node.results.size()); ++i) results[{self, i}] = i;
  const std::vector<int32_t> uses(node.results.size(), 1);
  if (!program.add_step(graph, node, self, RowUse::kAlone, values, results, uses)) return std::nullopt;
  program.lay_out();
  return program;
}

std::optional<RowProgram> RowProgram::of_body(const Graph& body) {
  RowProgram program;
  Located values;
  std::unordered_map<Value, int32_t, ValueHash> results;
  for (size_t i = 0; i < body.outputs().size(); ++i) {
    // duplicate results and inputs returned unchanged are not supported
    if (!results.emplace(body.outputs()[i].value, static_cast<int32_t>(i)).second) return std::nullopt;
    if (body.node(body.outputs()[i].value).op == Op::kInput) return std::nullopt;
  }
  const std::vector<std::vector<int32_t>> uses = body.count_uses();
  int32_t inputs = 0;
  for (int32_t i = 0; i < body.size(); ++i) {
    const NodeId id{i};
    if (body.node(id).op == Op::kInput) {
      values[{id, 0}] = {.place = Operand::Place::kInput, .index = inputs++};
    } else if (!program.add_step(body, body.node(id), id, RowUse::kFused, values, results,
                                 uses[static_cast<size_t>(i)])) {
      return std::nullopt;
    }
  }
  if (program.steps_.empty()) return std::nullopt;
  program.lay_out();
  return program;
}

void RowProgram::lay_out() {
  // By rows and columns only, so that sums over rows are split equally in a fusion and alone.
  const int64_t chunks = std::clamp<int64_t>(rows_ * row_elements_ / kChunkElements, 1, kMaxChunks);
  chunk_rows_ = round_up((rows_ + chunks - 1) / chunks, alignment_);
  chunks_ = (rows_ + chunk_rows_ - 1) / chunk_rows_;
  tile_rows_ = chunk_rows_;
  if (!tiles_.empty()) {
    const int64_t fitting = kTileBytes / std::max<int64_t>(row_bytes_, 1) / alignment_ * alignment_;
    tile_rows_ = std::clamp<int64_t>(fitting, std::min(alignment_, chunk_rows_), chunk_rows_);
  }
  thread_bytes_ = round_up(scratch_floats_ * 4, kAlignment);
  for (Tile& tile : tiles_) {
    tile.offset = thread_bytes_;
    thread_bytes_ += round_up(tile.row_bytes * tile_rows_, kAlignment);
  }
}

void RowProgram::run_chunk(const KernelArgs& args, int64_t chunk, std::byte* tiles, float* partials) const {
  for (const Partial& partial : partials_) {
    std::fill_n(partials + partial.offset, partial.count, identity(partial.follow));
  }
  std::array<const void*, kMaxOperands> in;
  std::array<void*, kMaxOperands> out;
  const int64_t end = std::min(rows_, (chunk + 1) * chunk_rows_);
  for (int64_t row = chunk * chunk_rows_; row < end; row += tile_rows_) {
    const auto place = [&](const Operand& operand) -> void* {
      void* base = nullptr;
      if (operand.place == Operand::Place::kInput) base = args.in[static_cast<size_t>(operand.index)].data;
      if (operand.place == Operand::Place::kResult) base = args.out[static_cast<size_t>(operand.index)].data;
      if (base != nullptr && operand.partial >= 0) return partials + operand.partial;
      if (base != nullptr) {
        return static_cast<std::byte*>(base) + (operand.follow == OperandMapping::kRows ? row * operand.row_bytes : 0);
      }
      return operand.tile >= 0 ? tiles + tiles_[static_cast<size_t>(operand.tile)].offset : nullptr;
    };
    for (const Step& step : steps_) {
      bool wanted = false;
      for (size_t i = 0; i < step.out.size(); ++i) wanted |= (out[i] = place(step.out[i])) != nullptr;
      if (!wanted) continue;  // an unused result of the fusion
      for (size_t i = 0; i < step.in.size(); ++i) in[i] = place(step.in[i]);
      step.kernel.run({in.data(), out.data(), row, std::min(tile_rows_, end - row), reinterpret_cast<float*>(tiles)});
    }
  }
}

// Combines the chunks' partial results in order into chunk 0's, then into the results' memory.
void RowProgram::finish_partials(const KernelArgs& args, float* partials) const {
  for (const Partial& partial : partials_) {
    const Tensor& result = args.out[static_cast<size_t>(partial.result)];
    if (result.data == nullptr) continue;
    float* total = partials + partial.offset;
    parallel_for(partial.count, std::max<int64_t>(64, 32 * 1024 / chunks_), [&](int64_t begin, int64_t end) {
      for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
        const float* other = total + chunk * partial_floats_;
        simd::for_lanes(end - begin, [&](int64_t i, auto lanes) {
          const simd::Floats a = simd::load(total + begin + i, lanes), b = simd::load(other + begin + i, lanes);
          simd::store(total + begin + i, partial.follow == OperandMapping::kSum ? a + b : simd::maximum(a, b), lanes);
        });
      }
    });
    convert(DType::kF32, total, partial.dtype, result.data, partial.count);
  }
}

void RowProgram::run(const KernelArgs& args) const {
  const int64_t partial_bytes = round_up(partial_floats_ * chunks_ * 4, kAlignment);
  const auto available = static_cast<int64_t>(args.workspace.size());
  const int64_t threads = std::min(threads_with_room("row kernels", available - partial_bytes, thread_bytes_), chunks_);
  auto* partials = reinterpret_cast<float*>(args.workspace.data());
  const auto run_share = [&](int64_t thread, int64_t sharing) {
    std::byte* tiles = args.workspace.data() + partial_bytes + thread * thread_bytes_;
    for (int64_t chunk = chunks_ * thread / sharing; chunk < chunks_ * (thread + 1) / sharing; ++chunk) {
      run_chunk(args, chunk, tiles, partials + chunk * partial_floats_);
    }
  };
  if (threads == 1) {
    run_share(0, 1);
  } else {
    parallel_threads([&](int thread, int running) {
      const int64_t sharing = std::min<int64_t>(threads, running);
      if (thread < sharing) run_share(thread, sharing);
    });
  }
  finish_partials(args, partials);
}

}  // namespace octet::cpu
