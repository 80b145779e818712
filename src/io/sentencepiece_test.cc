// tokenizer.model read from bytes: damaged files and unsupported settings are clear errors, GGUF's "llama" vocabularies
// agree with the model they were made from. What the library gives for real models is in tokenizer_oracle_test.cc.
#include "io/tokenizer_parts.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using Type = SentencePieceVocabulary::Type;

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>((value & 127) | 128);
  return out + static_cast<char>(value);
}

std::string number_field(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}

std::string bytes_field(int field, const std::string& bytes) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(bytes.size()) + bytes;
}

std::string piece_field(const std::string& text, float score, Type type = Type::kNormal) {
  std::string score_bytes(4, '\0');
  std::memcpy(score_bytes.data(), &score, 4);
  return bytes_field(
      1, bytes_field(1, text) + varint(2 << 3 | 5) + score_bytes + number_field(3, static_cast<uint64_t>(type)));
}

const std::string kMark = "\xE2\x96\x81";

std::string specials() {
  return piece_field("<unk>", 0, Type::kUnknown) + piece_field("<s>", 0, Type::kControl) +
         piece_field("</s>", 0, Type::kControl);
}

// Scores as BPE training writes them: minus the order of the merges.
std::string pieces() {
  return specials() + piece_field("ab", -1) + piece_field(kMark + "ab", -2) + piece_field(kMark, -3) +
         piece_field("a", -4) + piece_field("b", -5);
}

std::string bpe_settings(const std::string& more = "") { return bytes_field(2, number_field(3, 2) + more); }
std::string plain_normalizer(const std::string& more = "") { return bytes_field(3, number_field(4, 0) + more); }

std::string error_of(const std::string& model) {
  try {
    read_sentencepiece(model, "", "bad.model");
  } catch (const Error& error) {
    return error.message();
  }
  return "(no error)";
}

void expect_error(const std::string& model, const std::string& part) {
  const std::string message = error_of(model);
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_TRUE(message.starts_with("bad.model: ")) << message;
}

TEST(SentencePiece, SmallModel) {
  const auto tokenizer = read_sentencepiece(pieces() + bpe_settings() + plain_normalizer(), "", "small");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->encode("abab a"), (std::vector<int32_t>{4, 3, 5, 6}));
  EXPECT_EQ(tokenizer->encode("ab", {.text_start = false}), (std::vector<int32_t>{3}));
  EXPECT_EQ(tokenizer->encode("axyb"), (std::vector<int32_t>{5, 6, 0, 7}));   // one unknown for a run
  EXPECT_EQ(tokenizer->encode("a<s>b"), (std::vector<int32_t>{5, 6, 0, 7}));  // text, not the token
  EXPECT_EQ(tokenizer->encode("a<s>b", {.parse_special = true}), (std::vector<int32_t>{5, 6, 1, 7}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{4, 3, 5, 6}), "abab a");
  EXPECT_FALSE(read_sentencepiece(pieces() + bpe_settings(), R"({"add_bos_token": false})", "small")->adds_bos());
}

// Whatever was encoded before: the ids of a word that needs the policy are not kept for other calls.
TEST(SentencePiece, UnknownTextFollowsThePolicy) {
  using Policy = UnknownText::Policy;
  for (const bool bpe : {true, false}) {
    const std::string settings = bpe ? bpe_settings() : bytes_field(2, number_field(3, 1));
    const auto tokenizer = read_sentencepiece(pieces() + settings + plain_normalizer(), "", "small");
    const auto with = tokenizer->encode("axyb"), without = tokenizer->encode("ab");
    EXPECT_EQ(std::count(with.begin(), with.end(), 0), 1) << tokenizer->kind();
    for (int round = 0; round < 2; ++round) {
      UnknownText drop{.policy = Policy::kDrop}, token, error{.policy = Policy::kError};
      const auto dropped = tokenizer->encode("axyb", {.unknown = &drop});
      EXPECT_EQ(tokenizer->decode(dropped), "ab") << tokenizer->kind();
      EXPECT_EQ(std::count(dropped.begin(), dropped.end(), 0), 0);
      EXPECT_EQ(drop.places, bpe ? 2 : 1);  // unigram meets a run at once
      EXPECT_EQ(drop.first, bpe ? "\"x\" (bytes 78)" : "\"xy\" (bytes 78 79)");
      EXPECT_EQ(tokenizer->encode("axyb", {.unknown = &token}), with);
      EXPECT_EQ(token.places, drop.places);
      EXPECT_THROW(tokenizer->encode("axyb", {.unknown = &error}), Error);
      EXPECT_TRUE(error.refused);
      EXPECT_EQ(tokenizer->encode("ab", {.unknown = &error}), without);
    }
  }
}

TEST(SentencePiece, BadModelsAreClearErrors) {
  expect_error("", "no pieces");
  expect_error("\xFF", "truncated");
  expect_error(std::string(20, '\xFF'), "more than ten bytes");
  expect_error("\x0B", "wire type 3");
  expect_error(pieces().substr(0, 20), "truncated");
  expect_error(number_field(1, 5), "field 1 of the model has the wire type 0, not 2");
  expect_error(bytes_field(1, number_field(3, 9)), "piece 0 has the type 9");
  expect_error(specials() + piece_field("", -1), "piece 3 is empty");
  expect_error(pieces() + piece_field("ab", -9) + bpe_settings(), "pieces 3 and 8 are both \"ab\"");
  expect_error(specials() + piece_field("a", NAN), "has the score nan");
  expect_error(piece_field("a", -1), "no unknown piece");
  expect_error(specials() + piece_field("<x>", 0, Type::kUnknown), "both the unknown piece");
  expect_error(specials() + piece_field("<0xG0>", 0, Type::kByte), "is not a byte");
  expect_error(pieces() + bpe_settings(number_field(35, 1)), "byte fallback without a piece for byte 0x00");
  expect_error(pieces() + piece_field("c", 0, Type::kUnused) + bpe_settings(), "marked unused");
  expect_error(pieces() + bytes_field(2, number_field(3, 3)), "of kind word");
  expect_error(pieces() + bytes_field(2, number_field(3, 7)), "model type 7");
  expect_error(pieces() + bpe_settings(number_field(24, 1)), "treat_whitespace_as_suffix");
  expect_error(pieces() + bpe_settings() + plain_normalizer(number_field(5, 0)), "escape_whitespaces");
  expect_error(pieces() + bpe_settings() + bytes_field(3, bytes_field(2, "xyz")), "character map");
  expect_error(pieces() + bpe_settings() + bytes_field(5, bytes_field(2, "xyz")), "denormalizer");
}

TEST(SentencePiece, DamagedModelsNeverCrash) {
  for (const char* kind : {"sp-llama", "sp-unigram"}) {
    const std::string good = read_file(source_dir() + "/src/io/testdata/tokenizers/" + kind + "/tokenizer.model");
    Philox random(5);
    for (int round = 0; round < 60; ++round) {
      std::string bytes = good.substr(0, round % 2 ? good.size() : random.below(good.size()));
      for (int i = 0; i < 8 && !bytes.empty(); ++i)
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      try {
        const auto tokenizer = read_sentencepiece(bytes, "", "damaged");
        tokenizer->decode(tokenizer->encode("Hello \xE4\xBD\xA0\xFF <s>"));
      } catch (const Error&) {
      }
    }
  }
}

// GGUF with string, array and number pairs, as far as vocabularies need it.
class GgufWriter {
 public:
  template <typename T>
  void put(T value) {
    const size_t at = body_.size();
    body_.resize(at + sizeof(T));
    std::memcpy(body_.data() + at, &value, sizeof(T));
  }
  void text(const std::string& value) {
    put<uint64_t>(value.size());
    body_ += value;
  }
  void key(const std::string& name, uint32_t type) {
    text("tokenizer.ggml." + name);
    put(type);
    ++pairs_;
  }
  void array(const std::string& name, uint32_t element, uint64_t count) {
    key(name, 9);
    put(element);
    put(count);
  }
  std::string file() const {
    GgufWriter head;
    head.put<uint32_t>(3);
    head.put<uint64_t>(0);
    head.put(pairs_);
    return "GGUF" + head.body_ + body_;
  }

 private:
  std::string body_;
  uint64_t pairs_ = 0;
};

TEST(SentencePiece, GgufOfAModelGivesTheSameIds) {
  const auto model = load_tokenizer(source_dir() + "/src/io/testdata/tokenizers/sp-llama");
  const auto size = static_cast<uint64_t>(model->vocab_size());
  GgufWriter gguf;
  gguf.key("model", 8);
  gguf.text("llama");
  gguf.array("tokens", 8, size);
  for (uint64_t id = 0; id < size; ++id) {
    const auto bytes = std::string(model->token_bytes(static_cast<int32_t>(id)));
    if (id == 0) {
      gguf.text("<unk>");
    } else if (id >= 3 && id < 259) {
      gguf.text(fmt::format("<0x{:02X}>", id - 3));
    } else {
      std::string marked;
      for (char c : bytes) marked += c == ' ' ? kMark : std::string(1, c);
      gguf.text(marked);
    }
  }
  gguf.array("scores", 6, size);
  for (uint64_t id = 0; id < size; ++id) gguf.put(id < 259 ? 0.0f : 259.0f - static_cast<float>(id));
  gguf.array("token_type", 5, size);
  for (uint64_t id = 0; id < size; ++id) gguf.put<int32_t>(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
  gguf.key("bos_token_id", 4);
  gguf.put<uint32_t>(1);
  gguf.key("eos_token_id", 4);
  gguf.put<uint32_t>(2);
  const auto again = read_gguf(gguf.file(), "made.gguf");
  EXPECT_EQ(again->kind(), "sentencepiece");
  EXPECT_EQ(again->bos_id(), 1);
  for (const char* text : {"Hello  world\n", "", " a", "\xE4\xBD\xA0 <s> \xF0\x9F\xA6\x99", "tokenizer tokens"}) {
    EXPECT_EQ(again->encode(text), model->encode(text)) << text;
    EXPECT_EQ(again->decode(model->encode(text)), text);
  }
}

// A vocabulary of the kind "llama" with `more` pieces of (text, type) behind its own.
std::string padded_gguf(const std::vector<std::pair<std::string, int32_t>>& more) {
  std::vector<std::pair<std::string, int32_t>> all = {{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}};
  for (int byte = 0; byte < 256; ++byte) all.emplace_back(fmt::format("<0x{:02X}>", byte), 6);
  for (const char* text : {"ab", "a", "b"}) all.emplace_back(text, 1);
  all.insert(all.end(), more.begin(), more.end());
  GgufWriter gguf;
  gguf.key("model", 8);
  gguf.text("llama");
  gguf.array("tokens", 8, all.size());
  for (const auto& [text, type] : all) gguf.text(text);
  gguf.array("scores", 6, all.size());
  for (size_t id = 0; id < all.size(); ++id) gguf.put(-static_cast<float>(id));
  gguf.array("token_type", 5, all.size());
  for (const auto& [text, type] : all) gguf.put<int32_t>(type);
  return gguf.file();
}

TEST(SentencePiece, PaddingOfGgufVocabulariesIsNoText) {
  const std::string mark_ids = "ab<unk>[PAD1] a";
  const auto plain = read_gguf(padded_gguf({}), "plain.gguf");
  const auto padded = read_gguf(
      padded_gguf(
          {{"<unk>", 2}, {"<unk>", 1}, {"<unk>", 5}, {"<extra>", 2}, {"[PAD1]", 5}, {"[PAD2]", 5}, {"[PAD1]", 5}}),
      "padded.gguf");
  EXPECT_EQ(padded->vocab_size(), plain->vocab_size() + 7);
  EXPECT_EQ(padded->encode(mark_ids), plain->encode(mark_ids));
  EXPECT_EQ(padded->encode(mark_ids, {.parse_special = true}), plain->encode(mark_ids, {.parse_special = true}));
  const auto last = static_cast<int32_t>(padded->vocab_size()) - 1;
  EXPECT_EQ(padded->decode(std::vector<int32_t>{260, 261, last - 6, last}), "ab<unk>[PAD1]");
  const auto refused = [](const std::vector<std::pair<std::string, int32_t>>& more, const std::string& part) {
    try {
      read_gguf(padded_gguf(more), "bad.gguf");
      FAIL() << part;
    } catch (const Error& error) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  };
  refused({{"ab", 1}}, "pieces 259 and 262 are both \"ab\"");
  refused({{"aab", 5}}, "piece \"aab\" is marked unused though merging makes it");
}

}  // namespace
}  // namespace octet
