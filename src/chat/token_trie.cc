#include "chat/token_trie.h"

#include <algorithm>

#include "io/tokenizer.h"

namespace octet {
namespace {

constexpr int64_t kLongestPlain = 128;  // a mask is kept for each length

// Characters of a token that is plain, -1: it is not.
int64_t plain_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); count++) {
    const auto at = [&](size_t k) { return i + k < text.size() ? uint8_t(text[i + k]) : uint8_t(0); };
    const uint8_t lead = at(0);
    const auto tail = [&](size_t k) { return (at(k) & 0xc0) == 0x80; };
    if (lead < 0x20 || lead == '"' || lead == '\\') return -1;
    if (lead < 0x80) {
      i++;
    } else if (lead >= 0xc2 && lead < 0xe0 && tail(1)) {
      i += 2;
    } else if (lead >= 0xe0 && lead < 0xf0 && tail(1) && tail(2) && (lead != 0xe0 || at(1) >= 0xa0) &&
               (lead != 0xed || at(1) < 0xa0)) {
      i += 3;
    } else if (lead >= 0xf0 && lead < 0xf5 && tail(1) && tail(2) && tail(3) && (lead != 0xf0 || at(1) >= 0x90) &&
               (lead != 0xf4 || at(1) < 0x90)) {
      i += 4;
    } else {
      return -1;
    }
  }
  return count;
}

}  // namespace

Trie make_trie(std::vector<std::pair<std::string_view, int32_t>> words) {
  std::sort(words.begin(), words.end());
  Trie trie;
  trie.nodes.push_back({});
  std::vector<int32_t> path{0};  // nodes of the last word
  std::string_view last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      Trie::Node& node = trie.nodes[size_t(path.back())];
      Trie::Node& parent = trie.nodes[size_t(path[path.size() - 2])];
      node.end = int32_t(trie.nodes.size());
      for (size_t part = 0; part < 4; part++) parent.below[part] |= node.below[part];
      parent.below[node.byte / 64] |= uint64_t(1) << (node.byte % 64);
    }
  };
  for (const auto& [word, token] : words) {
    const size_t common =
        size_t(std::mismatch(word.begin(), word.end(), last.begin(), last.end()).first - word.begin());
    close(common);
    for (size_t i = common; i < word.size(); i++) {
      path.push_back(int32_t(trie.nodes.size()));
      trie.nodes.push_back({.byte = uint8_t(word[i]), .depth = int32_t(i) + 1});
      trie.nodes.back().first_token = int32_t(trie.tokens.size());
    }
    Trie::Node& node = trie.nodes[size_t(path.back())];
    node.token_count++;
    trie.tokens.push_back(token);
    last = word;
  }
  close(0);
  trie.nodes[0].end = int32_t(trie.nodes.size());
  return trie;
}

TokenTrie::TokenTrie(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  std::vector<std::pair<std::string_view, int32_t>> all, other;
  std::vector<std::pair<int64_t, int32_t>> plain;
  for (int32_t id = 0; id < int32_t(tokens_.size()); id++) {
    const std::string_view text = tokens_[size_t(id)];
    if (text.empty()) continue;
    all.emplace_back(text, id);
    longest_token_ = std::max(longest_token_, int64_t(text.size()));
    const int64_t characters = plain_characters(text);
    if (characters < 0 || characters > kLongestPlain) {
      other.emplace_back(text, id);
    } else {
      plain.emplace_back(characters, id);
    }
  }
  all_ = make_trie(std::move(all));
  other_ = make_trie(std::move(other));
  std::sort(plain.begin(), plain.end());
  plain_.emplace_back(size_t(words()), 0u);
  for (const auto& [characters, id] : plain) {
    while (int64_t(plain_.size()) <= characters) plain_.push_back(std::vector<uint32_t>(plain_.back()));
    plain_.back()[size_t(id / 32)] |= 1u << (id % 32);
  }
}

const std::vector<uint32_t>& TokenTrie::plain(int64_t characters) const {
  return plain_[size_t(std::min(characters, longest_plain()))];
}

std::shared_ptr<const TokenTrie> make_token_trie(const Tokenizer& tokenizer) {
  std::vector<std::string> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < int32_t(tokens.size()); id++) {
    const std::string text(tokenizer.token_bytes(id));
    if (text.empty() || text.find(kSpecialByte) != text.npos) continue;
    tokens[size_t(id)] = tokenizer.is_special(id) ? kSpecialByte + text : text;
  }
  return std::make_shared<const TokenTrie>(std::move(tokens));
}

}  // namespace octet
