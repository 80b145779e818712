// Guides: which tokens may come next in a text that a JSON schema, a regular expression or a grammar describes.
//
// A guide is a definition shared by texts; its byte-level automaton is made lazily as texts walk it, nothing is
// compiled ahead. A mask is made by walking a trie of the vocabulary's bytes. Every keyword is enforced or refused by
// its name; words that JSON Schema does not define are annotations, as it says. A guide never takes a text that does
// not satisfy it; a text whose members repeat a name that the schema does not mention is judged member by member.
//
// JSON texts have at most one blank behind ',' and ':' and none elsewhere. Regular expressions are ECMA-262's without
// memory (no back references, \b, look-behinds, \p), of a whole text; in a schema, of any place in a string. Grammars
// are llama.cpp's GBNF without left recursion and tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

class Tokenizer;

// The vocabulary as a trie over the bytes of tokens. Shared by all guides; read only. No guide takes a special token
// but that of calls (chat/call_guide.h), where its text is a tag that the guide wants; none takes the byte 0xFF.
class TokenTrie;
std::shared_ptr<const TokenTrie> make_token_trie(const Tokenizer& tokenizer);

// What guides take together, an estimate. Where one grows beyond it, the guide drops what can be made again; what is
// still too much is an error (kOutOfMemory) of the text that wanted it. From any thread.
struct GuideMemory {
  explicit GuideMemory(int64_t bytes) : most(bytes) {}
  const int64_t most;
  std::atomic<int64_t> used = 0;
};

// What making and walking a guide may use; more is an error that names the limit.
struct GuideLimits {
  int64_t source_bytes = 1'000'000;
  int64_t depth = 100;                            // of nesting in the source
  int64_t states = 200'000;                       // of the automaton of all texts of this guide; about 0.3 KB each
  int64_t steps = 5'000'000;                      // of one mask or one token
  std::shared_ptr<GuideMemory> memory = nullptr;  // of this guide and others; none: not counted
};

class Guide;
// Each throws kInvalidArgument: what is malformed, or the keyword that is not enforced, with its place in the source.
std::shared_ptr<const Guide> json_schema_guide(std::string_view schema, const GuideLimits& limits = {});
std::shared_ptr<const Guide> regex_guide(std::string_view regex, const GuideLimits& limits = {});
std::shared_ptr<const Guide> grammar_guide(std::string_view gbnf, const GuideLimits& limits = {});
std::shared_ptr<const Guide> choice_guide(std::span<const std::string> choices, const GuideLimits& limits = {});
std::shared_ptr<const Guide> json_object_guide(const GuideLimits& limits = {});

// The part of its limit of states that a guide's automaton has, 0 to 1.
double guide_fill(const Guide& guide);

// One text under a guide. One thread at a time; texts of one guide may run in different threads.
class GuideState {
 public:
  // `trie` may be null where only accept_text() is called. `thought`: free text through </think> comes first.
  GuideState(std::shared_ptr<const Guide> guide, std::shared_ptr<const TokenTrie> trie, bool thought = false);
  ~GuideState();
  GuideState(GuideState&&) noexcept;
  GuideState& operator=(GuideState&&) noexcept;

  // Clears the bits (v mod 32 of word v / 32) of tokens that cannot come next; end tokens are the caller's, see
  // may_end(). Throws kInvalidArgument when a limit is reached.
  void mask(std::span<uint32_t> allowed);
  // Takes a token; false, with nothing changed, when it does not fit.
  bool accept(int32_t token);
  bool accept_text(std::string_view bytes);  // the same for bytes; one token to rollback()
  void rollback(int64_t tokens);             // takes the last tokens back; throws when there are fewer
  bool may_end() const;                      // the text so far is whole
  bool must_end() const;                     // and nothing can follow

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet
