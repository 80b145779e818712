// Hugging Face folders: config.json to and from ModelConfig, and which checkpoint tensor holds which parameters.
//
// A checkpoint tensor holds one parameter or several along their output dimension: stacked (GPT-2's c_attn = q, k, v)
// or in groups (GPT-NeoX: q, k, v of head 0, then of head 1), possibly stored transposed ([in, out], GPT-2's Conv1D).
// Parameters here are always [out, in]. The weights of all experts are one parameter, of which a tensor has one expert.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace octet {

struct CheckpointTensor {
  std::string name;                 // "transformer.h.0.attn.c_attn.weight"
  bool transposed = false;          // stored [in, out]
  std::vector<std::string> params;  // along the output (first) dimension, in this order
  int64_t groups = 1;               // each has some rows of every parameter
  std::vector<int64_t> rows = {};   // of each parameter in a group; empty with one parameter
  int64_t part = 0, parts = 1;      // it has the part-th of as many equal parts of its parameter's rows: an expert
};

// Where the rows of parameter i lie in a tensor of `elements` (weights as [out, in], biases, scales of rows or of whole
// blocks of rows): fn(offset in the tensor, offset in the parameter, elements) for every group.
template <typename Fn>
void for_each_piece(const CheckpointTensor& tensor, int64_t elements, size_t i, const Fn& fn) {
  if (tensor.params.size() == 1) return fn(int64_t{0}, int64_t{0}, elements);
  int64_t group_rows = 0, before = 0;
  for (size_t p = 0; p < tensor.rows.size(); ++p) {
    if (p == i) before = group_rows;
    group_rows += tensor.rows[p];
  }
  const auto elements_of = [&](int64_t rows) { return rows * elements / (group_rows * tensor.groups); };
  const int64_t piece = elements_of(tensor.rows[i]);
  for (int64_t g = 0; g < tensor.groups; ++g) fn(elements_of(g * group_rows + before), g * piece, piece);
}

// Every parameter of the model appears in exactly one tensor, or its parts do, in their order.
std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config);

// The tensor of the output head, whether or not it is tied to the embedding.
std::string head_tensor(const ModelConfig& config);
std::string embedding_tensor(const ModelConfig& config);

// Names a checkpoint may also hold that are not parameters ("attn.bias" causal masks, rotary inv_freq).
bool is_ignored_tensor(const ModelConfig& config, const std::string& name);

// The name without an optional "transformer." / "model." prefix, for folders written without it.
std::string canonical_tensor_name(const ModelConfig& config, const std::string& name);

// Throws kUnsupported naming model_type, or the field whose value Octet cannot run (an activation, a rope type).
ModelConfig parse_hugging_face_config(const std::string& json_text, const std::string& where);

// The model that transformers' eager attention computes where it differs from the trained one (Family::eager of
// families/falcon.cc and mpt.cc says how); else nothing. Expected outputs are often written with it.
std::optional<ModelConfig> eager_reference(const ModelConfig& config);

// Token ids that config.json or generation_config.json names; -1 where it does not.
struct SpecialTokens {
  int64_t bos = -1;
  std::vector<int64_t> eos = {};  // each ends a text
  int64_t pad = -1;
  void add_ends(const std::vector<int64_t>& more);  // those it lacks
};
SpecialTokens parse_special_tokens(const std::string& json_text, const std::string& where);

std::string to_hugging_face_config(const ModelConfig& config, const SpecialTokens& special, const std::string& dtype);

}  // namespace octet
