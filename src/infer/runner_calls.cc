#include "infer/runner_calls.h"

#include <array>
#include <cstring>

#include "base/error.h"

namespace octet {
namespace {

enum class Call : uint8_t { kCopyBlocks, kForward, kSample, kWait, kWriteStates };

// The fields in their order, for Writer and Reader.
template <typename Io, typename Input>
void visit_forward(Io& io, Input& input) {
  io.list(input.ids), io.list(input.positions), io.list(input.from), io.list(input.segments);
  io.list(input.kv_lengths), io.list(input.logit_rows);
  io.structs(input.groups, [&](auto& group) { io.list(group.slots), io.list(group.table); });
  io.value(input.decode_only), io.list(input.adapters), io.list(input.virtual_rows);
}

template <typename Io, typename Input>
void visit_sample(Io& io, Input& input) {
  io.list(input.params), io.list(input.top_k), io.list(input.seeds), io.list(input.store);
  io.list(input.entries), io.list(input.values), io.list(input.masks), io.list(input.mask_rows);
  io.value(input.top_logprobs);
}

// Values as they lie in memory, a list behind its length.
class Writer {
 public:
  explicit Writer(Call call) { value(call); }

  template <typename T>
  void value(const T& value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  template <typename List>
  void list(const List& values) {
    value(values.size());
    append(std::as_bytes(std::span(values)));
  }
  template <typename T, typename Visit>
  void structs(const std::vector<T>& values, const Visit& visit) {
    value(values.size());
    for (const T& each : values) visit(each);
  }
  CallBytes take() { return std::move(bytes_); }

 private:
  void append(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  CallBytes bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  void value(T& value) {
    std::memcpy(&value, take(sizeof value), sizeof value);
  }
  template <typename T>
  void list(std::vector<T>& values) {
    const size_t count = length(sizeof(T));
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), take(count * sizeof(T)), count * sizeof(T));
  }
  template <typename T, typename Visit>
  void structs(std::vector<T>& values, const Visit& visit) {
    values.resize(length(1));
    for (T& each : values) visit(each);
  }
  void finish() const { check(rest_.empty(), ErrorCode::kInternal, "a runner's call has {} bytes left", rest_.size()); }

 private:
  size_t length(size_t each) {
    size_t count = 0;
    value(count);
    check(count <= rest_.size() / each, ErrorCode::kInternal, "a runner's call of {} bytes has a list of {}",
          rest_.size(), count);
    return count;
  }
  const std::byte* take(size_t bytes) {
    check(bytes <= rest_.size(), ErrorCode::kInternal, "a runner's call ends {} bytes early", bytes - rest_.size());
    const std::byte* at = rest_.data();
    rest_ = rest_.subspan(bytes);
    return at;
  }
  std::span<const std::byte> rest_;
};

}  // namespace

CallBytes copy_blocks_call(std::span<const BlockCopy> copies) {
  Writer writer(Call::kCopyBlocks);
  writer.list(copies);
  return writer.take();
}

CallBytes forward_call(const StepInput& input) {
  Writer writer(Call::kForward);
  visit_forward(writer, input);
  return writer.take();
}

CallBytes sample_call(const SampleInput& input) {
  Writer writer(Call::kSample);
  visit_sample(writer, input);
  return writer.take();
}

CallBytes write_states_call(std::span<const StatePart> parts) {
  Writer writer(Call::kWriteStates);
  writer.value(parts.size());
  for (const StatePart& part : parts) writer.list(*part.state), writer.value(part.offset), writer.list(part.bytes);
  return writer.take();
}

CallBytes wait_call() { return Writer(Call::kWait).take(); }

const char* call_name(std::span<const std::byte> call) {
  constexpr std::array kNames = {"copy_blocks", "forward", "sample", "wait", "write_states"};  // as Call
  check(!call.empty() && static_cast<size_t>(call[0]) < kNames.size(), ErrorCode::kInternal,
        "a runner's call of {} bytes has no kind", call.size());
  return kNames[static_cast<size_t>(call[0])];
}

void make_call(Runner& runner, std::span<const std::byte> call) {
  Reader reader(call);
  Call kind = {};
  reader.value(kind);
  switch (kind) {
    case Call::kCopyBlocks: {
      std::vector<BlockCopy> copies;
      reader.list(copies);
      reader.finish();
      return runner.copy_blocks(copies);
    }
    case Call::kForward: {
      StepInput input;
      visit_forward(reader, input);
      reader.finish();
      return runner.forward(input);
    }
    case Call::kSample: {
      SampleInput input;
      visit_sample(reader, input);
      reader.finish();
      return runner.sample(input);
    }
    case Call::kWait: {
      reader.finish();
      runner.wait();
      return;
    }
    case Call::kWriteStates: {
      struct Part {
        std::vector<char> state;
        int64_t offset = 0;
        std::vector<std::byte> bytes;
      };
      std::vector<Part> read;
      reader.structs(read,
                     [&](Part& part) { reader.list(part.state), reader.value(part.offset), reader.list(part.bytes); });
      reader.finish();
      std::vector<std::string> names;
      for (const Part& part : read) names.emplace_back(part.state.begin(), part.state.end());
      std::vector<StatePart> parts;
      for (size_t i = 0; i < read.size(); ++i) parts.push_back({&names[i], read[i].offset, read[i].bytes});
      return runner.write_states(parts);
    }
  }
  fail(ErrorCode::kInternal, "a runner's call has the unknown kind {}", static_cast<int>(kind));
}

}  // namespace octet
