// Host tensors by the names of a graph's inputs, and the one way they get there: what an input lacks it says itself
// (attributes pad, rest and optional of op input).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"

namespace octet {

struct HostTensor {
  TensorType type;
  std::vector<std::byte> bytes;
  bool optional = false;  // graphs without such an input are run all the same (positions, of a model without any)

  template <typename T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <typename T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

struct Batch {
  std::map<std::string, HostTensor> tensors;
  int64_t target_count = 0;  // targets that count in the loss; of several losses what the workload's unit counts
  std::map<std::string, int64_t> loss_counts = {};  // of several losses, by name: the targets that count in each
  int64_t shape = 0;                                // which of the static shapes that graphs were made for

  HostTensor& add(const std::string& name, TensorType type, bool optional = false);  // zeros
  const HostTensor* find(const std::string& name) const;                             // null: none
  // int32 values of a tensor that is there.
  std::span<int32_t> ints(const std::string& name) { return tensors.at(name).values<int32_t>(); }
  std::span<const int32_t> ints(const std::string& name) const { return tensors.at(name).values<int32_t>(); }
};

// The first elements of an input, or all; of the caller's memory.
struct InputValues {
  std::string name;
  std::span<const std::byte> bytes;

  template <typename Values>
  InputValues(std::string name, const Values& values)
      : name(std::move(name)), bytes(std::as_bytes(std::span(values))) {}
};

// Writes every input of the graph; `values` that it has no input for are left. Throws kInvalidArgument naming graph and
// input where there are none for it, or too many.
void write_inputs(Executor& executor, const std::string& graph, std::span<const InputValues> values);
// Padding alone, into every input: for runs whose results nobody reads.
void pad_inputs(Executor& executor, const std::string& graph);

// Writes every input of the graph, from `batch` or from `others` (what a step adds to its batches): of a rank the part
// that it holds. Throws
// kInvalidArgument naming graph, input and both types when a tensor is missing or of another type, and when the graph
// has no input for a tensor that is not optional. A tensor is all of its input.
void write_inputs(Executor& executor, const std::string& graph, const Batch& batch, const Batch& others = {});

// `sequences` of `length` tokens, one segment each: ids (zeros), positions, segments, and targets (-1) where wanted.
Batch token_batch(int64_t sequences, int64_t length, bool targets);

}  // namespace octet
