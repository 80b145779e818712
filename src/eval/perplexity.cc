#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "exec/rank_devices.h"
#include "model/hugging_face.h"
#include "passes/serving_graphs.h"

namespace octet {

double PerplexityResult::loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0.0; }
double PerplexityResult::perplexity() const { return std::exp(loss()); }
double PerplexityResult::bits_per_byte() const {
  return bytes > 0 ? loss_sum / std::numbers::ln2 / static_cast<double>(bytes) : 0.0;
}

void EvalTokens::read(int64_t first, std::span<int32_t> out) const {
  if (set) return set->read(first, out);
  std::copy_n(ids.begin() + static_cast<ptrdiff_t>(first), out.size(), out.begin());
}

int64_t tokens_needed(const PerplexityOptions& options) {
  constexpr int64_t kMax = int64_t{1} << 40;
  if (options.max_tokens == 0 || options.max_tokens > kMax || options.length > kMax) return 0;
  const int64_t windows = std::min(options.windows, options.max_tokens / options.length + 1);
  return options.max_tokens + (windows + 1) * options.length + 1;
}

namespace {

// The graph of `windows` whole windows through caches that hold them and nothing else, and the inputs of the caches.
Program cached_program(const Graph& graph, const PerplexityOptions& options, const WeightSource& weights,
                       Batch& inputs) {
  const size_t groups = attention_windows(graph).size();
  constexpr int64_t kBlock = 16;
  const int64_t blocks = (options.length + kBlock - 1) / kBlock, tokens = options.windows * options.length;
  Program program;
  program.name = graph.name();
  program.add_graph(add_kv_cache(program, graph,
                                 {.blocks = std::vector<int64_t>(groups, options.windows * blocks),
                                  .block_size = kBlock,
                                  .sequences = options.windows,
                                  .blocks_per_sequence = blocks,
                                  .logit_rows = tokens,
                                  .cache_dtype = *options.cache,
                                  .scales = is_fp8(*options.cache) && weights.has_kv_scales()}));
  const auto add = [&](const std::string& name, Shape shape) {
    return inputs.add(name, {DType::kI32, std::move(shape)}).values<int32_t>();
  };
  std::ranges::fill(add("kv_lengths", {options.windows}), static_cast<int32_t>(options.length));
  const auto rows = add("logit_rows", {tokens});
  std::iota(rows.begin(), rows.end(), 0);
  for (size_t g = 0; g < groups; ++g) {
    std::ranges::transform(rows, add(group_input("slots", g), {tokens}).begin(), [&](int32_t t) {
      return static_cast<int32_t>(t / options.length * blocks * kBlock + t % options.length);
    });
    const auto table = add(group_input("block_table", g), {options.windows, blocks});
    std::iota(table.begin(), table.end(), 0);
  }
  return program;
}

}  // namespace

PerplexityEvaluator::PerplexityEvaluator(const WeightSource& weights, const PerplexityOptions& options,
                                         const LocalRank& rank)
    : options_(options), vocab_size_(weights.config().vocab_size) {
  const ModelConfig& model = weights.config();
  if (options_.length == 0) options_.length = model.max_positions;
  if (options_.stride == 0) options_.stride = options_.length;
  check(options_.stride > 0 && options_.stride <= options_.length, ErrorCode::kInvalidArgument,
        "stride {} must lie between 1 and the window length {}", options_.stride, options_.length);
  const bool separate = options_.separate_documents;
  check(!separate || !options_.cache, ErrorCode::kUnsupported,
        "with a KV cache the documents of a window attend to each other: leave out --kv-cache or --separate-documents");
  const int64_t tokens = options_.windows * options_.length;
  Graph graph(GraphRole::kEval);
  Builder builder(graph);
  build_loss(builder, model,
             {.tokens = tokens,
              .max_segments = separate ? tokens : options_.windows,
              .max_length = options_.length,
              .equal_length = separate ? 0 : options_.length});
  CompileOptions compiled{.target = options_.target, .recipe = options_.recipe};
  compiled.parallel.mesh[Axis::kTensor] = static_cast<int32_t>(options_.tensor);
  const CudaOptions cuda{.device = rank.device, .ranks = rank.devices};
  executor_ = options_.cache ? load_program(cached_program(graph, options_, weights, cache_inputs_), compiled, weights,
                                            cuda, rank.ranks)
                             : load_graph(std::move(graph), compiled, weights, cuda, rank.ranks);
}

PerplexityResult PerplexityEvaluator::run(const EvalTokens& tokens, const Tokenizer* tokenizer,
                                          const std::function<void(int64_t)>& on_progress) {
  const int64_t count = tokens.count(), length = options_.length;
  check(count >= 2, ErrorCode::kInvalidArgument, "{} tokens: at least 2 are needed for a loss", count);
  const bool packed = tokens.set && tokens.set->is_packed();  // its windows are its rows
  check(!packed || (options_.separate_documents && options_.stride == length), ErrorCode::kInvalidArgument,
        "{} has rows of whole conversations, which do not see each other: leave out --stride and --joined-documents",
        tokens.set ? tokens.set->prefix() : "");
  check(!packed || tokens.set->row_length() <= length, ErrorCode::kInvalidArgument,
        "{} has rows of up to {} tokens: set --length to at least that (here {})",
        tokens.set ? tokens.set->prefix() : "", packed ? tokens.set->row_length() : 0, length);
  int64_t row = 0;
  PerplexityResult result;
  std::vector<int32_t> window;
  std::vector<uint8_t> counts;
  int64_t first = 0, counted_to = 0;  // targets up to it are done
  while (counted_to < count && (options_.max_tokens == 0 || result.tokens < options_.max_tokens)) {
    Batch batch = token_batch(options_.windows, length, /*targets=*/true);
    const auto ids = batch.ints("ids"), targets = batch.ints("targets"), positions = batch.ints("positions");
    std::vector<int32_t> starts;  // of segments, with separate documents
    for (int64_t w = 0; w < options_.windows && counted_to < count; ++w) {
      int32_t head = -1;
      tokens.read(first, std::span(&head, 1));
      const int64_t put = !packed && tokens.begin_id >= 0 && head != tokens.begin_id;  // a begin token in front
      const int64_t inputs =
          packed ? tokens.set->row_begin(++row) - first - 1 : std::min(length, count - 1 - first + put);
      window.assign(static_cast<size_t>(inputs + 1), tokens.begin_id);
      tokens.read(first, std::span(window).subspan(static_cast<size_t>(put)));
      counts.assign(window.size(), 1);
      if (tokens.set) tokens.set->read_counts(first, counts);
      starts.push_back(static_cast<int32_t>(w * length));
      int64_t document = 0, start = 0;  // of the input
      const auto document_end = [&] { return tokens.set->document_begin(document + 1) - first; };
      if (options_.separate_documents) document = tokens.set->document_at(first);
      for (int64_t i = 0; i < inputs; ++i) {
        int32_t id = window[static_cast<size_t>(i)], target = window[static_cast<size_t>(i + 1)];
        check(id >= 0 && id < vocab_size_ && target >= 0 && target < vocab_size_, ErrorCode::kInvalidArgument,
              "token {} at {} is outside the model's vocabulary of {}", id >= vocab_size_ || id < 0 ? id : target,
              first + i, vocab_size_);
        auto at = static_cast<size_t>(w * length + i);
        ids[at] = id;
        if (options_.separate_documents) {
          for (; document_end() == i; ++document) start = i;
          if (start == i && i > 0) starts.push_back(static_cast<int32_t>(at));
          positions[at] = static_cast<int32_t>(i - start);
          if (document_end() == i + 1) continue;  // the target is another document's
        }
        if (first + i + 1 - put < counted_to) continue;  // counted in an earlier window
        if (counts[static_cast<size_t>(i + 1)] == 0 || target == tokens.begin_id) continue;
        if (options_.max_tokens > 0 && result.tokens == options_.max_tokens) break;
        targets[at] = target;
        ++result.tokens;
        if (tokenizer != nullptr && !tokenizer->is_special(target))  // marks of documents are not text
          result.bytes += static_cast<int64_t>(tokenizer->token_bytes(target).size());
      }
      counted_to = first + inputs + 1 - put;
      first = packed ? counted_to : first + options_.stride;
    }
    if (options_.separate_documents) {
      const auto segments = batch.add("segments", {DType::kI32, {std::ssize(ids) + 1}}).values<int32_t>();
      std::ranges::fill(segments, static_cast<int32_t>(ids.size()));
      std::ranges::copy(starts, segments.begin());
    }
    write_inputs(*executor_, "eval", batch, cache_inputs_);
    executor_->run("eval");
    result.loss_sum += output_as<float>(*executor_, "eval", "loss")[0];
    if (on_progress) on_progress(result.tokens);
  }
  check(result.tokens > 0, ErrorCode::kInvalidArgument,
        "all of the {} tokens are excluded from the loss, as prompts and begin tokens are", count);
  return result;
}

PerplexityResult evaluate_perplexity(const WeightSource& weights, const PerplexityOptions& options,
                                     const EvalTokens& tokens, const Tokenizer* tokenizer,
                                     const std::function<void(int64_t)>& on_progress) {
  if (options.tensor == 1) return PerplexityEvaluator(weights, options).run(tokens, tokenizer, on_progress);
  const std::string settings = fmt::format(
      "recipe: {}\ncache: {}\nlength: {}\nstride: {}\nwindows: {}\nmax_tokens: {}\ntokens: {}\nbegin: {}\n"
      "separate_documents: {}\n",
      options.recipe.name, options.cache ? cache_dtype_name(*options.cache) : "none", options.length, options.stride,
      options.windows, options.max_tokens, tokens.count(), tokens.begin_id, options.separate_documents);
  const auto team = open_rank_team(
      static_cast<int32_t>(options.tensor),
      {.devices = rank_devices(options.target.device),
       .timeout = options.rank_timeout,
       .build = options.build,
       .settings = settings + to_text(options.target) + to_hugging_face_config(weights.config(), {}, "")});
  PerplexityResult result;
  const auto evaluate = [&, &ranks = *team](const LocalRank& rank) {
    PerplexityEvaluator evaluator(weights, options, rank);
    ranks.barrier();
    ranks.guard(rank, [&] {
      if (rank.ranks->rank() == 0)
        result = evaluator.run(tokens, tokenizer, on_progress);
      else
        evaluator.run(tokens, nullptr);
    });
  };
  team->start(evaluate);
  team->run(evaluate);
  team->close();
  result.rank = team->own();
  return result;
}

}  // namespace octet
