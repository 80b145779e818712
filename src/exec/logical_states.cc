#include "exec/logical_states.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "dist/communicator.h"
#include "kernels/common/code_order.h"

namespace octet {
namespace {

// fn(offset from `offset`, offset in the state, bytes) for the runs of this part of a tensor that the executor holds.
template <typename Fn>
void for_each_part(const LogicalState& tensor, int64_t offset, int64_t bytes, const Fn& fn) {
  check(offset >= 0 && offset + bytes <= tensor.type.bytes(), ErrorCode::kInvalidArgument,
        "{} is {} = {} bytes: it has no {} bytes at {}", tensor.name, to_string(tensor.type), tensor.type.bytes(),
        bytes, offset);
  for_each_run(tensor.at, tensor.type.dtype, offset, offset + bytes,
               [&](int64_t logical, int64_t state, int64_t count) {
                 fn(static_cast<size_t>(logical - offset), state, static_cast<size_t>(count));
               });
}

using Bytes = std::vector<std::byte>;

// A run of a packet: bytes [to, to + bytes) of the part. Its place in the state stays on the rank that sends it.
struct Run {
  size_t to = 0, bytes = 0;
};

// What this rank holds of the part: the number of runs, the runs, their bytes.
Bytes pack(Executor& executor, const TensorPart& part) {
  std::vector<Run> runs;
  std::vector<int64_t> states;
  size_t bytes = 0;
  for_each_part(*part.tensor, part.offset, part.bytes, [&](size_t to, int64_t state, size_t count) {
    runs.push_back({to, count});
    states.push_back(state);
    bytes += count;
  });
  const size_t count = runs.size(), head = sizeof count + count * sizeof(Run);
  Bytes packet(head + bytes);
  std::memcpy(packet.data(), &count, sizeof count);
  std::ranges::copy(std::as_bytes(std::span(runs)), packet.begin() + sizeof count);
  std::span<std::byte> rest = std::span(packet).subspan(head);
  for (size_t i = 0; i < count;) {  // neighbours in the state are read at once
    const int64_t first = states[i];
    size_t length = 0;
    do length += runs[i++].bytes;
    while (i < count && states[i] == first + static_cast<int64_t>(length));
    executor.read_state_part(part.tensor->state, first, rest.first(length));
    rest = rest.subspan(length);
  }
  return packet;
}

void unpack(const Bytes& packet, std::span<std::byte> part) {
  if (packet.empty()) return;
  size_t count = 0;
  std::memcpy(&count, packet.data(), sizeof count);
  const std::byte* bytes = packet.data() + sizeof count + count * sizeof(Run);
  for (size_t i = 0; i < count; ++i) {
    Run run;
    std::memcpy(&run, packet.data() + sizeof count + i * sizeof run, sizeof run);
    std::memcpy(part.data() + run.to, bytes, run.bytes);
    bytes += run.bytes;
  }
}

// The order of a state's codes, or null.
const CodeOrder* order_of(const Executor& executor, const std::string& state) {
  const Node* leaf = find_leaf(executor.program(), state);
  const std::string name = leaf != nullptr ? leaf->attrs.get_or<std::string>("order", "") : "";
  return name.empty() ? nullptr : &find_code_order(name);
}

// Bytes of the state in rows, from whole blocks of its order.
void read_ordered(Executor& executor, const CodeOrder& order, const std::string& state, int64_t offset,
                  std::span<std::byte> bytes) {
  const TensorType& type = executor.program().find_state(state)->type;
  const int64_t block = storage_bytes(type.dtype, order.rows * type.shape.cols());
  const int64_t first = offset / block, last = (offset + std::ssize(bytes) + block - 1) / block;
  std::vector<std::byte> ordered(static_cast<size_t>((last - first) * block)), plain(ordered.size());
  executor.read_state_part(state, first * block, ordered);
  restore_codes(order, {type.dtype, {(last - first) * order.rows, type.shape.cols()}}, ordered, plain);
  std::copy_n(plain.begin() + (offset - first * block), bytes.size(), bytes.begin());
}

}  // namespace

void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset) {
  if (const CodeOrder* order = order_of(executor, tensor.state)) {
    return for_each_part(tensor, offset, std::ssize(bytes), [&](size_t to, int64_t state, size_t count) {
      read_ordered(executor, *order, tensor.state, state, bytes.subspan(to, count));
    });
  }
  for_each_part(tensor, offset, std::ssize(bytes), [&](size_t to, int64_t state, size_t count) {
    executor.read_state_part(tensor.state, state, bytes.subspan(to, count));
  });
}

void read_together(Executor& executor, std::span<const TensorPart> wanted, std::span<std::byte> mine) {
  Communicator* ranks = executor.ranks();
  if (ranks == nullptr) {
    if (wanted[0].tensor != nullptr) read_logical(executor, *wanted[0].tensor, mine, wanted[0].offset);
    return;
  }
  const Coordinate here = executor.coordinate();
  std::vector<Bytes> packets(wanted.size());
  for (size_t to = 0; to < wanted.size(); ++to) {
    if (wanted[to].tensor == nullptr) continue;
    const AxisSet cut = executor.program().find_state(wanted[to].tensor->state)->layout.cut_axes();
    const Coordinate there = ranks->mesh().coordinate(static_cast<int32_t>(to));
    if (std::ranges::all_of(
            kAllAxes, [&](Axis axis) { return axis == Axis::kPipeline || cut.has(axis) || here[axis] == there[axis]; }))
      packets[to] = pack(executor, wanted[to]);
  }
  const Bytes own = std::exchange(packets[static_cast<size_t>(ranks->rank())], {});
  unpack(own, mine);
  const std::vector<std::span<const std::byte>> sent(packets.begin(), packets.end());
  for (const Bytes& packet : exchange_all(*ranks, sent)) unpack(packet, mine);
}

void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes, int64_t offset) {
  constexpr int64_t kManyRuns = 64;  // are put into what lies around them, which is read and written at once
  int64_t runs = 0, first = INT64_MAX, last = 0;
  for_each_part(tensor, offset, std::ssize(bytes), [&](size_t, int64_t state, size_t count) {
    ++runs, first = std::min(first, state), last = std::max(last, state + static_cast<int64_t>(count));
  });
  if (runs >= kManyRuns) {
    std::vector<std::byte> around(static_cast<size_t>(last - first));
    executor.read_state_part(tensor.state, first, around);
    for_each_part(tensor, offset, std::ssize(bytes), [&](size_t from, int64_t state, size_t count) {
      std::ranges::copy(bytes.subspan(from, count), around.begin() + (state - first));
    });
    return executor.write_state_part(tensor.state, first, around);
  }
  for_each_part(tensor, offset, std::ssize(bytes), [&](size_t from, int64_t state, size_t count) {
    executor.write_state_part(tensor.state, state, bytes.subspan(from, count));
  });
}

void fill_logical(Executor& executor, const LogicalState& tensor, int64_t grain, Executor::MakeBytes make) {
  if (tensor.at.box().elements() == 0) return;
  constexpr int64_t kRunBytes = int64_t{1} << 20;  // of experts, from which on each goes its own way
  const PlacementRuns runs(tensor.at, tensor.type.dtype);
  const int64_t first = runs.at(0).logical, last = runs.at(runs.count() - 1).logical + runs.bytes();
  bool whole = first % grain == 0 && (runs.count() == 1 || runs.bytes() % grain == 0);
  for (int64_t run = 0; run < runs.count() && whole; ++run) whole = runs.at(run).logical == first + run * runs.bytes();
  if (whole && (runs.count() == 1 || runs.bytes() >= kRunBytes)) {
    for (int64_t run = 0; run < runs.count(); ++run) {
      const PlacementRuns::Offsets begin = runs.at(run);
      executor.fill_state_part(tensor.state, begin.state, runs.bytes(), grain,
                               [&](int64_t at, std::span<std::byte> to) { make(begin.logical + at, to); });
    }
    return;
  }
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  std::vector<std::byte> piece(
      static_cast<size_t>(std::min(tensor.type.bytes(), std::max(kPieceBytes / grain, int64_t{1}) * grain)));
  for (int64_t at = first / grain * grain; at < last; at += std::ssize(piece)) {
    const auto part =
        std::span(piece).first(static_cast<size_t>(std::min(std::ssize(piece), tensor.type.bytes() - at)));
    make(at, part);
    write_logical(executor, tensor, part, at);
  }
}

void finish_filling(Executor& executor) {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  for (const StateEntry& entry : executor.program().states()) {
    const CodeOrder* order = entry.role == StateRole::kCodes ? order_of(executor, entry.name) : nullptr;
    if (order == nullptr) continue;
    const int64_t cols = entry.type.shape.cols(), block = storage_bytes(order->codes, order->rows * cols);
    const int64_t piece = std::max(kPieceBytes / block, int64_t{1}) * block, bytes = entry.type.bytes();
    std::vector<std::byte> plain(static_cast<size_t>(std::min(piece, bytes))), ordered(plain.size());
    for (int64_t at = 0; at < bytes; at += piece) {
      const int64_t length = std::min(piece, bytes - at);
      const auto from = std::span(plain).first(static_cast<size_t>(length));
      const auto to = std::span(ordered).first(static_cast<size_t>(length));
      executor.read_state_part(entry.name, at, from);
      arrange_codes(*order, {order->codes, {length / block * order->rows, cols}}, from, to);
      executor.write_state_part(entry.name, at, to);
    }
  }
  executor.prepare();
}

void encode_for_order(std::string_view order, std::span<std::byte> codes) {
  if (order.empty() || !find_code_order(order).zigzag) return;
  for (std::byte& two : codes) {
    const auto value = static_cast<uint32_t>(two);
    two = static_cast<std::byte>(zigzag(value & 0xf) | zigzag(value >> 4) << 4);
  }
}

std::vector<QuantizedParam> quantized_params(const Program& program) {
  std::vector<QuantizedParam> params;
  std::map<StateRole, std::map<std::string, LogicalState>> beside;  // by param
  for (LogicalState& state : logical_states(program)) {
    if (state.role == StateRole::kScaleInv || state.role == StateRole::kZero || state.role == StateRole::kColumns) {
      beside[state.role][state.param] = std::move(state);
      continue;
    }
    if (state.role != StateRole::kCodes) continue;
    if (program.find_state(state.param, StateRole::kMagnitudes) != nullptr) continue;
    const Node* leaf = find_leaf(program, state.state);
    check(leaf != nullptr, ErrorCode::kInternal, "no graph of program '{}' reads {}", program.name, state.state);
    const Attrs& attrs = leaf->attrs;
    QuantizedParam& param = params.emplace_back();
    param.param = state.param;
    param.rule = {.layout = parse_scale_layout(attrs.get<std::string>("scaling")),
                  .format = state.type.dtype,
                  .margin = attrs.get<int64_t>("margin"),
                  .power_of_two = attrs.get<bool>("pow2")};
    param.leaf = leaf;
    param.codes = std::move(state);
  }
  for (QuantizedParam& param : params) {
    const auto find = [&](StateRole role) -> std::optional<LogicalState> {
      const auto found = beside[role].find(param.param);
      return found == beside[role].end() ? std::nullopt : std::optional(found->second);
    };
    const std::optional<LogicalState> scales = find(StateRole::kScaleInv);
    check(scales.has_value(), ErrorCode::kInternal, "{} has no scales", param.codes.name);
    param.scale_inv = *scales;
    param.zero = find(StateRole::kZero);
    param.columns = find(StateRole::kColumns);
  }
  return params;
}

std::vector<Nf4Param> nf4_params(const Program& program) {
  std::vector<Nf4Param> params;
  for (LogicalState& state : logical_states(program)) {
    if (state.role != StateRole::kMagnitudes || program.find_state(state.state)->slots == 0) continue;
    const auto beside = [&](StateRole role) { return find_logical_state(program, state.param, role); };
    params.push_back({.param = state.param,
                      .codes = beside(StateRole::kCodes),
                      .scales = beside(StateRole::kMagnitudeScales),
                      .offsets = beside(StateRole::kMagnitudeOffsets)});
    params.back().leaf = find_leaf(program, params.back().codes.state);
    params.back().magnitudes = std::move(state);
  }
  return params;
}

void write_scales(Executor& executor, const QuantizedParam& param, std::vector<float> scale_inv) {
  if (scale_inv.size() == 1) scale_inv.resize(static_cast<size_t>(param.scale_inv.type.shape.elements()), scale_inv[0]);
  write_logical(executor, param.scale_inv, std::as_bytes(std::span(scale_inv)));
}

void write_quantized(Executor& executor, const QuantizedParam& param, std::span<const float> values) {
  QuantizedMatrix matrix = quantize_matrix(values, param.rows(), param.cols(), param.rule);
  write_logical(executor, param.codes, matrix.codes);
  write_scales(executor, param, std::move(matrix.scale_inv));
}

}  // namespace octet
