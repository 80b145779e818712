// octet data clean as a whole: lines, reports, shards, full disks, bad input.
#include "corpus/clean.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/testing/full_disk.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

using Json = nlohmann::json;

std::vector<Json> rows_of(const std::string& path) {
  std::vector<Json> rows;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) rows.push_back(Json::parse(line));
  return rows;
}

TextRules no_rules() { return {.gopher_repetition = false, .gopher_quality = false, .c4 = false, .fineweb = false}; }

void run(const CleanOptions& options) {
  Clean job(options);
  job.run({});
  job.finish();
}

TEST(Clean, WritesOnlyChangedTextsAnew) {
  const TempFolder folder;
  write_file(folder.file("a.jsonl"),
             "{\"n\":1.50,  \"text\":\"plain \\u0041\"}\r\n\n"
             "{\"text\":\"caf\\u00c3\\u00a9  \\n\\n\\n\\\"x\\\"\",\"id\":\"q\",\"b\":[1]}\n"
             "{\"text\":\"bad \xE9 byte, mail me@home.org\"}\n{\"id\":4,\"text\":\" \\n\"}");
  const CleanOptions options{.lines = {.inputs = {folder.file("a.jsonl")}, .output = folder.file("out")},
                             .rules = no_rules()};
  Clean job(options);
  job.run({});
  job.finish();
  EXPECT_EQ(read_file(folder.file("out/a.jsonl")),
            "{\"n\":1.50,  \"text\":\"plain \\u0041\"}\r\n{\"text\":\"café\\n\\n\\\"x\\\"\",\"id\":\"q\",\"b\":[1]}\n"
            "{\"text\":\"bad é byte, mail email@example.com\"}\n");
  const std::vector<Json> dropped = rows_of(folder.file("out/dropped/a.jsonl"));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0],
            Json::parse(fmt::format(R"({{"file": "{}", "line": 5, "id": 4, "reason": "empty", "text": " \n"}})",
                                    folder.file("a.jsonl"))));
  const LineCounts totals = job.totals();
  const LineCounts expected = {{"documents", 4},
                               {"kept", 3},
                               {"dropped.empty", 1},
                               {"masked.email", 1},
                               {"repaired.invalid_utf8", 1},
                               {"repaired.mojibake", 1},
                               {"repaired.white_space", 2},
                               {"bytes_in", totals.at("bytes_in")},
                               {"bytes_out", totals.at("bytes_out")}};
  EXPECT_EQ(totals, expected);
  EXPECT_EQ(Json::parse(job.report()).at("files").at(0).at("counts").at("kept"), 3);
}

TEST(Clean, CountsDocumentsByRule) {
  const TempFolder folder;
  write_file(folder.file("a.jsonl"),
             "{\"text\":\"too short\"}\n{\"text\":\"it has { a bracket\"}\n{\"text\":\"short too\"}\n");
  CleanOptions options{.lines = {.inputs = {folder.file("a.jsonl")}, .output = folder.file("out")},
                       .rules = no_rules()};
  options.rules.gopher_quality = options.rules.c4 = true;
  options.rules.min_words = 3, options.rules.min_stop_words = 0;
  options.rules.min_word_length = 0, options.rules.min_alpha = 0;
  run(options);
  const LineCounts totals = Clean(options).totals();
  EXPECT_EQ(totals.at("dropped.gopher_min_words"), 2);
  EXPECT_EQ(totals.at("dropped.c4_curly_bracket"), 1);
  EXPECT_EQ(totals.at("kept"), 0);
  EXPECT_EQ(read_file(folder.file("out/a.jsonl")), "");
  EXPECT_EQ(rows_of(folder.file("out/dropped/a.jsonl")).at(1).at("reason"), "c4_curly_bracket");
  options.rules.min_words = 2;
  EXPECT_NE(error_of([&] { Clean job(options); }).find("holds another job: its rules is"), std::string::npos);
}

TEST(Clean, ByLanguage) {
  if (!has_cld2()) GTEST_SKIP() << "this build has no CLD2";
  const TempFolder folder;
  write_file(folder.file("a.jsonl"),
             "{\"text\":\"This is a plain English sentence about the weather and the time of day.\"}\n"
             "{\"text\":\"Das ist ein ganz gewöhnlicher deutscher Satz über das Wetter und die Tageszeit.\"}\n");
  run({.lines = {.inputs = {folder.file("a.jsonl")}, .output = folder.file("out")},
       .languages = {"de", "fr"},
       .rules = no_rules()});
  const std::vector<Json> dropped = rows_of(folder.file("out/dropped/a.jsonl"));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].at("reason"), "language");
  EXPECT_EQ(dropped[0].at("class"), "en");
  EXPECT_EQ(rows_of(folder.file("out/a.jsonl")).size(), 1u);
}

TEST(Clean, ShardsFullDisksAndThreadsChangeNothing) {
  const TempFolder folder;
  std::vector<std::string> inputs;
  for (int f = 0; f < 3; ++f) {
    std::string lines;
    for (int i = 0; i < 4000; ++i)
      lines += fmt::format("{{\"id\":{},\"text\":\"document {} of {}  \\n at 8.8.8.{}{}\"}}\n", i, i, f, i % 256,
                           i % 7 ? "" : " {");
    inputs.push_back(folder.file(fmt::format("f{}.jsonl", f)));
    write_file(inputs.back(), lines);
  }
  CleanOptions options{.lines = {.inputs = inputs, .output = folder.file("whole"), .threads = 1}, .rules = no_rules()};
  options.rules.c4 = true, options.rules.c4_min_sentences = 1;
  run(options);
  const auto all = [&](const std::string& out) {
    std::string text;
    for (const char* name :
         {"/f0.jsonl", "/f1.jsonl", "/f2.jsonl", "/dropped/f0.jsonl", "/dropped/f1.jsonl", "/dropped/f2.jsonl"})
      text += read_file(out + name);
    return text;
  };
  const LineCounts totals = Clean(options).totals();
  EXPECT_GT(totals.at("dropped.c4_curly_bracket"), 100);
  const std::string expected = all(options.lines.output);
  options.lines.output = folder.file("sharded");
  options.lines.threads = 2;
  Clean(options).run({1, 2});
  EXPECT_NE(error_of([&] { Clean(options).finish(); }).find("f0.jsonl is not there: run every shard"),
            std::string::npos);
  Clean(options).run({0, 2});
  run(options);
  EXPECT_EQ(all(options.lines.output), expected);
  EXPECT_EQ(Clean(options).totals(), totals);
  options.lines.output = folder.file("full");
  EXPECT_GT(failures_on_full_disks(1000, 150000, [&] { run(options); }), 2);
  EXPECT_EQ(all(options.lines.output), expected);
}

TEST(Clean, BadInput) {
  const TempFolder folder;
  const std::string in = folder.file("a.jsonl");
  write_file(in, "{\"text\":\"ok\"}\n{\"text\":1}\n");
  CleanOptions options{.lines = {.inputs = {in}, .output = folder.file("out")}, .rules = no_rules()};
  EXPECT_NE(error_of([&] { run(options); }).find("a.jsonl:2: key \"text\" is not a string; --skip-bad-lines"),
            std::string::npos);
  options.lines.output = folder.file("skipped");
  options.lines.skip_bad_lines = true;
  run(options);
  EXPECT_EQ(Clean(options).totals().at("dropped.bad_line"), 1);
  options.lines.output = folder.file("long");
  options.lines.longest_line = 12;
  EXPECT_NE(error_of([&] { run(options); }).find("a.jsonl:1: a line of 13 bytes, more than 12: --max-line"),
            std::string::npos);
  options.mask = {"names"};
  EXPECT_NE(error_of([&] { Clean job(options); }).find("--mask names"), std::string::npos);
  options.mask = {};
  options.language_model = "lid.bin";
  EXPECT_NE(error_of([&] { Clean job(options); }).find("--language names the languages"), std::string::npos);
}

}  // namespace
}  // namespace octet
