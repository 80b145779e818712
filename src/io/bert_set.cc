#include "io/bert_set.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "io/bert_example.h"

namespace octet {
namespace {

constexpr const char* kKind = "masked sequences";

}  // namespace

void check_sequence(const BertSequence& s, int64_t vocab_size, const std::string& where) {
  const auto within = [&](const char* what, const std::vector<int32_t>& values, int64_t end) {
    for (size_t i = 0; i < values.size(); ++i)
      check(values[i] >= 0 && values[i] < end, ErrorCode::kInvalidArgument, "{}: {} {} is {} (want 0 to {})", where,
            what, i, values[i], end - 1);
  };
  check(s.ids.size() >= 2, ErrorCode::kInvalidArgument, "{}: {} tokens (want 2 or more: [CLS], a text, [SEP])", where,
        s.ids.size());
  check(s.types.size() == s.ids.size(), ErrorCode::kInvalidArgument, "{}: {} tokens, and types of {}", where,
        s.ids.size(), s.types.size());
  check(s.positions.size() == s.labels.size(), ErrorCode::kInvalidArgument, "{}: {} masked positions and {} labels",
        where, s.positions.size(), s.labels.size());
  within("id", s.ids, vocab_size);
  within("label", s.labels, vocab_size);
  within("type", s.types, 2);
  within("masked position", s.positions, std::ssize(s.ids));
  for (size_t i = 1; i < s.positions.size(); ++i)
    check(s.positions[i - 1] < s.positions[i], ErrorCode::kInvalidArgument,
          "{}: masked positions {} and {} are {} and {} (want them ascending)", where, i - 1, i, s.positions[i - 1],
          s.positions[i]);
}

BertSetWriter::BertSetWriter(const std::string& prefix, BertSetInfo info)
    : prefix_(prefix), info_(std::move(info)), writer_(prefix, token_type_for(info_.vocab_size)) {}

void BertSetWriter::add(const BertSequence& s) {
  check_sequence(s, info_.vocab_size, fmt::format("{}: sequence {}", prefix_, writer_.documents()));
  const int32_t head[] = {s.is_next, static_cast<int32_t>(s.ids.size())};
  writer_.append(head);
  for (const std::vector<int32_t>* part : {&s.ids, &s.types, &s.positions, &s.labels}) writer_.append(*part);
  writer_.end_document();
  tokens_ += std::ssize(s.ids), predictions_ += std::ssize(s.labels);
}

void BertSetWriter::commit() {
  namespace fs = std::filesystem;
  nlohmann::json json = {{"kind", kKind},
                         {"vocab_size", info_.vocab_size},
                         {"sequences", writer_.documents()},
                         {"tokens", tokens_},
                         {"predictions", predictions_}};
  if (!info_.tokenizer_path.empty()) {
    const fs::path beside = fs::absolute(prefix_).parent_path();
    json["tokenizer"] = fs::absolute(info_.tokenizer_path).lexically_relative(beside).string();
  }
  writer_.commit();
  write_file(prefix_ + ".json", json.dump(2) + "\n");
}

void write_bert_set(const std::string& prefix, const BertSetInfo& info, std::span<const BertSequence> sequences) {
  BertSetWriter writer(prefix, info);
  for (const BertSequence& sequence : sequences) writer.add(sequence);
  writer.commit();
}

BertSet::BertSet(const std::string& prefix) : prefix_(prefix) {
  const std::string path = prefix + ".json";
  const nlohmann::json json = parse_json(read_file(path), path);
  check(json.is_object() && json.value("kind", nlohmann::json()) == kKind, ErrorCode::kCorrupt,
        "{}: describes no set of masked sequences (\"kind\": \"{}\"), which workload=bert is trained on", path, kKind);
  info_.vocab_size = json_get<int64_t>(json, "vocab_size", path);
  if (json.contains("tokenizer"))
    info_.tokenizer_path =
        (std::filesystem::path(path).parent_path() / json_get<std::string>(json, "tokenizer", path)).string();
  documents_ = TokenDataset::open(prefix);
  check(documents_->documents() == json_get<int64_t>(json, "sequences", path), ErrorCode::kCorrupt,
        "{}: {} sequences, and {}.bin has {}: it comes from an earlier set; write it again", path,
        json_get<int64_t>(json, "sequences", path), prefix, documents_->documents());
  check(sequences() > 0, ErrorCode::kInvalidArgument, "{}: the set is empty", path);
}

BertSet::Sizes BertSet::sizes(int64_t sequence) const {
  const int64_t all = documents_->document_length(sequence);
  int32_t head[2] = {};
  if (all >= 2) documents_->read(documents_->document_begin(sequence), head);
  const int64_t tokens = head[1], rest = all - 2 - 2 * tokens;
  check(all >= 2 && tokens >= 0 && rest >= 0 && rest % 2 == 0, ErrorCode::kCorrupt,
        "{}: sequence {} has {} numbers and says that it has {} tokens: the file is damaged", prefix_, sequence, all,
        tokens);
  return {tokens, rest / 2};
}

void BertSet::get(int64_t sequence, BertSequence& out) const {
  const Sizes size = sizes(sequence);
  int64_t at = documents_->document_begin(sequence);
  int32_t head[2] = {};
  documents_->read(at, head);
  at += 2;
  out.is_next = head[0] != 0;
  for (auto& [part, count] : {std::pair(&out.ids, size.tokens), std::pair(&out.types, size.tokens),
                              std::pair(&out.positions, size.predictions), std::pair(&out.labels, size.predictions)}) {
    part->resize(static_cast<size_t>(count));
    documents_->read(at, *part);
    at += count;
  }
  check_sequence(out, info_.vocab_size, fmt::format("{}: sequence {}", prefix_, sequence));
}

BertRows pack_rows(std::span<const BertSet::Sizes> sizes, const RowLimits& limits, const std::string& where) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    check(sizes[i].tokens <= limits.tokens, ErrorCode::kInvalidArgument,
          "{}: sequence {} has {} tokens, data.sequence_length is {}: raise it, or prepare shorter ones", where, i,
          sizes[i].tokens, limits.tokens);
    check(sizes[i].predictions <= limits.predictions, ErrorCode::kInvalidArgument,
          "{}: sequence {} has {} masked tokens, a row at most {}: raise data.predictions", where, i,
          sizes[i].predictions, limits.predictions);
  }
  std::vector<int32_t> lengths;
  for (const BertSet::Sizes& size : sizes) lengths.push_back(static_cast<int32_t>(size.tokens));
  BertRows packed;
  for (std::vector<int64_t>& members : pack_lengths(lengths, limits.tokens, limits.sequences)) {
    std::ranges::sort(members);
    int64_t predictions = 0;
    for (const int64_t i : members) {
      const int64_t own = sizes[static_cast<size_t>(i)].predictions;
      if (predictions > 0 && predictions + own > limits.predictions) {  // the rest is a row of its own
        packed.begins.push_back(std::ssize(packed.order));
        predictions = 0;
      }
      packed.order.push_back(i);
      predictions += own;
    }
    packed.begins.push_back(std::ssize(packed.order));
  }
  return packed;
}

}  // namespace octet
