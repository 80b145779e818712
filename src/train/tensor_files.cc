#include "train/tensor_files.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/threads.h"
#include "dist/communicator.h"
#include "exec/logical_states.h"
#include "weights/weights.h"

namespace octet {
namespace {

// Of a round all owners together get at most kRoundBytes, and each one piece.
constexpr int64_t kPieceBytes = int64_t{4} << 20, kRoundBytes = int64_t{64} << 20, kLeastPieceBytes = int64_t{1} << 14;
constexpr int64_t kRoundsToFailure = 16;  // after as many the others hear of a rank's error
constexpr int64_t kThreadElements = int64_t{1} << 16;

// One state's place in a file.
struct Item {
  const FileSet* set;
  const SafetensorsFile* file;
  const NamedType* stored;
  const SavedTensor* tensor;
  size_t part;

  const LogicalState& state() const { return tensor->parts[part]; }
};

// The pieces of what one rank owns, in order.
class Pieces {
 public:
  void add(const FileSet& set, const SafetensorsFile& file) {
    for (const NamedType& stored : file.tensors) {
      const SavedTensor& tensor = set.tensors.at(stored.name);
      for (size_t part = 0; part < tensor.parts.size(); ++part) items_.push_back({&set, &file, &stored, &tensor, part});
    }
  }
  TensorPart next(int64_t most) {
    const auto bytes = [&] { return item().state().type.bytes() / item().tensor->slices; };
    while (item_ < items_.size() && offset_ == bytes()) ++item_, offset_ = 0;
    if (item_ == items_.size()) return {};
    const TensorPart part{&item().state(), item().tensor->slice * bytes() + offset_, std::min(most, bytes() - offset_)};
    offset_ += part.bytes;
    return part;
  }
  const Item& item() const { return items_[item_]; }  // of the last one

 private:
  std::vector<Item> items_;
  size_t item_ = 0;
  int64_t offset_ = 0;
};

// The files that this rank owns, written one after the other. The last few stay open until all are whole: what has been
// written goes to the disk meanwhile.
class OwnFiles {
 public:
  explicit OwnFiles(std::string folder) : folder_(std::move(folder)) {}

  // The file being written, or the next one; no other that was opened before.
  SafetensorsWriter& open(const FileSet& set, const SafetensorsFile& file) {
    if (opened_.insert(file.name).second) {
      if (std::ssize(writers_) == kMaxOpen) finish_first();
      writers_.emplace_back(file.name,
                            std::make_unique<SafetensorsWriter>(folder_ + "/" + file.name, file.tensors, set.metadata));
    }
    return *writers_.back().second;
  }

  // The next piece, as the state holds it.
  void write(const Item& item, const TensorPart& part, std::span<const std::byte> piece) {
    const DType from = part.tensor->type.dtype, to = item.stored->type.dtype;
    const int64_t width = dtype_bytes(from), count = part.bytes / width;
    SafetensorsWriter& writer = open(*item.set, *item.file);
    if (item.tensor->order) return collect(item, part.offset / width, count, piece, writer);
    if (from == to) return writer.write(item.stored->name, piece);
    converted_.resize(static_cast<size_t>(count * dtype_bytes(to)));
    parallel_for(count, kThreadElements, [&](int64_t begin, int64_t end) {
      convert(from, piece.data() + begin * width, to, converted_.data() + begin * dtype_bytes(to), end - begin);
    });
    writer.write(item.stored->name, converted_);
  }

  std::vector<ManifestFile> finish() {
    while (!writers_.empty()) finish_first();
    return std::move(finished_);
  }

 private:
  static constexpr int64_t kMaxOpen = 8;

  void finish_first() {
    const auto& [name, writer] = writers_.front();
    writer->finish();
    finished_.push_back({name, writer->bytes(), writer->checksum()});
    writers_.pop_front();
  }

  // Elements [first, first + count) of a parameter to where they lie among the tensor's rows; the whole is written.
  void collect(const Item& item, int64_t first, int64_t count, std::span<const std::byte> piece,
               SafetensorsWriter& writer) {
    const CheckpointTensor& order = *item.tensor->order;
    const Shape& shape = item.stored->type.shape;
    rows_.resize(static_cast<size_t>(shape.elements()));
    for_each_piece(order, shape.elements(), item.part, [&](int64_t at, int64_t of_param, int64_t elements) {
      const int64_t begin = std::max(first, of_param), end = std::min(first + count, of_param + elements);
      if (begin >= end) return;
      const DType dtype = item.state().type.dtype;
      convert(dtype, piece.data() + (begin - first) * dtype_bytes(dtype), DType::kF32,
              rows_.data() + at + begin - of_param, end - begin);
    });
    if (item.part + 1 < item.tensor->parts.size() || first + count < item.state().type.shape.elements()) return;
    writer.write(item.stored->name, stored_bytes(order, shape, rows_, item.stored->type.dtype));
    rows_ = {};
  }

  std::string folder_;
  std::set<std::string> opened_;
  std::deque<std::pair<std::string, std::unique_ptr<SafetensorsWriter>>> writers_;  // in the order of opening
  std::vector<ManifestFile> finished_;
  std::vector<std::byte> converted_;
  std::vector<float> rows_;  // of a tensor that is not whole yet
};

std::string print(const std::vector<ManifestFile>& files) {
  std::string text;
  for (const ManifestFile& file : files) text += fmt::format("{} {} {}\n", file.name, file.bytes, file.crc32c);
  return text;
}

void parse(const std::string& text, std::vector<ManifestFile>& files) {
  std::istringstream lines(text);
  for (ManifestFile file; lines >> file.name >> file.bytes >> file.crc32c;) files.push_back(file);
}

}  // namespace

FileSet weight_files(const Program& program, const ModelConfig& config, DType dtype, int64_t max_bytes) {
  FileSet set{.stem = "model", .metadata = {{"format", "pt"}}};
  const ParamShapes params = param_shapes(config);
  std::map<std::string, LogicalState> masters;
  for (LogicalState& state : logical_states(program))
    if (state.role == StateRole::kMaster) masters[state.param] = std::move(state);
  std::vector<NamedType> types;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    types.push_back({tensor.name, {dtype, tensor_shape(tensor, params)}});
    SavedTensor& saved = set.tensors[tensor.name];
    for (const std::string& param : tensor.params) saved.parts.push_back(masters.at(param));
    saved.slice = tensor.part, saved.slices = tensor.parts;
    if (tensor.transposed || tensor.groups > 1) saved.order = tensor;
  }
  set.files = deal_tensors(set.stem, std::move(types), max_bytes);
  return set;
}

FileSet state_files(const Program& program, bool (*wanted)(StateRole role), const std::string& stem, int64_t max_bytes,
                    std::optional<DType> dtype) {
  FileSet set{.stem = stem};
  std::vector<NamedType> types;
  for (LogicalState& state : logical_states(program)) {
    if (!wanted(state.role) || state.update == Update::kNone) continue;
    types.push_back({state.name, {dtype.value_or(state.type.dtype), state.type.shape}});
    set.tensors[state.name].parts.push_back(std::move(state));
  }
  set.files = deal_tensors(stem, std::move(types), max_bytes);
  return set;
}

std::vector<int32_t> share_out(const std::vector<int64_t>& file_bytes, int32_t ranks) {
  std::vector<size_t> order(file_bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t file) { return file_bytes[file]; });
  std::vector<int64_t> bytes(static_cast<size_t>(ranks));
  std::vector<int32_t> owners(file_bytes.size());
  for (const size_t file : order) {
    const auto least = std::ranges::min_element(bytes);
    owners[file] = static_cast<int32_t>(least - bytes.begin());
    *least += file_bytes[file];
  }
  return owners;
}

std::vector<ManifestFile> write_tensor_files(Executor& executor, const std::string& folder,
                                             const std::vector<FileSet>& sets) {
  Communicator* ranks = executor.ranks();
  const int32_t count = ranks == nullptr ? 1 : ranks->mesh().ranks();
  const auto self = static_cast<size_t>(ranks == nullptr ? 0 : ranks->rank());
  std::vector<std::pair<const FileSet*, const SafetensorsFile*>> files;
  std::vector<int64_t> file_bytes;
  for (const FileSet& set : sets) {
    for (const SafetensorsFile& file : set.files) {
      files.emplace_back(&set, &file);
      int64_t& bytes = file_bytes.emplace_back(0);
      for (const NamedType& tensor : file.tensors) bytes += tensor.type.bytes();
    }
  }
  const std::vector<int32_t> owners = share_out(file_bytes, count);
  std::vector<Pieces> pieces(static_cast<size_t>(count));  // of every rank
  for (size_t i = 0; i < files.size(); ++i)
    pieces[static_cast<size_t>(owners[i])].add(*files[i].first, *files[i].second);

  OwnFiles own(folder);
  std::optional<Error> failure;  // of this rank; it gives its parts until all know
  std::vector<TensorPart> wanted(pieces.size());
  std::vector<std::byte> piece;
  const int64_t most = std::clamp(kRoundBytes / count, kLeastPieceBytes, kPieceBytes);
  for (int64_t round = 1;; ++round) {
    std::ranges::transform(pieces, wanted.begin(), [&](Pieces& of_rank) { return of_rank.next(most); });
    if (std::ranges::all_of(wanted, [](const TensorPart& part) { return part.tensor == nullptr; })) break;
    piece.resize(static_cast<size_t>(wanted[self].bytes));
    read_together(executor, wanted, piece);
    try {
      if (!failure && wanted[self].tensor != nullptr) own.write(pieces[self].item(), wanted[self], piece);
    } catch (const Error& error) {
      failure = error;
    }
    if (round % kRoundsToFailure != 0) continue;
    if (ranks == nullptr ? failure.has_value() : any_of(*ranks, failure.has_value())) break;
  }
  const auto finish = [&] {
    OwnFiles closing = std::move(own);  // at the end of this none is open
    if (failure) throw Error(*failure);
    for (size_t i = 0; i < files.size(); ++i)
      if (owners[i] == static_cast<int32_t>(self)) closing.open(*files[i].first, *files[i].second);  // the empty ones
    return print(closing.finish());
  };
  std::vector<ManifestFile> written;
  for (const std::string& text : do_together(ranks, finish)) parse(text, written);
  return written;
}

}  // namespace octet
