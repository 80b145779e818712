#include "eval/incremental_model.h"

#include <algorithm>

#include "base/error.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

constexpr const char* kPrefill = "prefill";
constexpr const char* kDecode = "decode";

Graph decoding_graph(Program& program, const std::string& name, const ModelConfig& model, int64_t tokens,
                     KvCacheOptions cache) {
  Graph graph(name, GraphRole::kForward);
  Builder builder(graph);
  BatchShape shape{.tokens = tokens, .max_segments = 1, .max_length = tokens};
  builder.output("logits", build_logits(builder, model, shape));
  cache.blocks.assign(attention_windows(graph).size(), cache.blocks_per_sequence);
  return add_kv_cache(program, graph, cache);
}

}  // namespace

IncrementalModel::IncrementalModel(const ModelConfig& model, const IncrementalModelOptions& options) : model_(model) {
  max_length_ = options.max_length > 0 ? options.max_length : model.max_positions;
  check(model.length_limit() == 0 || max_length_ <= model.length_limit(), ErrorCode::kInvalidArgument,
        "length {} exceeds the model's {} positions", max_length_, model.max_positions);
  chunk_ = std::min(options.prefill_chunk, max_length_);
  int64_t blocks = (max_length_ + block_size_ - 1) / block_size_;
  KvCacheOptions cache{.block_size = block_size_,
                       .blocks_per_sequence = blocks,
                       .cache_dtype = options.cache_dtype,
                       .scales = options.cache_scales};
  Program program;
  program.name = "decoder";
  program.add_graph(decoding_graph(program, kPrefill, model, chunk_, cache));
  program.add_graph(decoding_graph(program, kDecode, model, 1, cache));
  CompileOptions compile_options{.target = options.target, .recipe = options.recipe};
  executor_ = make_executor(compile(std::move(program), compile_options));
  while (executor_->program().graph(kDecode).find_leaf(Op::kInput, group_input("slots", groups_)).exists()) ++groups_;
  for (const char* graph : {kPrefill, kDecode}) {
    for (size_t g = 0; g < groups_; ++g) {
      auto table = input_as<int32_t>(*executor_, graph, group_input("block_table", g));
      for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    }
  }
}

void IncrementalModel::run(const std::string& graph, int64_t graph_tokens, std::span<const int32_t> ids) {
  auto id_in = input_as<int32_t>(*executor_, graph, "ids");
  auto positions = input_as<int32_t>(*executor_, graph, "positions");
  auto count = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < graph_tokens; ++i) {  // padding rows write nowhere
    auto at = static_cast<size_t>(i);
    bool real = i < count;
    id_in[at] = real ? ids[at] : 0;
    positions[at] = real ? static_cast<int32_t>(length_ + i) : 0;
  }
  for (size_t g = 0; g < groups_; ++g) {
    auto slots = input_as<int32_t>(*executor_, graph, group_input("slots", g));
    for (int64_t i = 0; i < graph_tokens; ++i)
      slots[static_cast<size_t>(i)] = i < count ? static_cast<int32_t>(length_ + i) : -1;
  }
  auto segments = input_as<int32_t>(*executor_, graph, "segments");
  segments[0] = 0;
  segments[1] = static_cast<int32_t>(count);
  length_ += count;
  input_as<int32_t>(*executor_, graph, "kv_lengths")[0] = static_cast<int32_t>(length_);
  input_as<int32_t>(*executor_, graph, "logit_rows")[0] = static_cast<int32_t>(count - 1);
  executor_->run(graph);
}

std::span<const float> IncrementalModel::append(std::span<const int32_t> ids) {
  check(!ids.empty(), ErrorCode::kInvalidArgument, "decoder: no tokens given");
  check(length_ + static_cast<int64_t>(ids.size()) <= max_length_, ErrorCode::kInvalidArgument,
        "decoder: {} tokens after {} exceed the length of {}", ids.size(), length_, max_length_);
  for (int32_t id : ids)
    check(id >= 0 && id < model_.vocab_size, ErrorCode::kInvalidArgument, "token id {} is outside the vocabulary of {}",
          id, model_.vocab_size);
  const char* last = kDecode;
  while (!ids.empty()) {
    last = ids.size() == 1 ? kDecode : kPrefill;
    auto part = ids.first(std::min(ids.size(), static_cast<size_t>(ids.size() == 1 ? 1 : chunk_)));
    run(last, ids.size() == 1 ? 1 : chunk_, part);
    ids = ids.subspan(part.size());
  }
  auto bytes = executor_->output(last, "logits");
  const Graph& graph = executor_->program().graph(last);
  DType dtype = graph.dtype(graph.output("logits"));
  logits_.resize(static_cast<size_t>(model_.vocab_size));
  convert(dtype, bytes.data(), DType::kF32, logits_.data(), model_.vocab_size);
  return logits_;
}

}  // namespace octet
