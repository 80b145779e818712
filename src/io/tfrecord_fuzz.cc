// libFuzzer: any bytes as a file of TFRecords, and as one record, either parse or throw octet::Error; the ids of what
// parses are in the vocabulary, its masked positions in the example.
#include <cstdlib>

#include "base/error.h"
#include "io/tfrecord.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parse = [](std::string_view record) {
    const octet::BertExample e = octet::parse_bert_record(record, 200, "fuzz");
    for (const int32_t id : e.ids)
      if (id < 0 || id >= 200) std::abort();
    for (const int32_t position : e.masked_positions)
      if (position < 0 || static_cast<size_t>(position) >= e.ids.size()) std::abort();
  };
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    parse(bytes);
  } catch (const octet::Error&) {
  }
  try {
    octet::each_tfrecord(std::as_bytes(std::span(bytes)), "fuzz",
                         [&](std::string_view record, int64_t) { parse(record); });
  } catch (const octet::Error&) {
  }
  return 0;
}
