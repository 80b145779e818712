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

BertSequence example_of(int32_t first, int32_t second) {
  BertSequence e;
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
  const BertSequence original = example_of(200, 100);
  BertSequence a = original, b = original;
  mask_example(a, kMasking, 5, 17);
  mask_example(b, kMasking, 5, 18);
  EXPECT_NE(a.positions, b.positions);
  mask_example(b, kMasking, 5, 17);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.labels, b.labels);
  for (size_t i = 0; i < b.positions.size(); ++i) b.ids[static_cast<size_t>(b.positions[i])] = b.labels[i];
  EXPECT_EQ(b.ids, original.ids);
}

TEST(BertMask, ChoosesItsShareOfTheTokensAndEightOfTenBecomeMask) {
  int64_t chosen = 0, masked = 0, kept = 0;
  for (uint64_t index = 0; index < 2000; ++index) {
    BertSequence e = example_of(120, 77);
    mask_example(e, kMasking, 1, index);
    EXPECT_EQ(e.positions.size(), 30u);  // 15 % of 200
    EXPECT_TRUE(std::ranges::is_sorted(e.positions));
    for (size_t i = 0; i < e.positions.size(); ++i) {
      const int32_t id = e.ids[static_cast<size_t>(e.positions[i])], label = e.labels[i];
      EXPECT_TRUE(label != 1 && label != 2 && id != 1 && id != 2);
      ++chosen, masked += id == 3 ? 1 : 0, kept += id == label ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(chosen), 0.8, 0.01);  // 5 standard deviations
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(chosen), 0.1, 0.008);
  BertSequence most = example_of(300, 209), one = example_of(1, 0), all = example_of(5, 3);
  mask_example(most, kMasking, 1, 0), mask_example(one, kMasking, 1, 0);
  EXPECT_EQ(most.positions.size(), 76u) << "of 512 tokens";
  EXPECT_EQ(one.positions, std::vector<int32_t>{1});
  BertMasking every = kMasking;
  every.share = 1;
  mask_example(all, every, 1, 0);
  EXPECT_EQ(all.positions, (std::vector<int32_t>{1, 2, 3, 4, 5, 7, 8, 9}));
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

}  // namespace
}  // namespace octet
