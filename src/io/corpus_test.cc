// The preparation pipeline: every input form, splits, policies, errors with their place, and no half files.
#include "io/corpus.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/bpe_trainer.h"
#include "io/dataset.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> byte_tokenizer() {  // <|endoftext|> = 0 and single bytes
  return make_bpe(train_bpe({{"hello", 10}, {" world", 10}}, {.vocab_size = 260}), "test");
}

void write_gzip(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

void write_zstd(const std::string& path, const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the zstd program does
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  write_file(path, packed);
}

std::string text_of(const Tokenizer& tokenizer, const std::string& prefix) {
  const auto set = TokenDataset::open(prefix, tokenizer.vocab_size());
  std::string all;
  for (int64_t d = 0; d < set->documents(); ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(set->document_length(d)));
    set->read(set->document_begin(d), ids);
    all += tokenizer.decode(ids);
  }
  return all;
}

struct Corpus : testing::Test {
  TempFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer();
  PrepareOptions options;

  PrepareResult prepare(std::vector<std::string> inputs) {
    options.inputs = std::move(inputs);
    options.output = folder.file("out/set");
    options.threads = 3;
    return prepare_corpus(*tokenizer, options);
  }
  std::string prepare_error(std::vector<std::string> inputs) {
    std::string message = error_of([&] { prepare(std::move(inputs)); });
    if (fs::exists(folder.file("out"))) {
      EXPECT_TRUE(fs::is_empty(folder.file("out"))) << "a failed run left files";
    }
    return message;
  }
};

TEST_F(Corpus, AllFormsGiveTheSameTokens) {
  const std::string lines =
      "{\"text\": \"hello \\u00e9\", \"id\": 1}\n\n{\"meta\": {\"text\": \"no\"}, \"text\": \"world\"}\n";
  write_file(folder.file("a.jsonl"), lines);
  write_gzip(folder.file("b.jsonl.gz"), lines);
  write_zstd(folder.file("c.jsonl.zst"), lines.substr(0, lines.size() - 1));  // no newline at the end
  for (const char* name : {"a.jsonl", "b.jsonl.gz", "c.jsonl.zst"}) {
    const auto result = prepare({folder.file(name)});
    EXPECT_EQ(result.splits[0].documents, 2) << name;
    EXPECT_EQ(result.splits[0].bytes, 13);
    EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "hello \xC3\xA9<|endoftext|>world<|endoftext|>") << name;
  }
  write_file(folder.file("d.txt"), "plain");
  write_gzip(folder.file("e.txt.gz"), "packed");
  prepare({folder.file("d.txt"), folder.file("*.txt.gz")});
  EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "plain<|endoftext|>packed<|endoftext|>");
}

TEST_F(Corpus, PromptsAreNoTargets) {
  write_file(folder.file("a.jsonl"),
             "{\"text\": \" yes\", \"ask\": \"is it?\"}\n{\"ask\": \"\", \"text\": \"alone\"}\n{\"text\": \"b\", "
             "\"ask\": \"a\"}\n");
  options.text.prompt_key = "ask";
  for (const bool cut : {false, true}) {
    options.split = cut ? std::vector<double>{0.5, 0.5} : std::vector<double>{};
    options.split_by_tokens = cut;
    const auto result = prepare({folder.file("a.jsonl")});
    EXPECT_EQ(result.prompt_tokens, 7);
    std::string all, learnt;
    for (const SplitInfo& split : result.splits) {
      all += text_of(*tokenizer, split.prefix);
      const auto set = TokenDataset::open(split.prefix);
      std::vector<int32_t> ids(static_cast<size_t>(set->tokens())), targets;
      std::vector<uint8_t> counts(ids.size());
      set->read(0, ids), set->read_counts(0, counts);
      for (size_t i = 0; i < ids.size(); ++i)
        if (counts[i] != 0) targets.push_back(ids[i]);
      learnt += tokenizer->decode(targets);
    }
    EXPECT_EQ(all, "is it? yes<|endoftext|>alone<|endoftext|>ab<|endoftext|>");
    EXPECT_EQ(learnt, " yes<|endoftext|>alone<|endoftext|>b<|endoftext|>");
  }
  fs::remove_all(folder.file("out"));
  write_file(folder.file("b.jsonl"), "{\"text\": \"no question\"}\n");
  EXPECT_NE(prepare_error({folder.file("b.jsonl")}).find("b.jsonl:1: no key \"ask\""), std::string::npos);
  write_file(folder.file("c.txt"), "plain");
  EXPECT_NE(prepare_error({folder.file("c.txt")}).find("c.txt is plain text, which has no keys"), std::string::npos);
}

// <s> = 0 in front of texts, </s> = 1 behind documents.
std::unique_ptr<Tokenizer> beginning_tokenizer(const std::string& folder, const std::string& begin = "<s>") {
  BpeVocabulary vocabulary = train_bpe({{"hello", 10}}, {.vocab_size = 259, .special_tokens = {"<s>", "</s>"}});
  vocabulary.bos = begin, vocabulary.eos = "</s>", vocabulary.adds_bos = true;
  make_bpe(std::move(vocabulary), "test")->save(folder);
  return load_tokenizer(folder);
}

std::vector<std::vector<int32_t>> documents_of(const TokenDataset& set) {
  std::vector<std::vector<int32_t>> documents;
  for (int64_t d = 0; d < set.documents(); ++d) {
    documents.emplace_back(static_cast<size_t>(set.document_length(d)));
    set.read(set.document_begin(d), documents.back());
  }
  return documents;
}

std::string counts_of(const TokenDataset& set) {
  std::vector<uint8_t> counts(static_cast<size_t>(set.tokens()));
  set.read_counts(0, counts);
  std::string shown;
  for (const uint8_t each : counts) shown += each != 0 ? '1' : '0';
  return shown;
}

TEST_F(Corpus, DocumentsBeginAsTheVocabularySays) {
  write_file(folder.file("a.txt"), "abc");
  write_file(folder.file("b.jsonl"), "{\"text\": \"de\", \"ask\": \"f\"}\n");
  for (const char* begin : {"<s>", "</s>"}) {  // one token may begin and end documents
    tokenizer = beginning_tokenizer(folder.file("tok"), begin);
    ASSERT_TRUE(tokenizer->adds_bos());
    options.text.prompt_key.clear();
    prepare({folder.file("a.txt"), folder.file("b.jsonl")});
    auto set = open_prepared_set(folder.file("out/set"));
    EXPECT_EQ(documents_of(*set)[0], tokenizer->encode("abc", {.add_bos = true, .add_eos = true}));
    EXPECT_EQ(documents_of(*set)[1], tokenizer->encode("de", {.add_bos = true, .add_eos = true}));
    EXPECT_EQ(counts_of(*set), "011110111") << "a begin token is no target, an end token is one";
    options.text.prompt_key = "ask";
    prepare({folder.file("b.jsonl")});
    set = open_prepared_set(folder.file("out/set"));
    EXPECT_EQ(documents_of(*set)[0], tokenizer->encode("fde", {.add_bos = true, .add_eos = true}));
    EXPECT_EQ(counts_of(*set), "00111");
  }
  options.prepend_bos = false;
  prepare({folder.file("b.jsonl")});
  const auto set = open_prepared_set(folder.file("out/set"));
  EXPECT_EQ(documents_of(*set)[0], tokenizer->encode("fde", {.add_eos = true}));
  EXPECT_EQ(counts_of(*set), "0111");
  EXPECT_EQ(encode_corpus(*tokenizer, {folder.file("a.txt"), folder.file("b.jsonl")}, {}, 7, 0).size(), 7u);
  EXPECT_EQ(encode_corpus(*tokenizer, {folder.file("a.txt"), folder.file("b.jsonl")}, {}, 7, 3).size(), 4u);
}

TEST_F(Corpus, SetsWithoutTheBeginTokenSaySo) {
  write_file(folder.file("a.txt"), "abc");
  const auto said = [&] {
    testing::internal::CaptureStderr();
    open_prepared_set(folder.file("out/set"));
    return testing::internal::GetCapturedStderr();
  };
  for (const bool begins : {false, true}) {
    tokenizer = begins ? beginning_tokenizer(folder.file("tok")) : byte_tokenizer();
    prepare({folder.file("a.txt")});
    EXPECT_EQ(said(), "");
    std::string record = read_file(folder.file("out/set.json"));
    const std::string member = fmt::format("\n  \"begin_of_document\": {},", begins);
    ASSERT_NE(record.find(member), std::string::npos) << record;
    write_file(folder.file("out/set.json"), record.erase(record.find(member), member.size()));  // as written before
    EXPECT_EQ(said().find("lack the begin token") != std::string::npos, begins);
  }
}

TEST_F(Corpus, FilesOfAnEarlierSetAreRefused) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
  write_file(folder.file("a.jsonl"), lines);
  options.split = {0.5, 0.25, 0.25};
  prepare({folder.file("a.jsonl")});
  fs::copy(folder.file("out"), folder.file("earlier"));
  options.split = {};
  prepare({folder.file("a.jsonl")});
  const auto refused = [&](const char* name) {
    return error_of([&] { open_prepared_set(folder.file("out/") + name); }).find("comes from an earlier one") !=
           std::string::npos;
  };
  EXPECT_FALSE(refused("set"));
  for (const char* part : {"set_train", "set_val", "set_test"}) EXPECT_TRUE(refused(part)) << part;
  options.split = {0.6, 0.4};
  prepare({folder.file("a.jsonl")});
  EXPECT_TRUE(refused("set"));
  EXPECT_TRUE(refused("set_test"));
  EXPECT_FALSE(refused("set_train"));
  for (const char* end : {".bin", ".idx"})
    fs::copy(folder.file("earlier/set_val") + end, folder.file("out/set_val") + end,
             fs::copy_options::overwrite_existing);
  EXPECT_TRUE(refused("set_val")) << "of another number of documents";
  // A set may be moved with its record.
  fs::rename(folder.file("earlier/set.json"), folder.file("earlier/moved.json"));
  for (const char* end : {".bin", ".idx"})
    fs::rename(folder.file("earlier/set_val") + end, folder.file("earlier/moved_val") + end);
  EXPECT_EQ(open_prepared_set(folder.file("earlier/moved_val.bin"))->documents(), 10);
}

TEST_F(Corpus, OneProcessAtATimeWritesAPrefix) {
  write_file(folder.file("a.txt"), "abc");
  make_folders(folder.file("out"));
  const FileWriter other(folder.file("out/set.json"));  // as another octet data holds it
  EXPECT_NE(error_of([&] { prepare({folder.file("a.txt")}); }).find("another process is writing it"),
            std::string::npos);
}

TEST_F(Corpus, RecordNamesTokenizerAndSplits) {
  write_file(folder.file("a.txt"), "hello world");
  prepare({folder.file("a.txt")});
  const DatasetInfo info = read_dataset_info(folder.file("out/set.bin"));
  EXPECT_EQ(info.tokenizer_fingerprint, tokenizer->fingerprint());
  EXPECT_EQ(load_tokenizer(info.tokenizer_path)->fingerprint(), tokenizer->fingerprint());
  ASSERT_EQ(info.splits.size(), 1u);
  EXPECT_EQ(info.splits[0].tokens, TokenDataset::open(info.splits[0].prefix)->tokens());
}

TEST_F(Corpus, DamagedRecordsAreNamed) {
  write_file(folder.file("a.txt"), "hello world");
  prepare({folder.file("a.txt")});
  const std::string path = folder.file("out/set.json"), record = read_file(path);
  for (const char* number : {"1e300", "1e999", "9223372036854775808", "\"many\""}) {
    const std::string key = "\"vocab_size\": ";
    std::string damaged = record;
    const size_t at = damaged.find(key) + key.size();
    ASSERT_LT(at, damaged.size()) << record;
    damaged.replace(at, damaged.find_first_of(",}\n", at) - at, number);
    write_file(path, damaged);
    EXPECT_NE(error_of([&] { read_dataset_info(folder.file("out/set.bin")); }).find(path), std::string::npos) << number;
  }
}

TEST_F(Corpus, LongTextIsCutWithoutTrace) {
  Philox random(3);
  std::string text;
  static const char* const kBits[] = {"hello", " world",           " it's", "\n\n", "  ",
                                      " 42",   "\xF0\x9F\xA6\x99", "x",     ".\n",  " a b"};
  while (text.size() < (5 << 20)) text += kBits[random.below(10)];
  write_file(folder.file("a.txt"), text);
  const auto result = prepare({folder.file("a.txt")});
  EXPECT_EQ(result.splits[0].documents, 1);
  const auto set = TokenDataset::open(folder.file("out/set"));
  std::vector<int32_t> ids(static_cast<size_t>(set->tokens()));
  set->read(0, ids);
  EXPECT_EQ(ids, tokenizer->encode(text, {.add_eos = true}));
}

TEST_F(Corpus, FoldersAreWalkedInOrderWithoutBinaries) {
  fs::create_directories(folder.file("in/sub"));
  fs::create_directories(folder.file("in/.git"));
  write_file(folder.file("in/b.h"), "b");
  write_file(folder.file("in/a"), "a");
  write_file(folder.file("in/sub/c.cc"), "c");
  write_file(folder.file("in/empty.txt"), "");
  write_file(folder.file("in/.git/x"), "hidden");
  write_file(folder.file("in/prog"), std::string("\x7F"
                                                 "ELF\0\0",
                                                 6));
  fs::create_directory_symlink(folder.file("in"), folder.file("in/sub/loop"));
  const auto result = prepare({folder.file("in")});
  EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "a<|endoftext|>b<|endoftext|>c<|endoftext|>");
  EXPECT_EQ(result.binary_files_skipped, 1);
}

TEST_F(Corpus, SplitsByDocumentsAndByTokens) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
  write_file(folder.file("a.jsonl"), lines);
  options.split = {0.9, 0.05, 0.05};
  const auto by_documents = prepare({folder.file("a.jsonl")});
  EXPECT_EQ(by_documents.splits[0].documents, 180);
  EXPECT_EQ(by_documents.splits[1].documents, 10);
  EXPECT_EQ(by_documents.splits[2].documents, 10);
  EXPECT_TRUE(fs::exists(folder.file("out/set_test.idx")));
  EXPECT_EQ(read_dataset_info(folder.file("out/set_val")).splits[1].name, "val");

  options.split = {0.9, 0.1};
  options.split_by_tokens = true;
  write_file(folder.file("b.txt"), "0123456789");
  const auto characters = make_character_tokenizer({"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
  options.inputs = {folder.file("b.txt")};
  options.output = folder.file("chars");
  const auto by_tokens = prepare_corpus(*characters, options);
  EXPECT_EQ(text_of(*characters, folder.file("chars_train")), "012345678");
  EXPECT_EQ(text_of(*characters, folder.file("chars_val")), "9");
  EXPECT_EQ(by_tokens.splits[0].bytes, 9);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    for (const char* temporary : {".partial", ".tmp", ".lengths"})
      EXPECT_EQ(entry.path().string().find(temporary), std::string::npos) << entry.path();
  }
}

TEST_F(Corpus, SplitMistakesAreClear) {
  write_file(folder.file("a.txt"), "hello");
  options.split = {0.5, 0.2};
  EXPECT_NE(prepare_error({folder.file("a.txt")}).find("sum to 0.7"), std::string::npos);
  options.split = {0.99, 0.01};
  EXPECT_NE(prepare_error({folder.file("a.txt")}).find("leave none for val"), std::string::npos);
}

TEST_F(Corpus, InvalidUtf8FollowsThePolicy) {
  write_file(folder.file("a.txt"), "hello\xFFworld");
  EXPECT_EQ(prepare({folder.file("a.txt")}).text.invalid_places, 1);
  EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "hello\xFFworld<|endoftext|>");
  options.text.utf8 = Utf8Policy::kReplace;
  prepare({folder.file("a.txt")});
  EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "hello\xEF\xBF\xBDworld<|endoftext|>");
  fs::remove_all(folder.file("out"));
  options.text.utf8 = Utf8Policy::kError;
  EXPECT_NE(prepare_error({folder.file("a.txt")}).find("a.txt: byte 5 (0xff) is not valid UTF-8"), std::string::npos);
  write_file(folder.file("b.jsonl"), "{\"text\": \"ok\"}\n{\"text\": \"\xC3\"}\n");
  EXPECT_NE(prepare_error({folder.file("b.jsonl")}).find("b.jsonl:2: invalid UTF-8"), std::string::npos);
}

TEST_F(Corpus, BadLinesNameFileAndLine) {
  const auto error_for = [&](const std::string& lines) {
    write_file(folder.file("a.jsonl"), lines);
    return prepare_error({folder.file("a.jsonl")});
  };
  const std::string good = "{\"more\": [1e400, {\"n\": -1e999}], \"text\": \"fine\"}\n";
  EXPECT_NE(error_for(good + good + "{\"text\": \n").find("a.jsonl:3: "), std::string::npos);
  EXPECT_NE(error_for(good + "{\"content\": \"x\"}\n").find("a.jsonl:2: no key \"text\""), std::string::npos);
  EXPECT_NE(error_for("{\"text\": 5}\n").find("a.jsonl:1: key \"text\" is not a string"), std::string::npos);
  EXPECT_NE(error_for("[\"text\"]\n").find("is not a JSON object"), std::string::npos);
  options.text.skip_bad_lines = true;
  write_file(folder.file("a.jsonl"), good + "oops\n" + good);
  const auto result = prepare({folder.file("a.jsonl")});
  EXPECT_EQ(result.text.skipped_lines, 1);
  EXPECT_EQ(result.splits[0].documents, 2);
}

TEST_F(Corpus, DamagedCompressionIsAnError) {
  std::string text;
  Philox random(5);
  for (int i = 0; i < 300000; ++i) text += static_cast<char>('a' + random.below(26));
  write_gzip(folder.file("a.txt.gz"), text);
  write_zstd(folder.file("a.txt.zst"), text);
  for (const char* name : {"a.txt.gz", "a.txt.zst"}) {
    const std::string packed = read_file(folder.file(name));
    write_file(folder.file(name), packed.substr(0, packed.size() / 2));
    EXPECT_NE(prepare_error({folder.file(name)}).find("truncated"), std::string::npos) << name;
    std::string damaged = packed;
    for (size_t i = 0; i < 40; ++i) damaged[packed.size() / 2 + i] ^= 0x5A;
    write_file(folder.file(name), damaged);
    EXPECT_NE(prepare_error({folder.file(name)}), "(no error)") << name;
    write_file(folder.file(name), "not packed at all");
    EXPECT_NE(prepare_error({folder.file(name)}), "(no error)") << name;
  }
}

TEST_F(Corpus, NothingToReadIsAnError) {
  write_file(folder.file("empty.txt"), "");
  fs::create_directories(folder.file("none"));
  EXPECT_NE(prepare_error({folder.file("empty.txt")}).find("corpus is empty"), std::string::npos);
  EXPECT_NE(prepare_error({folder.file("none")}).find("contains no files"), std::string::npos);
  EXPECT_NE(prepare_error({folder.file("absent*.txt")}).find("no such file"), std::string::npos);
  write_file(folder.file("a.txt"), "abcX");
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("chars");
  const auto characters = make_character_tokenizer({"a", "b", "c"});
  EXPECT_NE(error_of([&] { prepare_corpus(*characters, options); }).find("a.txt: character 'X'"), std::string::npos);
}

TEST_F(Corpus, WhatHasNoTokenFollowsThePolicy) {
  write_file(folder.file("a.txt"), "abXbX a\xFF");
  write_file(folder.file("b.txt"), "Xab");
  tokenizer = make_character_tokenizer({"a", "b"});
  const std::vector<std::string> inputs = {folder.file("a.txt"), folder.file("b.txt")};
  for (const auto policy : {UnknownText::Policy::kToken, UnknownText::Policy::kError}) {
    options.unknown = policy;  // there is no unknown token
    const std::string message = prepare_error(inputs);
    EXPECT_NE(message.find("a.txt: character 'X'"), std::string::npos) << message;
    EXPECT_NE(message.find("--on-unknown-byte=drop"), std::string::npos) << message;
  }
  options.unknown = UnknownText::Policy::kDrop;
  const PrepareResult result = prepare(inputs);
  EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "abbaab");
  EXPECT_EQ(result.unknown_places, 5);
  EXPECT_EQ(result.first_unknown, folder.file("a.txt") + ": \"X\" (bytes 58)");
  const std::string record = read_file(folder.file("out/set.json"));
  EXPECT_NE(record.find("\"unknown_places\": 5"), std::string::npos) << record;
  EXPECT_NE(record.find("\"unknown_dropped\": true"), std::string::npos) << record;
}

TEST_F(Corpus, DevicesAreRefusedAndPipesAreRead) {
  for (const char* device : {"/dev/zero", "/dev/urandom"})
    EXPECT_NE(prepare_error({device}).find(std::string(device) + ": is a device"), std::string::npos);
  fs::create_symlink("/dev/zero", folder.file("link.txt"));
  EXPECT_NE(prepare_error({folder.file("link*")}).find("link.txt: is a device"), std::string::npos);
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "hello"; });
  prepare({pipe});
  writer.join();
  EXPECT_EQ(text_of(*tokenizer, folder.file("out/set")), "hello<|endoftext|>");
}

TEST_F(Corpus, UnwritableOutputIsAnError) {
  write_file(folder.file("a.txt"), "hello");
  write_file(folder.file("file"), "in the way");
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("file/set");
  EXPECT_NE(error_of([&] { prepare_corpus(*tokenizer, options); }).find("cannot make this folder"), std::string::npos);
}

}  // namespace
}  // namespace octet
