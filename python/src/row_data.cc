#include "row_data.h"

#include <deque>
#include <map>
#include <mutex>

#include "arrays.h"
#include "base/error.h"
#include "convert.h"
#include "process.h"
#include "train/language_model.h"

namespace octet::python {
namespace {

struct Row {
  std::vector<int32_t> ids, targets;  // as many; -1: no target
  std::vector<float> weights;         // empty: 1
};

template <typename T>
std::vector<T> values_of(nb::handle given, DType dtype, const std::string& what) {
  const ArrayIn array(given, what);
  const bool whole = array.dtype() == DType::kI32 || array.dtype() == DType::kI64;
  check(array.shape().rank() == 1, ErrorCode::kInvalidArgument, "{} has shape {} (want one dim)", what,
        to_string(array.shape()));
  check(dtype == DType::kI32 ? whole : is_float(array.dtype()), ErrorCode::kInvalidArgument, "{} is of {} (want {})",
        what, dtype_name(array.dtype()), dtype == DType::kI32 ? "i32 or i64" : "f32 or f64");
  std::vector<std::byte> bytes(static_cast<size_t>(storage_bytes(array.dtype(), array.elements())));
  array.read(bytes);
  std::vector<T> values;
  for (int64_t i = 0; i < array.elements(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      values.push_back(static_cast<float>(load_element(array.dtype(), bytes.data(), i)));
    } else {
      int64_t value = 0;
      if (array.dtype() == DType::kI32)
        value = reinterpret_cast<const int32_t*>(bytes.data())[i];
      else
        value = reinterpret_cast<const int64_t*>(bytes.data())[i];
      check(std::in_range<int32_t>(value), ErrorCode::kInvalidArgument, "{} has {} at {}", what, value, i);
      values.push_back(static_cast<int32_t>(value));
    }
  }
  return values;
}

Row read_row(nb::handle given, int64_t number, int64_t length, int64_t vocab_size) {
  const std::string what = fmt::format("row {}", number);
  const bool parts = nb::isinstance<nb::tuple>(given);
  const size_t count = parts ? nb::len(given) : 1;
  check(count >= 1 && count <= 3, ErrorCode::kInvalidArgument,
        "{} has {} parts (want ids, (ids, targets) or (ids, targets, weights))", what, count);
  Row row{.ids = values_of<int32_t>(parts ? given[0] : nb::object(nb::borrow(given)), DType::kI32, what + ": ids")};
  if (count == 1) {  // each is the target of the one before
    check(row.ids.size() >= 2, ErrorCode::kInvalidArgument, "{} has {} ids (want two or more)", what, row.ids.size());
    row.targets.assign(row.ids.begin() + 1, row.ids.end());
    row.ids.pop_back();
  } else {
    row.targets = values_of<int32_t>(given[1], DType::kI32, what + ": targets");
  }
  if (count == 3) row.weights = values_of<float>(given[2], DType::kF32, what + ": weights");
  const size_t size = row.ids.size();
  check(size > 0 && std::cmp_less_equal(size, length), ErrorCode::kInvalidArgument,
        "{} has {} ids (want at most data.sequence_length, {}, and one more where targets are the next ids)", what,
        size, length);
  check(row.targets.size() == size && (row.weights.empty() || row.weights.size() == size), ErrorCode::kInvalidArgument,
        "{} has {} ids, {} targets and {} weights (want as many of each)", what, size, row.targets.size(),
        row.weights.size());
  for (size_t i = 0; i < size; ++i) {
    check(row.ids[i] >= 0 && row.ids[i] < vocab_size && row.targets[i] >= -1 && row.targets[i] < vocab_size,
          ErrorCode::kInvalidArgument, "{}: id {} and target {} at {} (the vocabulary has {}; -1 is no target)", what,
          row.ids[i], row.targets[i], i, vocab_size);
    check(row.weights.empty() || (row.weights[i] >= 0 && std::isfinite(row.weights[i])), ErrorCode::kInvalidArgument,
          "{}: weight {} at {} (want 0 or more)", what, row.weights.empty() ? 0 : row.weights[i], i);
  }
  return row;
}

}  // namespace

// Rows come in their order; a few are kept for ranks that ask for them at different times.
class RowSource {
 public:
  explicit RowSource(nb::handle rows) : rows_(nb::iter(rows)) {}
  ~RowSource() {
    if (ended()) {
      rows_.release();
      return;
    }
    const nb::gil_scoped_acquire gil;
    rows_.reset();
  }
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  Row get(int64_t index, int64_t length, int64_t vocab_size) {
    const std::lock_guard lock(mutex_);
    while (first_ + std::ssize(kept_) <= index) draw(length, vocab_size);
    check(index >= first_, ErrorCode::kUnsupported,
          "row {} of the iterator is asked for again, and only {} are kept: give rows that a run reads once", index,
          kKept);
    return kept_[static_cast<size_t>(index - first_)];
  }

 private:
  static constexpr int64_t kKept = 65536;

  void draw(int64_t length, int64_t vocab_size) {
    const int64_t number = first_ + std::ssize(kept_);
    const nb::gil_scoped_acquire gil;
    const nb::object next = nb::steal(PyIter_Next(rows_.ptr()));
    if (!next.is_valid() && PyErr_Occurred() != nullptr) throw nb::python_error();
    check(next.is_valid(), ErrorCode::kInvalidArgument,
          "the iterator has ended after {} rows: give more of them, or lower train.steps", number);
    kept_.push_back(read_row(next, number, length, vocab_size));
    if (std::ssize(kept_) > kKept) kept_.pop_front(), ++first_;
  }

  std::mutex mutex_;
  nb::object rows_;
  int64_t first_ = 0;  // of those that are kept
  std::deque<Row> kept_;
};

namespace {

struct Sources {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<RowSource>> by_name;
  int64_t count = 0;
};
Sources& sources() {
  static Sources& all = *new Sources;  // outlives every thread
  return all;
}

class RowModel : public LanguageModel {
 public:
  explicit RowModel(const RunConfig& config)
      : LanguageModel(resolve_model(config, 0), config), most_(config.accumulation() * config.micro_batch) {
    check(!config.separate_documents && config.validation_data.empty() && !config.adapter.is_on(),
          ErrorCode::kUnsupported,
          "rows= is data for training alone, of one document each: leave out data.separate_documents, data.validation "
          "and adapter");
    weigh_targets(true);
    const std::lock_guard lock(sources().mutex);
    const auto found = sources().by_name.find(config.train_data);
    source_ = found == sources().by_name.end() ? nullptr : found->second.lock();
    check(source_ != nullptr, ErrorCode::kInvalidArgument, "data.train={}: give rows= again", config.train_data);
  }

  Batch batch(DataSplit, int64_t index) const override {
    std::vector<Row> rows;
    std::vector<TokenSample> samples;
    for (int64_t i = 0; i < sequences(); ++i) {
      Row row = source_->get(index * sequences() + i, length(), model().vocab_size);
      TokenSample sample{.tokens = row.ids, .segments = {0}};
      sample.tokens.push_back(0);
      samples.push_back(std::move(sample)), rows.push_back(std::move(row));
    }
    Batch made = batch_of(samples);
    const std::span<int32_t> targets = made.ints("targets");
    const std::span<float> weights = made.tensors.at("target_weights").values<float>();
    made.target_count = 0;
    for (size_t r = 0; r < rows.size(); ++r)
      for (size_t i = 0; i < rows[r].ids.size(); ++i) {
        const size_t at = r * static_cast<size_t>(length()) + i;
        const float weight = rows[r].weights.empty() ? 1.0f : rows[r].weights[i];
        targets[at] = weight > 0 ? rows[r].targets[i] : -1, weights[at] = weight > 0 ? weight : 1;
        made.target_count += targets[at] >= 0;
      }
    return made;
  }
  int64_t samples_per_epoch() const override { return 0; }
  int64_t units_of(DataSplit) const override { return 0; }
  int64_t validation_batches() const override { return 0; }
  DataRecord data() const override {
    return {.data = fmt::format("rows of an iterator, length {} batch {}", length(), most_)};
  }

 private:
  const int64_t most_;
  std::shared_ptr<RowSource> source_;
};

}  // namespace

std::shared_ptr<RowSource> open_rows(nb::handle rows, std::string& data_name) {
  auto source = std::make_shared<RowSource>(rows);
  const std::lock_guard lock(sources().mutex);
  data_name = fmt::format("rows-of-an-iterator-{}", sources().count++);
  sources().by_name[data_name] = source;
  return source;
}

const WorkloadRow kRowData = {.open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
  return std::make_unique<RowModel>(config);
}};

}  // namespace octet::python
