#include "chat/guide.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "chat/call_expression.h"
#include "chat/grammar.h"
#include "chat/guide_masks.h"
#include "chat/json_schema.h"
#include "chat/regex.h"

namespace octet {

using namespace guides;  // NOLINT: the one file between both

// One automaton and its masks, under one lock: texts of one guide take turns, each for a lookup as a rule.
class Guide {
 public:
  explicit Guide(const GuideLimits& limits) : limits_(limits), expressions_(limits) {}
  ~Guide() {
    if (limits_.memory) limits_.memory->used -= counted_;
  }
  Guide(const Guide&) = delete;

  Masks& masks(const std::shared_ptr<const TokenTrie>& trie) {
    for (const auto& masks : masks_)
      if (masks->trie() == trie.get()) return *masks;
    return *masks_.emplace_back(std::make_unique<Masks>(expressions_, trie));
  }

  // Counts what has grown; masks of before may be gone.
  void count_memory() {
    if (!limits_.memory) return;
    const auto count = [&] {
      int64_t bytes = expressions_.states() * kStateBytes;
      for (const auto& masks : masks_) bytes += masks->bytes();
      const int64_t more = bytes - std::exchange(counted_, bytes);
      if (more != 0) limits_.memory->used += more;
      return more;
    };
    if (count() <= 0 || limits_.memory->used <= limits_.memory->most) return;
    for (const auto& masks : masks_) masks->forget();
    count();
    check(limits_.memory->used <= limits_.memory->most, ErrorCode::kOutOfMemory,
          "all guides together take more than {} MB: try again later", limits_.memory->most >> 20);
  }

  mutable std::mutex lock_;
  const GuideLimits limits_;
  Expressions expressions_;
  std::unique_ptr<JsonSchema> schema_;
  Expr root_ = kNothing;

 private:
  static constexpr int64_t kStateBytes = 300;
  std::vector<std::unique_ptr<Masks>> masks_;  // a vocabulary each
  int64_t counted_ = 0;                        // bytes, in limits_.memory
};

namespace {

template <typename Make>
std::shared_ptr<const Guide> make_guide(const GuideLimits& limits, Make make) {
  auto guide = std::make_shared<Guide>(limits);
  guide->root_ = make(*guide);
  guide->expressions_.begin_work();
  check(guide->expressions_.alive(guide->root_), ErrorCode::kInvalidArgument, "guide: no output can satisfy it");
  guide->count_memory();
  return guide;
}

}  // namespace

std::shared_ptr<const Guide> json_schema_guide(std::string_view schema, const GuideLimits& limits) {
  return make_guide(limits, [&](Guide& guide) {
    guide.schema_ = std::make_unique<JsonSchema>(guide.expressions_, schema, limits);
    return guide.schema_->root();
  });
}

std::shared_ptr<const Guide> json_object_guide(const GuideLimits& limits) {
  return make_guide(limits, [&](Guide& guide) {
    guide.schema_ = std::make_unique<JsonSchema>(guide.expressions_, "true", limits);
    return guide.schema_->any_object();
  });
}

std::shared_ptr<const Guide> regex_guide(std::string_view regex, const GuideLimits& limits) {
  return make_guide(limits, [&](Guide& guide) {
    Expressions& x = guide.expressions_;
    return x.group(Unit::kText, regex_expression(x, regex, RegexUse::kText, limits));
  });
}

std::shared_ptr<const Guide> grammar_guide(std::string_view gbnf, const GuideLimits& limits) {
  return make_guide(limits, [&](Guide& guide) { return grammar_expression(guide.expressions_, gbnf, limits); });
}

std::shared_ptr<const Guide> choice_guide(std::span<const std::string> choices, const GuideLimits& limits) {
  int64_t bytes = 0;
  for (const std::string& choice : choices) bytes += int64_t(choice.size());
  check(bytes <= limits.source_bytes, ErrorCode::kInvalidArgument, "choices: {} bytes exceed the limit of {}", bytes,
        limits.source_bytes);
  return make_guide(limits, [&](Guide& guide) {
    return guide.expressions_.words(std::vector<std::string>(choices.begin(), choices.end()));
  });
}

std::shared_ptr<const Guide> call_guide(const CallRules& rules, const nlohmann::ordered_json& tools,
                                        const GuideLimits& limits) {
  return make_guide(
      limits, [&](Guide& guide) { return call_expression(guide.expressions_, guide.schema_, rules, tools, limits); });
}

double guide_fill(const Guide& guide) {
  const std::lock_guard lock(guide.lock_);
  return double(guide.expressions_.states()) / double(guide.limits_.states);
}

struct GuideState::Impl {
  std::shared_ptr<Guide> guide;
  std::shared_ptr<const TokenTrie> trie;
  std::vector<Expr> path;  // the state before each token, and the last one

  bool accept(std::string_view bytes) {
    const std::lock_guard lock(guide->lock_);
    guide->expressions_.begin_work();
    Expr state = path.back();
    for (const char c : bytes) {
      state = guide->expressions_.step(state, uint8_t(c));
      if (state == kNothing) return false;
    }
    guide->count_memory();
    path.push_back(state);
    return true;
  }
};

GuideState::GuideState(std::shared_ptr<const Guide> guide, std::shared_ptr<const TokenTrie> trie, bool thought)
    : impl_(std::make_unique<Impl>()) {
  impl_->guide = std::const_pointer_cast<Guide>(std::move(guide));  // what grows in it is behind its lock
  impl_->trie = std::move(trie);
  impl_->path.push_back(impl_->guide->root_);
  if (!thought) return;
  const std::lock_guard lock(impl_->guide->lock_);
  Expressions& x = impl_->guide->expressions_;
  x.begin_work();
  impl_->path.back() = x.concat({thought_expression(x), x.repeat(x.byte('\n'), 0, 2), impl_->guide->root_});
}
GuideState::~GuideState() = default;
GuideState::GuideState(GuideState&&) noexcept = default;
GuideState& GuideState::operator=(GuideState&&) noexcept = default;

void GuideState::mask(std::span<uint32_t> allowed) {
  const std::lock_guard lock(impl_->guide->lock_);
  impl_->guide->expressions_.begin_work();
  const std::vector<uint32_t>& bits = impl_->guide->masks(impl_->trie).mask(impl_->path.back());
  for (size_t i = 0; i < allowed.size(); i++) allowed[i] &= i < bits.size() ? bits[i] : 0;
  impl_->guide->count_memory();
}

bool GuideState::accept(int32_t token) {
  if (token < 0 || token >= impl_->trie->vocab_size()) return false;
  const std::string_view bytes = impl_->trie->bytes(token);
  return !bytes.empty() && impl_->accept(bytes);
}

bool GuideState::accept_text(std::string_view bytes) { return impl_->accept(bytes); }

void GuideState::rollback(int64_t tokens) {
  check(tokens >= 0 && tokens < int64_t(impl_->path.size()), ErrorCode::kInvalidArgument,
        "guide: rollback of {} tokens of {}", tokens, impl_->path.size() - 1);
  impl_->path.resize(impl_->path.size() - size_t(tokens));
}

bool GuideState::may_end() const {
  const std::lock_guard lock(impl_->guide->lock_);
  return impl_->guide->expressions_.nullable(impl_->path.back());
}

bool GuideState::must_end() const {
  const std::lock_guard lock(impl_->guide->lock_);
  Expressions& x = impl_->guide->expressions_;
  const Expr state = impl_->path.back();
  if (!x.nullable(state)) return false;
  x.begin_work();
  const ByteSet first = x.first(state);
  for (int b = 0; b < 256; b++)
    if (first[size_t(b)] && x.step(state, uint8_t(b)) != kNothing) return false;
  return true;
}

}  // namespace octet
