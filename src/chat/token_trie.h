// The vocabulary as a trie over the bytes of its tokens, and what masks of JSON strings want to know ahead. A special
// token is kSpecialByte and its text: no text of bytes walks into it, only what asks for that token.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/guide.h"

namespace octet {

constexpr char kSpecialByte = char(0xff);  // in no text: it is not UTF-8

// A trie in preorder: the children of node i begin at i + 1, what follows its subtree at end[i].
struct Trie {
  struct Node {
    uint8_t byte = 0;         // that leads here from the parent
    int32_t end = 0;          // the node behind this subtree
    int32_t first_token = 0;  // of `tokens`: those that end here
    int32_t token_count = 0;
    int32_t depth = 0;                // bytes from the root
    std::array<uint64_t, 4> below{};  // bytes of the subtree
  };
  std::vector<Node> nodes;  // 0: the root
  std::vector<int32_t> tokens;

  // Tokens of the subtree of node i are [nodes[i].first_token, last_token(i)).
  int32_t last_token(int32_t i) const {
    const int32_t end = nodes[size_t(i)].end;
    return end < int32_t(nodes.size()) ? nodes[size_t(end)].first_token : int32_t(tokens.size());
  }
};
Trie make_trie(std::vector<std::pair<std::string_view, int32_t>> words);  // bytes, token

class TokenTrie {
 public:
  explicit TokenTrie(std::vector<std::string> tokens);  // by id; empty: none

  int64_t vocab_size() const { return int64_t(tokens_.size()); }
  int64_t words() const { return (vocab_size() + 31) / 32; }  // of a mask
  std::string_view bytes(int32_t token) const { return tokens_[size_t(token)]; }
  const Trie& all() const { return all_; }
  const Trie& other() const { return other_; }  // tokens that are not plain
  // Plain tokens are whole characters that a JSON string holds as they are: the mask of those of at most so many.
  const std::vector<uint32_t>& plain(int64_t characters) const;
  int64_t longest_plain() const { return int64_t(plain_.size()) - 1; }  // in characters
  int64_t longest_token() const { return longest_token_; }              // in bytes

 private:
  std::vector<std::string> tokens_;
  Trie all_, other_;
  std::vector<std::vector<uint32_t>> plain_;
  int64_t longest_token_ = 0;
};

}  // namespace octet
