// octet data dedup as a whole: what stays and what goes, shards, memory, kills, bad input.
#include "corpus/dedup.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/testing/full_disk.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "corpus/min_hash.h"
#include "corpus/words.h"

namespace octet {
namespace {

using Json = nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void run(Dedup& job) {
  job.signatures({});
  job.pairs({});
  job.groups();
  job.write({});
  job.finish();
}

void run(const DedupOptions& options) {
  Dedup job(options);
  run(job);
}

// All files of a folder by their relative names, without report.json, which names the folder.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename() != "report.json")
      files[std::filesystem::relative(entry.path(), folder).string()] = read_file(entry.path().string());
  return files;
}

std::string random_text(std::mt19937& random, int words) {
  std::string text;
  for (int i = 0; i < words; ++i) text += fmt::format("w{} ", random() % 5000);
  return text;
}

// Two files of documents, a third of them altered copies of others in either file.
std::vector<std::string> make_corpus(const TempFolder& folder, unsigned seed = 11) {
  std::mt19937 random(seed);
  std::vector<std::string> texts, paths;
  std::string files[2];
  for (int i = 0; i < 300; ++i) {
    std::string text = random_text(random, 40 + static_cast<int>(random() % 100));
    if (i % 3 == 2) {
      text = texts[random() % texts.size()];
      if (i % 2 == 1) text.replace(random() % text.size(), 1, " changed ");
    }
    texts.push_back(text);
    files[random() % 2] += fmt::format("{{\"id\": {}, \"text\": \"{}\"}}\n", i, text);
  }
  for (int f = 0; f < 2; ++f) {
    paths.push_back(folder.file(fmt::format("part{}.jsonl", f)));
    write_file(paths.back(), files[f]);
  }
  return paths;
}

TEST(MinHash, AgreesAsOftenAsSetsOverlap) {
  std::mt19937_64 random(3);
  for (const double wanted : {0.5, 0.8, 0.95}) {
    int agree = 0;
    constexpr int kRounds = 200, kHashes = 112;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<uint64_t> a, b;
      const auto common = static_cast<int>(400 * wanted);
      for (int i = 0; i < 400; ++i) {
        const uint64_t x = random();
        if (i < common || i % 2 == 0) a.push_back(x);
        if (i < common || i % 2 == 1) b.push_back(x);
      }
      std::vector<uint64_t> left(kHashes), right(kHashes);
      MinHasher hasher(kHashes, 1);
      hasher.band_keys(a, left);
      hasher.band_keys(b, right);
      for (int i = 0; i < kHashes; ++i) agree += left[static_cast<size_t>(i)] == right[static_cast<size_t>(i)];
    }
    // 22,400 hashes, those of one round independent as far as the family is: 4 standard deviations are below 0.014.
    EXPECT_NEAR(agree / double(kRounds * kHashes), wanted, 0.014);
  }
}

TEST(MinHash, AnyNumberOfHashes) {
  std::vector<uint64_t> shingles(50);
  for (size_t i = 0; i < shingles.size(); ++i) shingles[i] = mix_bits(i + 1);
  for (const auto& [bands, rows] : {std::pair{1, 1}, {3, 5}, {5, 16}, {14, 8}, {1, 100}, {40, 10}}) {
    std::vector<uint64_t> keys(static_cast<size_t>(bands)), again(keys.size());
    MinHasher(bands, rows).band_keys(shingles, keys);
    MinHasher(bands, rows).band_keys(shingles, again);
    EXPECT_EQ(keys, again);
    EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), keys.size());
  }
}

TEST(Words, OfLettersAndDigitsInLowerCase) {
  const auto words = [](std::string_view text) {
    std::vector<uint64_t> hashes;
    hash_words(text, hashes);
    return hashes;
  };
  EXPECT_EQ(words("Don't stop_me 42!"), words(" don T STOP me, 42"));
  EXPECT_EQ(words("ÄRGER Ελλάδα Привет"), words("ärger—ελλάδα\tпривет"));
  EXPECT_EQ(words("日本、語").size(), 2u);
  EXPECT_EQ(words("a\xFF"
                  "b\xC3")
                .size(),
            2u);  // bytes that are not UTF-8 end a word
  EXPECT_TRUE(words("?! \xE2\x80\xA6").empty());
  EXPECT_NE(words("ab c"), words("a bc"));
}

TEST(Dedup, KeepsTheFirstAndTheLinesAsTheyAre) {
  const TempFolder folder;
  const std::string in = folder.file("a.jsonl"), out = folder.file("out");
  const std::string first = "{\"id\": \"x\",  \"text\": \"The quick\\u0020brown fox jumps over.\", \"n\": 1.50}\r";
  write_file(
      in,
      first +
          "\n\n{\"id\":\"x\",\"text\":\"the QUICK brown fox, jumps over\"}\n{\"text\":\"another one\"}\n"
          "{\"text\":\"...\"}\n{\"text\":\"...\"}\n{\"text\":\"?\"}\n{\"text\":\"\"}\n{\"text\":\"bad \xFF utf8\"}");
  Dedup job({.inputs = {in}, .output = out});
  run(job);
  EXPECT_EQ(read_file(out + "/a.jsonl"), first +
                                             "\n{\"text\":\"another one\"}\n{\"text\":\"...\"}\n{\"text\":\"?\"}\n"
                                             "{\"text\":\"\"}\n{\"text\":\"bad \xFF utf8\"}\n");
  const std::vector<std::string> dropped = lines_of(read_file(out + "/dropped/a.jsonl"));
  ASSERT_EQ(dropped.size(), 2u);
  EXPECT_EQ(Json::parse(dropped[0]),
            Json::parse(fmt::format(R"({{"file": "{0}", "line": 3, "id": "x", "reason": "exact",
              "kept": {{"file": "{0}", "line": 1, "id": "x"}},
              "document": {{"id":"x","text":"the QUICK brown fox, jumps over"}}}})",
                                    in)));
  EXPECT_EQ(Json::parse(dropped[1]).at("kept").at("line"), 5);
  const std::vector<DedupFile> report = job.report();
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].documents, 8);
  EXPECT_EQ(report[0].exact, 2);
  EXPECT_FALSE(path_exists(out + "/.work"));
}

TEST(Dedup, ShardsMemoryAndThreadsChangeNothing) {
  const TempFolder folder;
  const std::vector<std::string> inputs = make_corpus(folder);
  for (const double verify : {0.0, 0.9}) {
    const std::string whole = folder.file(fmt::format("whole{}", verify));
    run({.inputs = inputs, .output = whole, .verify = verify, .threads = 1});
    const auto expected = contents(whole);
    EXPECT_GT(expected.at("dropped/part0.jsonl").size(), 1000u);
    for (const int64_t shards : {1, 3}) {
      const DedupOptions options{.inputs = inputs,
                                 .output = folder.file(fmt::format("of{}-{}", shards, verify)),
                                 .verify = verify,
                                 .memory = 300 * 8,  // many parts
                                 .threads = 2};
      for (int64_t i = 0; i < shards; ++i) Dedup(options).signatures({i, shards});
      for (int64_t i = shards; i-- > 0;) Dedup(options).pairs({i, shards});
      Dedup(options).groups();
      for (int64_t i = 0; i < shards; ++i) Dedup(options).write({i, shards});
      Dedup(options).finish();
      EXPECT_EQ(contents(options.output), expected);
    }
  }
}

TEST(Dedup, VerifyKeepsWhatIsNotAlikeEnough) {
  const TempFolder folder;
  std::mt19937 random(17);
  std::string text = random_text(random, 100), changed = text;
  for (size_t at = 30; at + 200 < changed.size(); at += 120) changed.replace(changed.find(' ', at), 1, " new ");
  write_file(folder.file("a.jsonl"),
             fmt::format("{{\"text\":\"{}\"}}\n{{\"text\":\"{}\"}}\n{{\"text\":\"{}\"}}\n", text, changed, text));
  const auto kept = [&](double verify) {
    const std::string out = folder.file(fmt::format("out{}", verify));
    run({.inputs = {folder.file("a.jsonl")}, .output = out, .bands = 50, .rows = 1, .verify = verify});
    return lines_of(read_file(out + "/a.jsonl")).size();
  };
  EXPECT_EQ(kept(0), 1u);
  EXPECT_EQ(kept(0.2), 1u);
  EXPECT_EQ(kept(0.95), 2u);
}

TEST(Dedup, AStageWantsTheOnesBeforeIt) {
  const TempFolder folder;
  const std::vector<std::string> inputs = make_corpus(folder);
  const DedupOptions options{.inputs = inputs, .output = folder.file("out")};
  Dedup job(options);
  job.signatures({0, 2});
  EXPECT_NE(error_of([&] { job.pairs({}); }).find("part1.jsonl (input 1) are not there: run --stage signatures"),
            std::string::npos);
  job.signatures({1, 2});
  EXPECT_NE(error_of([&] { job.groups(); }).find("no pairs are there: run --stage pairs"), std::string::npos);
  job.pairs({1, 3});
  EXPECT_NE(error_of([&] { job.groups(); }).find("pairs of 1 shards of 3 are there"), std::string::npos);
  EXPECT_NE(error_of([&] { job.write({}); }).find("run --stage groups"), std::string::npos);
  job.pairs({});
  job.groups();
  EXPECT_NE(error_of([&] { job.finish(); }).find("run --stage write"), std::string::npos);
}

TEST(Dedup, AnotherJobInTheFolderIsRefused) {
  const TempFolder folder;
  const std::vector<std::string> inputs = make_corpus(folder);
  DedupOptions options{.inputs = inputs, .output = folder.file("out")};
  Dedup(options).signatures({});
  options.rows = 4;
  EXPECT_NE(error_of([&] { Dedup job(options); }).find("holds another job: its rows is 8, not 4"), std::string::npos);
  options.rows = 8;
  run(options);
  make_folders(folder.file("out/.work"));  // killed before it was removed
  Dedup again(options);
  EXPECT_TRUE(again.finished());
  EXPECT_FALSE(path_exists(folder.file("out/.work")));
  EXPECT_EQ(again.report().size(), 2u);
  options.inputs = {inputs[0]};
  EXPECT_NE(error_of([&] { Dedup job(options); }).find("it has 2 inputs, not 1"), std::string::npos);
  options.output = folder.path();  // where the inputs are
  EXPECT_NE(error_of([&] { Dedup job(options); }).find("part0.jsonl is there already"), std::string::npos);
}

// A full disk at every place: an error that says so, and the same job goes on from there.
TEST(Dedup, AFullDiskLosesNothing) {
  const TempFolder folder;
  const std::vector<std::string> inputs = make_corpus(folder);
  run({.inputs = inputs, .output = folder.file("whole")});
  const auto expected = contents(folder.file("whole"));
  const DedupOptions options{.inputs = inputs, .output = folder.file("out")};
  EXPECT_GT(failures_on_full_disks(100, 20000, [&] { run(options); }), 3);
  EXPECT_EQ(contents(options.output), expected);
}

TEST(Dedup, BadLinesStopOrAreDropped) {
  const TempFolder folder;
  const std::string in = folder.file("a.jsonl");
  write_file(in,
             "{\"text\":\"good one\"}\n{\"text\":\n\n{\"other\":\"\xFF\"}\n{\"text\":\"good two\"}\n{\"text\":\"good "
             "one\"}\n");
  DedupOptions options{.inputs = {in}, .output = folder.file("out")};
  const std::string error = error_of([&] { run(options); });
  EXPECT_NE(error.find("a.jsonl:2: damaged JSON at byte 8"), std::string::npos) << error;
  EXPECT_NE(error.find("--skip-bad-lines"), std::string::npos) << error;
  options.output = folder.file("skipped");
  options.skip_bad_lines = true;
  Dedup job(options);
  run(job);
  EXPECT_EQ(read_file(options.output + "/a.jsonl"), "{\"text\":\"good one\"}\n{\"text\":\"good two\"}\n");
  EXPECT_EQ(job.report()[0].bad_lines, 2);
  const std::vector<std::string> dropped = lines_of(read_file(options.output + "/dropped/a.jsonl"));
  ASSERT_EQ(dropped.size(), 3u);
  EXPECT_EQ(Json::parse(dropped[1]).at("text"), "{\"other\":\"\xEF\xBF\xBD\"}");
  EXPECT_EQ(Json::parse(dropped[2]).at("reason"), "exact");
}

TEST(Dedup, LongLinesAreRefusedWithTheWayOut) {
  const TempFolder folder;
  const std::string in = folder.file("a.jsonl");
  const std::string line = "{\"text\":\"" + std::string(5 << 20, 'a') + "\"}\n";
  write_file(in, "{\"text\":\"x\"}\n" + line);
  for (const int64_t longest : {int64_t{1} << 20, std::ssize(line) - 2}) {
    const std::string error =
        error_of([&] { run({.inputs = {in}, .output = folder.file("out"), .longest_line = longest}); });
    EXPECT_NE(error.find("a.jsonl:2: a line of "), std::string::npos) << error;
    EXPECT_NE(error.find("--max-line"), std::string::npos) << error;
  }
  run({.inputs = {in}, .output = folder.file("out"), .longest_line = std::ssize(line)});
  EXPECT_EQ(read_file(folder.file("out") + "/a.jsonl").size(), line.size() + 13);
}

TEST(Dedup, EmptyAndDamagedFiles) {
  const TempFolder folder;
  write_file(folder.file("empty.jsonl"), "");
  write_file(folder.file("blank.jsonl"), "\n \n");
  run({.inputs = {folder.file("empty.jsonl"), folder.file("blank.jsonl")}, .output = folder.file("out")});
  EXPECT_EQ(read_file(folder.file("out/empty.jsonl")) + read_file(folder.file("out/blank.jsonl")), "");
  const std::string packed = folder.file("cut.jsonl.gz");
  gzFile file = gzopen(packed.c_str(), "wb");
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) gzprintf(file, "{\"text\":\"%s\"}\n", random_text(random, 30).c_str());
  gzclose(file);
  const std::string bytes = read_file(packed);
  write_file(packed, bytes.substr(0, bytes.size() / 2));
  EXPECT_NE(error_of([&] { run({.inputs = {packed}, .output = folder.file("out2")}); }).find("gzip data is truncated"),
            std::string::npos);
  write_file(packed, "not gzip");
  EXPECT_NE(error_of([&] { run({.inputs = {packed}, .output = folder.file("out3")}); }).find("is not gzip data"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              run({.inputs = {folder.file("none.jsonl")}, .output = folder.file("out4")});
            }).find("no such file"),
            std::string::npos);
}

TEST(Dedup, DamagedSignaturesAreNamed) {
  const TempFolder folder;
  const std::vector<std::string> inputs = make_corpus(folder);
  Dedup job({.inputs = inputs, .output = folder.file("out")});
  job.signatures({});
  const std::string path = folder.file("out/.work/signatures-000001.bin"), bytes = read_file(path);
  write_file(path, bytes.substr(0, bytes.size() - 8));
  EXPECT_NE(error_of([&] { job.pairs({}); }).find("signatures-000001.bin: is no whole file"), std::string::npos);
}

// 1,000 documents of 200 words, each with a copy in which one or two are changed: 0.90 <= J <= 0.95.
TEST(Dedup, RemovesAlmostAllNearDuplicatesAndNothingElse) {
  const TempFolder folder;
  std::mt19937 random(23);
  std::string originals, copies;
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::string> words(200);
    for (std::string& word : words) word = fmt::format("w{}", random() % 5000);
    originals += fmt::format("{{\"id\":{},\"text\":\"{}\"}}\n", i, fmt::join(words, " "));
    for (int change = 0; change <= i % 2; ++change) words[random() % words.size()] = "changed";
    copies += fmt::format("{{\"id\":{},\"text\":\"{}\"}}\n", i, fmt::join(words, " "));
  }
  write_file(folder.file("originals.jsonl"), originals);
  write_file(folder.file("copies.jsonl"), copies);
  run({.inputs = {folder.file("originals.jsonl"), folder.file("copies.jsonl")}, .output = folder.file("out")});
  EXPECT_EQ(read_file(folder.file("out/originals.jsonl")), originals);
  const std::vector<std::string> dropped = lines_of(read_file(folder.file("out/dropped/copies.jsonl")));
  EXPECT_GE(dropped.size(), 995u);
  for (const std::string& line : dropped) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row.at("id"), row.at("kept").at("id"));
  }
}

// Planted duplicates with their exact Jaccard similarities.
TEST(Dedup, RemovesWhatIsPlantedInTheVectors) {
  const std::string vectors = test_data_path("adapt/dedup");
  if (vectors.empty()) GTEST_SKIP() << missing_test_data("adapt/dedup");
  const TempFolder folder;
  run({.inputs = {vectors + "/docs_0.jsonl", vectors + "/docs_1.jsonl.gz"}, .output = folder.file("out")});
  std::map<std::string, std::set<std::string>> group;  // what is planted: a document and its copies
  std::map<std::string, std::string> original;
  const std::vector<std::string> truth = lines_of(read_file(vectors + "/truth.jsonl"));
  for (const std::string& line : truth) {
    const Json row = Json::parse(line);
    group[row.at("of")].insert(row.at("id").get<std::string>());
    original[row.at("id")] = row.at("of");
  }
  std::set<std::string> kept;
  int documents = 0;
  for (const char* name : {"/docs_0.jsonl", "/docs_1.jsonl"}) {
    for (const std::string& line : lines_of(read_file(folder.file("out") + name)))
      kept.insert(Json::parse(line).at("id")), ++documents;
    for (const std::string& line : lines_of(read_file(folder.file("out/dropped") + name))) {
      const Json row = Json::parse(line);
      const std::string id = row.at("id"), of = row.at("kept").at("id");
      const auto root = [&](const std::string& name) { return original.contains(name) ? original.at(name) : name; };
      EXPECT_EQ(root(id), root(of)) << "unrelated documents were joined";
      ++documents;
    }
  }
  EXPECT_EQ(documents, 646);
  int similar = 0;
  for (const std::string& line : truth) {
    const Json row = Json::parse(line);
    if (row.at("jaccard").get<double>() < 0.9) continue;
    ++similar;
    EXPECT_FALSE(kept.contains(row.at("id")) && kept.contains(row.at("of"))) << line;
  }
  EXPECT_EQ(similar, 71);
}

}  // namespace
}  // namespace octet
