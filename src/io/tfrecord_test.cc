// TFRecords of BERT's examples: those of the reference, and what is damaged, cut, missing or foreign.
#include "io/tfrecord.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text.push_back(static_cast<char>(value | 0x80));
  return text + static_cast<char>(value);
}
std::string with_length(int field, const std::string& bytes) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(bytes.size()) + bytes;
}
// Of numbers one by one, as the lists of old writers are.
std::string integers(const std::string& name, const std::vector<int64_t>& values) {
  std::string list;
  for (const int64_t value : values) list += varint(1 << 3) + varint(static_cast<uint64_t>(value));
  return with_length(1, with_length(1, name) + with_length(2, with_length(3, list)));
}
std::string floats(const std::string& name, const std::vector<float>& values) {
  std::string list(4 * values.size(), '\0');
  std::memcpy(list.data(), values.data(), list.size());
  return with_length(1, with_length(1, name) + with_length(2, with_length(2, with_length(1, list))));
}

struct Fields {
  std::vector<int64_t> ids = {1, 11, 12, 2, 13, 2, 0, 0}, mask = {1, 1, 1, 1, 1, 1, 0, 0},
                       types = {0, 0, 0, 0, 1, 1, 0, 0}, positions = {1, 4, 0}, labels = {21, 22, 0}, next = {1};
  std::vector<float> weights = {1, 1, 0};
  std::string leave_out = {};

  std::string record() const {
    std::string features;
    const auto add = [&](const char* name, const auto& values, const auto& make) {
      if (leave_out != name) features += make(name, values);
    };
    add("input_ids", ids, integers), add("input_mask", mask, integers), add("segment_ids", types, integers);
    add("masked_lm_positions", positions, integers), add("masked_lm_ids", labels, integers);
    add("masked_lm_weights", weights, floats), add("next_sentence_labels", next, integers);
    return with_length(1, features);
  }
};

std::string framed(const std::string& record) {
  std::string length(8, '\0'), frame;
  const uint64_t size = record.size();
  std::memcpy(length.data(), &size, 8);
  const auto crc = [](const std::string& of) {
    const uint32_t value = masked_crc(of);
    return std::string(reinterpret_cast<const char*>(&value), 4);
  };
  return length + crc(length) + record + crc(record);
}

std::string parse_error(const Fields& fields) {
  return error_of([&] { parse_bert_record(fields.record(), 100, "part: record 7"); });
}

TEST(TfRecord, AnExampleLosesItsPadding) {
  const BertSequence e = parse_bert_record(Fields().record(), 100, "test");
  EXPECT_EQ(e.ids, (std::vector<int32_t>{1, 11, 12, 2, 13, 2}));
  EXPECT_EQ(e.types, (std::vector<int32_t>{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(e.positions, (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(e.labels, (std::vector<int32_t>{21, 22}));
  EXPECT_FALSE(e.is_next);
}

TEST(TfRecord, WhatDoesNotFitIsNamed) {
  const auto holds = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find("part: record 7: " + part), std::string::npos) << text;
  };
  for (const char* name : {"input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids",
                           "masked_lm_weights", "next_sentence_labels"})
    holds(parse_error({.leave_out = name}), std::string("it has no ") + name);
  holds(parse_error({.ids = {1, 11, 100, 2, 13, 2, 0, 0}}), "input_ids[2] is 100, the vocabulary has 100 tokens");
  holds(parse_error({.ids = {1, -1, 12, 2, 13, 2, 0, 0}}), "input_ids[1] is -1");
  holds(parse_error({.labels = {21, 222, 0}}), "masked_lm_ids[1] is 222");
  holds(parse_error({.mask = {1, 1}}), "input_mask has 2 integers (want 8)");
  holds(parse_error({.mask = {0, 0, 0, 0, 0, 0, 0, 0}}), "it has no tokens");
  holds(parse_error({.types = {0, 1, 0, 0, 1, 1, 0, 0}}), "segment_ids[2] is 0 (want 0s, then 1s)");
  holds(parse_error({.positions = {1, 7, 0}}), "masked_lm_positions[1] is 7 (want more than 1, less than 6 tokens)");
  holds(parse_error({.positions = {4, 4, 0}}), "masked_lm_positions[1] is 4");
  holds(parse_error({.next = {2}}), "next_sentence_labels is 2 (want 0 or 1)");
  holds(parse_error({.weights = {1}}), "masked_lm_weights has not as many numbers");
  holds(error_of([] { parse_bert_record("\xff\xff\xff garbage", 100, "part: record 7"); }),
        "it is not a tensorflow.Example");
}

TEST(TfRecord, DamagedAndCutFilesNameRecordAndByte) {
  const std::string one = framed(Fields().record()), file = one + one;
  const auto error = [](const std::string& bytes) {
    return error_of([&] { each_tfrecord(std::as_bytes(std::span(bytes)), "part", [](std::string_view, int64_t) {}); });
  };
  EXPECT_EQ(error(file), "(no error)");
  EXPECT_EQ(error(""), "(no error)");
  const std::string at = fmt::format("part: record 1 at byte {}: ", one.size());
  const auto holds = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(at + part), std::string::npos) << text;
  };
  for (size_t cut = 1; cut < one.size(); ++cut)
    holds(error(file.substr(0, one.size() + cut)), cut < 12 ? "the file is cut in its head" : "the file is cut in it");
  for (size_t i = one.size(); i < file.size(); ++i) {
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    holds(error(damaged), i < one.size() + 12 ? "the checksum of its length is wrong" : "its checksum is wrong");
  }
}

TEST(TfRecord, TheReferencesVectors) {
  const std::string folder = test_data_path("mlperf_vectors/bert");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("mlperf_vectors/bert");
  const nlohmann::json expected = parse_json(read_file(folder + "/expected.json"), "expected.json");
  const int64_t vocabulary = expected.at("vocab_size");
  size_t count = 0;
  each_bert_record(folder + "/good.tfrecord", vocabulary, [&](const BertSequence& e) {
    const nlohmann::json& wanted = expected.at("records").at(count++);
    const auto list = [&](const char* key) { return wanted.at(key).get<std::vector<int32_t>>(); };
    auto ids = e.ids, types = e.types, positions = e.positions, labels = e.labels;
    const auto length = static_cast<size_t>(std::ranges::count(list("input_mask"), 1));
    const auto masked =
        static_cast<size_t>(std::ranges::count(wanted.at("masked_lm_weights").get<std::vector<float>>(), 1.0F));
    EXPECT_EQ(ids.size(), length);
    EXPECT_EQ(positions.size(), masked);
    const size_t row = list("input_ids").size(), most = list("masked_lm_ids").size();
    ids.resize(row), types.resize(row), positions.resize(most), labels.resize(most);
    EXPECT_EQ(ids, list("input_ids"));
    EXPECT_EQ(types, list("segment_ids"));
    EXPECT_EQ(positions, list("masked_lm_positions"));
    EXPECT_EQ(labels, list("masked_lm_ids"));
    EXPECT_EQ(e.is_next, list("next_sentence_labels")[0] == 0);
  });
  EXPECT_EQ(count, expected.at("records").size());
  for (const auto& [file, part] : {std::pair{"crc", "checksum is wrong"},
                                   {"cut", "the file is cut"},
                                   {"missing", "it has no "},
                                   {"outside", "the vocabulary has 200 tokens"}}) {
    const std::string text = error_of([&, name = file] {
      each_bert_record(fmt::format("{}/{}.tfrecord", folder, name), vocabulary, [](const BertSequence&) {});
    });
    EXPECT_NE(text.find(part), std::string::npos) << file << ": " << text;
  }
}

}  // namespace
}  // namespace octet
