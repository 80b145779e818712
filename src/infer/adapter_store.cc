#include "infer/adapter_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/threads.h"

namespace octet {
namespace {

std::vector<std::byte> encoded(DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) store_element(dtype, bytes.data(), static_cast<int64_t>(i), values[i]);
  return bytes;
}

// The bytes of one adapter's slot, from its tensors: each is taken once, none may be left.
class SlotWriter {
 public:
  SlotWriter(std::string name, const AdapterTables& tables, const AdapterSpec& spec, const AdapterTensors& tensors,
             const BaseWeight& base)
      : name_(std::move(name)), tables_(tables), spec_(spec), tensors_(tensors), base_(base) {
    for (size_t i = 0; i < tables.linears.size(); ++i)
      for (size_t k = 0; k < tables.linears[i].params.size(); ++k)
        linears_[tables.linears[i].params[k]] = {&tables.linears[i], k};
  }

  std::shared_ptr<HostAdapter> run() {
    check_kind();
    auto adapter = std::make_shared<HostAdapter>();
    adapter->name = name_;
    if (spec_.virtual_tokens > 0)
      write_virtual_tokens(*adapter);
    else
      write_low_rank(*adapter);
    for (const auto& [tensor, value] : tensors_)
      require(taken_.contains(tensor), "tensor {} [{}, {}] belongs to nothing that it adapts", tensor, value.rows,
              value.cols);
    return adapter;
  }

 private:
  struct Place {
    const AdaptedLinears* linears = nullptr;
    size_t index = 0;
  };
  // Of one linear, in the shapes of its tables.
  struct Factors {
    std::vector<float> a, b, gain;  // [experts, rank, in], [experts, out, rank], [out]
  };

  template <typename... Args>
  [[noreturn]] void refuse(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    fail(code, "adapter {}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds) refuse(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
  }

  void check_kind() const {
    require(!spec_.empty(), "it changes nothing of the model");
    const auto merge = [&](const char* what, const std::string& which) {
      refuse(ErrorCode::kUnsupported,
             "it has {} ({}), which the texts of one batch share: merge it into its base (octet export --merge) and "
             "serve that",
             what, which);
    };
    if (!spec_.trained.empty()) merge("parameters trained whole", fmt::format("{}", fmt::join(spec_.trained, ", ")));
    if (!spec_.token_rows.empty())
      merge("rows of the embedding table", fmt::format("{} of them", spec_.token_rows.size()));
    if (spec_.virtual_tokens > 0 && !spec_.low_rank.empty())
      refuse(ErrorCode::kUnsupported, "it has both virtual tokens and low-rank addends (want one of them)");
  }

  std::vector<float> take(const std::string& tensor, int64_t rows, int64_t cols) {
    const auto found = tensors_.find(tensor);
    require(found != tensors_.end(), "tensor {} [{}, {}] is missing", tensor, rows, cols);
    const ParamView& view = found->second;
    require(view.rows == rows && view.cols == cols,
            "tensor {} is [{}, {}], and the model wants [{}, {}]: is it an adapter of this base?", tensor, view.rows,
            view.cols, rows, cols);
    taken_.insert(tensor);
    return read_floats(view);  // finite ones
  }

  Place place_of(const LowRank& low, const std::string& param) const {
    const auto found = linears_.find(param);
    if (found != linears_.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [weight, place] : linears_)
      if (weight.starts_with("layers.0.")) known.push_back(weight);
    refuse(
        ErrorCode::kUnsupported,
        "it adapts {} ({}), for which this engine has no table; of layer 0 it has {}. Name its linears, and those of "
        "experts, by adapter_targets; embeddings and heads are merged into their base (octet export --merge)",
        param, low.name, fmt::join(known, ", "));
  }

  size_t class_of(int64_t rank) const {
    const auto found = std::ranges::find_if(tables_.ranks, [&](int64_t most) { return most >= rank; });
    require(found != tables_.ranks.end(),
            "its rank {} exceeds those that this engine has tables for ({}): raise "
            "max_adapter_rank",
            rank, tables_.ranks.empty() ? 0 : tables_.ranks.back());
    return static_cast<size_t>(found - tables_.ranks.begin());
  }

  void add_factors(const LowRank& low) {
    require(low.rank >= 1, "{} has rank {} (want >= 1)", low.name, low.rank);
    require(!low.dora || tables_.dora,
            "{} is a DoRA one, for which this engine has no tables: give one by --adapter "
            "at its start",
            low.name);
    int64_t in = 0, out = 0, experts = 1;
    for (const std::string& param : low.params) {
      const Place place = place_of(low, param);
      in = place.linears->in, out += place.linears->out[place.index], experts = place.linears->experts;
    }
    const std::vector<float> a = take(low.name + ".lora_a", experts * low.rank, in),
                             b = take(low.name + ".lora_b", experts * out, low.rank);
    std::vector<float> magnitude;
    if (low.dora) magnitude = take(low.name + ".magnitude", out, 1);
    int64_t row = 0;
    for (const std::string& param : low.params) {
      const Place place = place_of(low, param);
      const auto [factors, added] = factors_.try_emplace(param);
      require(added, "{} is adapted twice", param);
      const Part part{low, param, place.linears->out[place.index], in, row, out, experts};
      add_part(part, a, b, magnitude, factors->second);
      row += place.linears->out[place.index];
    }
  }

  // Rows [row, row + out) of each expert's `rows` of B.
  struct Part {
    const LowRank& low;
    const std::string& param;
    int64_t out, in, row, rows, experts;
  };

  // B times the scale; and DoRA's gains, magnitude / norm of the rows of W + scale B A.
  void add_part(const Part& part, std::span<const float> a, std::span<const float> b, std::span<const float> magnitude,
                Factors& to) {
    const LowRank& low = part.low;
    const std::string& param = part.param;
    const int64_t out = part.out, in = part.in, row = part.row, rows = part.rows, experts = part.experts;
    const int64_t rank = low.rank, width = tables_.ranks[of_class_];
    const auto scale = static_cast<float>(low.scale);
    to.a.assign(at(experts * width * in), 0);
    to.b.assign(at(experts * out * width), 0);
    for (int64_t e = 0; e < experts; ++e) {
      std::copy_n(a.begin() + e * rank * in, rank * in, to.a.begin() + e * width * in);
      for (int64_t o = 0; o < out; ++o)
        for (int64_t r = 0; r < rank; ++r)
          to.b[at((e * out + o) * width + r)] = scale * b[at((e * rows + row + o) * rank + r)];
    }
    if (!low.dora) return;
    require(experts == 1, "{}: DoRA is for linears, not for experts", low.name);
    const std::vector<float> base = base_(param);
    to.gain.assign(at(out), 0);
    parallel_for(out, 16, [&](int64_t begin, int64_t end) {
      std::vector<double> merged(at(in));
      for (int64_t o = begin; o < end; ++o) {
        for (int64_t i = 0; i < in; ++i) merged[at(i)] = base[at(o * in + i)];
        for (int64_t r = 0; r < rank; ++r)
          for (int64_t i = 0; i < in; ++i) merged[at(i)] += double{to.b[at(o * width + r)]} * a[at(r * in + i)];
        double sum = 0;
        for (const double value : merged) sum += value * value;
        const double gain = magnitude[at(row + o)] / std::sqrt(sum);
        to.gain[at(o)] = static_cast<float>(gain - 1);
        for (int64_t r = 0; r < rank; ++r) to.b[at(o * width + r)] *= static_cast<float>(gain);
      }
    });
    for (const float gain : to.gain) require(std::isfinite(gain), "{}: a row of the merged weight has norm 0", param);
  }

  void write_low_rank(HostAdapter& adapter) {
    for (const LowRank& low : spec_.low_rank) adapter.rank = std::max(adapter.rank, low.rank);
    of_class_ = class_of(adapter.rank);
    adapter.of_class = static_cast<int64_t>(of_class_);
    for (const LowRank& low : spec_.low_rank) add_factors(low);
    const int64_t rank = tables_.ranks[of_class_];
    // Behind the class's first group, of zeros. What is not adapted gets zeros too: the slot was another adapter's.
    for (const AdaptedLinears& linears : tables_.linears) {
      const int64_t count = std::ssize(linears.params), experts = linears.experts, width = rank * linears.in;
      std::vector<float> a(at(experts * count * width), 0);
      for (int64_t i = 0; i < count; ++i) {
        const std::string& param = linears.params[at(i)];
        const int64_t out = linears.out[at(i)];
        Factors& own = factors_[param];
        own.a.resize(at(experts * width), 0), own.b.resize(at(experts * out * rank), 0);
        for (int64_t e = 0; e < experts; ++e)
          std::copy_n(own.a.begin() + e * width, width, a.begin() + (e * count + i) * width);
        add(adapter, lora_b_state(param, rank), own.b, out * rank, experts);
        if (!tables_.dora || experts > 1) continue;
        own.gain.resize(at(out), 0);
        add(adapter, gain_state(param), own.gain, adapter.of_class * tables_.slots * out);
      }
      add(adapter, lora_a_state(linears, rank), a, count * width, experts);
    }
  }

  void write_virtual_tokens(HostAdapter& adapter) {
    require(
        spec_.virtual_tokens <= tables_.virtual_tokens,
        "its {} virtual tokens exceed those that this engine has room for ({}): give one of as many by --adapter at "
        "its start",
        spec_.virtual_tokens, tables_.virtual_tokens);
    adapter.virtual_tokens = spec_.virtual_tokens;
    adapter.of_class = std::ssize(tables_.ranks);
    std::vector<float> padded = take("prompt.weight", spec_.virtual_tokens, tables_.hidden);
    padded.resize(at(tables_.virtual_tokens * tables_.hidden), 0);
    add(adapter, kVirtualTokensState, padded, 0);
  }

  // `first`: elements of the state in front of slot 0, and of experts of each one's.
  void add(HostAdapter& adapter, std::string state, std::span<const float> values, int64_t first,
           int64_t experts = 1) const {
    const int64_t apart = (tables_.slots + 2) * (std::ssize(values) / experts) * dtype_bytes(tables_.dtype);
    adapter.parts.push_back(
        {std::move(state), first * dtype_bytes(tables_.dtype), encoded(tables_.dtype, values), experts, apart});
  }

  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  const std::string name_;
  const AdapterTables& tables_;
  const AdapterSpec& spec_;
  const AdapterTensors& tensors_;
  const BaseWeight& base_;
  size_t of_class_ = 0;
  std::map<std::string, Place> linears_;    // by weight
  std::map<std::string, Factors> factors_;  // by weight
  std::set<std::string> taken_;
};

}  // namespace

void AdapterStore::load(const std::string& name, const AdapterSpec& spec, const AdapterTensors& tensors, bool replace,
                        const std::string& folder) {
  check(!name.empty(), ErrorCode::kInvalidArgument, "an adapter's name is empty");
  const auto require_free = [&] {  // the mutex is held
    check(replace || !adapters_.contains(name), ErrorCode::kInvalidArgument, "adapter {} is loaded: unload it first",
          name);
  };
  {
    const std::lock_guard lock(mutex_);
    require_free();
  }
  const std::shared_ptr<HostAdapter> adapter = SlotWriter(name, tables_, spec, tensors, base_).run();
  adapter->folder = folder;
  const std::lock_guard lock(mutex_);
  require_free();
  adapter->id = ++last_id_;
  adapters_[name] = adapter;
}

void AdapterStore::unload(const std::string& name) {
  find(name);
  const std::lock_guard lock(mutex_);
  adapters_.erase(name);
}

std::shared_ptr<const HostAdapter> AdapterStore::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = adapters_.find(name); found != adapters_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, adapter] : adapters_) names.push_back(known);
  fail(ErrorCode::kNotFound, "adapter {}: no such adapter is loaded ({})", name,
       names.empty() ? "none is" : fmt::format("{}", fmt::join(names, ", ")));
}

std::vector<AdapterFacts> AdapterStore::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterFacts> all;
  for (const auto& [name, adapter] : adapters_)
    all.push_back({.name = name,
                   .folder = adapter->folder,
                   .rank = adapter->rank,
                   .virtual_tokens = adapter->virtual_tokens,
                   .waiting = adapter->waiting,
                   .running = adapter->running});
  return all;
}

}  // namespace octet
