#include "io/tfrecord.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"

namespace octet {
namespace {

// A protocol buffer's message, field by field.
class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

  // The next field; `bytes` is its content where it has a length, `value` where it is a number.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = key >> 3, type = key & 7, value = 0, bytes = {};
    switch (type) {
      case 0: value = varint(); break;
      case 1: bytes = take(8); break;
      case 2: bytes = take(varint()); break;
      case 5: bytes = take(4); break;
      default: broken();
    }
    return true;
  }
  uint64_t varint() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      number |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
    broken();
  }
  bool empty() const { return rest_.empty(); }

  uint64_t field = 0, type = 0, value = 0;
  std::string_view bytes;

 private:
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) broken();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  [[noreturn]] void broken() const { fail(ErrorCode::kCorrupt, "{}: it is not a tensorflow.Example", where_); }

  std::string_view rest_;
  const std::string& where_;
};

// The numbers of a Feature, of whichever list it has, packed or not.
struct Feature {
  std::vector<int64_t> integers;
  std::vector<float> floats;
};

Feature parse_feature(std::string_view bytes, const std::string& where) {
  Feature feature;
  const auto add_float = [&](std::string_view four) {
    feature.floats.push_back(0);
    std::memcpy(&feature.floats.back(), four.data(), 4);
  };
  for (Message m(bytes, where); m.next();) {
    for (Message list(m.bytes, where); list.next();) {
      if (list.field != 1) continue;
      if (m.field == 3 && list.type == 0) feature.integers.push_back(static_cast<int64_t>(list.value));
      if (m.field == 3 && list.type == 2)
        for (Message packed(list.bytes, where); !packed.empty();)
          feature.integers.push_back(static_cast<int64_t>(packed.varint()));
      if (m.field == 2 && list.type == 5) add_float(list.bytes);
      if (m.field == 2 && list.type == 2)
        for (size_t i = 0; i + 4 <= list.bytes.size(); i += 4) add_float(list.bytes.substr(i, 4));
    }
  }
  return feature;
}

enum FeatureName { kIds, kMask, kTypes, kPositions, kLabels, kWeights, kNext };
constexpr std::array<std::string_view, 7> kFeatures = {"input_ids",           "input_mask",    "segment_ids",
                                                       "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
                                                       "next_sentence_labels"};

}  // namespace

uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(data.data(), static_cast<int64_t>(data.size())), 15) + 0xa282ead8u;
}

void each_tfrecord(std::span<const std::byte> file, const std::string& where,
                   const std::function<void(std::string_view record, int64_t number)>& body) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  const auto number_at = [&]<typename T>(size_t at, T value) {
    std::memcpy(&value, all.data() + at, sizeof(T));
    return value;
  };
  int64_t number = 0;
  for (size_t at = 0; at < all.size(); ++number) {
    const auto holds = [&](bool sound, const char* what) {
      check(sound, ErrorCode::kCorrupt, "{}: record {} at byte {}: {}: fetch or make the file again", where, number, at,
            what);
    };
    const size_t left = all.size() - at;
    holds(left >= 12, "the file is cut in its head");
    holds(masked_crc(all.substr(at, 8)) == number_at(at + 8, uint32_t{}), "the checksum of its length is wrong");
    const auto length = number_at(at, uint64_t{});
    holds(length <= left - 12 && left - 12 - length >= 4, "the file is cut in it");
    const std::string_view record = all.substr(at + 12, length);
    holds(masked_crc(record) == number_at(at + 12 + length, uint32_t{}), "its checksum is wrong");
    body(record, number);
    at += 16 + length;
  }
}

BertSequence parse_bert_record(std::string_view record, int64_t vocab_size, const std::string& where) {
  std::array<std::optional<Feature>, kFeatures.size()> features;
  for (Message example(record, where); example.next();) {
    if (example.field != 1) continue;
    for (Message map(example.bytes, where); map.next();) {
      if (map.field != 1) continue;
      std::string_view key, value;
      for (Message entry(map.bytes, where); entry.next();) (entry.field == 1 ? key : value) = entry.bytes;
      for (size_t i = 0; i < kFeatures.size(); ++i)
        if (key == kFeatures[i]) features[i] = parse_feature(value, where);
    }
  }
  const auto integers = [&](FeatureName name, size_t count) -> const std::vector<int64_t>& {
    check(features[name].has_value(), ErrorCode::kCorrupt, "{}: it has no {}", where, kFeatures[name]);
    const auto& values = features[name]->integers;
    check(!values.empty() && (count == 0 || values.size() == count), ErrorCode::kCorrupt,
          "{}: {} has {} integers (want {})", where, kFeatures[name], values.size(),
          count == 0 ? "some" : std::to_string(count));
    return values;
  };
  const auto& ids = integers(kIds, 0);
  const auto &mask = integers(kMask, ids.size()), &types = integers(kTypes, ids.size());
  const auto& positions = integers(kPositions, 0);
  const auto& labels = integers(kLabels, positions.size());
  const int64_t next = integers(kNext, 1)[0];
  check(features[kWeights].has_value() && features[kWeights]->floats.size() == positions.size(), ErrorCode::kCorrupt,
        "{}: {}", where,
        features[kWeights] ? "masked_lm_weights has not as many numbers as masked_lm_positions"
                           : "it has no masked_lm_weights");
  check(next == 0 || next == 1, ErrorCode::kCorrupt, "{}: next_sentence_labels is {} (want 0 or 1)", where, next);
  const auto known = [&](int64_t id, FeatureName name, size_t at) {
    check(id >= 0 && id < vocab_size, ErrorCode::kCorrupt, "{}: {}[{}] is {}, the vocabulary has {} tokens", where,
          kFeatures[name], at, id, vocab_size);
    return static_cast<int32_t>(id);
  };
  BertSequence e{.is_next = next == 0};
  for (size_t i = 0; i < ids.size() && mask[i] != 0; ++i) {
    check((types[i] == 0 || types[i] == 1) && (i == 0 || types[i] >= types[i - 1]), ErrorCode::kCorrupt,
          "{}: segment_ids[{}] is {} (want 0s, then 1s)", where, i, types[i]);
    e.ids.push_back(known(ids[i], kIds, i)), e.types.push_back(static_cast<int32_t>(types[i]));
  }
  check(!e.ids.empty(), ErrorCode::kCorrupt, "{}: it has no tokens: input_mask is 0", where);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (features[kWeights]->floats[i] == 0) continue;
    const int64_t before = e.positions.empty() ? -1 : e.positions.back();
    check(positions[i] > before && positions[i] < std::ssize(e.ids), ErrorCode::kCorrupt,
          "{}: masked_lm_positions[{}] is {} (want more than {}, less than {} tokens)", where, i, positions[i], before,
          e.ids.size());
    e.positions.push_back(static_cast<int32_t>(positions[i]));
    e.labels.push_back(known(labels[i], kLabels, i));
  }
  return e;
}

void each_bert_record(const std::string& path, int64_t vocab_size,
                      const std::function<void(const BertSequence&)>& body) {
  const MappedFile file(path);
  each_tfrecord(file.bytes(), path, [&](std::string_view record, int64_t number) {
    body(parse_bert_record(record, vocab_size, fmt::format("{}: record {}", path, number)));
  });
}

}  // namespace octet
