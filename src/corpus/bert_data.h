// Text documents into examples of BERT pretraining, as google-research/bert's create_pretraining_data.py makes them:
// pairs of runs of sentences, the second from another document half the time, masked. What an example holds is a
// function of the seed and of the document's place, whatever the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/bert_example.h"
#include "io/corpus.h"
#include "io/tokenizer.h"

namespace octet {

struct BertDataOptions {
  std::vector<std::string> inputs;  // as octet data reads them, or TFRecords of the reference (.tfrecord*)
  std::string output;               // PREFIX
  std::string tokenizer_path;
  TextOptions text;
  bool parted_by_blank_lines = false;  // an empty line begins a document too
  int64_t length = 512;                // the most tokens of an example
  double short_share = 0.1;            // of the examples, whose wanted length is drawn from 2 on
  double masked_share = 0.15;
  int64_t most_masked = 76;
  int64_t duplicates = 1;  // of each document, with other pairs and other masks
  uint64_t seed = 0;
  int64_t row = 512, most_in_row = 3;  // packing; most_in_row 1: none
  std::vector<double> split;           // fractions of train, validation [, test]
  int threads = 0;                     // 0 = all cores
  std::function<void(const CorpusProgress&)> progress;
};

struct BertSplit {
  std::string name, prefix;
  int64_t documents = 0, examples = 0, tokens = 0, masked = 0, random_next = 0, rows = 0;
  double filled = 0;  // share of the rows' tokens
};

struct BertDataResult {
  std::vector<BertSplit> splits;
  int64_t sentences = 0;
  TextCounts text;
  double tokenize_seconds = 0, example_seconds = 0, pack_seconds = 0;
  int threads = 1;
};

// Writes PREFIX.bin, .idx and .json (io/bert_set.h) (or PREFIX_train.., PREFIX_val.., PREFIX_test..) and
// PREFIX_tokenizer/. Throws kInvalidArgument for a vocabulary without [CLS], [SEP] or [MASK], and for fewer than two
// documents in a split.
BertDataResult prepare_bert_data(const Tokenizer& tokenizer, const BertDataOptions& options);

// The sentences of a text, trimmed: lines, parted behind . ! ? and closing quotes or brackets where a space and no
// small letter follow. An empty line is an empty sentence.
std::vector<std::string_view> split_sentences(std::string_view text);

// Tokens of documents: sentence s of document d is ids [sentences[s], sentences[s + 1]), documents[d] <= s <
// documents[d + 1].
struct BertDocuments {
  std::vector<int32_t> ids;
  std::vector<int64_t> sentences = {0}, documents = {0};

  int64_t size() const { return static_cast<int64_t>(documents.size()) - 1; }
  void end_sentence();  // none where no ids were added
  void end_document();  // none where no sentence was
};

// The examples of one document, masked; `copy` counts its duplicates.
std::vector<BertSequence> document_examples(const BertDocuments& documents, int64_t document, int64_t copy,
                                            const BertDataOptions& options, const BertMasking& masking);

}  // namespace octet
