// Writer and reader agree, lies in an index are found, and samples are a deterministic permutation addressed by index.
#include "io/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

constexpr uint64_t kSeed = 4711;

// Documents of 1..40 tokens; token i of document d is d * 100 + i, so that every token tells where it came from.
std::shared_ptr<const TokenDataset> make_set(const std::string& prefix, int documents,
                                             TokenType type = TokenType::kI32) {
  DatasetWriter writer(prefix, type);
  Philox random(kSeed);
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> ids(1 + random.below(40));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = d * 100 + static_cast<int32_t>(i);
    writer.append(ids);
    writer.end_document();
  }
  writer.commit();
  return TokenDataset::open(prefix);
}

// `documents` of `length` ids, of which `change` (an index over all) is another one.
uint32_t checksum_of(const std::string& prefix, int64_t documents, int64_t length, int64_t change = -1,
                     TokenType type = TokenType::kU16) {
  DatasetWriter writer(prefix, type);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int64_t d = 0; d < documents; ++d) {
    for (int64_t i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>((d * length + i) % 30000);
    if (change / length == d && change >= 0) ids[static_cast<size_t>(change % length)] += 1;
    writer.append(ids);
    writer.end_document();
  }
  writer.commit();
  return TokenDataset::open(prefix, /*vocab_size=*/documents > 1000 ? 0 : 7)->checksum();  // ids need not be known
}

TEST(Dataset, ChecksumIsOfIdsAndBoundaries) {
  TempFolder folder;
  const uint32_t one = checksum_of(folder.file("a"), 10, 60);
  EXPECT_EQ(checksum_of(folder.file("b"), 10, 60, -1, TokenType::kI32), one);
  for (int64_t change : {0, 77, 599}) EXPECT_NE(checksum_of(folder.file("d"), 10, 60, change), one) << change;
  EXPECT_NE(checksum_of(folder.file("e"), 12, 50), one);
  // Both ends of a set too large to be read whole, and places in it that many ids apart; all of a million.
  const int64_t count = int64_t{3} << 20;
  const uint32_t large = checksum_of(folder.file("f"), count / 1024, 1024);
  EXPECT_EQ(checksum_of(folder.file("g"), count / 1024, 1024, -1, TokenType::kI32), large);
  EXPECT_NE(checksum_of(folder.file("h"), count / 2048, 2048), large);
  for (int64_t change : {int64_t{0}, count - 1})
    EXPECT_NE(checksum_of(folder.file("i"), count / 1024, 1024, change), large);
  const uint32_t million = checksum_of(folder.file("j"), 1 << 10, 1 << 10);
  for (int64_t change : {4095, 4096, 700'001, (1 << 20) - 1})
    EXPECT_NE(checksum_of(folder.file("k"), 1 << 10, 1 << 10, change), million) << change;
}

TEST(Dataset, WritesMegatronLayoutByteForByte) {
  TempFolder folder;
  DatasetWriter writer(folder.file("a"), TokenType::kU16);
  writer.append(std::vector<int32_t>{1, 2});
  writer.append(std::vector<int32_t>{65499});
  writer.end_document();
  writer.end_document();  // empty: not recorded
  writer.append(std::vector<int32_t>{7});
  writer.end_document();
  EXPECT_FALSE(std::filesystem::exists(folder.file("a.bin")));
  writer.commit();
  const char idx[] =
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"
      "\x8"
      "\2\0\0\0\0\0\0\0"
      "\3\0\0\0\0\0\0\0"
      "\3\0\0\0\1\0\0\0"
      "\0\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0";
  EXPECT_EQ(read_file(folder.file("a.idx")), std::string(idx, sizeof idx));
  EXPECT_EQ(read_file(folder.file("a.bin")), std::string("\1\0\2\0\xDB\xFF\7\0", 8));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(Dataset, AbandonedWriterLeavesNothing) {
  TempFolder folder;
  {
    DatasetWriter writer(folder.file("a"), TokenType::kU16);
    writer.append(std::vector<int32_t>{1, 2});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Dataset, ReadsBackAndFindsDocuments) {
  TempFolder folder;
  const auto set = make_set(folder.file("a"), 50, TokenType::kU16);
  EXPECT_EQ(set->documents(), 50);
  for (int64_t d = 0; d < 50; ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(set->document_length(d)));
    set->read(set->document_begin(d), ids);
    EXPECT_EQ(ids.front(), d * 100);
    EXPECT_EQ(ids.back(), d * 100 + set->document_length(d) - 1);
    EXPECT_EQ(set->document_at(set->document_begin(d + 1) - 1), d);
  }
  std::vector<int32_t> ids(2);
  EXPECT_NE(error_of([&] { set->read(set->tokens() - 1, ids); }).find("of " + std::to_string(set->tokens())),
            std::string::npos);
  const auto limited = TokenDataset::open(folder.file("a.bin"), 101);
  std::vector<int32_t> all(static_cast<size_t>(set->tokens()));
  EXPECT_NE(error_of([&] { limited->read(0, all); }).find("outside the vocabulary of 101"), std::string::npos);
}

TEST(Dataset, CutsByTokens) {
  TempFolder folder;
  const auto set = make_set(folder.file("a"), 20);
  const int64_t first = set->tokens() * 9 / 10, rest = set->tokens() - first;
  cut_dataset(folder.file("a"), {folder.file("t"), folder.file("v")}, {first, rest});
  const auto train = TokenDataset::open(folder.file("t")), val = TokenDataset::open(folder.file("v"));
  std::vector<int32_t> all(static_cast<size_t>(set->tokens())), parts(all.size());
  set->read(0, all);
  train->read(0, std::span(parts).first(static_cast<size_t>(first)));
  val->read(0, std::span(parts).subspan(static_cast<size_t>(first)));
  EXPECT_EQ(all, parts);
  EXPECT_GE(train->documents() + val->documents(), 20);
}

// A set like make_set's, in which odd tokens are no targets.
std::shared_ptr<const TokenDataset> make_masked_set(const std::string& prefix, int documents) {
  DatasetWriter writer(prefix, TokenType::kI32);
  writer.append(std::vector<int32_t>{0, 2, 4});  // of which all count: the mask begins later
  writer.end_document();
  for (int d = 1; d < documents; ++d) {
    for (int i = 0; i < 5 + d % 7; ++i) {
      const uint8_t counts = i % 2 == 0;
      writer.append(std::vector<int32_t>{d * 100 + i}, std::span(&counts, 1));
    }
    writer.end_document();
  }
  writer.commit();
  return TokenDataset::open(prefix);
}

TEST(Dataset, MasksFollowTheirTokens) {
  TempFolder folder;
  const std::string prefix = folder.file("a");
  const auto set = make_masked_set(prefix, 40);
  ASSERT_TRUE(set->has_mask());
  const auto expect_even = [](const std::vector<int32_t>& ids, const std::vector<uint8_t>& counts) {
    ASSERT_EQ(counts.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(counts[i] != 0, ids[i] % 2 == 0) << ids[i];
  };
  const auto expect_even_set = [&](const TokenDataset& of) {
    std::vector<int32_t> ids(static_cast<size_t>(of.tokens()));
    std::vector<uint8_t> counts(ids.size());
    of.read(0, ids), of.read_counts(0, counts);
    expect_even(ids, counts);
  };
  expect_even_set(*set);
  for (SampleOrder order : {SampleOrder::kShuffled, SampleOrder::kSequential, SampleOrder::kRandomOffset}) {
    const TokenSampler sampler(set, {.length = 16, .order = order, .seed = kSeed});
    TokenSample sample;
    for (int64_t i = 0; i < 2 * sampler.samples_per_epoch(); ++i) {
      sampler.get(i, sample);
      expect_even(sample.tokens, sample.counts);
    }
  }
  cut_dataset(prefix, {folder.file("t"), folder.file("v")}, {100, set->tokens() - 100});
  for (const char* part : {"t", "v"}) expect_even_set(*TokenDataset::open(folder.file(part)));
  const uint32_t masked = set->checksum();
  std::string mask = read_file(prefix + ".mask");
  mask[7] ^= 1;
  write_file(prefix + ".mask", mask);
  EXPECT_NE(TokenDataset::open(prefix)->checksum(), masked);
  write_file(prefix + ".mask", mask.substr(1));
  EXPECT_NE(error_of([&] { TokenDataset::open(prefix); }).find("a.mask has"), std::string::npos);
  EXPECT_FALSE(make_set(prefix, 40)->has_mask()) << "the mask of the earlier set was left";
}

TEST(Dataset, WeightsFollowTheirTokens) {
  TempFolder folder;
  const std::string prefix = folder.file("a");
  DatasetWriter writer(prefix, TokenType::kU16);
  for (int32_t id = 0; id < 300; ++id) {
    const float weight = id < 40 ? 1.0f : 0.25f * static_cast<float>(id);
    writer.append(std::vector<int32_t>{id}, {}, std::vector<float>{weight});
    if (id % 7 == 6) writer.end_document();
  }
  writer.append(std::vector<int32_t>{4, 5});  // 1
  writer.commit();
  const auto set = TokenDataset::open(prefix);
  ASSERT_TRUE(set->has_weights());
  EXPECT_FALSE(set->has_mask());
  const auto expect_own = [](std::span<const int32_t> ids, std::span<const float> weights) {
    ASSERT_EQ(weights.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(weights[i], ids[i] < 40 ? 1.0f : 0.25f * static_cast<float>(ids[i]));
  };
  const TokenSampler sampler(set, {.length = 16, .order = SampleOrder::kShuffled, .seed = kSeed});
  TokenSample sample;
  for (int64_t i = 0; i < sampler.samples_per_epoch(); ++i)
    sampler.get(i, sample), expect_own(sample.tokens, sample.weights);
  cut_dataset(prefix, {folder.file("t"), folder.file("v")}, {100, set->tokens() - 100});
  pack_rows(prefix, folder.file("p"), 20);
  for (const char* part : {"t", "v", "p"}) {
    const auto own = TokenDataset::open(folder.file(part));
    std::vector<int32_t> ids(static_cast<size_t>(own->tokens()));
    std::vector<float> weights(ids.size());
    own->read(0, ids), own->read_weights(0, weights);
    expect_own(ids, weights);
  }
  const uint32_t checksum = set->checksum();
  std::string bytes = read_file(prefix + ".weights");
  bytes[400] ^= 1;
  write_file(prefix + ".weights", bytes);
  EXPECT_NE(TokenDataset::open(prefix)->checksum(), checksum);
  bytes[403] = static_cast<char>(0xff);  // negative
  write_file(prefix + ".weights", bytes);
  std::vector<float> weights(200);
  EXPECT_NE(
      error_of([&] { TokenDataset::open(prefix)->read_weights(0, weights); }).find("the weight of token 100 is -"),
      std::string::npos);
  write_file(prefix + ".weights", bytes.substr(1));
  EXPECT_NE(error_of([&] { TokenDataset::open(prefix); }).find("a.weights has"), std::string::npos);
}

// A vocabulary's begin token may be its end token too.
TEST(Dataset, BeginTokensAreNoTargets) {
  TempFolder folder;
  DatasetWriter writer(folder.file("a"), TokenType::kU16);
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{9, 1, 2, 9}, {3, 4, 9}, {9, 9}}) {
    writer.append(ids);
    writer.end_document();
  }
  writer.commit();
  const auto counts_of = [](const TokenDataset& set, int64_t first, size_t count) {
    std::vector<uint8_t> counts(count);
    set.read_counts(first, counts);
    return counts;
  };
  const auto set = TokenDataset::open(folder.file("a"), 10, /*begin_id=*/9);
  EXPECT_EQ(counts_of(*set, 0, 9), (std::vector<uint8_t>{0, 1, 1, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(counts_of(*set, 5, 3), (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_TRUE(TokenDataset::open(folder.file("a"), 10)->all_count());
  const TokenSampler sampler(set, {.length = 8, .order = SampleOrder::kSequential});
  TokenSample sample;
  sampler.get(0, sample);
  EXPECT_EQ(sample.counts, counts_of(*set, 0, 9));
}

TEST(Dataset, LyingIndexesAreClearErrors) {
  TempFolder folder;
  make_set(folder.file("a"), 5);
  const std::string good = read_file(folder.file("a.idx"));
  const auto bin = static_cast<int64_t>(std::filesystem::file_size(folder.file("a.bin")));
  const auto message = [&](std::string bytes, int64_t bin_bytes) {
    return error_of([&] { parse_index(bytes, bin_bytes, "x.idx"); });
  };
  const auto with = [&](size_t at, auto value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  EXPECT_EQ(message(good, bin), "(no error)");
  for (size_t keep = 0; keep < good.size(); ++keep) EXPECT_NE(message(good.substr(0, keep), bin), "(no error)") << keep;
  EXPECT_NE(message(good + "x", bin), "(no error)");
  EXPECT_NE(message(with(0, 'X'), bin).find("not a Megatron index"), std::string::npos);
  EXPECT_NE(message(with(9, uint64_t{2}), bin).find("version 2"), std::string::npos);
  EXPECT_NE(message(with(17, uint8_t{7}), bin).find("token type 7"), std::string::npos);
  EXPECT_NE(message(with(18, ~uint64_t{0}), bin).find("claims"), std::string::npos);
  EXPECT_NE(message(with(26, uint64_t{1} << 61), bin).find("claims"), std::string::npos);
  EXPECT_NE(message(with(34, int32_t{-3}), bin).find("length -3"), std::string::npos);
  EXPECT_NE(message(with(34, int32_t{1 << 30}), bin).find("truncated"), std::string::npos);
  EXPECT_NE(message(with(34 + 5 * 4 + 8, int64_t{-8}), bin).find("begins at byte -8"), std::string::npos);
  EXPECT_NE(message(with(34 + 5 * 12 + 16, int64_t{99}), bin).find("document mark 2 is 99"), std::string::npos);
  EXPECT_NE(message(good, bin - 4).find("truncated"), std::string::npos);
  EXPECT_NE(message(good, bin + 4).find("does"), std::string::npos);
  std::filesystem::remove(folder.file("a.bin"));
  EXPECT_NE(error_of([&] { TokenDataset::open(folder.file("a")); }).find("a.bin"), std::string::npos);
}

TEST(Dataset, PermutationIsOne) {
  for (int64_t count : {1, 2, 3, 63, 64, 65, 1000, 4097}) {
    IndexPermutation permutation(count, kSeed, 5);
    std::vector<int> seen(static_cast<size_t>(count));
    int64_t fixed = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t j = permutation(i);
      ASSERT_TRUE(j >= 0 && j < count);
      ++seen[static_cast<size_t>(j)];
      fixed += i == j;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), count);
    if (count > 60) {
      EXPECT_LT(fixed, 8) << count;  // a random permutation has 1 fixed point on average
    }
  }
}

TEST(Sampler, ShuffledEpochsCoverTheSetOnceInWholeDocuments) {
  TempFolder folder;
  const auto set = make_set(folder.file("a"), 300);
  const int64_t length = 16;
  TokenSampler sampler(set, {.length = length, .seed = kSeed});
  const int64_t count = sampler.samples_per_epoch();
  EXPECT_EQ(count, (set->tokens() - 1) / length);
  std::vector<std::vector<int32_t>> by_epoch[2];
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<int32_t> inputs;
    for (int64_t i = 0; i < count; ++i) {
      TokenSample sample;
      sampler.get(epoch * count + i, sample);
      ASSERT_EQ(sample.tokens.size(), static_cast<size_t>(length + 1));
      inputs.insert(sample.tokens.begin(), sample.tokens.end() - 1);
      by_epoch[epoch].push_back(sample.tokens);
      // Segments begin exactly where a document does: its token number there is 0, and counts up in between.
      std::set<int32_t> starts(sample.segments.begin(), sample.segments.end());
      for (int32_t t = 1; t < length; ++t) {
        EXPECT_EQ(starts.count(t) > 0, sample.tokens[t] % 100 == 0);
        if (!starts.count(t)) {
          EXPECT_EQ(sample.tokens[t], sample.tokens[t - 1] + 1);
        }
      }
    }
    EXPECT_EQ(std::set<int32_t>(inputs.begin(), inputs.end()).size(), inputs.size()) << "a token came twice";
  }
  EXPECT_NE(by_epoch[0], by_epoch[1]);
  TokenSampler again(set, {.length = length, .seed = kSeed}), other(set, {.length = length, .seed = kSeed + 1});
  TokenSample sample;
  again.get(count + 7, sample);  // straight into the second epoch
  EXPECT_EQ(sample.tokens, by_epoch[1][7]);
  other.get(7, sample);
  EXPECT_NE(sample.tokens, by_epoch[0][7]);
}

TEST(Sampler, SequentialPredictsEveryTokenOnce) {
  TempFolder folder;
  const auto set = make_set(folder.file("a"), 30);
  TokenSampler sampler(set, {.length = 32, .order = SampleOrder::kSequential});
  std::vector<int32_t> all(static_cast<size_t>(set->tokens())), targets;
  set->read(0, all);
  for (int64_t i = 0; i < sampler.samples_per_epoch(); ++i) {
    TokenSample sample;
    sampler.get(i, sample);
    targets.insert(targets.end(), sample.tokens.begin() + 1, sample.tokens.end());
    for (size_t s = 1; s < sample.segments.size(); ++s) EXPECT_EQ(sample.tokens[sample.segments[s]] % 100, 0);
  }
  EXPECT_EQ(targets, std::vector<int32_t>(all.begin() + 1, all.end()));
}

TEST(Sampler, RandomOffsetsReachBothEnds) {
  TempFolder folder;
  const auto set = make_set(folder.file("a"), 2);
  const int64_t length = set->tokens() - 3;  // three possible offsets
  TokenSampler sampler(set, {.length = length, .order = SampleOrder::kRandomOffset, .seed = kSeed});
  std::set<int32_t> firsts;
  TokenSample sample, again;
  for (int64_t i = 0; i < 64; ++i) {
    sampler.get(i, sample);
    sampler.get(i, again);
    EXPECT_EQ(sample.tokens, again.tokens);
    firsts.insert(sample.tokens[0]);
  }
  EXPECT_EQ(firsts.size(), 3u);
  EXPECT_NE(error_of([&] { TokenSampler(set, {.length = set->tokens()}); }).find("too few"), std::string::npos);
}

}  // namespace
}  // namespace octet
