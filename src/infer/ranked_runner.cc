#include "infer/ranked_runner.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "exec/rank_devices.h"
#include "model/hugging_face.h"
#include "passes/serving_graphs.h"

namespace octet {

RankedRunner::RankedRunner(std::unique_ptr<RankTeam> team, const Open& open, double timeout)
    : timeout_(timeout), team_(std::move(team)) {
  team_->start([this, open](const LocalRank& rank) {
    set_thread_log_level(LogLevel::kOff);
    const std::unique_ptr<Runner> runner = open(rank);
    team_->guard(rank, [&] {
      start(rank, *runner);
      make_calls(rank, *runner);
    });
  });
  try {
    team_->run([&](const LocalRank& rank) {
      own_ = open(rank);
      start(rank, *own_);
    });
  } catch (...) {
    team_->close();
    throw;
  }
}

RankedRunner::~RankedRunner() { team_->close(); }

// No device waits for another before all ranks are there: one that fails until then can let go of its memory.
void RankedRunner::start(const LocalRank& rank, Runner& runner) {
  team_->barrier();
  if (rank.devices != nullptr) runner.warm_up();
}

void RankedRunner::note(const LocalRank& rank, const CallBytes& call, int64_t& step) {
  const std::string_view name = call_name(call);
  if (name == "forward") ++step;
  team_->note(rank, step, name);
}

void RankedRunner::make_calls(const LocalRank& rank, Runner& runner) {
  int64_t step = 0;
  while (const RankTeam::Message call = team_->receive(rank)) {
    note(rank, *call, step);
    make_call(runner, *call);
  }
}

bool RankedRunner::follow() {
  if (team_->own() == 0) return false;
  team_->run([&](const LocalRank& rank) { make_calls(rank, *own_); });
  team_->close();
  return true;
}

template <typename Work>
void RankedRunner::lead(CallBytes call, const Work& work) {
  const auto shared = std::make_shared<const CallBytes>(std::move(call));
  team_->broadcast(shared);
  const auto made = [&](const LocalRank& rank) {
    note(rank, *shared, step_);
    work();
  };
  team_->run(made, timeout_);
}

void RankedRunner::copy_blocks(std::span<const BlockCopy> copies) {
  lead(copy_blocks_call(copies), [&] { own_->copy_blocks(copies); });
}

void RankedRunner::forward(const StepInput& input) {
  lead(forward_call(input), [&] { own_->forward(input); });
}

void RankedRunner::sample(const SampleInput& input) {
  lead(sample_call(input), [&] { own_->sample(input); });
}

SampleOutput RankedRunner::wait() {
  SampleOutput output;
  lead(wait_call(), [&] { output = own_->wait(); });
  return output;
}

void RankedRunner::write_states(std::span<const StatePart> parts) {
  lead(write_states_call(parts), [&] { own_->write_states(parts); });
}

void check_ranks(const ModelConfig& model, const ServingOptions& options) {
  const int64_t ranks = options.engine.tensor;
  const auto divides = [&](const char* what, int64_t count) {
    check(count % ranks == 0, ErrorCode::kInvalidArgument,
          "tensor: {} {} do not divide among {} ranks (want one of {})", count, what, ranks,
          fmt::join(divisors(count), ", "));
  };
  check(model.experts.count == 0, ErrorCode::kUnsupported,
        "tensor: mixtures of experts are not supported on several ranks (want 1)");
  divides("heads", model.heads);
  if (model.kv_head_count() > 1) divides("key heads", model.kv_head_count());
  divides("columns of the MLP", model.intermediate_size());
}

std::string ranks_text(const ModelConfig& model, const ServingOptions& options) {
  const EngineOptions& o = options.engine;
  std::string text = fmt::format(
      "ranks: {}\nrecipe: {}\ncache: {}{}\ncontext: {}\nmax_sequences: {}\nmax_step_tokens: {}\nblock_size: {}\n"
      "kv_cache_bytes: {}\nmemory_fraction: {}\ndraft_tokens: {}\nmax_entries: {}\n",
      o.tensor, options.recipe.name, cache_dtype_name(options.cache_dtype),
      options.cache_scales ? " with stored scales" : "", o.context, o.max_sequences, o.max_step_tokens, o.block_size,
      o.kv_cache_bytes, o.memory_fraction, options.draft_tokens(), options.max_entries);
  const AdapterTables& tables = options.adapters;
  if (!tables.empty())
    text += fmt::format("adapters: {} slots of ranks {}{}, {} virtual tokens, of {}\n", tables.slots,
                        fmt::join(tables.ranks, ","), tables.dora ? " with dora" : "", tables.virtual_tokens,
                        fmt::join(options.adapter_targets, ","));
  return text + to_text(options.target) + to_hugging_face_config(model, {}, "");
}

namespace {

template <typename Make>
std::unique_ptr<Runner> on_ranks(const ModelConfig& model, const ServingOptions& options, const Make& make) {
  if (options.engine.tensor == 1) return make(options, CudaOptions{}, nullptr);
  check_ranks(model, options);
  return std::make_unique<RankedRunner>(
      open_rank_team(static_cast<int32_t>(options.engine.tensor), {.devices = rank_devices(options.target.device),
                                                                   .timeout = options.engine.rank_timeout,
                                                                   .build = options.engine.build,
                                                                   .settings = ranks_text(model, options)}),
      [&](const LocalRank& rank) -> std::unique_ptr<Runner> {
        ServingOptions own = options;
        own.warm_up = false;  // when all ranks are there
        if (rank.ranks->rank() > 0) own.engine.planned = nullptr;
        return make(own, {.device = rank.device, .ranks = rank.devices}, rank.ranks);
      },
      options.engine.rank_timeout);
}

}  // namespace

std::unique_ptr<Runner> open_runner(const WeightSource& weights, const ServingOptions& options) {
  return on_ranks(weights.config(), options,
                  [&](const ServingOptions& own, const CudaOptions& cuda, Communicator* rank) {
                    return make_runner(weights, own, cuda, rank);
                  });
}

std::unique_ptr<Runner> open_random_runner(const ModelConfig& model, const ServingOptions& options) {
  return on_ranks(model, options, [&](const ServingOptions& own, const CudaOptions& cuda, Communicator* rank) {
    return make_random_runner(model, own, cuda, 1337, rank);
  });
}

}  // namespace octet
