// What one rendering may use and has used, and what all operations on values share: errors with the template's line,
// limits, and building texts that keep their origin.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja_value.h"

namespace octet::jinja {

// The arena's memory is bounded by RenderLimits::memory_bytes.
class Runtime : public Arena {
 public:
  Runtime(const std::string& where, const RenderLimits& limits, double now)
      : Arena(limits.memory_bytes), now_(now), limits_(limits), where_(where) {}

  // Throws kInvalidArgument with the line that is being rendered.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    refuse(fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) [[unlikely]]
      refuse(fmt::format(format, std::forward<Args>(args)...));
  }

  void charge(int64_t steps = 1) {
    steps_ += steps;
    if (steps_ > limits_.steps) [[unlikely]]
      fail("the template takes more than {} steps", limits_.steps);
  }
  void charge_bytes(size_t bytes) { charge(1 + static_cast<int64_t>(bytes / 256)); }  // of a scan
  void check_length(size_t bytes) const {
    check(bytes <= static_cast<size_t>(limits_.output_bytes), "a text of more than {} bytes", limits_.output_bytes);
  }
  // While it exists, one level deeper: of statements, expressions, calls or values inside values.
  class Nested {
   public:
    explicit Nested(Runtime& runtime) : runtime_(runtime) {
      if (++runtime.depth_ > runtime.limits_.depth) [[unlikely]]
        runtime.too_deep();
    }
    ~Nested() { --runtime_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Runtime& runtime_;
  };

  // Calls a macro, method or global function.
  virtual Value call(const Value& callee, const Call& call) = 0;
  // The same for a filter, test or method: puts the arguments into the order of its parameters.
  virtual Value invoke(const Builtin& builtin, const Call& call) = 0;
  double now() const { return now_; }

 protected:
  uint32_t line_ = 1;
  void full() const final;

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void too_deep();

  double now_;
  const RenderLimits& limits_;
  const std::string& where_;
  int64_t steps_ = 0, depth_ = 0;
};

// Calls body(bytes, origin) for the runs of a string.
template <typename Body>
void each_run(const Value& string, Body body) {
  if (string.origin != Origin::kMixed) return body(string.text(), string.origin);
  uint32_t begin = 0;
  for (const Run& run : string.mixed->runs) {
    body(std::string_view(string.mixed->data + begin, run.end - begin), run.origin);
    begin = run.end;
  }
}

// A text under construction, bounded by RenderLimits::output_bytes.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& runtime) : runtime_(runtime) {}
  void append(std::string_view bytes, Origin origin) {
    if (bytes.empty()) return;
    bytes_.append(bytes);
    runtime_.check_length(bytes_.size());
    const auto end = static_cast<uint32_t>(bytes_.size());
    if (!runs_.empty() && runs_.back().origin == origin) {
      runs_.back().end = end;
    } else {
      runs_.push_back({end, origin});
    }
  }
  void append(const Value& string) {
    each_run(string, [&](std::string_view bytes, Origin origin) { append(bytes, origin); });
  }
  void repeat(std::string_view bytes, size_t count, Origin origin) {
    runtime_.check_length(bytes.empty() ? 0 : count);
    for (size_t i = 0; i < count; ++i) append(bytes, origin);
  }
  const std::string& text() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  std::string take_text() { return std::move(bytes_); }
  Value finish() const;  // as a value in the runtime's arena
  Runtime& runtime() { return runtime_; }

 private:
  Runtime& runtime_;
  std::string bytes_;
  std::vector<Run> runs_;
};

// A string of `bytes`, copied, with `runs` that cover them.
Value make_text(Arena& arena, std::string_view bytes, std::span<const Run> runs);
inline Value make_text(Arena& arena, std::string_view bytes, Origin origin) {
  return Value::of(arena.copy(bytes), origin);
}
Value join_texts(Runtime& runtime, std::span<const Value> strings);
// Bytes [begin, end) of a string, sharing them.
Value cut_text(Runtime& runtime, const Value& string, size_t begin, size_t end);
// kTemplate if the template wrote all of it, else kInput: for results whose bytes have no single source.
inline Origin whole_origin(const Value& value) { return both(value.origin, Origin::kTemplate); }

// Places of characters: strings are counted in code points.
int64_t count_characters(std::string_view text);
size_t byte_of_character(std::string_view text, int64_t character);  // the text's size at its end
inline bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

Value make_list(Arena& arena, std::span<const Value> items, List::Type type = List::Type::kList,
                Origin origin = Origin::kTemplate);
inline Value make_list(Arena& arena, const std::vector<Value>& items, List::Type type = List::Type::kList) {
  return make_list(arena, std::span<const Value>(arena.copy(items)), type);
}
Value make_tuple(Arena& arena, std::initializer_list<Value> items);
// Of entries whose keys may repeat: the first key and the last value stay.
Value make_dict(Runtime& runtime, std::span<const Entry> entries, Origin origin = Origin::kTemplate);
// The same for keys that do not repeat; takes the entries over.
Value adopt_dict(Runtime& runtime, std::span<Entry> entries, Origin origin);
const Value* find_key(Runtime& runtime, const Dict& dict, const Value& key);
void set_attribute(Runtime& runtime, Dict& space, std::string_view name, const Value& value);

}  // namespace octet::jinja
