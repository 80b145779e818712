#include "infer/serving_program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "exec/executor.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

constexpr int64_t kSmallestMixed = 16;   // tokens
constexpr int64_t kVerifiedRows = 256;   // of a step, the most that drafts add to
constexpr int64_t kFewEntries = 1024;    // of adjust_logits: buckets for steps with few
constexpr int64_t kManyEntries = 65536;  // and many adjusted logits

std::string gigabytes(int64_t bytes) {
  return bytes < 100'000'000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)
                             : fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

// A cache group and the blocks one sequence needs of it.
struct Group {
  int64_t window = 0, block_bytes = 0;
  int64_t sequence_blocks = 0;  // for a sequence of maximum length
  int64_t least_blocks = 0;     // minimum to run one sequence: a window and a step's tokens
};

class ProgramBuilder {
 public:
  ProgramBuilder(const ModelSpec& model, const ServingOptions& options, std::optional<int64_t> free_bytes)
      : model_(model), options_(options), free_bytes_(free_bytes) {
    set_limits();
    base_ = logits_graph(1, 1);
    find_groups();
    set_adapters();
  }

  ServingProgram run() {
    Program program;
    program.name = "serving";
    add_forward_graphs(program);
    add_sample_graphs(program);
    const auto members = cache_groups(program.graph(out_.mixed.back().graph));
    for (size_t g = 0; g < groups_.size(); ++g) {
      out_.copies.push_back(fmt::format("copy_blocks.{}", g));
      program.add_graph(
          copy_blocks_graph(out_.copies.back(), program.graph(out_.mixed.back().graph), g, block_size_, kCopyPairs));
    }
    CompileOptions compiled{.target = options_.target, .recipe = options_.recipe};
    compiled.parallel.mesh[Axis::kTensor] = static_cast<int32_t>(options_.engine.tensor);
    out_.plan = compile(std::move(program), compiled);
    for (const StateEntry& entry : out_.plan.program.states())  // of one block, this rank's heads
      if (const auto member = members.find(entry.name); member != members.end())
        groups_[member->second].block_bytes += entry.type.bytes();
    const std::vector<int64_t> blocks = choose_blocks();
    set_cache_blocks(out_.plan, members, blocks, block_size_);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      out_.limits.groups.push_back({.window = group.window,
                                    .blocks = blocks[g],
                                    .blocks_per_sequence = table_columns_,
                                    .block_bytes = group.block_bytes});
      out_.limits.kv_bytes += blocks[g] * group.block_bytes;
    }
    return std::move(out_);
  }

 private:
  void set_limits() {
    const EngineOptions& o = options_.engine;
    RunnerLimits& limits = out_.limits;
    limits.context = o.context > 0 ? o.context : model_.max_positions;
    check(model_.length_limit() == 0 || limits.context <= model_.length_limit(), ErrorCode::kInvalidArgument,
          "context: {} tokens exceed the model's {} positions", limits.context, model_.max_positions);
    limits.tokens = o.max_step_tokens;
    limits.sequences = std::min(o.max_sequences, o.max_step_tokens);
    // Drafts pay with few sequences: many have a row each.
    const int64_t verified = std::min(limits.sequences * (1 + options_.draft_tokens()), kVerifiedRows);
    limits.rows = limits.masks = std::min(std::max(limits.sequences, verified), o.max_step_tokens);
    limits.vocab = model_.embedding.vocab_size;
    // A sequence adjusts the logits of its own tokens and of biased tokens.
    const int64_t text_entries = std::min(limits.vocab, limits.context + kFewEntries);
    limits.entries = options_.max_entries > 0 ? options_.max_entries : std::max(kManyEntries, text_entries);
    limits.block_size = block_size_ = o.block_size > 0 ? o.block_size : options_.target.traits.block_size;
    table_columns_ = ceil_div(limits.context, block_size_);
    states_ = {.sequences = limits.sequences, .rows = limits.rows, .hidden_dtype = options_.recipe.compute};
  }

  Graph logits_graph(int64_t tokens, int64_t sequences) const {
    Graph graph("logits");
    Builder builder(graph);
    BatchShape shape{.tokens = tokens, .max_segments = sequences, .max_length = out_.limits.context};
    builder.output("logits", build_logits(builder, model_, shape));
    return graph;
  }

  void find_groups() {
    for (int64_t window : attention_windows(base_)) {
      Group group{.window = window, .sequence_blocks = table_columns_};
      if (window > 0) group.sequence_blocks = std::min(table_columns_, ceil_div(window, block_size_) + 1);
      group.least_blocks = std::min(table_columns_, ceil_div(out_.limits.tokens, block_size_) + group.sequence_blocks);
      groups_.push_back(group);
    }
    check(!groups_.empty(), ErrorCode::kUnsupported, "serving: the model has no attention");
    const auto attention = std::ranges::find(base_.nodes().rbegin(), base_.nodes().rend(), Op::kAttention, &Node::op);
    const int64_t window = attention->attr<int64_t>("window");
    last_group_ = static_cast<size_t>(std::ranges::find(groups_, window, &Group::window) - groups_.begin());
  }

  void set_adapters() {
    AdapterTables& tables = out_.limits.adapters;
    tables = options_.adapters;
    if (tables.empty()) return;
    tables.dtype = options_.recipe.compute;
    tables.hidden = model_.hidden;
    if (!tables.ranks.empty()) tables.linears = adapted_linears(base_, options_.adapter_targets);
    if (const int64_t bytes = tables.slot_bytes(); tables.most_bytes > 0 && bytes > 0)
      tables.slots = std::min(tables.slots, std::max<int64_t>(8, tables.most_bytes / bytes));
    for (const std::string& target : options_.adapter_targets)
      check(!adapted_linears(base_, {target}).empty(), ErrorCode::kInvalidArgument,
            "adapter_targets: no linear of the model is called {} (want some of {})", target,
            fmt::join(linears(), ", "));
  }

  // Names of the linears in a layer, those of experts too.
  std::set<std::string> linears() const {
    std::set<std::string> names;
    for (const Node& node : base_.nodes())
      if (node.op == Op::kParam && node.results[0].shape.rank() == 2) names.insert(adapter_target(node.name));
    std::erase_if(names, [&](const std::string& name) { return adapted_linears(base_, {name}).empty(); });
    return names;
  }

  // The least that a step's adapters may need first. Virtual tokens are prompts'.
  std::vector<AdapterVariant> adapter_variants(bool decode) const {
    const AdapterTables& tables = out_.limits.adapters;
    std::vector<AdapterVariant> variants = {{}};
    if (tables.empty()) return variants;
    AdapterVariant all{.dora = tables.dora, .virtual_tokens = tables.virtual_tokens > 0 && !decode};
    for (size_t c = 0; c < tables.ranks.size(); ++c) all.classes.push_back(c);
    if (all.classes.size() > 1 || (all.virtual_tokens && !all.classes.empty()))
      for (const size_t c : all.classes) variants.push_back({.classes = {c}, .dora = tables.dora});
    if (!all.empty()) variants.push_back(std::move(all));
    return variants;
  }

  void add_forward(Program& program, std::vector<ForwardBucket>& buckets, const std::string& name, int64_t tokens,
                   int64_t sequences, int64_t max_query_len) const {
    KvCacheOptions cache{.blocks = std::vector<int64_t>(groups_.size(), 1),
                         .block_size = block_size_,
                         .sequences = sequences,
                         .blocks_per_sequence = table_columns_,
                         .cache_dtype = options_.cache_dtype,
                         .max_query_len = max_query_len,
                         .scales = options_.cache_scales};
    const Graph logits = logits_graph(tokens, sequences);
    for (const AdapterVariant& variant : adapter_variants(/*decode=*/max_query_len == 1)) {
      ForwardBucket bucket{tokens, sequences, name};
      for (const size_t c : variant.classes) {
        bucket.adapters |= uint64_t{1} << c;
        bucket.graph += fmt::format(".r{}", out_.limits.adapters.ranks[c]);
      }
      if (variant.virtual_tokens) {
        bucket.adapters |= uint64_t{1} << out_.limits.adapters.ranks.size();
        bucket.graph += ".virtual";
      }
      const Graph own = variant.empty() ? logits : add_adapters(program, logits, out_.limits.adapters, variant);
      Graph graph = forward_graph(program, bucket.graph, own, cache, states_);
      if (variant.empty() && !options_.engine.all_rows && tokens >= 2 * states_.rows) {
        bucket.read_rows = states_.rows;
        bucket.read_group = last_group_;
        graph = read_rows_only(graph, states_.rows);
      }
      program.add_graph(std::move(graph));
      buckets.push_back(std::move(bucket));
    }
  }

  void add_forward_graphs(Program& program) {
    // Block-scaled GEMMs are fast only for multiples of four tokens on targets with alignments, but for the kernels of
    // one and two tokens; other GEMMs have no such restriction.
    const bool blocks = options_.recipe.scaling == Scaling::kBlock;
    const int64_t multiple = blocks ? std::min<int64_t>(options_.target.fp8_alignment, 4) : 1;
    for (int64_t n = 1; n < multiple && n <= out_.limits.sequences; n *= 2)
      add_forward(program, out_.decode, fmt::format("decode.{}", n), n, n, /*max_query_len=*/1);
    for (int64_t n : bucket_sizes(1, out_.limits.sequences, multiple))
      add_forward(program, out_.decode, fmt::format("decode.{}", n), n, n, /*max_query_len=*/1);
    // A sequence and its drafts: few tokens, each padded one costs.
    for (int64_t tokens = 2; options_.draft_tokens() > 0 && tokens < std::min(kSmallestMixed, out_.limits.tokens);
         tokens += tokens < 8 ? multiple : 4)
      if (tokens % multiple == 0)
        add_forward(program, out_.mixed, fmt::format("mixed.{}", tokens), tokens,
                    std::min(tokens, out_.limits.sequences), 0);
    for (int64_t tokens : bucket_sizes(std::min(kSmallestMixed, out_.limits.tokens), out_.limits.tokens, multiple))
      add_forward(program, out_.mixed, fmt::format("mixed.{}", tokens), tokens, out_.limits.sequences, 0);
  }

  // For rows in powers of two: no entries, few, many, the maximum, the maximum with masks; the first and last with
  // top_logprobs.
  void add_sample_graphs(Program& program) {
    const int64_t many = out_.limits.entries;
    const int64_t likeliest = std::min(kTopLogprobs, out_.limits.vocab);
    for (int64_t rows = 1;; rows = std::min(2 * rows, out_.limits.rows)) {
      auto add = [&](const char* name, int64_t entries, int64_t masks, bool with_top) {
        SampleBucket bucket{rows, entries, masks, with_top, fmt::format("sample{}.{}", name, rows)};
        program.add_graph(sample_graph(
            program, bucket.graph, base_,
            {.rows = rows, .entries = entries, .masks = masks, .top_logprobs = with_top ? likeliest : 0}, states_));
        out_.samples.push_back(std::move(bucket));
      };
      add("", 0, 0, false);
      add("_few", std::min(kFewEntries + 16 * rows, many), 0, false);
      add("_many", std::min(kManyEntries, many), 0, false);
      if (many > kManyEntries) add("_most", many, 0, false);
      add("_masked", many, rows, false);
      add("_top", 0, 0, true);
      add("_masked_top", many, rows, true);
      if (rows == out_.limits.rows) break;
    }
  }

  // Cache bytes for the given number of sequences' blocks in every group.
  int64_t sequence_bytes() const {
    int64_t bytes = 0;
    for (const Group& group : groups_) bytes += group.sequence_blocks * group.block_bytes;
    return bytes;
  }

  // Every group gets blocks for the same number of sequences, at most what max_sequences can use.
  std::vector<int64_t> choose_blocks() const {
    const int64_t budget = options_.engine.kv_cache_bytes > 0 ? options_.engine.kv_cache_bytes : bytes_left();
    int64_t least = 0;
    for (const Group& group : groups_) least += group.least_blocks * group.block_bytes;
    if (least > budget) fail_for_lack_of(least, budget);
    std::vector<int64_t> blocks;
    const double share = static_cast<double>(budget) / static_cast<double>(sequence_bytes());
    for (const Group& group : groups_) {
      const int64_t most = std::min(out_.limits.sequences * group.sequence_blocks + group.least_blocks,
                                    int64_t{INT32_MAX} / block_size_);
      const auto fair = static_cast<int64_t>(share * static_cast<double>(group.sequence_blocks));
      blocks.push_back(std::clamp(fair, group.least_blocks, most));
    }
    return blocks;
  }

  int64_t free_bytes() const { return free_bytes_ ? *free_bytes_ : free_memory(options_.target.device); }

  // Bytes of the device's free memory that remain for caches.
  int64_t bytes_left() const {
    const DeviceTraits& traits = options_.target.traits;
    const int64_t free = free_bytes();
    if (free == 0) return sequence_bytes() * out_.limits.sequences;  // not known: as much as can be used
    const double fraction = std::min(options_.engine.memory_fraction, traits.memory_fraction);
    return static_cast<int64_t>(static_cast<double>(free) * fraction) - out_.plan.total_bytes() - traits.memory_reserve;
  }

  [[noreturn]] void fail_for_lack_of(int64_t least, int64_t budget) const {
    const int64_t context = out_.limits.context;
    std::string ways;
    const double per_token = static_cast<double>(least) / static_cast<double>(context);
    const int64_t fits = budget > 0 ? static_cast<int64_t>(static_cast<double>(budget) / per_token) : 0;
    if (fits >= block_size_) ways += fmt::format("use a context of {}", fits / block_size_ * block_size_);
    if (dtype_bytes(options_.cache_dtype) > 1)
      ways += fmt::format("{}a KV cache of e4m3 or int8", ways.empty() ? "use " : " or ");
    if (options_.engine.kv_cache_bytes > 0)
      fail(
          ErrorCode::kOutOfMemory,
          "context {} needs {} bytes of KV cache for one sequence, kv_cache_bytes gives {}: {} bytes are missing; give "
          "them{}",
          context, least, budget, least - budget, ways.empty() ? "" : ", or " + ways);
    // If weights and activations alone do not fit, no cache size helps.
    if (budget <= 0 || ways.empty())
      ways = "use a smaller model, a recipe with smaller weights (fp8-current or int8) or a lower max_step_tokens";
    const int64_t weights = out_.plan.state_bytes, activations = out_.plan.arena_bytes + out_.plan.input_bytes;
    fail(ErrorCode::kOutOfMemory,
         "{} for weights, {} for activations and {} of KV cache for one sequence of context {} are needed, {} of {} "
         "free may be used: {} bytes are missing; {}",
         gigabytes(weights), gigabytes(activations), gigabytes(least), context,
         gigabytes(budget + weights + activations), gigabytes(free_bytes()), least - budget, ways);
  }

  const ModelSpec& model_;
  const ServingOptions& options_;
  const std::optional<int64_t> free_bytes_;
  ServingProgram out_;
  int64_t block_size_ = 16, table_columns_ = 0;
  ServingStates states_;
  Graph base_;  // computes the logits of one token
  std::vector<Group> groups_;
  size_t last_group_ = 0;  // of the last layer
};

}  // namespace

std::vector<int64_t> bucket_sizes(int64_t smallest, int64_t most, int64_t multiple) {
  std::vector<int64_t> sizes;
  auto add = [&](int64_t size) {
    size = ceil_div(size, multiple) * multiple;
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  };
  for (int64_t size = smallest; size < most; size *= 2) {
    add(size);
    const int64_t between = size / 2 * 3;
    if (size >= 16 && between < most) add(between);
  }
  add(most);
  return sizes;
}

ServingProgram build_serving_program(const ModelSpec& model, const ServingOptions& options,
                                     std::optional<int64_t> free_bytes) {
  return ProgramBuilder(model, options, free_bytes).run();
}

}  // namespace octet
