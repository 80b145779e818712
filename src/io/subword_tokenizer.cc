// See subword_tokenizer.h.
#include "io/subword_tokenizer.h"

#include "base/error.h"
#include "io/scratch_pool.h"
#include "io/tokenizer_files.h"
#include "io/word_cache.h"

namespace octet {
namespace {

class SubwordTokenizer : public Tokenizer {
 public:
  SubwordTokenizer(SubwordParts parts, const std::string& where)
      : parts_(std::move(parts)), splitter_(parts_.splits, where) {
    token_bytes_ = std::move(parts_.token_bytes);
    added_ = parts_.added;
    bos_id_ = parts_.bos_id;
    eos_id_ = parts_.eos_id;
    unk_id_ = parts_.unk_id;
    adds_bos_ = parts_.adds_bos && bos_id_ >= 0;
    normalizes_ = !parts_.normalizer.empty();
    first_space_ = parts_.first_space;
    finish(parts_.facts);
  }

  std::string kind() const override { return parts_.kind; }

  void save(const std::string& dir) const override {
    make_folder(dir);
    for (const auto& [name, contents] : parts_.files) write_file(dir + "/" + name, contents);
  }

 protected:
  std::string normalize(std::string_view piece, const TextPlace& place) const override {
    return parts_.normalizer.apply(piece, place);
  }

  void encode_piece(std::string_view piece, const TextPlace& place, size_t enough, UnknownText& unknown,
                    std::vector<int32_t>& out) const override {
    auto scratch = scratches_.take();
    TextPlace at = place;
    splitter_.each_piece(piece, scratch->split, [&](std::string_view part) {
      if (parts_.metaspace) {
        encode_marked(part, at, enough, *scratch, unknown, out);
        at.first = at.continues = false;
      } else {
        encode_cut(part, parts_.cut_before, true, enough, *scratch, unknown, out);
      }
      return out.size() < enough;
    });
    scratches_.give_back(std::move(scratch));
  }

 private:
  struct Scratch {
    SplitScratch split;
    SubwordScratch model;
    WordCache cache;
    std::string marked;
    std::vector<int32_t> ids;
  };

  void encode_word(std::string_view word, Scratch& scratch, UnknownText& unknown, std::vector<int32_t>& out) const {
    const int64_t unknown_before = unknown.places;
    WordCache::Place place;
    if (scratch.cache.find(word, out, place)) return;
    scratch.ids.clear();
    parts_.model->encode(word, scratch.model, unknown, scratch.ids);
    out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
    if (unknown.places == unknown_before) scratch.cache.store(place, scratch.ids);  // else it depends on the policy
  }

  // Splits before each mark; with `keep_runs` only before the first mark of a run.
  void encode_cut(std::string_view text, std::string_view mark, bool keep_runs, size_t enough, Scratch& scratch,
                  UnknownText& unknown, std::vector<int32_t>& out) const {
    size_t begin = 0, searched = 0;
    while (!mark.empty() && begin < text.size()) {
      const size_t found = text.find(mark, searched);
      if (found == std::string_view::npos) break;
      searched = found + mark.size();
      if (found == begin || (keep_runs && text.substr(0, found).ends_with(mark))) continue;
      encode_word(text.substr(begin, found - begin), scratch, unknown, out);
      if (out.size() >= enough) return;
      begin = found;
    }
    if (begin < text.size()) encode_word(text.substr(begin), scratch, unknown, out);
  }

  void encode_marked(std::string_view text, const TextPlace& place, size_t enough, Scratch& scratch,
                     UnknownText& unknown, std::vector<int32_t>& out) const {
    const Metaspace& rule = *parts_.metaspace;
    std::string& marked = scratch.marked;
    marked.clear();
    const bool wants = !place.continues && (rule.prepend == Metaspace::Prepend::kAlways ||
                                            (rule.prepend == Metaspace::Prepend::kFirst && place.first));
    if (wants && !text.empty() && text[0] != ' ' && !text.starts_with(rule.mark)) marked = rule.mark;
    for (size_t at = 0; at < text.size();) {
      const size_t space = std::min(text.find(' ', at), text.size());
      marked.append(text.substr(at, space - at));
      if (space < text.size()) marked.append(rule.mark);
      at = space + 1;
    }
    if (rule.split) {
      encode_cut(marked, rule.mark, false, enough, scratch, unknown, out);
    } else {
      encode_cut(marked, parts_.cut_before, true, enough, scratch, unknown, out);
    }
  }

  SubwordParts parts_;
  Splitter splitter_;
  mutable ScratchPool<Scratch> scratches_;  // caches and match buffers
};

}  // namespace

std::unique_ptr<Tokenizer> make_subword_tokenizer(SubwordParts parts, const std::string& where) {
  check(parts.model != nullptr, ErrorCode::kInternal, "{}: a {} vocabulary without a model", where, parts.kind);
  return std::make_unique<SubwordTokenizer>(std::move(parts), where);
}

bool holds_mark_inside(std::string_view piece, std::string_view mark) {
  while (piece.starts_with(mark)) piece.remove_prefix(mark.size());
  return piece.find(mark) != std::string_view::npos;
}

int parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'A' && c <= 'F';
    if (!digit && !letter) return -1;
    value = value * 16 + (digit ? c - '0' : c - 'A' + 10);
  }
  return value;
}

}  // namespace octet
