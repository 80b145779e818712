// Conformance vectors, round trips on any bytes, special tokens, streaming and damaged vocabulary files.
#include "io/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/tokenizer_parts.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
};

std::vector<Vector> read_vectors(const std::string& base) {
  std::string texts = read_file(base + ".inp"), lines = read_file(base + ".out");
  const std::string separator = "\n__ggml_vocab_test__\n";
  const auto take = [](std::string& from, const std::string& until) {
    const size_t end = std::min(from.find(until), from.size());
    std::string part = from.substr(0, end);
    from.erase(0, std::min(end + until.size(), from.size()));
    return part;
  };
  std::vector<Vector> vectors;
  const auto count = 1 + std::count(lines.begin(), lines.end(), '\n');  // the last text is empty, and so are its ids
  for (int64_t i = 0; i < count; ++i) {
    Vector vector{take(texts, separator), {}};
    std::istringstream numbers(take(lines, "\n"));
    for (int32_t id; numbers >> id;) vector.ids.push_back(id);
    vectors.push_back(vector);
  }
  return vectors;
}

// A vocabulary of all bytes and a few merges, as tokenizer.json.
std::string small_json(const std::string& extra_model = "", const std::string& pre_tokenizer = "",
                       const std::string& normalizer = "null") {
  BpeVocabulary vocabulary;
  for (const std::string& spelling : byte_spellings()) vocabulary.tokens.push_back(spelling);
  for (const auto& [left, right] : {std::pair("h", "e"), {"l", "l"}, {"he", "ll"}, {"Ġ", "w"}}) {
    vocabulary.tokens.push_back(std::string(left) + right);
    vocabulary.merges.emplace_back(left, right);
  }
  vocabulary.added.push_back({.id = 260, .text = "<|endoftext|>"});
  vocabulary.added.push_back({.id = 261, .text = "<tool>", .special = false});
  vocabulary.splits.push_back({.pattern = kGpt2Pattern});
  std::string json = to_tokenizer_json(vocabulary);
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
  };
  if (!extra_model.empty()) replace("\"dropout\": null,", extra_model);
  if (!pre_tokenizer.empty()) {
    const size_t at = json.find("\"pre_tokenizer\": "), end = json.find(",\n", at);
    json.replace(at, end - at, "\"pre_tokenizer\": " + pre_tokenizer);
  }
  replace("\"normalizer\": null", "\"normalizer\": " + normalizer);
  return json;
}

std::string random_bytes(Philox& random, size_t length) {
  std::string bytes;
  static const char* const kBits[] = {"the ", " \n",      "\xC3\xA9", "\xF0\x9F\xA6\x99",
                                      "it's", "\xE2\x80", "1234",     "\t\t "};
  while (bytes.size() < length) {
    if (random.below(3) == 0) {
      bytes.push_back(static_cast<char>(random.below(256)));
    } else {
      bytes += kBits[random.below(8)];
    }
  }
  return bytes;
}

TEST(Tokenizer, Gpt2VectorsPass) {
  const std::string gguf = test_data_path("tokenizers/vectors/ggml-vocab-gpt-2.gguf");
  if (gguf.empty()) GTEST_SKIP() << missing_test_data("tokenizers/vectors");
  const auto from_gguf = load_tokenizer(gguf);
  const auto from_files = load_tokenizer(test_data_path("tokenizers/gpt2-bpe"));
  EXPECT_EQ(from_gguf->fingerprint(), from_files->fingerprint());
  const auto vectors = read_vectors(gguf);
  ASSERT_EQ(vectors.size(), 47u);
  for (const Vector& vector : vectors) {
    EXPECT_EQ(from_gguf->encode(vector.text), vector.ids) << vector.text;
    EXPECT_EQ(from_files->encode(vector.text), vector.ids) << vector.text;
    EXPECT_EQ(from_files->decode(vector.ids), vector.text);
  }
  EXPECT_EQ(from_files->vocab_size(), 50257);
  EXPECT_EQ(from_files->eos_id(), 50256);
  TempFolder folder;
  from_files->save(folder.path());
  const auto again = load_tokenizer(folder.path());
  EXPECT_EQ(again->fingerprint(), from_files->fingerprint());
  for (const Vector& vector : vectors) EXPECT_EQ(again->encode(vector.text), vector.ids) << vector.text;
}

TEST(Tokenizer, Gpt2RoundTripsRandomBytes) {
  const std::string path = test_data_path("tokenizers/gpt2-bpe");
  if (path.empty()) GTEST_SKIP() << missing_test_data("tokenizers/gpt2-bpe");
  const auto tokenizer = load_tokenizer(path);
  Philox random(20240607);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = random_bytes(random, random.below(400));
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << "seed 20240607 round " << round;
  }
}

TEST(Tokenizer, BertVectorsPass) {
  const std::string gguf = test_data_path("tokenizers/vectors/ggml-vocab-bert-bge.gguf");
  if (gguf.empty()) GTEST_SKIP() << missing_test_data("tokenizers/vectors");
  const auto tokenizer = load_tokenizer(gguf);
  const auto vectors = read_vectors(gguf);
  ASSERT_EQ(vectors.size(), 47u);
  for (const Vector& vector : vectors) EXPECT_EQ(tokenizer->encode(vector.text), vector.ids) << vector.text;
  EXPECT_EQ(tokenizer->kind(), "wordpiece");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("Hello, Worlds")), "hello , worlds");
  TempFolder folder;
  tokenizer->save(folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->fingerprint(), tokenizer->fingerprint());
}

TEST(Tokenizer, LongRunsAreNotQuadratic) {
  const auto tokenizer = parse_tokenizer_json(small_json(), "small");
  for (const char* unit : {"hell", " ", "\n", "1", "!", "\xFF", "he"}) {
    std::string text;
    for (int i = 0; i < 200000; ++i) text += unit;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(Tokenizer, SpecialTokensAreParsedOnlyWhenAsked) {
  const auto tokenizer = parse_tokenizer_json(small_json(), "small");
  const std::string text = "hell<|endoftext|> w<tool>";
  const std::vector<int32_t> parsed = {258, 260, 259, 261};
  EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}), parsed);
  const auto plain = tokenizer->encode(text);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 260), 0);
  EXPECT_EQ(plain.back(), 261);
  EXPECT_EQ(tokenizer->decode(plain), text);
  EXPECT_EQ(tokenizer->decode(parsed), text);
  EXPECT_EQ(tokenizer->decode(parsed, true), "hell w<tool>");
  EXPECT_EQ(tokenizer->encode("he", {.add_bos = true, .add_eos = true}), (std::vector<int32_t>{260, 256, 260}));
}

// As in transformers 5, where a tokenizer.json's post-processor is not changed by add_bos_token beside it.
TEST(Tokenizer, ThePostProcessorSaysWhetherBosIsPutInFront) {
  const std::string head = R"({"model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1}, "merges": []},
    "added_tokens": [{"id": 0, "content": "<s>", "special": true}], "pre_tokenizer": {"type": "ByteLevel"},
    "decoder": {"type": "ByteLevel"})";
  const std::string template_bos = R"(, "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}})";
  TempFolder folder;
  for (const char* add : {"", R"(, "add_bos_token": true)", R"(, "add_bos_token": false)"}) {
    write_file(folder.file("tokenizer_config.json"), fmt::format(R"({{"bos_token": "<s>"{}}})", add));
    write_file(folder.file("tokenizer.json"), head + template_bos);
    EXPECT_TRUE(load_tokenizer(folder.path())->adds_bos()) << add;
    write_file(folder.file("tokenizer.json"), head + "}");
    EXPECT_FALSE(load_tokenizer(folder.path())->adds_bos()) << add;
  }
  write_file(folder.file("tokenizer.json"), head + ", \"x\": 1e999}");  // in a member that nobody reads
  EXPECT_FALSE(load_tokenizer(folder.path())->adds_bos());
  write_file(folder.file("tokenizer.json"), head + ", \"x\": 1e}");
  EXPECT_NE(error_of([&] { load_tokenizer(folder.path()); }).find("tokenizer.json"), std::string::npos);
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  const std::string json = small_json("\"ignore_merges\": true,");
  // The later "ignore_merges": false of the writer wins in JSON, so take it out.
  std::string changed = json;
  changed.replace(changed.find("\"ignore_merges\": false,"), 23, "");
  changed.replace(changed.find("      \"he ll\""), 13, "      \"l he\"");
  EXPECT_NE(error_of([&] { parse_tokenizer_json(changed, "x"); }).find("uses a token that is not in"),
            std::string::npos);
  changed.replace(changed.find("      \"l he\""), 12, "      \"he ll\"");
  EXPECT_EQ(parse_tokenizer_json(changed, "x")->encode("hell"), (std::vector<int32_t>{258}));
}

TEST(Tokenizer, NfcWhenAskedFor) {
  const auto plain = parse_tokenizer_json(small_json(), "plain");
  const auto nfc = parse_tokenizer_json(small_json("", "", R"({"type": "NFC"})"), "nfc");
  const std::string decomposed = "e\xCC\x81", composed = "\xC3\xA9";
  EXPECT_EQ(plain->decode(plain->encode(decomposed)), decomposed);
  EXPECT_EQ(nfc->decode(nfc->encode(decomposed)), composed);
  EXPECT_EQ(nfc->decode(nfc->encode("\xFF" + decomposed + "\xE2")), "\xFF" + composed + "\xE2");
  EXPECT_TRUE(plain->byte_level());
  EXPECT_FALSE(nfc->byte_level());
}

TEST(Tokenizer, Llama3PatternSplitsAsPublished) {
  Splitter splitter({{.pattern = kLlama3Pattern}}, "test");
  SplitScratch scratch;
  const auto split = [&](std::string_view text) {
    std::string joined;
    splitter.each_piece(text, scratch, [&](std::string_view piece) {
      joined.append(piece).append("|");
      return true;
    });
    return joined;
  };
  EXPECT_EQ(split("Hello World 12345"), "Hello| World| |123|45|");
  EXPECT_EQ(split("I'M  x=1;\n\n  y"), "I|'M| | x|=|1|;\n\n| | y|");
  EXPECT_EQ(split("\xFF\xFE"
                  "ab"),
            "\xFF\xFE|ab|");
}

TEST(Tokenizer, Stories260KEncodesAsLlama2c) {
  const std::string path = test_data_path("tiny-models/stories260K");
  if (path.empty()) GTEST_SKIP() << missing_test_data("tiny-models/stories260K");
  const auto tokenizer = load_tokenizer(path);
  EXPECT_EQ(tokenizer->vocab_size(), 512);
  const std::string story = read_file(path + "/expected_greedy_n200.txt");
  const auto ids = tokenizer->encode(story, {.add_bos = true});
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(tokenizer->decode(std::span(ids).subspan(1)), story);
  EXPECT_EQ(tokenizer->decode(ids, true), story);
  EXPECT_EQ(tokenizer->encode("Once upon a time"), (std::vector<int32_t>{403, 407, 261, 378}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("caf\xC3\xA9 \x01\xFF")), "caf\xC3\xA9 \x01\xFF");
  TempFolder folder;
  tokenizer->save(folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->fingerprint(), tokenizer->fingerprint());
}

TEST(Tokenizer, Characters) {
  const auto tokenizer = make_character_tokenizer({"\n", "a", "b", "\xC3\xA9"});
  EXPECT_EQ(tokenizer->encode("ab\xC3\xA9\n"), (std::vector<int32_t>{1, 2, 3, 0}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{3, 1}),
            "\xC3\xA9"
            "a");
  EXPECT_NE(error_of([&] { tokenizer->encode("abc"); }).find("'c' (U+0063) at byte 2"), std::string::npos);
  EXPECT_NE(error_of([&] { tokenizer->encode("a\xFF"); }).find("0xff at 1"), std::string::npos);
  EXPECT_NE(error_of([&] { tokenizer->encode("a", {.add_eos = true}); }).find("no end (eos)"), std::string::npos);
  TempFolder folder;
  tokenizer->save(folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->fingerprint(), tokenizer->fingerprint());
  EXPECT_THROW(make_character_tokenizer({"a", "a"}), Error);
  EXPECT_THROW(make_character_tokenizer({"ab"}), Error);
}

TEST(Tokenizer, BytesWithoutATokenFollowThePolicy) {
  BpeVocabulary vocabulary;
  for (int byte = 0; byte < 255; ++byte) vocabulary.tokens.push_back(byte_spellings()[static_cast<size_t>(byte)]);
  vocabulary.splits.push_back({.pattern = kGpt2Pattern});
  const auto made = make_bpe(std::move(vocabulary), "test");
  const Tokenizer& tokenizer = *made;
  for (int round = 0; round < 2; ++round) {  // the second could find what the first has kept
    EXPECT_NE(error_of([&] { tokenizer.encode("he\xFFy"); }).find("no token for byte 0xff"), std::string::npos);
    UnknownText drop{.policy = UnknownText::Policy::kDrop};
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("he\xFFy \xFF", {.unknown = &drop})), "hey ");
    EXPECT_EQ(drop.places, 2);
    EXPECT_EQ(drop.first, "\"\xEF\xBF\xBD\" (bytes ff)");
  }
}

TEST(Tokenizer, WordsWithoutPiecesFollowThePolicy) {
  const auto tokenizer = parse_tokenizer_json(
      R"({"model": {"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
          "pre_tokenizer": {"type": "Whitespace"}})",
      "test");
  UnknownText drop{.policy = UnknownText::Policy::kDrop}, error{.policy = UnknownText::Policy::kError};
  EXPECT_EQ(tokenizer->encode("a zz a", {.unknown = &drop}), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(drop.places, 1);
  EXPECT_EQ(tokenizer->encode("a zz a"), (std::vector<int32_t>{0, 1, 0}));
  EXPECT_NE(error_of([&] { tokenizer->encode("a zz", {.unknown = &error}); }).find("no token for \"zz\""),
            std::string::npos);
}

TEST(Tokenizer, StreamNeverEmitsHalfACharacter) {
  const auto tokenizer = parse_tokenizer_json(small_json(), "small");
  const std::string text = "h\xC3\xA9 \xF0\x9F\xA6\x99!\xE2\x82\xAC";
  StreamDecoder decoder(*tokenizer);
  std::string shown;
  for (int32_t id : tokenizer->encode(text)) {
    const std::string more = decoder.push(id);
    EXPECT_EQ(utf8_valid_prefix(more), more.size());
    shown += more;
  }
  EXPECT_EQ(shown + decoder.finish(), text);
  StreamDecoder broken(*tokenizer);
  EXPECT_EQ(broken.push(tokenizer->encode("\xFF")[0]), "\xEF\xBF\xBD");
  EXPECT_EQ(broken.push(tokenizer->encode("\xE2")[0]), "");
  EXPECT_EQ(broken.finish(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, BadVocabulariesAreClearErrors) {
  const auto message = [](const std::string& json) {
    return error_of([&] { parse_tokenizer_json(json, "bad.json"); });
  };
  EXPECT_NE(message("{").find("bad.json: not valid JSON: parse error at line 1"), std::string::npos) << message("{");
  EXPECT_EQ(message(R"({"model": {"type": 3}})").find("json.exception"), std::string::npos);
  EXPECT_NE(message("[]").find("no \"model\""), std::string::npos);
  EXPECT_NE(message(R"({"model": {"type": "WordLevel", "vocab": {"a": 0}}})").find("model type WordLevel"),
            std::string::npos);
  EXPECT_NE(message(R"({"model": {"vocab": {}, "merges": []}})").find("vocabulary is empty"), std::string::npos);
  EXPECT_NE(message(R"({"model": {"vocab": {"a": -1}, "merges": []}})").find("id -1"), std::string::npos);
  EXPECT_NE(message(R"({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}})").find("id 0 is given to both"),
            std::string::npos);
  EXPECT_NE(message(R"({"model": {"vocab": {"a": "x"}, "merges": []}})").find("not an integer id"), std::string::npos);
  EXPECT_NE(message(R"({"model": {"vocab": {"a": 1e300}, "merges": []}})").find("not an integer id"),
            std::string::npos);
  EXPECT_NE(message(R"({"model": {"vocab": {"a": 0}, "merges": [5]}})").find("merge 0 is not a pair"),
            std::string::npos);
  EXPECT_NE(message(small_json("\"dropout\": 0.1,")).find("dropout"), std::string::npos);
  EXPECT_NE(message(small_json("", R"({"type": "UnicodeScripts"})")).find("pre-tokenizer UnicodeScripts"),
            std::string::npos);
  const std::string split = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a"},
      "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "use_regex": false}]})";
  EXPECT_NE(message(small_json("", split)).find("does not compile: missing closing parenthesis"), std::string::npos);
  EXPECT_NE(message(small_json("", "", R"({"type": "Nmt"})")).find("normalizer Nmt"), std::string::npos);
  EXPECT_NE(error_of([] { load_tokenizer("/nowhere/at/all"); }).find("no such file or folder"), std::string::npos);
  TempFolder empty;
  EXPECT_NE(error_of([&] { load_tokenizer(empty.path()); }).find("contains none of"), std::string::npos);
  EXPECT_NE(error_of([] { read_gpt2_files(R"({"a": 0})", "a b c\n", "x"); }).find("merges line 1"), std::string::npos);
}

TEST(Tokenizer, DamagedBinaryVocabulariesAreClearErrors) {
  for (const char* name : {"tokenizers/vectors/ggml-vocab-gpt-2.gguf", "tiny-models/stories260K/tok512.bin"}) {
    const std::string path = test_data_path(name);
    if (path.empty()) GTEST_SKIP() << missing_test_data(name);
    const std::string good = read_file(path);
    const bool gguf = path.ends_with(".gguf");
    const auto read = [&](const std::string& bytes) { return gguf ? read_gguf(bytes, "v") : read_llama2c(bytes, "v"); };
    for (size_t keep : {size_t{0}, size_t{3}, size_t{30}, size_t{200}, good.size() / 2, good.size() - 1}) {
      if (gguf && keep + 1 == good.size()) continue;
      EXPECT_THROW(read(good.substr(0, keep)), Error) << name << " cut to " << keep;
    }
    Philox random(7);
    for (int round = 0; round < 20; ++round) {
      std::string bytes = good;
      for (int i = 0; i < 4; ++i) bytes[random.below(400)] = static_cast<char>(random.below(256));
      try {
        read(bytes);  // either a tokenizer or an Error; anything else fails the test
      } catch (const Error&) {
      }
    }
  }
}

TEST(Utf8, ReplacesEachFaultOnce) {
  int64_t count = 0;
  EXPECT_EQ(utf8_replace_invalid("a\xE2\x82z\xFF\xC0\x80\xF0\x9F\xA6", &count),
            "a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(count, 5);
  EXPECT_EQ(utf8_incomplete_suffix("a\xF0\x9F\xA6"), 3u);
  EXPECT_EQ(utf8_incomplete_suffix("a\xED\xA0"), 0u);  // the start of a surrogate can never become valid
}

}  // namespace
}  // namespace octet
