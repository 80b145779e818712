// Attributes of a node: a small ordered map. Which ones an op takes, of what type and range, is in its signature.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace octet {

using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>;

[[noreturn]] void throw_bad_attr(std::string_view key, bool present);

// Node::attr reads an attribute with its default. get throws kInternal naming the key when it is missing or of another
// type; get_or is for a fallback that is computed.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Attr>> list);
  void set(std::string_view key, Attr value);
  void erase(std::string_view key);
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const Attr* find(std::string_view key) const;
  template <typename T>
  const T& get(std::string_view key) const;
  template <typename T>
  T get_or(std::string_view key, T fallback) const;
  const std::vector<std::pair<std::string, Attr>>& entries() const { return entries_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, Attr>> entries_;  // sorted by key
};

template <typename T>
const T& Attrs::get(std::string_view key) const {
  const Attr* attr = find(key);
  if (attr == nullptr || !std::holds_alternative<T>(*attr)) {
    throw_bad_attr(key, attr != nullptr);
  }
  return std::get<T>(*attr);
}
template <typename T>
T Attrs::get_or(std::string_view key, T fallback) const {
  const Attr* attr = find(key);
  return attr != nullptr && std::holds_alternative<T>(*attr) ? std::get<T>(*attr) : std::move(fallback);
}

}  // namespace octet
