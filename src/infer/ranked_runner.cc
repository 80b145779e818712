#include "infer/ranked_runner.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace octet {

RankedRunner::RankedRunner(int32_t ranks, bool gpus, const Open& open, double timeout)
    : timeout_(timeout),
      threads_(ranks),
      queues_(static_cast<size_t>(ranks - 1)),
      ranks_(
          ranks, gpus, [this, open](const LocalRank& rank) { follow(rank, open); }, timeout) {
  try {
    ranks_.lead([&](const LocalRank& rank) {
      own_ = open(rank);
      start(rank, *own_);
    });
  } catch (...) {
    close();
    throw;
  }
}

RankedRunner::~RankedRunner() { close(); }

void RankedRunner::close() {
  for (CallQueue& queue : queues_) queue.close();
}

void RankedRunner::follow(const LocalRank& rank, const Open& open) {
  set_thread_log_level(LogLevel::kOff);
  CallQueue& calls = queues_[static_cast<size_t>(rank.ranks->rank() - 1)];
  const std::unique_ptr<Runner> runner = open(rank);
  ranks_.guard(rank, [&] {
    start(rank, *runner);
    while (const auto call = calls.pop()) make_call(*runner, *call);
  });
}

// No device waits for another before all ranks are there: one that fails until then can let go of its memory.
void RankedRunner::start(const LocalRank& rank, Runner& runner) {
  ranks_.meet();
  if (rank.devices != nullptr) runner.warm_up();
}

template <typename Work>
void RankedRunner::lead(CallBytes call, const Work& work) {
  const auto shared = std::make_shared<const CallBytes>(std::move(call));
  for (CallQueue& queue : queues_) queue.push(shared);
  ranks_.lead([&](const LocalRank&) { work(); }, timeout_, [this] { return behind(); });
}

// The ranks with the most calls yet to be made, if others have fewer.
std::string RankedRunner::behind() const {
  std::vector<int64_t> unmade = {1};  // rank 0 is in one
  for (const CallQueue& queue : queues_) unmade.push_back(queue.unmade());
  const int64_t most = *std::ranges::max_element(unmade);
  std::vector<size_t> ranks;
  for (size_t r = 0; r < unmade.size(); ++r)
    if (unmade[r] == most) ranks.push_back(r);
  if (most == 1) return "its device: no rank is behind";
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
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

void check_ranks(const ModelConfig& model, const ServingOptions& options) {
  const int64_t ranks = options.tensor;
  const auto divides = [&](const char* what, int64_t count) {
    check(count % ranks == 0, ErrorCode::kInvalidArgument,
          "tensor: {} {} do not divide among {} ranks (want one of {})", count, what, ranks,
          fmt::join(divisors(count), ", "));
  };
  check(model.experts.count == 0, ErrorCode::kUnsupported,
        "tensor: mixtures of experts are not split over ranks (want 1)");
  divides("heads", model.heads);
  if (model.kv_head_count() > 1) divides("key heads", model.kv_head_count());
  divides("columns of the MLP", model.intermediate_size());
  if (options.target.device != Device::kCuda) return;
  check(ranks <= cuda_device_count(), ErrorCode::kInvalidArgument,
        "tensor: {} ranks want a GPU each, and {} can be used", ranks, cuda_device_count());
}

namespace {

template <typename Make>
std::unique_ptr<Runner> on_ranks(const ModelConfig& model, const ServingOptions& options, const Make& make) {
  if (options.tensor == 1) return make(options, CudaOptions{}, nullptr);
  check_ranks(model, options);
  const bool gpus = options.target.device == Device::kCuda;
  return std::make_unique<RankedRunner>(
      static_cast<int32_t>(options.tensor), gpus,
      [&](const LocalRank& rank) -> std::unique_ptr<Runner> {
        ServingOptions own = options;
        own.warm_up = false;  // when all ranks are there
        if (rank.ranks->rank() > 0) own.planned = nullptr;
        return make(own, {.device = rank.device, .ranks = rank.devices}, rank.ranks);
      },
      options.rank_timeout);
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
