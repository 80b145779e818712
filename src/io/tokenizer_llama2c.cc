// The SentencePiece-like vocabularies of llama2.c (tok512.bin, tokenizer.bin): i32 longest token, then for each token a
// float32 score, i32 length and its bytes. Ids 0, 1, 2 are <unk>, <s>, </s>; 3..258 stand for the raw bytes. Text gets
// a space in front, starts as characters (bytes where the vocabulary lacks one) and joins the best-scored pair first.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/bpe.h"
#include "io/tokenizer_files.h"
#include "io/tokenizer_load.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

constexpr int32_t kFirstByteId = 3;
constexpr int32_t kFirstPieceId = kFirstByteId + 256;

class Llama2cTokenizer : public Tokenizer {
 public:
  Llama2cTokenizer(std::vector<std::string> pieces, std::vector<float> scores, std::string file)
      : file_(std::move(file)) {
    token_bytes_ = std::move(pieces);
    for (int32_t byte = 0; byte < 256; ++byte) token_bytes_[kFirstByteId + byte].assign(1, static_cast<char>(byte));
    added_ = {{0, "<unk>"}, {1, "<s>"}, {2, "</s>"}};
    for (AddedToken& token : added_) token_bytes_[token.id] = token.text;
    bos_id_ = 1;
    eos_id_ = 2;
    adds_bos_ = strips_first_space_ = true;
    const auto size = static_cast<int32_t>(token_bytes_.size());
    for (int32_t id = kFirstPieceId; id < size; ++id) ids_.emplace(token_bytes_[id], id);
    std::vector<float> order(scores);
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    const auto find = [&](std::string_view piece) {
      const auto found = ids_.find(piece);
      return found == ids_.end() ? -1 : found->second;
    };
    for (const auto& [piece, id] : ids_) {
      const auto rank = std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>()) - order.begin();
      for (size_t cut = 1; cut < piece.size(); ++cut) {
        const int32_t left = find(piece.substr(0, cut)), right = find(piece.substr(cut));
        if (left >= 0 && right >= 0) merges_.insert(left, right, {static_cast<uint32_t>(rank), id});
      }
    }
    finish(file_);
  }

  std::string kind() const override { return "sentencepiece"; }
  void save(const std::string& dir) const override {
    make_folder(dir);
    write_file(dir + "/tokenizer.bin", file_);
  }

 protected:
  void encode_piece(std::string_view piece, bool text_start, std::vector<int32_t>& out) const override {
    std::vector<int32_t> symbols;
    const auto add = [&](std::string_view character) {
      if (const auto found = ids_.find(character); found != ids_.end()) {
        symbols.push_back(found->second);
      } else {
        for (char byte : character) symbols.push_back(kFirstByteId + static_cast<uint8_t>(byte));
      }
    };
    if (text_start) add(" ");
    for (size_t at = 0; at < piece.size();) {
      const auto length = static_cast<size_t>(std::max(1, utf8_at(piece, at).length));
      add(piece.substr(at, length));
      at += length;
    }
    MergeScratch scratch;
    apply_merges(merges_, symbols, scratch);
    out.insert(out.end(), symbols.begin(), symbols.end());
  }

 private:
  std::string file_;  // as read: what save() writes
  std::unordered_map<std::string_view, int32_t> ids_;
  MergeTable merges_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_llama2c(std::string_view bytes, const std::string& where) {
  std::vector<std::string> pieces;
  std::vector<float> scores;
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
        ErrorCode::kCorrupt, "{}: token {} at byte {} of {} is damaged (length {}, longest {}, score {})", where,
        pieces.size(), at, bytes.size(), length, longest, score);
    pieces.emplace_back(bytes.substr(at + 8, static_cast<size_t>(length)));
    scores.push_back(score);
    at += 8 + static_cast<size_t>(length);
  }
  check(pieces.size() >= kFirstPieceId && pieces[kFirstByteId] == "<0x00>", ErrorCode::kCorrupt,
        "{}: not a llama2.c vocabulary: {} tokens, no byte tokens <0x00>.. from id {}", where, pieces.size(),
        kFirstByteId);
  return std::make_unique<Llama2cTokenizer>(std::move(pieces), std::move(scores), std::string(bytes));
}

}  // namespace octet
