// The character vocabulary of small runs: ids are places in the sorted list of characters. It has no special tokens and
// refuses text with characters it has never seen, naming them.
#include <algorithm>

#include "base/error.h"
#include "io/tokenizer_files.h"
#include "io/tokenizer_load.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

class CharacterTokenizer : public Tokenizer {
 public:
  explicit CharacterTokenizer(std::vector<std::string> characters) {
    token_bytes_ = std::move(characters);
    for (size_t id = 0; id < token_bytes_.size(); ++id) {
      const Utf8Char character = utf8_at(token_bytes_[id], 0);
      check(character.length > 0 && static_cast<size_t>(character.length) == token_bytes_[id].size(),
            ErrorCode::kCorrupt, "character vocabulary: entry {} (\"{}\") is not one character", id, token_bytes_[id]);
      check(ids_.emplace(character.code, static_cast<int32_t>(id)).second, ErrorCode::kCorrupt,
            "character vocabulary: U+{:04X} is listed twice", character.code);
    }
    finish("");
  }

  std::string kind() const override { return "characters"; }
  void save(const std::string& dir) const override {
    std::string json = "{\n  \"characters\": [";
    for (size_t id = 0; id < token_bytes_.size(); ++id) json += (id ? ", " : "") + json_quote(token_bytes_[id]);
    make_folder(dir);
    write_file(dir + "/characters.json", json + "]\n}\n");
  }

 protected:
  void encode_piece(std::string_view piece, const TextPlace& /*place*/, size_t enough, UnknownText& unknown,
                    std::vector<int32_t>& out) const override {
    for (size_t at = 0, length = 0; at < piece.size() && out.size() < enough; at += length) {
      const Utf8Char character = utf8_at(piece, at);
      length = static_cast<size_t>(std::max(1, character.length));
      const auto found = character.length > 0 ? ids_.find(character.code) : ids_.end();
      if (found != ids_.end()) {
        out.push_back(found->second);
        continue;
      }
      if (!unknown.refuse(-1)) {
        unknown.meet(piece.substr(at, length), -1);
        continue;
      }
      check(character.length > 0, ErrorCode::kInvalidArgument,
            "byte 0x{:02x} at {} is not valid UTF-8: a character vocabulary cannot encode it",
            static_cast<uint8_t>(piece[at]), at);
      fail(ErrorCode::kInvalidArgument,
           "character '{}' (U+{:04X}) at byte {} is not among the vocabulary's {} characters", piece.substr(at, length),
           character.code, at, token_bytes_.size());
    }
  }

 private:
  std::unordered_map<uint32_t, int32_t> ids_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_character_tokenizer(std::vector<std::string> characters) {
  check(!characters.empty(), ErrorCode::kInvalidArgument, "a character vocabulary needs at least one character");
  return std::make_unique<CharacterTokenizer>(std::move(characters));
}

}  // namespace octet
