// Examples of BERT pretraining from text: sentences, pairs, duplicates, splits, threads, TFRecords, refusals.
#include "corpus/bert_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/testing/word_piece_json.h"

namespace octet {
namespace {

// A word for each number: "w17", of which document d has sentences of 4 words from 100 d on.
constexpr int kDocuments = 40, kSentences = 25;

std::vector<std::string> vocabulary() {
  std::vector<std::string> words = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (int i = 0; i < kDocuments * 100; ++i) words.push_back("w" + std::to_string(i));
  return words;
}

class BertData : public testing::Test {
 protected:
  void SetUp() override {
    std::string lines;
    for (int d = 0; d < kDocuments; ++d) {
      std::string text;
      for (int s = 0; s < kSentences; ++s) {
        for (int w = 0; w < 4; ++w) text += (w > 0 ? " w" : "w") + std::to_string(100 * d + 4 * s + w);
        text += s % 5 == 4 ? "\n\n" : "\n";
      }
      lines += "{\"text\": " + json_quote(text) + "}\n";
    }
    write_file(folder_.file("text.jsonl"), lines);
    tokenizer_ = parse_tokenizer_json(word_piece_json(vocabulary()), "test");
    options_.inputs = {folder_.file("text.jsonl")};
    options_.output = folder_.file("out"), options_.length = options_.row = 64, options_.seed = 3;
  }
  static BertExamples read(const std::string& prefix) {
    const BertSet set(prefix);
    BertExamples all;
    BertSequence next;
    for (int64_t i = 0; i < set.sequences(); ++i) set.get(i, next), all.add(next);
    return all;
  }
  BertExamples prepared() {
    prepare_bert_data(*tokenizer_, options_);
    return read(options_.output);
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  BertDataOptions options_;
};

TEST(Sentences, EndAtLinesAndBehindPointsThatASmallLetterDoesNotFollow) {
  const auto sentences = split_sentences("One two. Three!  Four?\nv1.5 is e.g. fine. (\"Five.\") Six\n\n  Seven. ");
  EXPECT_EQ(sentences, (std::vector<std::string_view>{"One two.", "Three!", "Four?", "v1.5 is e.g. fine.",
                                                      "(\"Five.\")", "Six", "", "Seven."}));
}

TEST_F(BertData, PairsAreOfOneDocumentOrOfTwo) {
  const BertExamples set = prepared();
  EXPECT_GT(set.size(), kDocuments);
  int64_t random = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    BertSequence e = set.example(i);
    ASSERT_LE(std::ssize(e.ids), 64);
    EXPECT_EQ(std::ssize(e.positions), std::max<int64_t>(1, std::llround(0.15 * static_cast<double>(e.ids.size()))));
    for (size_t m = 0; m < e.positions.size(); ++m) e.ids[static_cast<size_t>(e.positions[m])] = e.labels[m];
    EXPECT_EQ(e.ids.front(), 2);
    EXPECT_EQ(e.ids.back(), 3);
    EXPECT_EQ(std::ranges::count(e.ids, 3), 2);
    const auto split = static_cast<size_t>(std::ranges::find(e.ids, 3) - e.ids.begin());
    EXPECT_EQ(std::ranges::count(e.types, 0), static_cast<int64_t>(split) + 1);
    ASSERT_TRUE(split > 1 && split + 2 < e.ids.size()) << "both parts have a token";
    const auto document = [&](size_t at) { return (e.ids[at] - 5) / 100; };
    for (size_t at = 1; at < split; ++at) EXPECT_EQ(document(at), document(1));
    for (size_t at = split + 1; at + 1 < e.ids.size(); ++at) EXPECT_EQ(document(at), document(split + 1));
    EXPECT_EQ(!e.is_next, document(1) != document(split + 1));
    EXPECT_TRUE(!e.is_next || e.ids[split - 1] < e.ids[split + 1]);
    random += e.is_next ? 0 : 1;
  }
  const double share = static_cast<double>(random) / static_cast<double>(set.size());
  EXPECT_TRUE(share > 0.4 && share < 0.75) << share;
}

TEST_F(BertData, IsTheSameForAnyNumberOfThreadsAndAnotherForAnotherSeed) {
  const auto bytes = [&] {
    prepared();
    return read_file(options_.output + ".bin") + read_file(options_.output + ".idx");
  };
  options_.threads = 1;
  const std::string one = bytes();
  options_.threads = 4;
  EXPECT_EQ(bytes(), one);
  options_.seed = 4;
  EXPECT_NE(bytes(), one);
}

TEST_F(BertData, DuplicatesHaveOtherPairsAndMasks) {
  const int64_t once = prepared().size();
  options_.duplicates = 3;
  const BertExamples set = prepared();
  EXPECT_GT(set.size(), 2 * once);
  std::set<std::vector<int32_t>> all;
  for (int64_t i = 0; i < set.size(); ++i) all.insert(set.example(i).ids);
  EXPECT_GT(std::ssize(all), set.size() * 95 / 100);
}

TEST_F(BertData, SplitsHaveDocumentsOfTheirOwnAndRowsHoldSeveral) {
  options_.split = {0.75, 0.25};
  const BertDataResult result = prepare_bert_data(*tokenizer_, options_);
  ASSERT_EQ(result.splits.size(), 2u);
  EXPECT_EQ(result.splits[0].documents, 30);
  EXPECT_EQ(result.splits[1].documents, 10);
  EXPECT_EQ(result.sentences, kDocuments * kSentences);
  std::set<int32_t> documents[2];
  for (size_t s = 0; s < 2; ++s) {
    const BertExamples set = read(result.splits[s].prefix);
    EXPECT_TRUE(3 * result.splits[s].rows >= set.size() && result.splits[s].rows < set.size());
    EXPECT_EQ(set.size(), result.splits[s].examples);
    for (int64_t i = 0; i < set.size(); ++i)
      for (const int32_t label : set.example(i).labels) documents[s].insert((label - 5) / 100);
  }
  for (const int32_t document : documents[1]) EXPECT_FALSE(documents[0].contains(document));
  options_.most_in_row = 1, options_.split.clear();
  const BertDataResult apart = prepare_bert_data(*tokenizer_, options_);
  EXPECT_EQ(apart.splits[0].rows, apart.splits[0].examples);
}

TEST_F(BertData, TextFilesArePartedAtEmptyLinesWhereAsked) {
  write_file(folder_.file("book.txt"), "w1 w2\nw3\n\nw101 w102\nw103\n");
  options_.inputs = {folder_.file("book.txt")};
  EXPECT_NE(error_of([&] { prepared(); }).find("1 document(s) with text: half of the pairs"), std::string::npos);
  options_.parted_by_blank_lines = true;
  EXPECT_EQ(prepare_bert_data(*tokenizer_, options_).splits[0].documents, 2);
}

TEST_F(BertData, ReadsTheReferencesRecords) {
  const std::string folder = test_data_path("mlperf_vectors/bert");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("mlperf_vectors/bert");
  options_.inputs = {folder + "/good.tfrecord"};
  const BertExamples set = prepared();
  EXPECT_EQ(set.size(), 24);
  options_.split = {0.5, 0.5};
  EXPECT_NE(error_of([&] { prepared(); }).find("--split deals documents"), std::string::npos);
  options_.split.clear(), options_.length = options_.row = 32;
  EXPECT_NE(error_of([&] { prepared(); }).find("more than 32: set --length"), std::string::npos);
  options_.inputs.push_back(folder_.file("text.jsonl"));
  EXPECT_NE(error_of([&] { prepared(); }).find("1 of 2 inputs are TFRecords"), std::string::npos);
}

TEST_F(BertData, AVocabularyWithoutMaskIsRefused) {
  std::vector<std::string> words = vocabulary();
  words[4] = "[MASC]";
  tokenizer_ = parse_tokenizer_json(word_piece_json(words), "test");
  EXPECT_NE(error_of([&] { prepared(); }).find("has no [MASK]"), std::string::npos);
}

}  // namespace
}  // namespace octet
