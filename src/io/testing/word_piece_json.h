// For tests: tokenizer.json of a small WordPiece vocabulary with BERT's steps and templates.
#pragma once

#include <string>
#include <vector>

namespace octet {

// These tokens, of which the first four are [PAD] [UNK] [CLS] [SEP].
inline std::string word_piece_json(const std::vector<std::string>& tokens) {
  std::string vocab;
  int id = 0;
  for (const std::string& token : tokens) vocab += (id > 0 ? ", \"" : "\"") + token + "\": " + std::to_string(id), ++id;
  return R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
{"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
{"id": 1, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
{"id": 2, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
{"id": 3, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
"pre_tokenizer": {"type": "BertPreTokenizer"},
"post_processor": {"type": "TemplateProcessing",
"single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
"pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}, "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {)" +
         vocab + "}}}";
}

// 320 tokens: [PAD] [UNK] [CLS] [SEP], a to z, ##a to ##z, "the" "cat" "dog" "query" ":" "?", and unused ones.
inline std::string word_piece_json() {
  std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
  for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c);
  for (char c = 'a'; c <= 'z'; ++c) tokens.push_back(std::string("##") + c);
  for (const char* word : {"the", "cat", "dog", "query", ":", "?"}) tokens.emplace_back(word);
  while (tokens.size() < 320) tokens.push_back("[unused" + std::to_string(tokens.size()) + "]");
  return word_piece_json(tokens);
}

}  // namespace octet
