#include "corpus/decontaminate.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(Json::parse(text.substr(at, text.find('\n', at) - at)));
  return lines;
}

// "w0 w1 ..": `count` words from w`first` on.
std::string words(int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}w{}", i > 0 ? " " : "", first + i);
  return text;
}

std::string line(const std::string& text) { return Json{{"text", text}}.dump() + "\n"; }

struct Corpus {
  TempFolder folder;
  DecontaminateOptions options;

  Corpus() {
    write_file(folder.file("quiz.jsonl"),
               Json{{"question", words(100, 15)}, {"choices", {words(200, 3), words(300, 13)}}}.dump() + "\n" +
                   Json{{"question", words(400, 5)}}.dump() + "\n");
    write_file(folder.file("story.txt"), "A Story, of thirteen words: one two three four five six seven eight nine.\n");
    options.lines = {.inputs = {folder.file("in.jsonl")}, .output = folder.file("out"), .threads = 1};
    options.tests = {{"quiz", {folder.file("quiz.jsonl")}}, {"story", {folder.file("story.txt")}}};
  }
  void run(const std::string& input) {
    write_file(folder.file("in.jsonl"), input);
    Decontaminate job(options);
    job.run({});
    job.finish();
  }
  std::vector<Json> kept() { return lines_of(folder.file("out/in.jsonl")); }
  std::vector<Json> dropped() { return lines_of(folder.file("out/dropped/in.jsonl")); }
};

TEST(Decontaminate, DropsWhatSharesThirteenWords) {
  Corpus c;
  c.run(line("before " + words(101, 13) + " behind")                         // of the question's 15
        + line("before " + words(101, 12) + " other " + words(113, 2))       // 12 in a row
        + line(words(300, 13))                                               // a choice
        + line(words(400, 5) + " " + words(200, 3) + " " + words(1000, 30))  // texts too short to tell
        + line("so: a STORY of (thirteen) words\none Two three four five six seven; eight 'nine'")  // case, punctuation
        + line(words(100, 15) + " and " + words(100, 15)) + line("short") + line(""));
  const std::vector<Json> kept = c.kept(), dropped = c.dropped();
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_EQ(kept[0]["text"], "before " + words(101, 12) + " other " + words(113, 2));
  ASSERT_EQ(dropped.size(), 4u);
  EXPECT_EQ(dropped[0]["line"], 1);
  EXPECT_EQ(dropped[0]["reason"], "contaminated");
  EXPECT_EQ(dropped[0]["test"], "quiz");
  EXPECT_EQ(dropped[0]["test_line"], 1);
  EXPECT_EQ(dropped[0]["matches"], 1);
  EXPECT_EQ(dropped[2]["test"], "story");
  EXPECT_EQ(dropped[3]["matches"], 3) << "different n-grams, each counted once";
  const Decontaminate done(c.options);
  ASSERT_TRUE(done.finished());
  EXPECT_EQ(done.totals().at("test.quiz"), 3);
  EXPECT_EQ(done.totals().at("test.story"), 1);
  EXPECT_EQ(done.tests()[0].texts, 4);
  EXPECT_EQ(done.tests()[0].too_short, 2);
  EXPECT_EQ(done.tests()[0].ngrams, 4);
}

TEST(Decontaminate, KeysWordsAndMatches) {
  Corpus c;
  c.options.keys = {"question"};
  c.options.tests.pop_back();
  c.options.words = 5;
  c.options.matches = 2;
  c.run(line(words(300, 13)) + line("x " + words(400, 5) + " y") + line(words(100, 5)) + line(words(100, 6)));
  EXPECT_EQ(c.kept().size(), 3u) << "choices are not compared, and one n-gram is not enough";
  EXPECT_EQ(c.dropped()[0]["matches"], 2);
}

// Two sets of n-grams that a sum without positions would not tell apart.
TEST(Decontaminate, OrderCounts) {
  Corpus c;
  std::string turned;
  for (int i = 14; i >= 0; --i) turned += fmt::format("w{} ", 100 + i);
  c.run(line(turned));
  EXPECT_EQ(c.kept().size(), 1u);
}

TEST(Decontaminate, WhatIsWrongWithATestSet) {
  Corpus c;
  c.options.keys = {"nothing"};
  EXPECT_NE(error_of([&] { c.run(line("a")); }).find("test set quiz: none of its 0 texts has 13 words"),
            std::string::npos);
  c.options.keys = {}, c.options.words = 40;
  EXPECT_NE(error_of([&] { c.run(line("a")); }).find("lower --ngram"), std::string::npos);
  c.options.words = 13;
  write_file(c.folder.file("quiz.jsonl"), "{\"question\": \"x\n");
  EXPECT_NE(error_of([&] { c.run(line("a")); }).find("quiz.jsonl:1"), std::string::npos);
}

TEST(Decontaminate, AnotherTestSetIsAnotherJob) {
  Corpus c;
  c.run(line(words(100, 15)));
  write_file(c.folder.file("story.txt"), words(700, 20) + "\n");
  EXPECT_NE(error_of([&] { const Decontaminate job(c.options); }).find("its tests_checksum is"), std::string::npos);
}

}  // namespace
}  // namespace octet
