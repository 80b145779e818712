#include "infer/plan_runner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "dist/communicator.h"
#include "exec/batch.h"
#include "exec/rank_devices.h"
#include "passes/serving_graphs.h"
#include "weights/weights.h"

namespace octet {

PlanRunner::PlanRunner(ServingProgram program, const CudaOptions& options, Communicator* ranks)
    : limits_(std::move(program.limits)),
      decode_(std::move(program.decode)),
      mixed_(std::move(program.mixed)),
      samples_(std::move(program.samples)),
      copies_(std::move(program.copies)),
      at_once_(program.plan.target.traits.steps_ahead == 0),
      executor_(make_executor(std::move(program.plan), options, ranks)) {}

// A bit for each that a token of the step needs.
uint64_t PlanRunner::adapter_classes(const StepInput& input) const {
  const AdapterTables& tables = limits_.adapters;
  uint64_t classes = 0;
  for (const int32_t adapter : input.adapters)
    if (adapter >= 0 && adapter / tables.slots < std::ssize(tables.ranks))
      classes |= uint64_t{1} << (adapter / tables.slots);
  if (std::ranges::any_of(input.virtual_rows, [](int32_t row) { return row >= 0; }))
    classes |= uint64_t{1} << tables.ranks.size();
  return classes;
}

const ForwardBucket& PlanRunner::forward_bucket(const StepInput& input) const {
  const uint64_t classes = adapter_classes(input);
  const bool is_virtual = classes >> limits_.adapters.ranks.size() != 0;
  const std::vector<ForwardBucket>& buckets = input.decode_only && !is_virtual ? decode_ : mixed_;
  auto fits = [&](const ForwardBucket& b) {
    return b.tokens >= input.tokens() && b.sequences >= input.sequences() &&
           (classes == 0 ? b.adapters == 0 : (b.adapters & classes) == classes);
  };
  auto found = std::ranges::find_if(buckets, fits);
  check(found != buckets.end(), ErrorCode::kInvalidArgument, "runner: {} tokens of {} sequences; at most {} of {}",
        input.tokens(), input.sequences(), limits_.tokens, limits_.sequences);
  return *found;
}

const SampleBucket& PlanRunner::sample_bucket(const SampleInput& input) const {
  const auto entries = static_cast<int64_t>(input.entries.size() / 2);
  const bool masked = !input.mask_rows.empty();
  auto fits = [&](const SampleBucket& b) {
    return b.rows >= input.rows() && b.entries >= entries && (!masked || b.masks > 0) &&
           b.top_logprobs == input.top_logprobs;
  };
  auto found = std::ranges::find_if(samples_, fits);
  check(found != samples_.end(), ErrorCode::kInvalidArgument,
        "runner: no graph samples {} rows with {} adjusted logits{}; at most {} rows and {} logits", input.rows(),
        entries, input.top_logprobs ? " and the most likely tokens" : "", limits_.rows, limits_.entries);
  return *found;
}

// Checks every value by which the device indexes.
void PlanRunner::check_step(const StepInput& input) const {
  const int64_t tokens = input.tokens(), sequences = input.sequences();
  auto has = [](const auto& list, int64_t count) { return static_cast<int64_t>(list.size()) == count; };
  bool whole = has(input.positions, tokens) && has(input.from, tokens) && has(input.segments, sequences + 1) &&
               has(input.groups, static_cast<int64_t>(limits_.groups.size())) && tokens > 0;
  check(whole && input.segments.front() == 0 && input.segments.back() <= tokens, ErrorCode::kInternal,
        "runner: a step of {} tokens and {} sequences has {} positions, {} from, {} segments and {} cache groups",
        tokens, sequences, input.positions.size(), input.from.size(), input.segments.size(), input.groups.size());
  check(!input.decode_only || tokens == sequences, ErrorCode::kInternal,
        "runner: a decode step has {} tokens of {} sequences", tokens, sequences);
  check(static_cast<int64_t>(input.logit_rows.size()) <= limits_.rows, ErrorCode::kInternal,
        "runner: {} rows to sample, at most {}", input.logit_rows.size(), limits_.rows);
  for (size_t g = 0; g < input.groups.size(); ++g) {
    const StepInput::Group& group = input.groups[g];
    check(has(group.slots, tokens) && has(group.table, sequences * limits_.groups[g].blocks_per_sequence),
          ErrorCode::kInternal, "runner: group {} has {} slots for {} tokens, {} table entries for {} sequences", g,
          group.slots.size(), tokens, group.table.size(), sequences);
  }
  const int64_t slots = limits_.adapters.classes() * limits_.adapters.slots;
  check((input.adapters.empty() || has(input.adapters, sequences)) &&
            (input.virtual_rows.empty() || has(input.virtual_rows, tokens)) && std::ranges::is_sorted(input.adapters) &&
            (input.adapters.empty() || input.adapters.back() < slots),
        ErrorCode::kInternal, "runner: {} adapters of {} sequences, {} virtual rows of {} tokens; {} slots",
        input.adapters.size(), sequences, input.virtual_rows.size(), tokens, slots);
  for (const int32_t row : input.virtual_rows)
    check(row < limits_.adapters.slots * limits_.adapters.virtual_tokens, ErrorCode::kInternal,
          "runner: virtual row {} of {} adapters of {}", row, limits_.adapters.slots, limits_.adapters.virtual_tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<size_t>(t);
    check(input.from[at] < limits_.sequences &&
              (input.from[at] >= 0 || (input.ids[at] >= 0 && input.ids[at] < limits_.vocab)) &&
              input.positions[at] >= 0 && input.positions[at] < limits_.context,
          ErrorCode::kInternal, "runner: token {} has id {} of {}, from {} and position {} of {}", t, input.ids[at],
          limits_.vocab, input.from[at], input.positions[at], limits_.context);
  }
}

// Tokens in front of a class's slots and behind them, padding included, are in its first and last group.
void PlanRunner::find_adapter_rows(const StepInput& input, const ForwardBucket& bucket) {
  const AdapterTables& tables = limits_.adapters;
  const auto tokens_of = [&](size_t s) { return input.segments[s + 1] - input.segments[s]; };
  lora_offsets_.resize(tables.ranks.size()), lora_groups_.resize(tables.ranks.size());
  for (size_t c = 0; c < tables.ranks.size(); ++c) {
    std::vector<int32_t>& offsets = lora_offsets_[c];
    offsets.assign(static_cast<size_t>(tables.slots) + 3, 0);
    std::vector<int32_t>& groups = lora_groups_[c];
    groups.assign(input.ids.size(), static_cast<int32_t>(tables.slots) + 1);
    const auto first = static_cast<int64_t>(c) * tables.slots;
    for (size_t s = 0; s < input.adapters.size(); ++s) {
      const int64_t group = std::clamp<int64_t>(input.adapters[s] - first + 1, 0, tables.slots + 1);
      offsets[static_cast<size_t>(group) + 1] += tokens_of(s);
      std::fill_n(groups.begin() + input.segments[s], tokens_of(s), static_cast<int32_t>(group));
    }
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    offsets.back() = static_cast<int32_t>(bucket.tokens);
  }
  if (tables.dora) {
    const auto none = static_cast<int32_t>(tables.classes() * tables.slots);
    gain_rows_.assign(input.ids.size(), none);
    for (size_t s = 0; s < input.adapters.size(); ++s)
      if (const int32_t adapter = input.adapters[s]; adapter >= 0)
        std::fill_n(gain_rows_.begin() + input.segments[s], tokens_of(s), adapter);
  }
  if (tables.virtual_tokens == 0) return;
  virtual_slots_.assign(input.ids.size(), -1);
  virtual_rows_.assign(input.ids.size(), 0);
  for (size_t t = 0; t < input.virtual_rows.size(); ++t)
    if (input.virtual_rows[t] >= 0)
      virtual_slots_[t] = static_cast<int32_t>(t), virtual_rows_[t] = input.virtual_rows[t];
}

void PlanRunner::write_states(std::span<const StatePart> parts) {
  const Program& program = executor_->program();
  const int64_t ranks = program.mesh()[Axis::kTensor], rank = executor_->coordinate()[Axis::kTensor];
  for (const StatePart& part : parts) {
    const StateEntry& entry = *program.find_state(*part.state);
    if (entry.layout.cuts.empty()) {
      executor_->write_state_part(*part.state, part.offset, part.bytes);
    } else if (entry.layout.cut_axes(1).empty()) {  // this rank's rows of a slot
      const auto bytes = static_cast<size_t>(std::ssize(part.bytes) / ranks);
      executor_->write_state_part(*part.state, part.offset / ranks,
                                  part.bytes.subspan(static_cast<size_t>(rank) * bytes, bytes));
    } else {  // its columns
      const int64_t own = dtype_bytes(entry.type.dtype) * entry.type.shape.cols(), whole = own * ranks;
      std::vector<std::byte> columns(part.bytes.size() / static_cast<size_t>(ranks));
      for (int64_t row = 0; row < std::ssize(part.bytes) / whole; ++row)
        std::copy_n(part.bytes.begin() + row * whole + rank * own, own, columns.begin() + row * own);
      executor_->write_state_part(*part.state, part.offset / ranks, columns);
    }
  }
}

// Each row is a query of its own: it sees the keys of its sequence up to its position.
void PlanRunner::find_read_rows(const StepInput& input, size_t group) {
  const size_t rows = input.logit_rows.size();
  const auto columns = static_cast<size_t>(limits_.groups[group].blocks_per_sequence);
  const std::vector<int32_t>& table = input.groups[group].table;
  for (auto* list : {&hidden_rows_, &read_segments_}) {
    list->resize(rows + (list == &read_segments_ ? 1 : 0));
    std::iota(list->begin(), list->end(), 0);
  }
  for (auto* list : {&read_positions_, &read_lengths_}) list->resize(rows);
  read_table_.resize(rows * columns);
  for (size_t r = 0; r < rows; ++r) {
    const int32_t token = input.logit_rows[r];
    read_positions_[r] = input.positions.at(static_cast<size_t>(token));
    read_lengths_[r] = read_positions_[r] + 1;
    const auto sequence = std::ranges::upper_bound(input.segments, token) - input.segments.begin() - 1;
    std::copy_n(table.begin() + sequence * static_cast<ptrdiff_t>(columns), columns,
                read_table_.begin() + static_cast<ptrdiff_t>(r * columns));
  }
}

void PlanRunner::forward(const StepInput& input) {
  check_step(input);
  const ForwardBucket& bucket = forward_bucket(input);
  const std::string& graph = bucket.graph;
  if (bucket.read_rows > 0) {
    find_read_rows(input, bucket.read_group);
  } else {
    hidden_rows_.assign(input.ids.size(), -1);
    for (size_t r = 0; r < input.logit_rows.size(); ++r)
      hidden_rows_.at(static_cast<size_t>(input.logit_rows[r])) = static_cast<int32_t>(r);
  }
  std::vector<InputValues> values = {
      {"ids", input.ids},           {"positions", input.positions},   {"from", input.from},
      {"segments", input.segments}, {"kv_lengths", input.kv_lengths}, {"hidden_rows", hidden_rows_}};
  for (size_t g = 0; g < input.groups.size(); ++g) {
    values.emplace_back(group_input("slots", g), input.groups[g].slots);
    values.emplace_back(group_input("block_table", g), input.groups[g].table);
  }
  if (bucket.read_rows > 0) {
    values.emplace_back("read_rows", input.logit_rows);
    values.emplace_back("read_positions", read_positions_);
    values.emplace_back("read_segments", read_segments_);
    values.emplace_back("read_lengths", read_lengths_);
    values.emplace_back("read_table", read_table_);
  }
  if (bucket.adapters != 0) {
    find_adapter_rows(input, bucket);
    for (size_t c = 0; c < lora_offsets_.size(); ++c) {
      values.emplace_back(lora_offsets_input(limits_.adapters.ranks[c]), lora_offsets_[c]);
      values.emplace_back(lora_groups_input(limits_.adapters.ranks[c]), lora_groups_[c]);
    }
    values.emplace_back(kGainRowsInput, gain_rows_);
    values.emplace_back(kVirtualSlotsInput, virtual_slots_);
    values.emplace_back(kVirtualRowsInput, virtual_rows_);
  }
  write_inputs(*executor_, graph, values);
  executor_->run(graph);
}

void PlanRunner::sample(const SampleInput& input) {
  sampling_ = nullptr;
  sampled_rows_ = input.rows();
  if (sampled_rows_ == 0) return;
  const SampleBucket& bucket = sample_bucket(input);
  const std::string& graph = bucket.graph;
  const InputValues values[] = {{"params", input.params}, {"top_k", input.top_k},        {"seeds", input.seeds},
                                {"store", input.store},   {"entries", input.entries},    {"values", input.values},
                                {"masks", input.masks},   {"mask_rows", input.mask_rows}};
  write_inputs(*executor_, graph, values);
  executor_->run(graph);
  sampling_ = &bucket;
  if (at_once_) collect();
}

void PlanRunner::collect() {
  const SampleBucket& bucket = *sampling_;
  auto take = [&]<typename T>(const char* name, int64_t width, std::vector<T>& to) {
    auto from = output_as<T>(*executor_, bucket.graph, name).first(static_cast<size_t>(sampled_rows_ * width));
    to.assign(from.begin(), from.end());
  };
  take("ids", 1, ids_);
  take("logprobs", 1, logprobs_);
  for (auto* values : {&top_logprobs_, &adjusted_logprobs_}) values->clear();
  for (auto* values : {&top_ids_, &adjusted_ids_}) values->clear();
  if (bucket.top_logprobs) {
    const int64_t likeliest = std::min(kTopLogprobs, limits_.vocab);
    take("top_logprobs", likeliest, top_logprobs_);
    take("top_ids", likeliest, top_ids_);
    if (bucket.entries > 0) {
      take("adjusted_logprobs", likeliest, adjusted_logprobs_);
      take("adjusted_ids", likeliest, adjusted_ids_);
    }
  }
  sampling_ = nullptr;
}

SampleOutput PlanRunner::wait() {
  if (sampled_rows_ == 0) return {};
  if (sampling_ != nullptr) collect();
  return {.ids = ids_,
          .logprobs = logprobs_,
          .top_logprobs = top_logprobs_,
          .top_ids = top_ids_,
          .adjusted_logprobs = adjusted_logprobs_,
          .adjusted_ids = adjusted_ids_};
}

void PlanRunner::copy_blocks(std::span<const BlockCopy> copies) {
  std::vector<int32_t> pairs;
  for (size_t g = 0; g < copies_.size(); ++g) {
    auto run = [&] {
      write_inputs(*executor_, copies_[g], std::array{InputValues("pairs", pairs)});
      executor_->run(copies_[g]);
      pairs.clear();
    };
    for (const BlockCopy& copy : copies) {
      if (copy.group != static_cast<int32_t>(g)) continue;
      pairs.insert(pairs.end(), {copy.from, copy.to});
      if (static_cast<int64_t>(pairs.size()) == 2 * kCopyPairs) run();
    }
    if (!pairs.empty()) run();
  }
}

void PlanRunner::warm_up() {
  std::vector<std::string> graphs = copies_;
  for (const auto* buckets : {&decode_, &mixed_})
    for (const ForwardBucket& bucket : *buckets) graphs.push_back(bucket.graph);
  for (const SampleBucket& bucket : samples_) graphs.push_back(bucket.graph);
  double first = 0, second = 0;
  for (const std::string& graph : graphs) {
    pad_inputs(*executor_, graph);
    // The first run launches node by node, which loads kernels; the second is captured.
    for (double* seconds : {&first, &second}) {
      const auto begin = std::chrono::steady_clock::now();
      executor_->run(graph);
      *seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
  }
  log_debug("{} graphs: {:.3f} s launching their kernels, {:.3f} s running and capturing them", graphs.size(), first,
            second);
}

namespace {

// All ranks call it together.
template <typename T>
std::vector<T> of_all_ranks(Communicator* ranks, const T& own) {
  if (ranks == nullptr) return {own};
  std::vector<T> all;
  for (const std::vector<std::byte>& theirs : gather(*ranks, std::as_bytes(std::span(&own, 1))))
    std::memcpy(&all.emplace_back(), theirs.data(), sizeof(T));
  return all;
}

// Bytes that a rank may take. CPU ranks share the machine; groups of GPUs take theirs first.
int64_t free_bytes(const ServingOptions& options, const CudaOptions& cuda) {
  if (cuda.ranks != nullptr) make_group(*cuda.ranks, {Axis::kTensor});
  const int64_t free = free_memory(options.target.device, cuda);
  return options.target.traits.shares_memory ? free / options.engine.tensor : free;
}

EnginePlan engine_plan(const ServingProgram& program, const ServingOptions& options, const std::vector<int64_t>& free) {
  EnginePlan plan{.weight_bytes = program.plan.state_bytes - program.limits.kv_bytes,
                  .activation_bytes = program.plan.arena_bytes + program.plan.input_bytes,
                  .kv_bytes = program.limits.kv_bytes,
                  .context = program.limits.context,
                  .free_bytes = *std::ranges::min_element(free),
                  .rank_free_bytes = free,
                  .device = device_name(options.target.device),
                  .recipe = options.recipe.name};
  for (const StateEntry& entry : program.plan.program.states()) {
    const bool weight = entry.role == StateRole::kMaster || entry.role == StateRole::kCodes;
    if (weight && entry.type.shape.rank() > 1) plan.matrix_elements += entry.type.shape.elements();
  }
  for (const CacheGroup& group : program.limits.groups) {
    plan.kv_blocks += group.blocks;
    plan.kv_tokens = std::max(plan.kv_tokens, group.blocks * program.limits.block_size);
  }
  return plan;
}

std::unique_ptr<PlanRunner> build(const ModelSpec& model, const ServingOptions& options, const CudaOptions& cuda,
                                  Communicator* ranks) {
  // Before allocation. The least that any rank has is what all plan with: they have as many blocks.
  const std::vector<int64_t> free = of_all_ranks(ranks, free_bytes(options, cuda));
  ServingProgram program = [&] {
    const LoggedTime time("plan");
    return build_serving_program(model, options, *std::ranges::min_element(free));
  }();
  EnginePlan plan;
  if (options.engine.planned) plan = engine_plan(program, options, free);
  auto runner = [&] {
    const LoggedTime time("executor");
    return std::make_unique<PlanRunner>(std::move(program), cuda, ranks);
  }();
  if (options.engine.planned) options.engine.planned(plan);
  return runner;
}

void warm(PlanRunner& runner, const ServingOptions& options) {
  if (!options.warm_up || !options.target.traits.captures_graphs) return;
  const LoggedTime time("warm-up of all graphs");
  runner.warm_up();
}

}  // namespace

std::unique_ptr<PlanRunner> make_runner(const WeightSource& weights, const ServingOptions& options,
                                        const CudaOptions& cuda, Communicator* ranks) {
  auto runner = build(weights.config(), options, cuda, ranks);
  load_weights(weights, runner->executor());
  warm(*runner, options);
  return runner;
}

std::unique_ptr<PlanRunner> make_random_runner(const ModelSpec& model, const ServingOptions& options,
                                               const CudaOptions& cuda, uint64_t seed, Communicator* ranks) {
  auto runner = build(model, options, cuda, ranks);
  fill_random_weights(runner->executor(), seed);
  warm(*runner, options);
  return runner;
}

}  // namespace octet
