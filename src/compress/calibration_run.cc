#include "compress/calibration_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"

namespace octet {
namespace {

constexpr int64_t kSampleRows = 512;  // tokens whose inputs are kept whole, for searches and errors

// Statistics of one input, window after window.
class Observer {
 public:
  Observer(ObservedInput& to, int64_t tokens)
      : to_(to), step_((tokens + kSampleRows - 1) / kSampleRows), tokens_(tokens) {
    const auto width = static_cast<size_t>(to.input.width);
    to.stats.width = to.input.width;
    to.stats.max_abs.resize(width), to.stats.mean_abs.resize(width);
    sums_.resize(width);
  }

  void add(std::span<const float> x, int64_t first) {  // [rows, K], of tokens first ..
    const int64_t width = to_.input.width, rows = std::ssize(x) / width;
    parallel_for(width, 256, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = begin; k < end; ++k) {
          const float size = std::abs(x[static_cast<size_t>(r * width + k)]);
          sums_[static_cast<size_t>(k)] += static_cast<double>(size);
          to_.stats.max_abs[static_cast<size_t>(k)] = std::max(to_.stats.max_abs[static_cast<size_t>(k)], size);
        }
    });
    for (int64_t r = (step_ - first % step_) % step_; r < rows; r += step_) {
      const auto row = x.subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
      to_.stats.sample.insert(to_.stats.sample.end(), row.begin(), row.end());
    }
  }

  void finish() {
    for (size_t k = 0; k < sums_.size(); ++k) {
      check(std::isfinite(sums_[k]), ErrorCode::kInvalidArgument,
            "input {} of {} is not finite on the calibration text: the weights in front of it overflow float32, or are "
            "damaged",
            k, to_.input.gemms[0]);
      to_.stats.mean_abs[k] = static_cast<float>(sums_[k] / static_cast<double>(tokens_));
    }
    to_.stats.rows = std::ssize(to_.stats.sample) / to_.input.width;
  }

 private:
  ObservedInput& to_;
  int64_t step_, tokens_;
  std::vector<double> sums_;
};

std::string x_name(const LinearInput& input) { return "x." + input.gemms[0]; }
std::string gram_name(const LinearInput& input) { return "gram." + input.gemms[0]; }

}  // namespace

std::vector<int32_t> choose_windows(const std::vector<int32_t>& ids, int64_t samples, int64_t length, uint64_t seed) {
  const int64_t there = std::ssize(ids) / length;
  check(samples > 0 && length > 0 && there >= samples, ErrorCode::kInvalidArgument,
        "the calibration text is too short: {} tokens are {} windows of {}, {} are wanted: give a longer text, or "
        "fewer with --samples or shorter ones with --length",
        ids.size(), there, length, samples);
  std::vector<int64_t> windows(static_cast<size_t>(there));
  std::iota(windows.begin(), windows.end(), 0);
  Philox rng(seed);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < samples; ++i) {  // the first of a shuffle
    std::swap(windows[static_cast<size_t>(i)],
              windows[static_cast<size_t>(i) + rng.below(static_cast<uint64_t>(there - i))]);
    const auto begin = ids.begin() + windows[static_cast<size_t>(i)] * length;
    chosen.insert(chosen.end(), begin, begin + length);
  }
  return chosen;
}

CalibrationRun::CalibrationRun(const WeightSource& weights, const std::vector<int32_t>& ids, int64_t length,
                               const Target& target)
    : target_(target),
      length_(length),
      windows_(std::ssize(ids) / length),
      hidden_(weights.config().hidden),
      batch_(token_batch(1, length, /*targets=*/false)) {
  for (const int32_t id : ids)
    check(id >= 0 && id < weights.config().vocab_size, ErrorCode::kInvalidArgument,
          "token {} of the calibration text is outside the vocabulary of {}", id, weights.config().vocab_size);
  for (auto& [name, tensor] : batch_.tensors) tensor.optional = true;
  states_.resize(static_cast<size_t>(windows_ * length_ * hidden_));
  const auto executor = load(LayerGraphs(weights.config(), length).embedding(), weights);
  int64_t window = 0;
  batch_.add("x", {DType::kF32, {length, hidden_}}, /*optional=*/true);
  const auto next_ids = [&] { std::copy_n(ids.begin() + window++ * length_, length_, batch_.ints("ids").begin()); };
  next_ids();
  for_each_window(*executor, "embedding", /*advance=*/true, [&](int64_t) {
    if (window < windows_) next_ids();
  });
}

std::unique_ptr<Executor> CalibrationRun::load(Graph graph, const WeightSource& weights) const {
  return load_graph(std::move(graph), {.target = target_, .recipe = parse_recipe("fp32")}, weights);
}

// after(first token) once a window has run.
template <typename Fn>
void CalibrationRun::for_each_window(Executor& executor, const std::string& graph, bool advance, const Fn& after) {
  const int64_t count = length_ * hidden_;
  for (int64_t w = 0; w < windows_; ++w) {
    float* states = states_.data() + w * count;
    std::copy_n(states, count, batch_.tensors.at("x").values<float>().begin());
    write_inputs(executor, graph, batch_);
    executor.run(graph);
    after(w * length_);
    if (advance) std::ranges::copy(output_as<float>(executor, graph, "y"), states);
  }
}

std::vector<ObservedInput> CalibrationRun::observe(const LayerGraph& layer, const WeightSource& weights, bool grams,
                                                   bool advance) {
  Graph graph = layer.graph;
  Builder builder(graph);
  std::vector<ObservedInput> observed;
  for (const LinearInput& input : layer.inputs) {
    builder.output(x_name(input), input.x);
    observed.push_back({.input = input, .stats = {}, .gram = {}});
    if (!grams) continue;
    const Value gram = builder.state(gram_name(input), {DType::kF32, {input.width, input.width}});
    builder.update(gram_name(input),
                   builder.add(gram, builder.matmul(input.x, input.x, /*trans_a=*/true, /*trans_b=*/false)));
  }
  std::vector<Observer> observers;
  observers.reserve(observed.size());
  for (ObservedInput& input : observed) observers.emplace_back(input, windows_ * length_);
  const auto executor = load(std::move(graph), weights);
  for_each_window(*executor, "layer", advance, [&](int64_t first) {
    for (size_t i = 0; i < observed.size(); ++i)
      observers[i].add(output_as<float>(*executor, "layer", x_name(observed[i].input)), first);
  });
  for (size_t i = 0; i < observed.size(); ++i) {
    observers[i].finish();
    if (!grams) continue;
    observed[i].gram.resize(static_cast<size_t>(observed[i].input.width * observed[i].input.width));
    executor->read_state(gram_name(observed[i].input), std::as_writable_bytes(std::span(observed[i].gram)));
  }
  return observed;
}

void CalibrationRun::advance(const LayerGraph& layer, const WeightSource& weights) {
  const auto executor = load(layer.graph, weights);
  for_each_window(*executor, "layer", /*advance=*/true, [](int64_t) {});
}

}  // namespace octet
