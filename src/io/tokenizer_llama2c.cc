// The SentencePiece-like vocabularies of llama2.c (tok512.bin, tokenizer.bin): i32 longest token, then for each token a
// float32 score, i32 length and its bytes. Ids 0, 1, 2 are <unk>, <s>, </s>; 3..258 stand for the raw bytes. Text gets
// a space in front, starts as characters (bytes where the vocabulary lacks one) and joins the best-scored pair first.
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/sentencepiece.h"
#include "io/subword_tokenizer.h"
#include "io/tokenizer_load.h"
#include "io/tokenizer_normalize.h"

namespace octet {
namespace {

constexpr size_t kFirstByteId = 3;
constexpr size_t kFirstPieceId = kFirstByteId + 256;

}  // namespace

std::unique_ptr<Tokenizer> read_llama2c(std::string_view bytes, const std::string& where) {
  using Type = SentencePieceVocabulary::Type;
  SentencePieceVocabulary vocabulary;
  auto& pieces = vocabulary.pieces;
  const auto mark_spaces = replace_step(" ", true, kSpaceMark, where);
  int32_t longest = 0;
  check(bytes.size() >= 4, ErrorCode::kCorrupt, "{}: {} bytes are too few for a llama2.c vocabulary", where,
        bytes.size());
  std::memcpy(&longest, bytes.data(), 4);
  for (size_t at = 4; at < bytes.size();) {
    float score = 0;
    int32_t length = -1;
    if (bytes.size() - at >= 8) {
      std::memcpy(&score, bytes.data() + at, 4);
      std::memcpy(&length, bytes.data() + at + 4, 4);
    }
    check(
        length >= 0 && length <= longest && static_cast<size_t>(length) <= bytes.size() - at - 8 && !std::isnan(score),
        ErrorCode::kCorrupt,
        "{}: token {} at byte {} of {} is damaged (length {}, longest {}, score {}); a llama2.c model holds no "
        "vocabulary: name its tokenizer file",
        where, pieces.size(), at, bytes.size(), length, longest, score);
    pieces.push_back({mark_spaces(bytes.substr(at + 8, static_cast<size_t>(length)), {}), score});
    at += 8 + static_cast<size_t>(length);
  }
  check(pieces.size() >= kFirstPieceId && pieces[kFirstByteId].text == "<0x00>", ErrorCode::kCorrupt,
        "{}: not a llama2.c vocabulary: {} tokens, no byte tokens <0x00>.. from id {}", where, pieces.size(),
        kFirstByteId);
  pieces[0] = {"<unk>", 0, Type::kUnknown};
  pieces[1] = {"<s>", 0, Type::kControl};
  pieces[2] = {"</s>", 0, Type::kControl};
  for (size_t id = kFirstByteId; id < kFirstPieceId; ++id) pieces[id].type = Type::kByte;
  vocabulary.model = SentencePieceVocabulary::Model::kBpe;
  vocabulary.byte_fallback = vocabulary.keep_invalid = true;
  vocabulary.remove_extra_whitespaces = false;
  vocabulary.unk_surface = "<unk>";
  vocabulary.files = {{"tokenizer.bin", std::string(bytes)}};
  return make_sentencepiece(std::move(vocabulary), where);
}

}  // namespace octet
