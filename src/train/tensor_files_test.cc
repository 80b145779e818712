// How files are shared out among ranks. What is in them: tests/system/ranks_test.cc.
#include "train/tensor_files.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace octet {
namespace {

std::vector<int64_t> bytes_of_ranks(const std::vector<int64_t>& files, int32_t ranks) {
  const std::vector<int32_t> owners = share_out(files, ranks);
  std::vector<int64_t> bytes(static_cast<size_t>(ranks));
  for (size_t i = 0; i < files.size(); ++i) bytes.at(static_cast<size_t>(owners.at(i))) += files[i];
  return bytes;
}

TEST(TensorFiles, TheLargestFilesAreSharedOutFirst) {
  EXPECT_EQ(share_out({}, 2), std::vector<int32_t>{});
  EXPECT_EQ(share_out({5, 9, 7}, 1), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(share_out({1, 4, 4, 9}, 2), (std::vector<int32_t>{1, 1, 1, 0}));
  EXPECT_EQ(share_out({3, 3}, 4), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(bytes_of_ranks({4, 4, 4, 4, 4, 4, 4, 4}, 4), (std::vector<int64_t>{8, 8, 8, 8}));
}

// No rank has more than another by more than one file.
TEST(TensorFiles, RanksHaveAlikeManyBytes) {
  Philox random(7, 1);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> files(static_cast<size_t>(1 + random.uniform() * 60));
    for (int64_t& bytes : files) bytes = 1 + static_cast<int64_t>(random.uniform() * 4e9);
    const std::vector<int64_t> bytes = bytes_of_ranks(files, 1 + round % 9);
    const auto [least, most] = std::ranges::minmax(bytes);
    EXPECT_LE(most - least, std::ranges::max(files)) << round;
  }
}

}  // namespace
}  // namespace octet
