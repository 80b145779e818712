// How files are read goes by what they hold; what octet wrote into a corpus folder is no corpus.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/corpus.h"
#include "io/dataset.h"

namespace octet {
namespace {

struct CorpusFiles : testing::Test {
  TempFolder folder;
  TextOptions options;

  // The texts of documents that the reader makes of inputs.
  std::vector<std::string> texts(const std::vector<std::string>& inputs) {
    CorpusReader reader(list_corpus(inputs), options);
    std::vector<std::string> all;
    TextCounts counts;
    for (CorpusBatch batch; reader.next(batch);)
      each_text(batch, reader.files(), options, counts, [&](const TextPiece& piece) {
        if (piece.begins_document) all.emplace_back();
        all.back() += piece.text;
      });
    return all;
  }
  std::string write(const std::string& name, std::string_view content) {
    write_file(folder.file(name), content);
    return folder.file(name);
  }
};

using Texts = std::vector<std::string>;

TEST_F(CorpusFiles, JsonLinesAreFoundByTheirFirstLine) {
  const std::string lines = "\n {\"id\": 1e400, \"text\": \"one\"}\n{\"text\": \"two\"}\n",
                    array = "[{\"text\": \"one\"}]\n";
  for (const char* name : {"a.json", "a.txt", "a", "a.jsonl"})
    EXPECT_EQ(texts({write(name, lines)}), (Texts{"one", "two"}));
  options.json_key = "body";
  for (const char* name : {"a.json", "a.txt"})
    EXPECT_NE(error_of([&] { texts({folder.file(name)}); }).find("not lines with a text under \"body\""),
              std::string::npos);
  options.json_key = "text";
  EXPECT_NE(error_of([&] { texts({write("array.json", array)}); }).find("jq -c '.[]'"), std::string::npos);
  const std::string pretty = "{\n  \"text\": \"one\"\n}\n";
  EXPECT_NE(error_of([&] { texts({write("pretty.json", pretty)}); }).find("--format text"), std::string::npos);
  EXPECT_EQ(texts({write("array.txt", array)}), Texts{array});
  EXPECT_EQ(texts({write("code.c", pretty)}), Texts{pretty});
  options.format = CorpusFormat::kText;
  EXPECT_EQ(texts({folder.file("a.json"), folder.file("array.json")}), (Texts{lines, array}));
  options.format = CorpusFormat::kJsonLines;
  EXPECT_NE(error_of([&] { texts({folder.file("array.txt")}); }).find("array.txt:1: the line is not a JSON object"),
            std::string::npos);
}

TEST_F(CorpusFiles, ALongFirstLineIsReadToItsEnd) {
  const std::string text(1 << 20, 'x');
  EXPECT_EQ(texts({write("a.json", "{\"text\": \"" + text + "\"}\n{\"text\": \"b\"}")}), (Texts{text, "b"}));
}

// As programs of a repository bring them; lines with the key are what a crawl's folder holds.
TEST_F(CorpusFiles, JsonInFoldersIsTextUnlessItHasTheKey) {
  make_folders(folder.file("in"));
  write("in/a.json", "{\"name\": \"x\"}\n");
  write("in/b.json", "{\n \"name\": 1\n}\n");
  write("in/c.json", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  EXPECT_EQ(texts({folder.file("in")}), (Texts{"{\"name\": \"x\"}\n", "{\n \"name\": 1\n}\n", "one", "two"}));
}

TEST_F(CorpusFiles, WhatIsNoTextIsRefusedByItsKind) {
  const std::string tar = std::string(257, 'a') + "ustar  " + std::string(300, 'b');
  const std::pair<std::string, std::string> kinds[] = {{"PK\x03\x04 words", "a zip archive"},
                                                       {"\x1f\x8b\x08 words", "gzip data"},
                                                       {"\x28\xb5\x2f\xfd words", "zstd data"},
                                                       {"BZh91AY&SY words", "bzip2 data"},
                                                       {"\xfd"
                                                        "7zXZ words",
                                                        "xz data"},
                                                       {"%PDF-1.7 words", "a PDF"},
                                                       {"PAR1 words", "a Parquet file"},
                                                       {"\xff\xfew o", "UTF-16 text"},
                                                       {"\xfe\xff w o", "UTF-16 text"},
                                                       {tar, "a tar archive"},
                                                       {std::string("words\0words", 11), "binary"}};
  make_folders(folder.file("in"));
  write("in/a.txt", "text");
  for (const auto& [content, kind] : kinds) {
    const std::string path = write("x", content);
    const std::string message = error_of([&] { texts({path}); });
    EXPECT_NE(message.find(path + ": is " + kind), std::string::npos) << kind << ": " << message;
    options.format = CorpusFormat::kText;
    EXPECT_EQ(texts({path}), Texts{content}) << kind;
    options.format = CorpusFormat::kAuto;
    write("in/b.txt", content);
    EXPECT_EQ(texts({folder.file("in")}), Texts{"text"}) << kind << " in a folder";
  }
  EXPECT_NE(error_of([&] { texts({write("x.jsonl", "\xff\xfe{")}); }).find("UTF-16"), std::string::npos);
}

TEST_F(CorpusFiles, WhatOctetWroteIsNoCorpus) {
  make_folders(folder.file("in/run"));
  write("in/a.txt", "text");
  write("in/tokens.bin", "tee");  // a file like any other
  write("in/run/log.jsonl", "{\"kind\": \"step\"}\n");
  write("in/run/config.yaml", "out: run\n");
  const Texts expected = {"text", "tee"};
  const auto tokenizer = make_character_tokenizer({"t", "e", "x"});
  tokenizer->save(folder.file("in/tok"));
  PrepareOptions prepare{.inputs = {folder.file("in")}, .output = folder.file("in/tokens_of"), .split = {0.5, 0.5}};
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(texts({folder.file("in")}), expected) << again;
    EXPECT_EQ(texts({folder.file("in/*")}), expected) << again << " by a glob";
    EXPECT_EQ(prepare_corpus(*tokenizer, prepare).splits[0].documents, 1);
  }
  // The vocabulary that is used, whatever its files.
  write("in/words.txt", "x");
  EXPECT_EQ(list_corpus({folder.file("in")}, folder.file("in/words.txt")).size(), 2u);
  EXPECT_EQ(list_corpus({folder.file("in/words.txt")}, folder.file("in/words.txt")).size(), 1u) << "asked for by name";
}

TEST_F(CorpusFiles, AnInputIsNotWrittenOver) {
  const auto tokenizer = make_character_tokenizer({"x"});
  for (const char* name : {"web.json", "web.bin"}) {
    const std::string input = write(name, "{\"text\": \"xx\"}\n"), before = read_file(input);
    PrepareOptions prepare{.inputs = {input}, .output = folder.file("web")};
    EXPECT_NE(error_of([&] { prepare_corpus(*tokenizer, prepare); }).find("would overwrite " + input),
              std::string::npos);
    EXPECT_EQ(read_file(input), before);
  }
}

}  // namespace
}  // namespace octet
