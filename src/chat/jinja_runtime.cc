#include "chat/jinja_runtime.h"

#include <algorithm>

#include "chat/jinja_operations.h"

namespace octet::jinja {

void* Arena::take(size_t bytes) {
  bytes = (bytes + 7) / 8 * 8;
  if (bytes > limit_ - used_) full();
  used_ += bytes;
  if (bytes > left_) {
    constexpr size_t kBlock = 1 << 16;
    const size_t block = std::max(bytes, kBlock);
    blocks_.emplace_back(new char[block]);
    if (block - bytes < left_) return blocks_.back().get();  // the open block has more room
    next_ = blocks_.back().get();
    left_ = block;
  }
  void* const at = next_;
  next_ += bytes, left_ -= bytes;
  return at;
}

std::string_view Arena::copy(std::string_view from) {
  if (from.empty()) return {};
  char* const to = static_cast<char*>(take(from.size()));
  std::memcpy(to, from.data(), from.size());
  return {to, from.size()};
}

void Arena::full() const {
  octet::fail(ErrorCode::kInvalidArgument, "a template that needs more than {} bytes", limit_);
}

void Runtime::full() const { fail("the template takes more than {} bytes of memory", limits_.memory_bytes); }

void Runtime::refuse(const std::string& what) const {
  throw_error(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", where_, line_, what));
}

void Runtime::too_deep() {
  --depth_;
  fail("calls, expressions or values nested deeper than {}", limits_.depth);
}

Value TextBuilder::finish() const { return make_text(runtime_, bytes_, runs_); }

Value make_text(Arena& arena, std::string_view bytes, std::span<const Run> runs) {
  const std::string_view kept = arena.copy(bytes);
  if (runs.size() <= 1) return Value::of(kept, runs.empty() ? Origin::kTemplate : runs[0].origin);
  const std::span<Run> kept_runs = arena.array<Run>(runs.size());
  std::copy(runs.begin(), runs.end(), kept_runs.begin());
  Value out = Value::of(kept, Origin::kMixed);
  out.mixed = arena.make<MixedText>({kept.data(), kept_runs});
  return out;
}

Value join_texts(Runtime& runtime, std::span<const Value> strings) {
  size_t bytes = 0, runs = 0;
  for (const Value& string : strings) {
    bytes += string.size;
    runs += string.origin == Origin::kMixed ? string.mixed->runs.size() : 1;
    runtime.check_length(bytes);
  }
  char* const data = static_cast<char*>(runtime.take(bytes));
  const std::span<Run> all = runtime.array<Run>(runs);
  size_t at = 0, count = 0;
  for (const Value& string : strings) {
    each_run(string, [&](std::string_view part, Origin origin) {
      if (part.empty()) return;
      std::memcpy(data + at, part.data(), part.size());
      at += part.size();
      if (count == 0 || all[count - 1].origin != origin) all[count++].origin = origin;
      all[count - 1].end = static_cast<uint32_t>(at);
    });
  }
  if (count <= 1) return Value::of(std::string_view(data, bytes), count == 0 ? Origin::kTemplate : all[0].origin);
  Value out = Value::of(std::string_view(data, bytes), Origin::kMixed);
  out.mixed = runtime.make<MixedText>({data, all.first(count)});
  return out;
}

Value cut_text(Runtime& runtime, const Value& string, size_t begin, size_t end) {
  if (begin >= end) return Value::of(std::string_view());
  if (begin == 0 && end == string.size) return string;
  const std::string_view part = string.text().substr(begin, end - begin);
  if (string.origin != Origin::kMixed) return Value::of(part, string.origin);
  const std::span<const Run> runs = string.mixed->runs;
  const auto behind = [](size_t at, const Run& run) { return at < run.end; };
  const auto first = std::upper_bound(runs.begin(), runs.end(), begin, behind);
  const auto last = std::upper_bound(first, runs.end(), end - 1, behind);
  if (first == last) return Value::of(part, first->origin);
  const std::span<Run> kept = runtime.array<Run>(static_cast<size_t>(last - first) + 1);
  std::copy(first, last + 1, kept.begin());
  for (Run& run : kept) run.end = static_cast<uint32_t>(std::min<size_t>(run.end, end) - begin);
  Value out = Value::of(part, Origin::kMixed);
  out.mixed = runtime.make<MixedText>({part.data(), kept});
  return out;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t byte_of_character(std::string_view text, int64_t character) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<uint8_t>(text[at]) & 0xC0) != 0x80 && character-- == 0) break;
  }
  return at;
}

Value make_list(Arena& arena, std::span<const Value> items, List::Type type, Origin origin) {
  return Value::of(arena.make<List>({items, type, origin}));
}

Value make_tuple(Arena& arena, std::initializer_list<Value> items) {
  const std::span<Value> kept = arena.array<Value>(items.size());
  std::copy(items.begin(), items.end(), kept.begin());
  return make_list(arena, kept, List::Type::kTuple);
}

namespace {

constexpr size_t kFewEntries = 12;  // searched one by one

// The place in the index of `key`, or of the free slot it would take.
size_t find_slot(Runtime& runtime, const Dict& dict, const Value& key) {
  const size_t mask = dict.index.size() - 1;
  for (size_t slot = hash_value(runtime, key) & mask;; slot = (slot + 1) & mask) {
    const uint32_t place = dict.index[slot];
    if (place == 0 || equal(runtime, dict.entries[place - 1].key, key)) return slot;
    runtime.charge();
  }
}

std::span<uint32_t> make_index(Runtime& runtime, size_t entries) {
  if (entries <= kFewEntries) return {};
  size_t slots = 1;
  while (slots < 2 * entries) slots *= 2;
  return runtime.array<uint32_t>(slots);
}

}  // namespace

Value adopt_dict(Runtime& runtime, std::span<Entry> entries, Origin origin) {
  Dict dict{.entries = entries, .index = make_index(runtime, entries.size()), .origin = origin};
  for (size_t i = 0; i < entries.size() && !dict.index.empty(); ++i)
    dict.index[find_slot(runtime, dict, entries[i].key)] = static_cast<uint32_t>(i + 1);
  return Value::of(runtime.make(dict));
}

Value make_dict(Runtime& runtime, std::span<const Entry> entries, Origin origin) {
  const std::span<Entry> kept = runtime.array<Entry>(entries.size());
  Dict dict{.index = make_index(runtime, entries.size()), .origin = origin};
  for (const Entry& entry : entries) {
    hash_value(runtime, entry.key);  // refuses keys that have none
    if (const Value* known = find_key(runtime, dict, entry.key)) {
      const_cast<Value&>(*known) = entry.value;
      continue;
    }
    const size_t count = dict.entries.size();
    if (!dict.index.empty()) dict.index[find_slot(runtime, dict, entry.key)] = static_cast<uint32_t>(count + 1);
    kept[count] = entry;
    dict.entries = kept.first(count + 1);
  }
  return Value::of(runtime.make(dict));
}

const Value* find_key(Runtime& runtime, const Dict& dict, const Value& key) {
  if (!dict.index.empty()) {
    const uint32_t place = dict.index[find_slot(runtime, dict, key)];
    return place == 0 ? nullptr : &dict.entries[place - 1].value;
  }
  if (key.is_string()) {
    const std::string_view text = key.text();
    for (const Entry& entry : dict.entries) {
      if (entry.key.is_string() && entry.key.text() == text) return &entry.value;
    }
    return nullptr;
  }
  for (const Entry& entry : dict.entries) {
    if (equal(runtime, entry.key, key)) return &entry.value;
  }
  return nullptr;
}

void set_attribute(Runtime& runtime, Dict& space, std::string_view name, const Value& value) {
  for (Entry& entry : space.entries) {
    if (entry.key.text() == name) return void(entry.value = value);
  }
  const std::span<Entry> more = runtime.array<Entry>(space.entries.size() + 1);
  std::copy(space.entries.begin(), space.entries.end(), more.begin());
  more.back() = {Value::of(name), value};
  space.entries = more;
}

}  // namespace octet::jinja
