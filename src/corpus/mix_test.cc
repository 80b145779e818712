#include "corpus/mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// Documents of `length` words and their number, "web 0 web web ..".
std::string documents(const std::string& name, int count, int length) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string text = fmt::format("{} {}", name, i);
    for (int w = 1; w < length; ++w) text += " " + name;
    lines += Json{{"text", text}, {"meta", i}}.dump() + "\n";
  }
  return lines;
}

struct Sets {
  TempFolder folder;
  MixOptions options;

  Sets() {
    write_file(folder.file("web_a.jsonl"), documents("web", 600, 3));
    write_file(folder.file("web_b.jsonl"), documents("more", 400, 3));
    write_file(folder.file("code.jsonl"), documents("code", 100, 12));
    options.sets = {{"web", {folder.file("web_a.jsonl"), folder.file("web_b.jsonl")}, 3},
                    {"code", {folder.file("code.jsonl")}, 1}};
    options.output = folder.file("out"), options.threads = 2;
  }
  Json run() {
    Mix job(options);
    job.count({});
    job.plan();
    job.write({});
    job.finish();
    return Json::parse(job.report());
  }
  // How often each line is in the outputs of the set.
  std::map<std::string, int> lines(const std::vector<std::string>& names) {
    std::map<std::string, int> lines;
    for (const std::string& name : names) {
      const std::string text = read_file(options.output + "/" + name);
      for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
        ++lines[text.substr(at, text.find('\n', at) - at)];
    }
    return lines;
  }
};

TEST(Mix, SharesOfDocumentsAreThoseOfTheWeights) {
  Sets sets;
  const Json report = sets.run();
  EXPECT_EQ(report.at("size"), 400);  // 100 of code are a quarter
  EXPECT_EQ(report.at("sets")[0].at("taken_documents"), 300);
  EXPECT_EQ(report.at("sets")[1].at("taken_documents"), 100);
  EXPECT_EQ(report.at("sets")[1].at("epochs"), 1.0);
  const auto web = sets.lines({"web_a.jsonl", "web_b.jsonl"}), code = sets.lines({"code.jsonl"});
  EXPECT_EQ(web.size(), 300u);
  EXPECT_EQ(code.size(), 100u);
  const std::string inputs = documents("web", 600, 3) + documents("more", 400, 3);
  for (const auto& [line, count] : web) EXPECT_NE(inputs.find(line + "\n"), std::string::npos) << line;
  const auto of_a = sets.lines({"web_a.jsonl"}).size();
  EXPECT_NEAR(static_cast<double>(of_a), 180, 25);  // hypergeometric, a deviation of 7.1
  EXPECT_FALSE(path_exists(sets.options.output + "/.work"));
  EXPECT_FALSE(path_exists(sets.options.output + "/dropped"));
  sets.options.output = sets.folder.file("again");
  sets.run();
  EXPECT_EQ(sets.lines({"web_a.jsonl"}).size(), of_a);
  sets.options.output = sets.folder.file("other"), sets.options.seed = 2;
  sets.run();
  EXPECT_NE(sets.lines({"web_a.jsonl", "web_b.jsonl"}), web);
}

// A set that is too small is repeated whole, a pass behind the other, and in part.
TEST(Mix, SmallSetsAreRepeated) {
  Sets sets;
  sets.options.size = 1000;
  const Json report = sets.run();
  EXPECT_EQ(report.at("sets")[0].at("taken_documents"), 750);
  EXPECT_EQ(report.at("sets")[1].at("taken_documents"), 250);
  EXPECT_EQ(report.at("sets")[1].at("epochs"), 2.5);
  const auto code = sets.lines({"code.jsonl"});
  EXPECT_EQ(code.size(), 100u);
  EXPECT_EQ(std::ranges::count(code, 3, [](const auto& line) { return line.second; }), 50);
  EXPECT_EQ(std::ranges::count(code, 2, [](const auto& line) { return line.second; }), 50);
  const std::string text = read_file(sets.options.output + "/code.jsonl"), once = documents("code", 100, 12);
  EXPECT_TRUE(text.starts_with(once + once));
}

// As near as whole documents come; tokens of a vocabulary of characters are as many as bytes.
TEST(Mix, SharesOfBytesAndTokensAreThoseOfTheWeights) {
  Sets sets;
  std::string characters;
  for (char c = ' '; c <= 'z'; ++c)
    if (c != '"' && c != '\\') characters += fmt::format("{}\"{}\"", characters.empty() ? "" : ", ", c);
  write_file(sets.folder.file("characters.json"), "{\"characters\": [" + characters + "]}");
  for (const MixUnit unit : {MixUnit::kBytes, MixUnit::kTokens}) {
    sets.options.unit = unit, sets.options.output = sets.folder.file(mix_unit_name(unit));
    if (unit == MixUnit::kTokens) sets.options.tokenizer = sets.folder.file("characters.json");
    const Json report = sets.run();
    double most = 0;
    for (const Json& set : report.at("sets")) {
      EXPECT_NEAR(set.at("share").get<double>(), set.at("weight").get<double>(), 0.005) << set;
      most = std::max(most, set.at("epochs").get<double>());
    }
    EXPECT_NEAR(most, 1, 0.005) << report;
    EXPECT_EQ(report.at("sets")[0].at("size"), 600 * 12 + 400 * 15 + (10 + 2 * 90 + 3 * 500) + (10 + 2 * 90 + 3 * 300));
  }
}

// Shards and a job that is started again give what one process gives.
TEST(Mix, ShardsGiveWhatOneProcessGives) {
  Sets sets;
  sets.options.size = 900;
  sets.run();
  std::map<std::string, std::string> whole;
  for (const char* name : {"web_a.jsonl", "web_b.jsonl", "code.jsonl"})
    whole[name] = read_file(sets.options.output + "/" + name);
  sets.options.output = sets.folder.file("shards");
  EXPECT_NE(error_of([&] { Mix(sets.options).plan(); }).find("--stage count"), std::string::npos);
  for (int64_t i : {1, 0}) Mix(sets.options).count({i, 2});
  EXPECT_NE(error_of([&] { Mix(sets.options).write({}); }).find("--stage plan"), std::string::npos);
  Mix(sets.options).plan();
  for (int64_t i : {2, 0}) Mix(sets.options).write({i, 3});
  EXPECT_NE(error_of([&] { Mix(sets.options).finish(); }).find("--stage write"), std::string::npos);
  Mix(sets.options).write({});
  Mix(sets.options).finish();
  EXPECT_TRUE(Mix(sets.options).finished());
  for (const auto& [name, text] : whole) EXPECT_TRUE(read_file(sets.options.output + "/" + name) == text) << name;
  sets.options.seed = 3;
  EXPECT_NE(error_of([&] { Mix{sets.options}; }).find("holds another job: its seed is 1, not 3"), std::string::npos);
}

TEST(Mix, WhatCannotBeMixedIsRefused) {
  Sets sets;
  const auto refused = [&](const auto& change) {
    MixOptions options = sets.options;
    change(options);
    return error_of([&] {
      Mix job(options);
      job.count({});
      job.plan();
    });
  };
  EXPECT_NE(refused([](MixOptions& o) { o.sets[1].weight = 0; }).find("set code has the weight 0"), std::string::npos);
  EXPECT_NE(refused([](MixOptions& o) { o.sets[0].weight = NAN; }).find("set web"), std::string::npos);
  EXPECT_NE(refused([](MixOptions& o) { o.unit = MixUnit::kTokens; }).find("--tokenizer"), std::string::npos);
  EXPECT_NE(refused([](MixOptions& o) { o.tokenizer = "tok"; }).find("--by tokens"), std::string::npos);
  EXPECT_NE(refused([](MixOptions& o) { o.sets.clear(); }).find("--set"), std::string::npos);
  write_file(sets.folder.file("empty.jsonl"), "");
  sets.options.sets.push_back({"empty", {sets.folder.file("empty.jsonl")}, 1});
  EXPECT_NE(refused([](MixOptions& o) { o.output += "_empty"; }).find("set empty has no documents"), std::string::npos);
  sets.options.sets.pop_back();
  write_file(sets.folder.file("code.jsonl"), documents("code", 10, 2) + "{\"text\": 3}\n" + documents("code", 10, 2));
  EXPECT_NE(refused([](MixOptions& o) { o.output += "_bad"; }).find("code.jsonl:11"), std::string::npos);
  sets.options.output += "_skipped", sets.options.skip_bad_lines = true;
  const Json report = sets.run();
  EXPECT_EQ(report.at("bad_lines"), 1);
  EXPECT_EQ(report.at("sets")[1].at("taken_documents"), 20);
}

}  // namespace
}  // namespace octet
