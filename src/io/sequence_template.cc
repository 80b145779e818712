#include "io/sequence_template.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

SequenceTemplate plain_template(const Tokenizer& tokenizer) {
  const SequenceTemplate::Piece a{.text = 0}, b{.text = 1, .type = 1};
  const SequenceTemplate::Piece begin{.id = tokenizer.bos_id()}, end{.id = tokenizer.eos_id()};
  if (tokenizer.kind() == "wordpiece" && begin.id >= 0 && end.id >= 0)
    return {.single = {begin, a, end}, .pair = {begin, a, end, b, {.id = end.id, .type = 1}}};
  if (tokenizer.adds_bos()) return {.single = {begin, a}, .pair = {}};
  return {.single = {a}, .pair = {}};
}

// How many tokens of two texts stay within `most` together.
std::pair<int64_t, int64_t> shares(int64_t first, int64_t second, int64_t most) {
  if (first + second <= most) return {first, second};
  const bool swapped = first > second;
  int64_t less = std::min(first, second), more = std::max(first, second);
  more = less > most ? less : std::max(less, most - less);
  if (less + more > most) less = most / 2, more = most - less;
  return swapped ? std::pair(more, less) : std::pair(less, more);
}

}  // namespace

EncodedTexts encode_texts(const Tokenizer& tokenizer, std::string_view text,
                          const std::optional<std::string_view>& pair, int64_t most, int64_t enough) {
  const SequenceTemplate& own = tokenizer.sequence_template();
  const SequenceTemplate around = own.single.empty() ? plain_template(tokenizer) : own;
  const std::vector<SequenceTemplate::Piece>& pieces = pair ? around.pair : around.single;
  check(!pieces.empty(), ErrorCode::kInvalidArgument,
        "this tokenizer has no template for pairs of texts (\"pair\" of a tokenizer.json's post_processor)");
  // The cut of a pair goes by both lengths.
  const EncodeOptions until{.enough = most == 0 ? enough : pair ? 0 : most};
  std::vector<int32_t> ids[2] = {tokenizer.encode(text, until),
                                 pair ? tokenizer.encode(*pair, until) : std::vector<int32_t>()};
  if (most > 0) {
    const int64_t special = std::ranges::count_if(pieces, [](const auto& piece) { return piece.id >= 0; });
    check(most > special, ErrorCode::kInvalidArgument,
          "truncated to {} tokens, {} of them special, no text is left: allow more", most, special);
    const auto [first, second] = shares(std::ssize(ids[0]), std::ssize(ids[1]), most - special);
    ids[0].resize(static_cast<size_t>(std::min(first, most - special))), ids[1].resize(static_cast<size_t>(second));
  }
  EncodedTexts result;
  for (const SequenceTemplate::Piece& piece : pieces) {
    if (piece.id >= 0) {
      result.ids.push_back(piece.id);
    } else {
      const std::vector<int32_t>& from = ids[piece.text];
      result.ids.insert(result.ids.end(), from.begin(), from.end());
    }
    result.types.resize(result.ids.size(), piece.type);
  }
  return result;
}

int64_t prompt_tokens(const Tokenizer& tokenizer, std::string_view prompt) {
  if (prompt.empty()) return 0;
  const std::vector<int32_t> ids = encode_texts(tokenizer, prompt).ids;
  return std::ssize(ids) - (!ids.empty() && tokenizer.is_special(ids.back()) ? 1 : 0);
}

}  // namespace octet
