// TFRecord files, and the examples of BERT pretraining in those of MLPerf's reference: records of a length, its
// checksum, a tensorflow.Example and its checksum.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "io/bert_example.h"

namespace octet {

// CRC-32C as TensorFlow stores it.
uint32_t masked_crc(std::string_view data);

// Calls body(record, number) for each record of the file's bytes, in order. Throws kCorrupt where a checksum is wrong
// or the file is cut, naming `where`, the record (from 0) and its byte.
void each_tfrecord(std::span<const std::byte> file, const std::string& where,
                   const std::function<void(std::string_view record, int64_t number)>& body);

// The example in a record of input_ids, input_mask, segment_ids, masked_lm_positions, masked_lm_ids, masked_lm_weights
// and next_sentence_labels, without its padding. Throws kCorrupt naming what is missing, of another type or length,
// outside the vocabulary or outside the example.
BertSequence parse_bert_record(std::string_view record, int64_t vocab_size, const std::string& where);

// The examples of a file.
void each_bert_record(const std::string& path, int64_t vocab_size,
                      const std::function<void(const BertSequence&)>& body);

}  // namespace octet
