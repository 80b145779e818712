// Special tokens around texts and pairs, and cuts. Wanted ids are those of Hugging Face's tokenizers 0.22.
#include "io/sequence_template.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "io/testing/word_piece_json.h"

namespace octet {
namespace {

using Ids = std::vector<int32_t>;

std::string with_processor(const std::string& processor) {
  std::string json = word_piece_json();
  const size_t begin = json.find(R"({"type": "TemplateProcessing")"), end = json.find("\"decoder\"");
  return json.replace(begin, end - begin, processor + ",\n");
}

Ids ids_of_pair(const Tokenizer& tokenizer, std::string_view a, std::string_view b, int64_t most = 0) {
  return encode_texts(tokenizer, a, b, most).ids;
}

TEST(SequenceTemplate, BertsTokensAroundTextsAndPairs) {
  const auto tokenizer = parse_tokenizer_json(word_piece_json(), "word piece");
  const EncodedTexts one = encode_texts(*tokenizer, "The Caf\xC3\xA9, cats?");
  EXPECT_EQ(one.ids, (Ids{2, 56, 6, 30, 35, 34, 1, 57, 48, 61, 3}));
  EXPECT_EQ(one.types, Ids(11, 0));
  EXPECT_EQ(encode_texts(*tokenizer, "\xE4\xB8\xAD\xE6\x96\x87 dog").ids, (Ids{2, 1, 1, 58, 3}));
  const EncodedTexts two = encode_texts(*tokenizer, "the cat", "a dog");
  EXPECT_EQ(two.ids, (Ids{2, 56, 57, 3, 4, 58, 3}));
  EXPECT_EQ(two.types, (Ids{0, 0, 0, 0, 1, 1, 1}));
}

TEST(SequenceTemplate, CutsTakeFromTheLongerText) {
  const auto tokenizer = parse_tokenizer_json(word_piece_json(), "word piece");
  EXPECT_EQ(encode_texts(*tokenizer, "the cat dog", {}, 4).ids, (Ids{2, 56, 57, 3}));
  const char *five = "the cat the cat the", *two = "dog dog";
  EXPECT_EQ(ids_of_pair(*tokenizer, five, two, 4), (Ids{2, 56, 3, 3}));
  EXPECT_EQ(ids_of_pair(*tokenizer, five, two, 5), (Ids{2, 56, 3, 58, 3}));
  EXPECT_EQ(ids_of_pair(*tokenizer, five, two, 6), (Ids{2, 56, 57, 3, 58, 3}));
  EXPECT_EQ(ids_of_pair(*tokenizer, five, two, 8), (Ids{2, 56, 57, 56, 3, 58, 58, 3}));
  EXPECT_EQ(ids_of_pair(*tokenizer, five, two, 12), (Ids{2, 56, 57, 56, 57, 56, 3, 58, 58, 3}));
  EXPECT_EQ(ids_of_pair(*tokenizer, "the", "dog dog dog dog", 6), (Ids{2, 56, 3, 58, 58, 3}));
  EXPECT_THROW(ids_of_pair(*tokenizer, five, two, 3), Error);
}

TEST(SequenceTemplate, RobertasPairHasTwoSeparators) {
  const auto roberta = parse_tokenizer_json(
      with_processor(R"({"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})"), "roberta");
  const EncodedTexts pair = encode_texts(*roberta, "the cat", "a dog");
  EXPECT_EQ(pair.ids, (Ids{2, 56, 57, 3, 3, 4, 58, 3}));
  EXPECT_EQ(pair.types, Ids(8, 0));
  EXPECT_EQ(ids_of_pair(*roberta, "the cat the cat", "dog", 7), (Ids{2, 56, 57, 3, 3, 58, 3}));
  const auto bert = parse_tokenizer_json(
      with_processor(R"({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})"), "bert");
  EXPECT_EQ(encode_texts(*bert, "the cat", "a dog").types, (Ids{0, 0, 0, 0, 1, 1, 1}));
}

TEST(SequenceTemplate, WithoutOneTextsStandAloneAndPairsAreRefused) {
  const auto plain = make_character_tokenizer({"a", "b"});
  EXPECT_EQ(encode_texts(*plain, "ab").ids, (Ids{0, 1}));
  EXPECT_EQ(encode_texts(*plain, "abab", {}, 2).ids, (Ids{0, 1}));
  EXPECT_THROW(encode_texts(*plain, "a", "b"), Error);
}

// sentence-transformers lowers a text's case in front of the tokenizer, which may know capitals.
TEST(SequenceTemplate, AFolderOfSentenceTransformersMayLowerCase) {
  std::string json = word_piece_json();
  json.replace(json.find(R"("lowercase": true)"), 17, R"("lowercase": false)");
  TempFolder folder;
  write_file(folder.file("tokenizer.json"), json);
  const auto ids = [&](const char* text) { return encode_texts(*load_tokenizer(folder.path()), text).ids; };
  EXPECT_NE(ids("THE Cat"), ids("the cat"));
  write_file(folder.file("sentence_bert_config.json"), R"({"do_lower_case": false})");
  EXPECT_NE(ids("THE Cat"), ids("the cat"));
  write_file(folder.file("sentence_bert_config.json"), R"({"do_lower_case": true})");
  EXPECT_EQ(ids("THE Cat"), ids("the cat"));
  EXPECT_EQ(ids("the cat"), encode_texts(*parse_tokenizer_json(json, "word piece"), "the cat").ids);
}

TEST(SequenceTemplate, TokensOfAPromptAreThoseInFrontOfAText) {
  const auto tokenizer = parse_tokenizer_json(word_piece_json(), "word piece");
  EXPECT_EQ(prompt_tokens(*tokenizer, ""), 0);
  EXPECT_EQ(prompt_tokens(*tokenizer, "query: "), 3);  // [CLS] query :
}

}  // namespace
}  // namespace octet
