#include "eval/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "eval/verify_values.h"
#include "exec/batch.h"
#include "ir/rewrite.h"
#include "kernels/common/sampling.h"
#include "passes/serving_graphs.h"
#include "weights/adapter_folder.h"
#include "weights/weights.h"

namespace octet {

std::vector<int32_t> id_tensor(const TensorSource& source, const std::string& name, int64_t vocab_size) {
  TensorView view = source.read(name);
  std::vector<int32_t> ids(static_cast<size_t>(view.type.shape.elements()));
  for (size_t i = 0; i < ids.size(); ++i) {
    double value = load_element(view.type.dtype, view.bytes.data(), static_cast<int64_t>(i));
    check(value >= 0 && value < static_cast<double>(vocab_size), ErrorCode::kCorrupt,
          "{}: id {} at {} is outside the vocabulary of {}", name, value, i, vocab_size);
    ids[i] = static_cast<int32_t>(value);
  }
  return ids;
}

VerifyReport compare_values(std::span<const float> logits, std::span<const float> wanted) {
  VerifyReport report;
  report.logits = static_cast<int64_t>(logits.size());
  double difference = 0, size = 0;  // squares
  for (size_t i = 0; i < logits.size(); ++i) {
    double error = std::abs(static_cast<double>(logits[i]) - static_cast<double>(wanted[i]));
    if (std::isnan(error)) error = INFINITY;
    report.max_logit_error = std::max(report.max_logit_error, error);
    report.mean_logit_error += error / static_cast<double>(logits.size());
    difference += error * error;
    size += static_cast<double>(wanted[i]) * static_cast<double>(wanted[i]);
  }
  report.relative_error = difference > 0 ? std::sqrt(difference / size) : 0;
  return report;
}

namespace {

// Ids from the vocabulary's size on are rows of "prompt.weight" [count, hidden].
Graph with_virtual_tokens(Graph graph, int64_t count) {
  if (count == 0) return graph;
  rewrite(graph, [&](Rewriter& rewriter, NodeId id) {
    const Graph& old = rewriter.old_graph();
    const Node& node = old.node(id);
    if (node.op != Op::kEmbedding || old.node(node.inputs[1]).name != "embed.weight") return false;
    Builder& b = rewriter.builder();
    const Value prompt = b.param("prompt.weight", {count, old.shape(node.inputs[1])[1]});
    const Value table = b.concat({rewriter.map(node.inputs[1]), prompt}, 0);
    rewriter.set({id, 0}, b.embedding(rewriter.map(node.inputs[0]), table));
    return true;
  });
  return graph;
}

// Behind `virtual_tokens` ids in front of each of the sequences.
std::vector<int32_t> behind_virtual(std::span<const int32_t> ids, int64_t sequences, int64_t virtual_tokens,
                                    int64_t vocab) {
  std::vector<int32_t> all;
  const size_t length = ids.size() / static_cast<size_t>(sequences);
  for (size_t s = 0; s < static_cast<size_t>(sequences); ++s) {
    for (int64_t i = 0; i < virtual_tokens; ++i) all.push_back(static_cast<int32_t>(vocab + i));
    all.insert(all.end(), ids.begin() + static_cast<ptrdiff_t>(s * length),
               ids.begin() + static_cast<ptrdiff_t>((s + 1) * length));
  }
  return all;
}

// All logits of B sequences of S tokens, packed into one run.
std::vector<float> packed_logits(const WeightSource& weights, const ModelConfig& model,
                                 const std::vector<int32_t>& real_ids, int64_t sequences, int64_t virtual_tokens,
                                 const CompileOptions& options) {
  const std::vector<int32_t> ids = behind_virtual(real_ids, sequences, virtual_tokens, model.vocab_size);
  auto tokens = static_cast<int64_t>(ids.size());
  int64_t length = tokens / sequences;
  Graph graph("logits");
  Builder builder(graph);
  BatchShape shape{.tokens = tokens, .max_segments = sequences, .max_length = length, .equal_length = length};
  builder.output("logits", build_logits(builder, model, shape));
  const auto executor = load_graph(with_virtual_tokens(std::move(graph), virtual_tokens), options, weights);
  Batch batch = token_batch(sequences, length, /*targets=*/false);
  std::copy(ids.begin(), ids.end(), batch.ints("ids").begin());
  write_inputs(*executor, "logits", batch);
  executor->run("logits");
  const Graph& planned = executor->program().graph("logits");
  std::vector<float> logits(static_cast<size_t>(tokens * model.vocab_size));
  convert(planned.dtype(planned.output("logits")), executor->output("logits", "logits").data(), DType::kF32,
          logits.data(), tokens * model.vocab_size);
  if (virtual_tokens == 0) return logits;
  std::vector<float> of_real;
  for (int64_t s = 0; s < sequences; ++s)
    of_real.insert(of_real.end(), logits.begin() + (s * length + virtual_tokens) * model.vocab_size,
                   logits.begin() + (s + 1) * length * model.vocab_size);
  return of_real;
}

void compare_greedy(const WeightSource& weights, const ModelConfig& model, const std::vector<int32_t>& ids,
                    int64_t prompt_tokens, int64_t virtual_tokens, const CompileOptions& options,
                    VerifyReport& report) {
  IncrementalModel decoder(model, {.recipe = options.recipe,
                                   .target = options.target,
                                   .max_length = static_cast<int64_t>(ids.size()) + virtual_tokens,
                                   .virtual_tokens = virtual_tokens});
  load_weights(weights, decoder.executor());
  const auto prompt = std::span<const int32_t>(ids).first(static_cast<size_t>(prompt_tokens));
  std::span<const float> logits = decoder.append(behind_virtual(prompt, 1, virtual_tokens, model.vocab_size));
  for (auto i = static_cast<size_t>(prompt_tokens); i < ids.size(); ++i) {
    const int32_t id = largest_logit(logits);
    check(id >= 0, ErrorCode::kCorrupt,
          "verify: none of {} logits is finite: check that the weights and config.json belong together", logits.size());
    report.greedy_tokens += 1;
    report.greedy_equal += id == ids[i];
    const double gap = logits[static_cast<size_t>(id)] - logits[static_cast<size_t>(ids[i])];
    report.greedy_gap = std::max(report.greedy_gap, std::isnan(gap) ? INFINITY : gap);
    if (i + 1 < ids.size()) logits = decoder.append({&ids[i], 1});
  }
}

constexpr const char* kPrefill = "prefill";
constexpr const char* kDecode = "decode";

Graph decoding_graph(Program& program, const std::string& name, const ModelConfig& model, int64_t tokens,
                     int64_t virtual_tokens, KvCacheOptions cache) {
  Graph graph(name, GraphRole::kForward);
  Builder builder(graph);
  BatchShape shape{.tokens = tokens, .max_segments = 1, .max_length = tokens};
  builder.output("logits", build_logits(builder, model, shape));
  graph = with_virtual_tokens(std::move(graph), virtual_tokens);
  cache.blocks.assign(attention_windows(graph).size(), cache.blocks_per_sequence);
  return add_kv_cache(program, graph, cache);
}

}  // namespace

LogitTolerance logit_tolerance(const Recipe& recipe) {
  if (recipe.name == "fp32") return {};
  // An operand is rounded by at most 2^-11 of itself in TF32, 2^-9 in bf16, 1/254 of its row's largest in int8, 1/16 in
  // E4M3.
  const double largest = recipe.tf32 ? 0.01 : recipe.name == "bf16" ? 0.05 : recipe.name == "int8" ? 0.1 : 0.25;
  return {.largest = largest, .relative = true};
}

bool VerifyReport::passed(const LogitTolerance& tolerance) const {
  // Where the expected logits say "largest", ours, off by an error each at most, fall short of it by two.
  if (tolerance.relative) return relative_error <= tolerance.largest && greedy_gap <= 2 * max_logit_error;
  return max_logit_error <= tolerance.largest && greedy_equal == greedy_tokens;
}

VerifyReport verify_inference(const std::string& folder, const Recipe& recipe, const Target& target,
                              int64_t prompt_tokens, const std::string& base) {
  std::unique_ptr<WeightSource> weights;
  int64_t virtual_tokens = 0;
  if (is_adapter_folder(folder)) {
    weights = open_weights(base.empty() ? adapter_base(folder) : base);
    Adapter adapter = read_adapter(folder, weights->config());
    virtual_tokens = adapter.spec.virtual_tokens;
    weights = merge_adapter(std::move(weights), std::move(adapter));
  } else {
    if (has_encoded_outputs(folder)) return verify_encoder(folder, recipe, target);
    weights = open_weights(folder);
  }
  auto expected = open_safetensors(folder + "/expected.safetensors");
  int64_t vocab = weights->config().vocab_size;
  const TensorType* id_type = expected->find_type("input_ids");
  check(id_type != nullptr && id_type->shape.rank() == 2, ErrorCode::kCorrupt,
        "{}/expected.safetensors: want input_ids [sequences, tokens]", folder);
  CompileOptions options{.target = target, .recipe = recipe};
  std::vector<int32_t> ids = id_tensor(*expected, "input_ids", vocab);
  std::vector<float> wanted = floats_of(expected->read("logits"));
  check(static_cast<int64_t>(wanted.size()) == static_cast<int64_t>(ids.size()) * vocab, ErrorCode::kCorrupt,
        "{}/expected.safetensors: {} logits for {} ids and a vocabulary of {}", folder, wanted.size(), ids.size(),
        vocab);
  ModelConfig model = weights->config();
  auto compare = [&](const ModelConfig& config) {
    return compare_values(packed_logits(*weights, config, ids, id_type->shape[0], virtual_tokens, options), wanted);
  };
  VerifyReport report = compare(model);
  if (const auto eager = eager_reference(model)) {
    VerifyReport other = compare(*eager);
    other.eager_reference = true;
    if (other.max_logit_error < report.max_logit_error) report = other, model = *eager;
  }
  report.compared = {report.worst = "logits"};
  if (expected->find_type("greedy_ids") != nullptr) {
    std::vector<int32_t> greedy = id_tensor(*expected, "greedy_ids", vocab);
    check(static_cast<int64_t>(greedy.size()) > prompt_tokens && prompt_tokens > 0, ErrorCode::kInvalidArgument,
          "greedy_ids holds {} tokens, {} of them prompt", greedy.size(), prompt_tokens);
    compare_greedy(*weights, model, greedy, prompt_tokens, virtual_tokens, options, report);
  }
  return report;
}

IncrementalModel::IncrementalModel(const ModelConfig& model, const IncrementalModelOptions& options) : model_(model) {
  max_length_ = options.max_length > 0 ? options.max_length : model.max_positions;
  check(model.length_limit() == 0 || max_length_ <= model.length_limit(), ErrorCode::kInvalidArgument,
        "length {} exceeds the model's {} positions", max_length_, model.max_positions);
  chunk_ = std::min(options.prefill_chunk, max_length_), ids_ = model.vocab_size + options.virtual_tokens;
  int64_t blocks = (max_length_ + block_size_ - 1) / block_size_;
  KvCacheOptions cache{.block_size = block_size_,
                       .blocks_per_sequence = blocks,
                       .cache_dtype = options.cache_dtype,
                       .scales = options.cache_scales};
  Program program;
  program.name = "decoder";
  program.add_graph(decoding_graph(program, kPrefill, model, chunk_, options.virtual_tokens, cache));
  program.add_graph(decoding_graph(program, kDecode, model, 1, options.virtual_tokens, cache));
  CompileOptions compile_options{.target = options.target, .recipe = options.recipe};
  executor_ = make_executor(compile(std::move(program), compile_options));
  while (executor_->program().graph(kDecode).find_leaf(Op::kInput, group_input("slots", groups_)).exists()) ++groups_;
}

void IncrementalModel::run(const std::string& graph, std::span<const int32_t> ids) {
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<int32_t> places(ids.size()), blocks(static_cast<size_t>((max_length_ + block_size_ - 1) / block_size_));
  std::iota(places.begin(), places.end(), static_cast<int32_t>(length_));  // of tokens and of their slots
  std::iota(blocks.begin(), blocks.end(), 0);
  length_ += count;
  const std::array segments = {0, count};
  const std::array length = {static_cast<int32_t>(length_)}, last = {count - 1};
  std::vector<InputValues> values = {
      {"ids", ids}, {"positions", places}, {"segments", segments}, {"kv_lengths", length}, {"logit_rows", last}};
  for (size_t g = 0; g < groups_; ++g) {
    values.emplace_back(group_input("slots", g), places);
    values.emplace_back(group_input("block_table", g), blocks);
  }
  write_inputs(*executor_, graph, values);
  executor_->run(graph);
}

std::span<const float> IncrementalModel::append(std::span<const int32_t> ids) {
  check(!ids.empty(), ErrorCode::kInvalidArgument, "decoder: no tokens given");
  check(length_ + static_cast<int64_t>(ids.size()) <= max_length_, ErrorCode::kInvalidArgument,
        "decoder: {} tokens after {} exceed the length of {}", ids.size(), length_, max_length_);
  for (int32_t id : ids)
    check(id >= 0 && id < ids_, ErrorCode::kInvalidArgument, "token id {} is outside the vocabulary of {}", id, ids_);
  const char* last = kDecode;
  while (!ids.empty()) {
    last = ids.size() == 1 ? kDecode : kPrefill;
    auto part = ids.first(std::min(ids.size(), static_cast<size_t>(ids.size() == 1 ? 1 : chunk_)));
    run(last, part);
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
