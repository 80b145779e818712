// The special tokens around one text or a pair of them, as encoders are trained with: [CLS] a [SEP] b [SEP] of BERT,
// <s> a </s></s> b </s> of RoBERTa; and the cut to a length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer.h"

namespace octet {

struct EncodedTexts {
  std::vector<int32_t> ids, types;  // types: of tokens, 0 for the first text, as the template says for the second
};

// The ids of `text`, or of the pair, by the tokenizer's template; of a vocabulary without one: begin and end token
// where it adds them, and BERT's of a WordPiece vocabulary. `most` > 0: at most so many tokens, special ones included:
// the texts lose their last tokens, the longer one first, as transformers' "longest_first" has it. Throws
// kInvalidArgument for a pair where there is no template for pairs, and where `most` leaves no text. `enough` > 0,
// where `most` is 0: what is behind so many tokens of a text may be left out.
EncodedTexts encode_texts(const Tokenizer& tokenizer, std::string_view text,
                          const std::optional<std::string_view>& pair = std::nullopt, int64_t most = 0,
                          int64_t enough = 0);

// Tokens of a prompt in front of a text, as sentence-transformers counts them: those around it but for the last.
int64_t prompt_tokens(const Tokenizer& tokenizer, std::string_view prompt);

}  // namespace octet
