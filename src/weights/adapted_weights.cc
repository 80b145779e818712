// A base with an adapter merged into it as its rows are read: no copy of a matrix is made.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "weights/adapter_folder.h"
#include "weights/adapter_modules.h"

namespace octet {
namespace {

// What changes the rows of one parameter.
struct Merge {
  ParamView base;
  const LowRank* low = nullptr;
  const float *a = nullptr, *b = nullptr, *magnitude = nullptr;
  int64_t first = 0;  // of this parameter's rows among those of B
  int64_t own = 0;    // rows of it, and of B, in each expert
  int64_t out = 0;
  bool table = false;  // of tokens: B A is [hidden, vocab]
  std::vector<int64_t> token_rows = {};
  const float* tokens = nullptr;  // their values

  void rows(int64_t begin, int64_t count, float* to) const {
    read_rows(base, begin, count, DType::kF32, to);
    for (int64_t i = 0; i < count; ++i) {
      float* row = to + i * base.cols;
      if (low != nullptr) table ? add_token(begin + i, row) : add_row(begin + i, row);
      const auto token = std::ranges::lower_bound(token_rows, begin + i);
      if (token != token_rows.end() && *token == begin + i)
        std::copy_n(tokens + (token - token_rows.begin()) * base.cols, base.cols, row);
    }
  }

 private:
  void add_row(int64_t at, float* row) const {
    const int64_t expert = at / own, rank = low->rank, of_b = first + at % own;
    const float* matrix = a + expert * rank * base.cols;
    const float* factors = b + (expert * out + of_b) * rank;
    std::vector<float> delta(static_cast<size_t>(base.cols));
    for (int64_t r = 0; r < rank; ++r)
      for (int64_t k = 0; k < base.cols; ++k) delta[static_cast<size_t>(k)] += factors[r] * matrix[r * base.cols + k];
    const auto scale = static_cast<float>(low->scale);
    double squares = 0;
    for (int64_t k = 0; k < base.cols; ++k) {
      row[k] += scale * delta[static_cast<size_t>(k)];
      squares += static_cast<double>(row[k]) * row[k];
    }
    if (magnitude == nullptr) return;
    const auto factor = static_cast<float>(magnitude[of_b] / std::sqrt(squares));
    for (int64_t k = 0; k < base.cols; ++k) row[k] *= factor;
  }
  void add_token(int64_t token, float* row) const {
    const int64_t rank = low->rank;
    for (int64_t k = 0; k < base.cols; ++k) {
      float sum = 0;
      for (int64_t r = 0; r < rank; ++r) sum += b[k * rank + r] * a[r * base.rows + token];
      row[k] += static_cast<float>(low->scale) * sum;
    }
  }
};

class MergedWeights : public WeightSource {
 public:
  MergedWeights(std::unique_ptr<WeightSource> base, Adapter adapter)
      : base_(std::move(base)), adapter_(std::move(adapter)) {
    config_ = adapter_.unties_head ? untied(base_->config()) : base_->config();
    special_ = base_->special();
    const ParamShapes shapes = param_shapes(config_);
    for (const LowRank& low : adapter_.spec.low_rank) {
      int64_t first = 0, out = 0;
      const int64_t experts = adapter_.find(low.name + ".lora_a")->rows / low.rank;
      for (const std::string& param : low.params) out += rows_of(shapes, param) / experts;
      for (const std::string& name : low.params) {
        // The head that is tied in the base.
        const std::string& param = low.name == "head" ? "head.weight" : name;
        const int64_t own = rows_of(shapes, param) / experts;
        places_[param] = {&low, first, own, out};
        first += own;
        check_floats(param, shapes.at(param));
      }
    }
  }

  ParamView view(const std::string& param, const Shape& shape) const override {
    if (const ParamView* whole = adapter_.find(param)) return *whole;
    const auto copy = adapter_.base_copies.find(param);
    Merge merge{.base = copy != adapter_.base_copies.end() ? copy->second : of_base(param, shape)};
    const auto place = places_.find(param);
    const bool table = param == "embed.weight";
    const bool tokens = table && !adapter_.spec.token_rows.empty();
    if (place == places_.end() && !tokens) return merge.base;
    if (place != places_.end()) {
      const auto values = [&](const char* part) -> const float* {
        const ParamView* found = adapter_.find(place->second.low->name + part);
        return found == nullptr ? nullptr : reinterpret_cast<const float*>(found->data);
      };
      merge.low = place->second.low, merge.table = table;
      merge.a = values(".lora_a"), merge.b = values(".lora_b"), merge.magnitude = values(".magnitude");
      merge.first = place->second.first, merge.own = place->second.own, merge.out = place->second.out;
    }
    if (tokens) {
      merge.token_rows = adapter_.spec.token_rows;
      merge.tokens = reinterpret_cast<const float*>(adapter_.find("embed.token_rows")->data);
    }
    ParamView result = view_of(DType::kF32, nullptr, merge.base.rows, merge.base.cols, merge.base.name);
    result.computed = std::make_shared<const RowFunction>(
        [merge](int64_t first, int64_t count, float* to) { merge.rows(first, count, to); });
    return result;
  }

  std::optional<Recipe> recipe() const override { return base_->recipe(); }
  bool has_kv_scales() const override { return base_->has_kv_scales(); }
  std::optional<float> scale(StateRole role, const std::string& tensor, int32_t index) const override {
    return base_->scale(role, tensor, index);
  }

 private:
  struct Place {
    const LowRank* low;
    int64_t first, own, out;
  };
  static int64_t rows_of(const ParamShapes& shapes, const std::string& param) { return shapes.at(param).rows(); }

  // A tied head that gets its own values begins as the table does.
  ParamView of_base(const std::string& param, const Shape& shape) const {
    return base_->view(adapter_.unties_head && param == "head.weight" ? "embed.weight" : param, shape);
  }
  void check_floats(const std::string& param, const Shape& shape) const {
    const DType dtype = of_base(param, shape).dtype;
    check(dtype != DType::kI4 && dtype != DType::kI8, ErrorCode::kUnsupported,
          "{}: {} of the base is in {} codes, into which an adapter is not merged (supported: a base in float, FP8 or "
          "NF4: "
          "name its folder in base_model_name_or_path)",
          adapter_.folder, param, dtype_name(dtype));
  }

  std::unique_ptr<WeightSource> base_;
  Adapter adapter_;
  std::map<std::string, Place> places_;  // by parameter
};

class WeightsBeside : public WeightSource {
 public:
  WeightsBeside(std::unique_ptr<WeightSource> base, Adapter adapter)
      : base_(std::move(base)), adapter_(std::move(adapter)) {
    config_ = base_->config(), special_ = base_->special();
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    if (const ParamView* own = adapter_.find(param)) return *own;
    const auto copy = adapter_.base_copies.find(param);
    return copy != adapter_.base_copies.end() ? copy->second : base_->view(param, shape);
  }
  std::optional<Recipe> recipe() const override { return base_->recipe(); }

 private:
  std::unique_ptr<WeightSource> base_;
  Adapter adapter_;
};

}  // namespace

std::unique_ptr<WeightSource> add_adapter(std::unique_ptr<WeightSource> base, Adapter adapter) {
  return std::make_unique<WeightsBeside>(std::move(base), std::move(adapter));
}

std::unique_ptr<WeightSource> merge_adapter(std::unique_ptr<WeightSource> base, Adapter adapter) {
  return std::make_unique<MergedWeights>(std::move(base), std::move(adapter));
}

}  // namespace octet
