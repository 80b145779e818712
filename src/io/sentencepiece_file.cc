// Reads tokenizer.model, the protocol buffer SentencePiece writes. Only the wire format's four plain types occur:
// varints, 64-bit, length-delimited and 32-bit fields; unknown fields are skipped as the format intends, but settings
// that change ids and are not understood are refused.
#include <cstring>
#include <functional>

#include "base/error.h"
#include "io/tokenizer_json.h"

namespace octet {
namespace {

struct Field {
  uint64_t number = 0;
  uint64_t integer = 0;    // varints and fixed-width values
  std::string_view bytes;  // length-delimited ones
  uint32_t wire = 0;
};

class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field = {.number = key >> 3, .wire = static_cast<uint32_t>(key & 7)};
    switch (field.wire) {
      case 0: field.integer = varint(); break;
      case 1: std::memcpy(&field.integer, take(8).data(), 8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: std::memcpy(&field.integer, take(4).data(), 4); break;
      default:
        fail(ErrorCode::kCorrupt, "{}: field {} has the wire type {} at byte {}: not a SentencePiece model", where_,
             field.number, field.wire, at_);
    }
    return true;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << std::min(shift, 63);
      if (byte < 0x80) return value;
    }
    fail(ErrorCode::kCorrupt, "{}: a number of more than ten bytes at byte {}", where_, at_);
  }
  std::string_view take(uint64_t count) {
    check(count <= bytes_.size() - at_, ErrorCode::kCorrupt, "{}: truncated: {} bytes expected at byte {} of {}",
          where_, count, at_, bytes_.size());
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  std::string_view bytes_;
  const std::string& where_;
  size_t at_ = 0;
};

// Calls `read` for every field of a message; it returns the wire type it expects of the field, or -1 for any.
void read_fields(std::string_view bytes, const std::string& where, const char* what,
                 const std::function<int(const Field&)>& read) {
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    const int wanted = read(field);
    check(wanted < 0 || field.wire == static_cast<uint32_t>(wanted), ErrorCode::kCorrupt,
          "{}: field {} of {} has the wire type {}, not {}", where, field.number, what, field.wire, wanted);
  }
}

constexpr int kVarint = 0, kBytes = 2, kFixed32 = 5, kAny = -1;

SentencePieceVocabulary::Piece read_piece(std::string_view bytes, size_t id, const std::string& where) {
  SentencePieceVocabulary::Piece piece;
  read_fields(bytes, where, "a piece", [&](const Field& field) {
    if (field.number == 1) return piece.text = field.bytes, kBytes;
    if (field.number == 2) {
      const auto bits = static_cast<uint32_t>(field.integer);
      std::memcpy(&piece.score, &bits, 4);
      return kFixed32;
    }
    if (field.number == 3) {
      check(field.integer >= 1 && field.integer <= 6, ErrorCode::kCorrupt, "{}: piece {} has the type {} (known: 1..6)",
            where, id, field.integer);
      piece.type = static_cast<SentencePieceVocabulary::Type>(field.integer);
      return kVarint;
    }
    return kAny;
  });
  return piece;
}

void read_trainer(std::string_view bytes, SentencePieceVocabulary& out, const std::string& where) {
  read_fields(bytes, where, "the trainer's settings", [&](const Field& field) {
    switch (field.number) {
      case 3:
        check(field.integer >= 1 && field.integer <= 4, ErrorCode::kCorrupt, "{}: model type {} (known: 1..4)", where,
              field.integer);
        out.model = static_cast<SentencePieceVocabulary::Model>(field.integer);
        return kVarint;
      case 24:
        check(field.integer == 0, ErrorCode::kUnsupported, "{}: treat_whitespace_as_suffix is not supported", where);
        return kVarint;
      case 35: return out.byte_fallback = field.integer != 0, kVarint;
      case 44: return out.unk_surface = field.bytes, kBytes;
      case 46: return out.bos = field.bytes, kBytes;
      case 47: return out.eos = field.bytes, kBytes;
      default: return kAny;
    }
  });
}

void read_normalizer_spec(std::string_view bytes, SentencePieceVocabulary& out, const std::string& where) {
  read_fields(bytes, where, "the normalizer's settings", [&](const Field& field) {
    switch (field.number) {
      case 2: return out.charsmap = field.bytes, kBytes;
      case 3: return out.add_dummy_prefix = field.integer != 0, kVarint;
      case 4: return out.remove_extra_whitespaces = field.integer != 0, kVarint;
      case 5:
        check(field.integer != 0, ErrorCode::kUnsupported, "{}: escape_whitespaces = false is not supported", where);
        return kVarint;
      default: return kAny;
    }
  });
}

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, std::string_view config,
                                              const std::string& where) {
  SentencePieceVocabulary vocabulary;
  read_fields(bytes, where, "the model", [&](const Field& field) {
    switch (field.number) {
      case 1: vocabulary.pieces.push_back(read_piece(field.bytes, vocabulary.pieces.size(), where)); return kBytes;
      case 2: return read_trainer(field.bytes, vocabulary, where), kBytes;
      case 3: return read_normalizer_spec(field.bytes, vocabulary, where), kBytes;
      case 5:
        read_fields(field.bytes, where, "the denormalizer's settings", [&](const Field& inner) {
          check(inner.number != 2 || inner.bytes.empty(), ErrorCode::kUnsupported,
                "{}: a denormalizer with a character map is not supported", where);
          return kAny;
        });
        return kBytes;
      default: return kAny;
    }
  });
  const TokenizerConfig settings = read_tokenizer_config(config, where + " (tokenizer_config.json)");
  vocabulary.adds_bos = settings.adds_bos.value_or(true);
  vocabulary.files = {{"tokenizer.model", std::string(bytes)}};
  if (!config.empty()) vocabulary.files.emplace_back("tokenizer_config.json", std::string(config));
  return make_sentencepiece(std::move(vocabulary), where);
}

}  // namespace octet
