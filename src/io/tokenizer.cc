// Encoding and decoding by the parts of a tokenizer: added tokens in the text, normalisation, splitting, a cache of
// words, the fingerprint.
#include "io/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "io/tokenizer_parts.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

// The ids of words seen before: a direct-mapped table of 64-byte lines. No clearing, no growth, no locks; one per
// thread. Most words of a text have been seen before and cost one lookup.
class WordCache {
 public:
  static constexpr size_t kBytes = 23;  // longer words and id lists are not cached
  static constexpr size_t kTokens = 9;

  struct alignas(64) Line {
    std::array<uint64_t, 3> key{};  // the word's bytes, zero-padded; the last byte is its length, 0 = empty line
    int32_t count = 0;
    std::array<int32_t, kTokens> ids{};
  };
  static_assert(sizeof(Line) == 64);
  struct Place {
    std::array<uint64_t, 3> key{};
    Line* line = nullptr;
  };

  // Appends the ids of `word` and returns true when it is known; else `place` is where store() may put it.
  bool find(std::string_view word, std::vector<int32_t>& out, Place& place) {
    if (word.size() > kBytes || word.empty()) return false;
    std::array<uint64_t, 3>& key = place.key;
    std::memcpy(key.data(), word.data(), word.size());
    key[2] |= static_cast<uint64_t>(word.size()) << 56;
    uint64_t hash = (key[0] ^ key[1] * 0x9E3779B97F4A7C15ull ^ key[2] * 0xC2B2AE3D27D4EB4Full);
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
    place.line = &lines_[hash >> 32 & (kLines - 1)];
    if (place.line->key != key) return false;
    out.insert(out.end(), place.line->ids.data(), place.line->ids.data() + place.line->count);
    return true;
  }

  void store(const Place& place, std::span<const int32_t> ids) {
    if (place.line == nullptr || ids.size() > kTokens) return;
    place.line->key = place.key;
    place.line->count = static_cast<int32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), place.line->ids.begin());
  }

 private:
  static constexpr size_t kLines = 1 << 15;  // 2 MiB: the level-2 cache of today's cores
  std::vector<Line> lines_ = std::vector<Line>(kLines);
};

bool is_word(const Utf8Char& character) { return character.length > 0 && unicode_is_word(character.code); }

// End of the white space before or after `at`, at least `least`.
size_t skip_spaces_before(std::string_view text, size_t at, size_t least) {
  for (;;) {
    const Utf8Char character = utf8_before(text, at);
    const auto length = static_cast<size_t>(character.length);
    if (length == 0 || !unicode_is_space(character.code) || at - length < least) return at;
    at -= length;
  }
}

size_t skip_spaces_after(std::string_view text, size_t at) {
  for (;;) {
    const Utf8Char character = utf8_at(text, at);
    if (character.length == 0 || !unicode_is_space(character.code)) return at;
    at += static_cast<size_t>(character.length);
  }
}

void hash_bytes(uint64_t& hash, std::string_view bytes) {  // FNV-1a, with the length so that fields cannot run together
  for (char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  hash = (hash ^ bytes.size()) * 0x100000001B3ull;
}

}  // namespace

std::string shown_with_bytes(std::string_view text) {
  int64_t replaced = 0;
  std::string bytes;
  for (char c : text) bytes += fmt::format(" {:02x}", static_cast<uint8_t>(c));
  return fmt::format("\"{}\" (bytes{})", utf8_replace_invalid(text, &replaced), bytes);
}

std::string json_quote(std::string_view text) {
  int64_t replaced = 0;
  std::string out = "\"";
  for (char c : utf8_replace_invalid(text, &replaced)) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

int32_t UnknownText::meet(std::string_view text, int32_t unk_id) {
  if (places++ == 0) first = shown_with_bytes(text);
  return policy == Policy::kDrop ? -1 : unk_id;
}

struct Tokenizer::Impl {
  struct Spelling {
    std::string text;  // the text to match: AddedToken::text, possibly normalised
    const AddedToken* token;
  };
  using SpellingTable = std::array<std::vector<Spelling>, 256>;  // by first byte, longest first
  using OnPiece = std::function<void(std::string_view, const TextPlace&)>;
  struct Scratch {
    SplitScratch split, split_prefixed;
    ModelScratch model;
    WordCache cache;
    std::string prefixed, marked;
  };
  // Of one call of encode_to.
  struct Call {
    const EncodeOptions& options;
    size_t enough;  // encoding may end at a word once `out` holds as many
    UnknownText& unknown;
    std::vector<int32_t>& out;
  };

  Impl(TokenizerParts from, const std::string& where)
      : parts(std::move(from)), before_prefix(parts.splits_before_prefix, where), splitter(parts.splits, where) {}

  // Returns the fingerprint.
  std::string index_tokens();
  // A token that ends at or before `end`.
  const Spelling* match_added(const SpellingTable& table, std::string_view text, size_t at, size_t end,
                              bool parse_special) const;
  // `ranges`: where tokens may be, sorted.
  void split_added(std::string_view text, std::span<const TextRange> ranges, const TextPlace& place,
                   const SpellingTable& table, const OnPiece& on_piece, const Call& call) const;
  std::vector<TextRange> normalized_ranges(std::string_view text, std::span<const TextRange> ranges,
                                           const TextPlace& place, std::string_view whole) const;
  void encode_piece(std::string_view piece, const TextPlace& place, const Call& call) const;
  void encode_marked(std::string_view text, const TextPlace& place, Scratch& scratch, const Call& call) const;
  void encode_cut(std::string_view text, std::string_view mark, bool keep_runs, Scratch& scratch,
                  const Call& call) const;
  void encode_word(std::string_view word, Scratch& scratch, const Call& call) const;
  std::unique_ptr<Scratch> take_scratch() const;

  TokenizerParts parts;
  Splitter before_prefix, splitter;
  std::vector<uint8_t> special;  // [vocab] 1 for special ids
  SpellingTable raw, normalized;
  bool any_normalized = false;
  // Word caches and match buffers that callers borrow, so that words are looked up without locks; as many as were in
  // use at once.
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> idle;
};

std::string Tokenizer::Impl::index_tokens() {
  const auto vocab_size = static_cast<int64_t>(parts.token_bytes.size());
  special.assign(parts.token_bytes.size(), 0);
  uint64_t hash = 0xCBF29CE484222325ull;
  hash_bytes(hash, parts.facts);
  for (const std::string& bytes : parts.token_bytes) hash_bytes(hash, bytes);
  std::stable_sort(parts.added.begin(), parts.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const AddedToken& token : parts.added) {
    check(token.id >= 0 && token.id < vocab_size, ErrorCode::kInternal, "added token {} of {}", token.id, vocab_size);
    if (token.special) special[static_cast<size_t>(token.id)] = 1;
    hash_bytes(hash, fmt::format("{} {} {}{}{}{}", token.id, token.text, token.special, token.lstrip, token.rstrip,
                                 token.single_word));
    const bool later = !parts.normalizer.empty() && token.normalized;
    std::string text = later ? parts.normalizer.apply(token.text, {}) : token.text;
    if (text.empty()) continue;
    any_normalized |= later;
    std::vector<Spelling>& spellings = (later ? normalized : raw)[static_cast<uint8_t>(text[0])];
    spellings.push_back({std::move(text), &token});
  }
  for (SpellingTable* table : {&raw, &normalized}) {
    for (auto& list : *table) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Spelling& a, const Spelling& b) { return a.text.size() > b.text.size(); });
    }
  }
  for (int32_t id : {parts.bos_id, parts.eos_id}) {
    if (id >= 0) special[static_cast<size_t>(id)] = 1;
  }
  return fmt::format("{}-{}-{:016x}", parts.kind, vocab_size, hash);
}

const Tokenizer::Impl::Spelling* Tokenizer::Impl::match_added(const SpellingTable& table, std::string_view text,
                                                              size_t at, size_t end, bool parse_special) const {
  for (const Spelling& spelling : table[static_cast<uint8_t>(text[at])]) {
    if (spelling.token->special && !parse_special) continue;
    const size_t behind = at + spelling.text.size();
    if (behind > end || text.compare(at, spelling.text.size(), spelling.text) != 0) continue;
    if (spelling.token->single_word && (is_word(utf8_before(text, at)) || is_word(utf8_at(text, behind)))) continue;
    return &spelling;
  }
  return nullptr;
}

void Tokenizer::Impl::split_added(std::string_view text, std::span<const TextRange> ranges, const TextPlace& place,
                                  const SpellingTable& table, const OnPiece& on_piece, const Call& call) const {
  const bool parse_special = call.options.parse_special;
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    if (end == begin) return;
    const bool first = begin == 0 && place.first;
    on_piece(text.substr(begin, end - begin), {first, end == text.size() && place.last, first && place.continues});
  };
  const bool any = std::any_of(parts.added.begin(), parts.added.end(),
                               [&](const AddedToken& token) { return parse_special || !token.special; });
  for (size_t at = 0; any && at < text.size();) {
    while (!ranges.empty() && ranges[0].end <= at) ranges = ranges.subspan(1);
    if (ranges.empty()) break;
    at = std::max(at, ranges[0].begin);
    if (at >= text.size()) break;
    const Spelling* found = match_added(table, text, at, ranges[0].end, parse_special);
    if (found == nullptr) {
      ++at;
      continue;
    }
    flush(found->token->lstrip ? skip_spaces_before(text, at, begin) : at);
    if (call.out.size() >= call.enough) return;
    call.out.push_back(found->token->id);
    at += found->text.size();
    if (found->token->rstrip) at = skip_spaces_after(text, at);
    begin = at;
  }
  flush(text.size());
}

// Where `ranges` of `text` lie in `whole`, its normalised form: known when that is made of the normalised parts.
std::vector<TextRange> Tokenizer::Impl::normalized_ranges(std::string_view text, std::span<const TextRange> ranges,
                                                          const TextPlace& place, std::string_view whole) const {
  if (ranges.size() == 1 && ranges[0].begin == 0 && ranges[0].end >= text.size()) return {{0, whole.size()}};
  std::string joined;
  size_t at = 0;
  const auto add = [&](size_t end) {
    const TextPlace part{place.first && at == 0, place.last && end == text.size(), at > 0 || place.continues};
    if (end > at) joined += parts.normalizer.apply(text.substr(at, end - at), part);
    at = end;
  };
  std::vector<TextRange> found;
  for (const TextRange& range : ranges) {
    add(range.begin);
    const size_t begin = joined.size();
    add(std::min(range.end, text.size()));
    found.push_back({begin, joined.size()});
  }
  add(text.size());
  if (joined != whole) found.clear();
  return found;
}

std::unique_ptr<Tokenizer::Impl::Scratch> Tokenizer::Impl::take_scratch() const {
  {
    std::lock_guard lock(mutex);
    if (!idle.empty()) {
      auto scratch = std::move(idle.back());
      idle.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

// A piece free of added tokens, already normalised.
void Tokenizer::Impl::encode_piece(std::string_view piece, const TextPlace& place, const Call& call) const {
  auto scratch = take_scratch();
  bool continues = place.continues;
  TextPlace at = place;
  const auto encode_part = [&](std::string_view part) {
    if (parts.metaspace) {
      encode_marked(part, at, *scratch, call);
      at.first = at.continues = false;
    } else {
      encode_cut(part, parts.cut_before, true, *scratch, call);
    }
    return call.out.size() < call.enough;
  };
  before_prefix.each_piece(piece, scratch->split, [&](std::string_view part) {
    if (parts.prefix_space && !part.starts_with(' ') && !continues) {
      scratch->prefixed.assign(" ").append(part);
      part = scratch->prefixed;
    }
    continues = false;
    return splitter.each_piece(part, scratch->split_prefixed, encode_part);
  });
  // Buffers of a longer piece go with it.
  if (std::lock_guard lock(mutex); piece.size() <= 1 << 20) idle.push_back(std::move(scratch));
}

void Tokenizer::Impl::encode_marked(std::string_view text, const TextPlace& place, Scratch& scratch,
                                    const Call& call) const {
  const Metaspace& rule = *parts.metaspace;
  const bool wants = !place.continues && (rule.prepend == Metaspace::Prepend::kAlways ||
                                          (rule.prepend == Metaspace::Prepend::kFirst && place.first));
  scratch.marked = wants && !text.empty() && text[0] != ' ' && !text.starts_with(rule.mark) ? rule.mark : "";
  append_replaced(scratch.marked, text, " ", rule.mark);
  encode_cut(scratch.marked, rule.split ? rule.mark : parts.cut_before, !rule.split, scratch, call);
}

// Splits before each mark; with `keep_runs` only before the first mark of a run.
void Tokenizer::Impl::encode_cut(std::string_view text, std::string_view mark, bool keep_runs, Scratch& scratch,
                                 const Call& call) const {
  size_t begin = 0, searched = 0;
  while (!mark.empty() && begin < text.size()) {
    const size_t found = text.find(mark, searched);
    if (found == std::string_view::npos) break;
    searched = found + mark.size();
    if (found == begin || (keep_runs && text.substr(0, found).ends_with(mark))) continue;
    encode_word(text.substr(begin, found - begin), scratch, call);
    if (call.out.size() >= call.enough) return;
    begin = found;
  }
  if (begin < text.size()) encode_word(text.substr(begin), scratch, call);
}

void Tokenizer::Impl::encode_word(std::string_view word, Scratch& scratch, const Call& call) const {
  WordCache::Place place;
  if (scratch.cache.find(word, call.out, place)) return;
  const int64_t unknown_before = call.unknown.places;
  const size_t before = call.out.size();
  parts.model->encode(word, call.enough, scratch.model, call.unknown, call.out);
  // Ids of unknown text depend on the policy, and there may be more of them once there are enough.
  if (call.unknown.places == unknown_before && call.out.size() < call.enough)
    scratch.cache.store(place, std::span(call.out).subspan(before));
}

Tokenizer::Tokenizer(TokenizerParts parts, const std::string& where) {
  auto impl = std::make_unique<Impl>(std::move(parts), where);
  fingerprint_ = impl->index_tokens();
  impl_ = std::move(impl);
}

Tokenizer::~Tokenizer() = default;
int64_t Tokenizer::vocab_size() const { return std::ssize(impl_->parts.token_bytes); }
int32_t Tokenizer::bos_id() const { return impl_->parts.bos_id; }
int32_t Tokenizer::eos_id() const { return impl_->parts.eos_id; }
bool Tokenizer::adds_bos() const { return impl_->parts.adds_bos && bos_id() >= 0; }
bool Tokenizer::byte_level() const { return impl_->parts.byte_level; }
const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->parts.added; }
const SequenceTemplate& Tokenizer::sequence_template() const { return impl_->parts.sequence; }
const std::string& Tokenizer::kind() const { return impl_->parts.kind; }

void Tokenizer::save(const std::string& dir) const {
  make_folders(dir);
  for (const auto& [name, contents] : impl_->parts.files()) write_file(dir + "/" + name, contents);
}

void Tokenizer::encode_to(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& out) const {
  const size_t enough = options.enough > 0 ? out.size() + static_cast<size_t>(options.enough) : SIZE_MAX;
  if (options.add_bos) {
    check(bos_id() >= 0, ErrorCode::kInvalidArgument, "this {} vocabulary of {} tokens has no begin (bos) token",
          kind(), vocab_size());
    out.push_back(bos_id());
  }
  UnknownText uncounted;
  const Impl::Call call{options, enough, options.unknown != nullptr ? *options.unknown : uncounted, out};
  const Impl::OnPiece encode_plain = [&](std::string_view piece, const TextPlace& place) {
    impl_->encode_piece(piece, place, call);
  };
  const TextRange everywhere{0, SIZE_MAX};
  const std::span<const TextRange> ranges =
      options.added_in != nullptr ? std::span<const TextRange>(*options.added_in) : std::span(&everywhere, 1);
  const Impl::OnPiece encode_raw = [&](std::string_view piece, const TextPlace& place) {
    const std::string normalized = impl_->parts.normalizer.apply(piece, place);
    const auto offset = static_cast<size_t>(piece.data() - text.data());
    std::vector<TextRange> inside;
    for (const TextRange& range : ranges) {
      const size_t begin = std::max(range.begin, offset), end = std::min(range.end, offset + piece.size());
      if (begin < end) inside.push_back({begin - offset, end - offset});
    }
    if (impl_->any_normalized) inside = impl_->normalized_ranges(piece, inside, place, normalized);
    impl_->split_added(normalized, inside, place, impl_->normalized, encode_plain, call);
  };
  impl_->split_added(text, ranges, {.continues = !options.text_start}, impl_->raw,
                     impl_->parts.normalizer.empty() ? encode_plain : encode_raw, call);
  if (options.add_eos && out.size() < enough) {
    check(eos_id() >= 0, ErrorCode::kInvalidArgument, "this {} vocabulary of {} tokens has no end (eos) token", kind(),
          vocab_size());
    out.push_back(eos_id());
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(std::min(text.size() / 3, options.enough > 0 ? static_cast<size_t>(options.enough) : SIZE_MAX) + 8);
  encode_to(text, options, ids);
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  check(id >= 0 && id < vocab_size(), ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {} tokens",
        id, vocab_size());
  return impl_->parts.token_bytes[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)] != 0;
}

std::string_view Tokenizer::shown_bytes(int32_t id, bool skip_special, bool& at_start) const {
  std::string_view bytes = token_bytes(id);
  if (is_special(id)) return skip_special ? std::string_view() : bytes;
  const FirstSpace first_space = impl_->parts.first_space;
  if (!at_start || first_space == FirstSpace::kKept) return bytes;
  if (id == impl_->parts.unk_id) return at_start = false, bytes;
  if (first_space == FirstSpace::kWholeToken) {
    bytes.remove_prefix(std::min(bytes.find_first_not_of(' '), bytes.size()));
  } else if (bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
  }
  at_start = first_space == FirstSpace::kAll && bytes.empty();
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  bool at_start = true;
  for (int32_t id : ids) out.append(shown_bytes(id, skip_special, at_start));
  return out;
}

std::string StreamDecoder::push(int32_t id) {
  pending_.append(tokenizer_->shown_bytes(id, skip_special_, at_start_));
  const size_t held = utf8_incomplete_suffix(pending_);
  int64_t replaced = 0;
  std::string ready = utf8_replace_invalid(std::string_view(pending_).substr(0, pending_.size() - held), &replaced);
  pending_.erase(0, pending_.size() - held);
  return ready;
}

std::string StreamDecoder::finish() {
  int64_t replaced = 0;
  std::string ready = utf8_replace_invalid(pending_, &replaced);
  pending_.clear();
  return ready;
}

}  // namespace octet
