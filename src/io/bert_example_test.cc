// Masks, packing, and sets of examples on disk.
#include "io/bert_example.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

const BertMasking kMasking = {.tokens = {.cls = 1, .sep = 2, .mask = 3}, .vocab_size = 1000};

BertExample example_of(int32_t first, int32_t second) {
  BertExample e;
  e.ids = {1};
  for (int32_t i = 0; i < first; ++i) e.ids.push_back(10 + i % 900);
  e.ids.push_back(2);
  e.types.assign(e.ids.size(), 0);
  for (int32_t i = 0; i < second; ++i) e.ids.push_back(10 + (7 * i) % 900);
  e.ids.push_back(2);
  e.types.resize(e.ids.size(), 1);
  return e;
}

TEST(BertMask, IsAFunctionOfSeedAndIndexWhateverWasMaskedBefore) {
  const BertExample original = example_of(200, 100);
  BertExample a = original, b = original;
  mask_example(a, kMasking, 5, 17);
  mask_example(b, kMasking, 5, 18);
  EXPECT_NE(a.masked_positions, b.masked_positions);
  mask_example(b, kMasking, 5, 17);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.masked_positions, b.masked_positions);
  EXPECT_EQ(a.masked_labels, b.masked_labels);
  for (size_t i = 0; i < b.masked_positions.size(); ++i)
    b.ids[static_cast<size_t>(b.masked_positions[i])] = b.masked_labels[i];
  EXPECT_EQ(b.ids, original.ids);
}

TEST(BertMask, ChoosesItsShareOfTheTokensAndEightOfTenBecomeMask) {
  int64_t chosen = 0, masked = 0, kept = 0;
  for (uint64_t index = 0; index < 2000; ++index) {
    BertExample e = example_of(120, 77);
    mask_example(e, kMasking, 1, index);
    EXPECT_EQ(e.masked_positions.size(), 30u);  // 15 % of 200
    EXPECT_TRUE(std::ranges::is_sorted(e.masked_positions));
    for (size_t i = 0; i < e.masked_positions.size(); ++i) {
      const int32_t id = e.ids[static_cast<size_t>(e.masked_positions[i])], label = e.masked_labels[i];
      EXPECT_TRUE(label != 1 && label != 2 && id != 1 && id != 2);
      ++chosen, masked += id == 3 ? 1 : 0, kept += id == label ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(chosen), 0.8, 0.01);  // 5 standard deviations
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(chosen), 0.1, 0.008);
  BertExample most = example_of(300, 209), one = example_of(1, 0), all = example_of(5, 3);
  mask_example(most, kMasking, 1, 0), mask_example(one, kMasking, 1, 0);
  EXPECT_EQ(most.masked_positions.size(), 76u) << "of 512 tokens";
  EXPECT_EQ(one.masked_positions, std::vector<int32_t>{1});
  BertMasking every = kMasking;
  every.share = 1;
  mask_example(all, every, 1, 0);
  EXPECT_EQ(all.masked_positions, (std::vector<int32_t>{1, 2, 3, 4, 5, 7, 8, 9}));
}

// Every index once, no row too long or with too many; the filled share.
double filled(const std::vector<int32_t>& lengths, int64_t row, int64_t most) {
  const auto rows = pack_lengths(lengths, row, most);
  std::set<int64_t> seen;
  for (const auto& indices : rows) {
    int64_t sum = 0;
    for (const int64_t i : indices) {
      sum += lengths[static_cast<size_t>(i)];
      EXPECT_TRUE(seen.insert(i).second);
    }
    EXPECT_TRUE(sum <= row && !indices.empty() && std::ssize(indices) <= most);
  }
  EXPECT_EQ(seen.size(), lengths.size());
  EXPECT_EQ(rows, pack_lengths(lengths, row, most));
  return static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})) /
         static_cast<double>(row * std::ssize(rows));
}

TEST(BertPacking, LeavesLittle) {
  EXPECT_EQ(filled({6, 4, 3, 5, 10, 2}, 10, 3), 1.0);  // 10; 6 + 4; 5 + 3 + 2
  EXPECT_EQ(filled({6, 4}, 10, 1), 0.5);
  EXPECT_EQ(filled({7, 2, 1, 8, 1, 1}, 10, 3), 1.0);
  EXPECT_EQ(filled({7, 2, 1, 8, 1, 1}, 10, 2), 20.0 / 30);
  EXPECT_EQ(filled({5, 5, 5, 5}, 10, 3), 1.0);
  EXPECT_EQ(filled({3, 3, 3}, 10, 3), 0.9);
  std::vector<int32_t> all;
  for (int32_t i = 0; i < 3000; ++i) all.push_back(1 + (i * i * 7 + i * 13) % 512);
  EXPECT_GT(filled(all, 512, 3), 0.98);
  EXPECT_NE(error_of([] {
              pack_lengths(std::vector<int32_t>{4, 11}, 10, 3);
            }).find("example 1 has 11 tokens, rows 10"),
            std::string::npos);
  EXPECT_NE(error_of([] { pack_lengths(std::vector<int32_t>{4}, 10, 4); }).find("4 examples in a row (want 1..3)"),
            std::string::npos);
}

TEST(BertPacking, FillsTheVectorsRowsTo98Percent) {
  const std::string path = test_data_path("mlperf_vectors/bert/expected.json");
  if (path.empty()) GTEST_SKIP() << missing_test_data("mlperf_vectors/bert");
  const auto lengths = parse_json(read_file(path), path).at("lengths").get<std::vector<int32_t>>();
  EXPECT_GE(filled(lengths, 512, 3), 0.98);
}

TEST(BertSet, IsReadAsItWasWrittenAndNotWhenItIsDamaged) {
  TempFolder folder;
  BertSet set;
  set.length = 64, set.vocab_size = 1000, set.tokenizer = "wordpiece-1000-0";
  std::vector<BertExample> examples;
  for (uint64_t i = 0; i < 5; ++i) {
    BertExample& e = examples.emplace_back(example_of(3 + static_cast<int32_t>(i), 9));
    mask_example(e, kMasking, 1, i);
    e.next = static_cast<int32_t>(i % 2);
    set.add(e);
  }
  set.row_starts = {0, 3, 5};
  const std::string prefix = folder.file("set");
  write_bert_set(prefix, set);
  const BertSet read = read_bert_set(prefix);
  EXPECT_EQ(read.length, 64);
  EXPECT_EQ(read.tokenizer, set.tokenizer);
  EXPECT_EQ(read.row_starts, set.row_starts);
  ASSERT_EQ(read.size(), 5);
  for (int64_t i = 0; i < 5; ++i) {
    const BertExample e = read.example(i), &wanted = examples[static_cast<size_t>(i)];
    EXPECT_EQ(e.ids, wanted.ids);
    EXPECT_EQ(e.types, wanted.types);
    EXPECT_EQ(e.masked_positions, wanted.masked_positions);
    EXPECT_EQ(e.masked_labels, wanted.masked_labels);
    EXPECT_EQ(e.next, wanted.next);
  }
  const auto refused = [&](const auto& damage) {
    BertSet other = set;
    damage(other);
    write_bert_set(folder.file("other"), other);
    return error_of([&] { read_bert_set(folder.file("other")); });
  };
  const auto holds = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  holds(refused([](BertSet& s) { s.ids[2] = 1000; }), "an id is outside the vocabulary");
  holds(refused([](BertSet& s) { s.masked_positions[0] = 99; }), "a masked position is outside its example");
  holds(refused([](BertSet& s) { s.starts[1] = 0; }), "an example is empty or too long");
  holds(refused([](BertSet& s) { s.starts.back() += 1; }), "its examples do not fit its tokens");
  holds(refused([](BertSet& s) { s.next.pop_back(); }), "of different numbers of examples");
  holds(refused([](BertSet& s) { s.row_starts.back() = 4; }), "its rows do not fit its examples");
  const std::string path = prefix + ".bert.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 8);
  EXPECT_NE(error_of([&] { read_bert_set(prefix); }), "(no error)");
}

}  // namespace
}  // namespace octet
