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

// Statistics of one input, or of one expert's, window after window.
class Observer {
 public:
  // `tokens`: about so many are expected.
  Observer(InputStats& to, int64_t width, int64_t tokens) : to_(to), step_((tokens + kSampleRows - 1) / kSampleRows) {
    to.width = width;
    to.max_abs.resize(static_cast<size_t>(width)), to.mean_abs.resize(static_cast<size_t>(width));
    sums_.resize(static_cast<size_t>(width));
  }

  void add(std::span<const float> x) {  // [rows, K]
    const int64_t width = to_.width, rows = std::ssize(x) / width;
    parallel_for(width, 256, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = begin; k < end; ++k) {
          const float size = std::abs(x[static_cast<size_t>(r * width + k)]);
          sums_[static_cast<size_t>(k)] += static_cast<double>(size);
          to_.max_abs[static_cast<size_t>(k)] = std::max(to_.max_abs[static_cast<size_t>(k)], size);
        }
    });
    for (int64_t r = (step_ - seen_ % step_) % step_; r < rows && to_.rows < 2 * kSampleRows; r += step_, ++to_.rows) {
      const auto row = x.subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
      to_.sample.insert(to_.sample.end(), row.begin(), row.end());
    }
    seen_ += rows;
  }

  void finish(const std::string& gemm) {
    for (size_t k = 0; k < sums_.size(); ++k) {
      check(std::isfinite(sums_[k]), ErrorCode::kInvalidArgument,
            "input {} of {} is not finite on the calibration text: the weights in front of it overflow float32, or are "
            "damaged",
            k, gemm);
      to_.mean_abs[k] = static_cast<float>(sums_[k] / static_cast<double>(std::max<int64_t>(seen_, 1)));
    }
  }

 private:
  InputStats& to_;
  int64_t step_, seen_ = 0;  // tokens
  std::vector<double> sums_;
};

// All of one input: of the experts' rows each has its own.
class InputObserver {
 public:
  InputObserver(ObservedInput& to, int64_t tokens, int64_t rows) : to_(to) {
    const int64_t parts = std::max<int64_t>(to.input.experts, 1);
    to.stats.resize(static_cast<size_t>(parts));
    for (InputStats& stats : to.stats)
      parts_.emplace_back(stats, to.input.width, to.input.experts > 0 ? rows / parts + 1 : tokens);
  }
  void add(std::span<const float> x, std::span<const int32_t> offsets) {
    if (offsets.empty()) return parts_[0].add(x);
    for (size_t e = 0; e < parts_.size(); ++e) {
      const auto width = static_cast<size_t>(to_.input.width), first = static_cast<size_t>(offsets[e]);
      parts_[e].add(x.subspan(first * width, (static_cast<size_t>(offsets[e + 1]) - first) * width));
    }
  }
  void finish() {
    for (Observer& part : parts_) part.finish(to_.input.gemms[0]);
  }

 private:
  ObservedInput& to_;
  std::vector<Observer> parts_;
};

std::string x_name(const LinearInput& input) { return "x." + input.gemms[0]; }
std::string gram_name(const LinearInput& input) { return "gram." + input.gemms[0]; }
std::string offsets_name(const LinearInput& input) { return "offsets." + input.gemms[0]; }

// The input's second moments, with those of earlier windows.
void add_gram(Builder& builder, const LinearInput& input) {
  const int64_t width = input.width;
  const bool grouped = input.experts > 0;
  const Value gram =
      builder.state(gram_name(input), {DType::kF32, {std::max<int64_t>(input.experts, 1) * width, width}});
  const Value sum =
      grouped
          ? Value{builder.emit(Op::kGroupedMatmulWgrad, {input.x, input.x, input.offsets, gram}, {}, gram_name(input)),
                  0}
          : builder.add(gram, builder.matmul(input.x, input.x, /*trans_a=*/true, /*trans_b=*/false));
  builder.update(gram_name(input), sum);
}

}  // namespace

std::vector<int32_t> choose_windows(const std::vector<int32_t>& ids, int64_t samples, int64_t length, uint64_t seed,
                                    int32_t begin_id) {
  const int64_t there = std::ssize(ids) / length;
  check(samples > 0 && length > 0 && there >= samples, ErrorCode::kInvalidArgument,
        "the calibration text is too short: {} tokens are {} windows of {}, but {} are needed: give a longer text, "
        "fewer --samples or a smaller --length",
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
    if (begin_id >= 0) chosen[chosen.size() - static_cast<size_t>(length)] = begin_id;
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
  for_each_window(*executor, "embedding", /*advance=*/true, [&] {
    if (window < windows_) next_ids();
  });
}

std::unique_ptr<Executor> CalibrationRun::load(Graph graph, const WeightSource& weights) const {
  return load_graph(std::move(graph), {.target = target_, .recipe = parse_recipe("fp32")}, weights);
}

// after() once a window has run.
template <typename Fn>
void CalibrationRun::for_each_window(Executor& executor, const std::string& graph, bool advance, const Fn& after) {
  const int64_t count = length_ * hidden_;
  for (int64_t w = 0; w < windows_; ++w) {
    float* states = states_.data() + w * count;
    std::copy_n(states, count, batch_.tensors.at("x").values<float>().begin());
    write_inputs(executor, graph, batch_);
    executor.run(graph);
    after();
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
    if (input.experts > 0) builder.output(offsets_name(input), input.offsets);
    if (grams) add_gram(builder, input);
    observed.push_back({.input = input, .stats = {}, .gram = {}});
  }
  std::vector<InputObserver> observers;
  observers.reserve(observed.size());
  for (ObservedInput& input : observed)
    observers.emplace_back(input, windows_ * length_, windows_ * layer.graph.shape(input.input.x)[0]);
  if (grams) graph.set_stage(Stage::kGradient);  // where experts' second moments have their op
  const auto executor = load(std::move(graph), weights);
  for_each_window(*executor, "layer", advance, [&] {
    for (size_t i = 0; i < observed.size(); ++i) {
      const LinearInput& input = observed[i].input;
      std::span<const int32_t> offsets;
      if (input.experts > 0) offsets = output_as<int32_t>(*executor, "layer", offsets_name(input));
      observers[i].add(output_as<float>(*executor, "layer", x_name(input)), offsets);
    }
  });
  for (size_t i = 0; i < observed.size(); ++i) {
    observers[i].finish();
    if (!grams) continue;
    const LinearInput& input = observed[i].input;
    observed[i].gram.resize(static_cast<size_t>(std::max<int64_t>(input.experts, 1) * input.width * input.width));
    executor->read_state(gram_name(input), std::as_writable_bytes(std::span(observed[i].gram)));
  }
  return observed;
}

void CalibrationRun::advance(const LayerGraph& layer, const WeightSource& weights) {
  const auto executor = load(layer.graph, weights);
  for_each_window(*executor, "layer", /*advance=*/true, [] {});
}

}  // namespace octet
